"""The data sets that have names, and where they lie: in the folder that `--data` or LONGSPAN_DATA says."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from longspan.errors import InvalidInput, UnknownName, suggest


@dataclass(frozen=True)
class Set:
    """One data set: what it is, and its files by split."""

    kind: str  # the task that reads it
    what: str
    files: Mapping[str, str]


def _pairs(pattern: str, splits: Mapping[str, str], languages: tuple[str, ...]) -> dict[str, str]:
    """The files of line by line translations; their splits are called "train.en" and the like."""
    return {
        f"{split}.{language}": pattern.format(name, language)
        for split, name in splits.items()
        for language in languages
    }


SETS: dict[str, Set] = {
    "tinyshakespeare": Set("language", "1.1M characters of Shakespeare", {"train": "tinyshakespeare/input.txt"}),
    "wikitext2": Set(
        "language",
        "WikiText-2: 2.1M words of Wikipedia",
        {
            "train": "wikitext2/wiki.train.tokens.gz",
            "held_out": "wikitext2/wiki.valid.tokens.gz",
            "test": "wikitext2/wiki.test.tokens.gz",
        },
    ),
    "text8": Set("language", "6.8M letters of Wikipedia", {"train": "text8/text8_first6.8M.gz"}),
    "warandpeace": Set("language", "War and Peace", {"train": "longtext/warandpeace.txt.gz"}),
    "multi30k": Set(
        "translate",
        "Multi30k: 29k captions of pictures in English, German and French",
        _pairs(
            "multi30k/{}.{}.gz",
            {
                "train": "train",
                "held_out": "val",
                "test_2016": "test_2016_flickr",
                "test_2017": "test_2017_flickr",
                "test_mscoco": "test_2017_mscoco",
            },
            ("en", "de", "fr"),
        ),
    ),
    "tanaka_enja": Set(
        "translate",
        "50k short sentences in English and Japanese, tokenised",
        _pairs("tanaka_enja/{}.{}.gz", {"train": "train", "held_out": "dev", "test": "test"}, ("en", "ja")),
    ),
}


def find(name: str) -> Set:
    """A set by its name."""
    if name not in SETS:
        raise UnknownName(f"no data set is called {name!r}: {suggest(name, SETS)}")
    return SETS[name]


def files(name: str, root: Path | None) -> dict[str, Path]:
    """The files of a set by split."""
    found = find(name)
    if root is None:
        raise InvalidInput(f"{name} is read from a folder of data sets: name it by --data or LONGSPAN_DATA")
    paths = {split: root / file for split, file in found.files.items()}
    for path in paths.values():
        if not path.is_file():
            raise InvalidInput(f"{name} lacks {path}; is {root} the folder of data sets?")
    return paths


__all__ = ["SETS", "Set", "files", "find"]
