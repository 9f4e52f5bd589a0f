"""The data sets that have names, and where they lie: in the folder that `--data` or LONGSPAN_DATA says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput, UnknownName, suggest


@dataclass(frozen=True)
class Set:
    """One data set: what it is, and its files by split."""

    kind: str  # the task that reads it
    what: str
    files: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)  # of its task, such as the names of its columns


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
    # GLUE (Wang et al. 2018) hides the labels of its tests: what is held out are the dev files.
    "sst2": Set(
        "classify",
        "SST-2: 67k phrases of film reviews, positive or negative",
        {"train": "glue/SST-2/train.tsv.gz", "held_out": "glue/SST-2/dev.tsv.gz"},
        {"text": "sentence", "label": "label", "names": ("0=negative", "1=positive")},
    ),
    "mrpc": Set(
        "classify",
        "MRPC: 4k pairs of sentences, paraphrases or not",
        {
            "train": "glue/MRPC/train.tsv.gz",
            "held_out": "glue/MRPC/dev.tsv.gz",
            "test": "glue/MRPC/msr_paraphrase_test.txt.gz",
        },
        {
            "text": "#1 String",
            "second": "#2 String",
            "label": "Quality",
            "names": ("0=different", "1=paraphrase"),
        },
    ),
    "rte": Set(
        "classify",
        "RTE: 2.5k pairs of sentences, of which the first entails the second or not",
        {"train": "glue/RTE/train.tsv.gz", "held_out": "glue/RTE/dev.tsv.gz"},
        {"text": "sentence1", "second": "sentence2", "label": "label"},
    ),
    "cola": Set(
        "classify",
        "CoLA: 8.5k sentences, good English or not",
        {"train": "glue/CoLA/train.tsv.gz", "held_out": "glue/CoLA/dev.tsv.gz"},
        {
            "columns": ("source", "label", "mark", "sentence"),
            "text": "sentence",
            "label": "label",
            "names": ("0=unacceptable", "1=acceptable"),
        },
    ),
    "stsb": Set(
        "classify",
        "STS-B: 5.7k pairs of sentences and how near they are, 0 to 5",
        {"train": "glue/STS-B/train.tsv.gz", "held_out": "glue/STS-B/dev.tsv.gz"},
        {"text": "sentence1", "second": "sentence2", "label": "score", "regression": True},
    ),
    "wnut17": Set(
        "tag",
        "WNUT-17: 3.4k sentences of user texts with six types of rare entities",
        {
            "train": "wnut17/wnut17train.conll.gz",
            "held_out": "wnut17/emerging.dev.conll.gz",
            "test": "wnut17/emerging.test.annotated.gz",
        },
    ),
    "squad-dev": Set(
        "answer",
        "the dev articles of SQuAD v1.1: 10.6k questions on 48 articles, of which the last are held out",
        {"train": "squad/dev-v1.1.json.gz"},
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
