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
