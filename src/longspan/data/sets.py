"""The data sets that have names, and where they lie: in the folder that `--data` or LONGSPAN_DATA says.

Where none is said, what was downloaded lies in the user's cache, as does what is generated.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data import generated
from longspan.data.sources import SOURCES, TERMS
from longspan.errors import InvalidInput, UnknownName, suggest


@dataclass(frozen=True)
class Set:
    """One data set: what it is, and its files by split."""

    kind: str  # the task that reads it
    what: str
    files: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)  # of its task, such as the names of its columns


def _generated(kind: str, what: str) -> Set:
    return Set(kind, f"{what}, made on the spot", generated.file_names(kind))


SETS: dict[str, Set] = {
    "generated": _generated("language", "paragraphs of a small grammar"),
    "generated-pairs": _generated("translate", "2k sentences in English and a made-up language (en, toy)"),
    "generated-labels": _generated("classify", "2k sentences, positive or negative"),
    "generated-tags": _generated("tag", "2k sentences with names of people and places"),
    "generated-answers": _generated("answer", "400 questions on where people live"),
    "generated-images": _generated("images", "2k grey images of four shapes, 16 × 16"),
    "mnist": Set(
        "images",
        "MNIST: 60k images of digits, 28 × 28",
        {
            "train": "mnist/train-images-idx3-ubyte.gz",
            "train.labels": "mnist/train-labels-idx1-ubyte.gz",
            "test": "mnist/t10k-images-idx3-ubyte.gz",
            "test.labels": "mnist/t10k-labels-idx1-ubyte.gz",
        },
    ),
    "cifar10": Set(
        "images",
        "CIFAR-10: 10k colour images of ten things, 32 × 32",
        {"train": "cifar10/train_10k.npz", "test": "cifar10/test_2k.npz"},
    ),
    "pathfinder32": Set(
        "images",
        "Pathfinder: 10k grey images, are two dots joined by a path, 32 × 32",
        {"train": "pathfinder/pathfinder32_easy_cl6_10000.npz"},
    ),
    "imdb": Set(
        "classify",
        "IMDb: 25k film reviews, positive or negative",
        {"train": "imdb/train.tsv.gz", "test": "imdb/test.tsv.gz"},
        {"text": "text", "label": "label", "names": ("0=negative", "1=positive")},
    ),
    "listops": Set(
        "classify",
        "ListOps of Long Range Arena: 2k nested expressions and their values 0 to 9",
        {
            "train": "listops/lra_basic_train.tsv.gz",
            "held_out": "listops/lra_basic_val.tsv.gz",
            "test": "listops/lra_basic_test.tsv.gz",
        },
        {"text": "Source", "label": "Target"},
    ),
    "enwiki_xml": Set(
        "language",
        "6M bytes of a dump of Wikipedia, for models of bytes as on enwik8",
        {"train": "enwiki_xml/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"},
    ),
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


def cache() -> Path:
    """The folder of what longspan keeps for itself: LONGSPAN_CACHE, or the user's cache."""
    given = os.environ.get("LONGSPAN_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longspan"


def is_generated(found: Set) -> bool:
    """Whether a set is made on the spot."""
    return all(file.startswith("generated/") for file in found.files.values())


def paths(name: str, root: Path | None) -> dict[str, Path]:
    """Where the files of a set lie or would lie, by split."""
    found = find(name)
    folder = cache() / "data" if root is None or is_generated(found) else root
    return {split: folder / file for split, file in found.files.items()}


def terms(found: Set) -> str:
    """The licence of a set and whom it asks to cite."""
    return TERMS.get(next(iter(found.files.values())).partition("/")[0], "none known")


def can_download(found: Set) -> bool:
    """Whether all files of a set have an address."""
    return all(file in SOURCES and SOURCES[file].url is not None for file in found.files.values())


def files(name: str, root: Path | None) -> dict[str, Path]:
    """The files of a set by split; those of a generated one are made."""
    found, here = find(name), paths(name, root)
    if is_generated(found):
        generated.write(found.kind, cache() / "data")
    for path in here.values():
        if path.is_file():
            continue
        fetch = f"`longspan data prepare {name}` downloads it; or " if can_download(found) else ""
        if root is None:
            raise InvalidInput(f"{name} is not there: {fetch}name the folder of data sets by --data or LONGSPAN_DATA")
        raise InvalidInput(f"{name} lacks {path}: {fetch}is {root} the folder of data sets?")
    return here


__all__ = ["SETS", "Set", "cache", "can_download", "files", "find", "is_generated", "paths", "terms"]
