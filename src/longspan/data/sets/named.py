"""The catalogue of named data sets, and where their files are: in the folder of `--data` or LONGSPAN_DATA.

Without such a folder, downloads are in the user's cache, as are generated sets.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data.sets import generated, sources
from longspan.errors import InvalidInput, UnknownName, suggest
from longspan.files import cache


@dataclass(frozen=True)
class DataSet:
    """One data set: what it is, and its files by split."""

    kind: str  # the task that reads it
    what: str
    files: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)  # of its task, such as the names of its columns
    lines: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # first and last line of splits in one file


def _pairs(pattern: str, splits: Mapping[str, str], languages: tuple[str, ...]) -> dict[str, str]:
    """The files of parallel text; splits are named as in "train.en"."""
    return {
        f"{split}.{language}": pattern.format(name, language)
        for split, name in splits.items()
        for language in languages
    }


SETS: dict[str, DataSet] = {
    "mnist": DataSet(
        "images",
        "MNIST: 60k images of digits, 28 × 28",
        {
            "train": "mnist/train-images-idx3-ubyte.gz",
            "train.labels": "mnist/train-labels-idx1-ubyte.gz",
            "test": "mnist/t10k-images-idx3-ubyte.gz",
            "test.labels": "mnist/t10k-labels-idx1-ubyte.gz",
        },
    ),
    "cifar10": DataSet(
        "images",
        "CIFAR-10: 10k colour images of ten things, 32 × 32",
        {"train": "cifar10/train_10k.npz", "test": "cifar10/test_2k.npz"},
    ),
    "pathfinder32": DataSet(
        "images",
        "Pathfinder: 10k grey images, are two dots joined by a path, 32 × 32",
        {"train": "pathfinder/pathfinder32_easy_cl6_10000.npz"},
    ),
    "imdb": DataSet(
        "classify",
        "IMDb: 25k film reviews, positive or negative",
        {"train": "imdb/train.tsv.gz", "test": "imdb/test.tsv.gz"},
        {"text": "text", "label": "label", "names": ("0=negative", "1=positive")},
    ),
    "listops": DataSet(
        "classify",
        "ListOps of Long Range Arena: 2k nested expressions and their values 0 to 9",
        {
            "train": "listops/lra_basic_train.tsv.gz",
            "held_out": "listops/lra_basic_val.tsv.gz",
            "test": "listops/lra_basic_test.tsv.gz",
        },
        {"text": "Source", "label": "Target"},
    ),
    "enwiki_xml": DataSet(
        "language",
        "6M bytes of a dump of Wikipedia, for models of bytes as on enwik8",
        {"train": "enwiki_xml/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"},
    ),
    "tinyshakespeare": DataSet("language", "1.1M characters of Shakespeare", {"train": "tinyshakespeare/input.txt"}),
    "wikitext2": DataSet(
        "language",
        "WikiText-2: 2.1M words of Wikipedia",
        {
            "train": "wikitext2/wiki.train.tokens.gz",
            "held_out": "wikitext2/wiki.valid.tokens.gz",
            "test": "wikitext2/wiki.test.tokens.gz",
        },
    ),
    "wikitext2-headings": DataSet(
        "summarize",
        "WikiText-2 by paragraph: 14k texts, with their sections' headings as summaries",
        {
            "train": "wikitext2/wiki.train.tokens.gz",
            "held_out": "wikitext2/wiki.valid.tokens.gz",
            "test": "wikitext2/wiki.test.tokens.gz",
        },
    ),
    "text8": DataSet("language", "6.8M letters of Wikipedia", {"train": "text8/text8_first6.8M.gz"}),
    "warandpeace": DataSet("language", "War and Peace", {"train": "longtext/warandpeace.txt.gz"}),
    "multi30k": DataSet(
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
    "tanaka_enja": DataSet(
        "translate",
        "50k short sentences in English and Japanese, tokenised",
        _pairs("tanaka_enja/{}.{}.gz", {"train": "train", "held_out": "dev", "test": "test"}, ("en", "ja")),
    ),
    # GLUE (Wang et al. 2018) does not publish the labels of its tests: the dev files are held out.
    "sst2": DataSet(
        "classify",
        "SST-2: 67k phrases of film reviews, positive or negative",
        {"train": "glue/SST-2/train.tsv.gz", "held_out": "glue/SST-2/dev.tsv.gz"},
        {"text": "sentence", "label": "label", "names": ("0=negative", "1=positive")},
    ),
    "mrpc": DataSet(
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
    "rte": DataSet(
        "classify",
        "RTE: 2.5k pairs of sentences, of which the first entails the second or not",
        {"train": "glue/RTE/train.tsv.gz", "held_out": "glue/RTE/dev.tsv.gz"},
        {"text": "sentence1", "second": "sentence2", "label": "label"},
    ),
    "cola": DataSet(
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
    "stsb": DataSet(
        "classify",
        "STS-B: 5.7k pairs of sentences and how near they are, 0 to 5",
        {"train": "glue/STS-B/train.tsv.gz", "held_out": "glue/STS-B/dev.tsv.gz"},
        {"text": "sentence1", "second": "sentence2", "label": "score", "regression": True},
    ),
    "prompt-injections": DataSet(
        "classify",
        "deepset/prompt-injections: 662 prompts in English and German, injections or not",
        {
            "train": "prompt_injection_deepset/prompt_injections.jsonl",
            "test": "prompt_injection_deepset/prompt_injections.jsonl",
        },
        {"text": "text", "label": "label", "names": ("0=benign", "1=injection")},
        {"train": (1, 546), "test": (547, 662)},
    ),
    "wnut17": DataSet(
        "tag",
        "WNUT-17: 3.4k sentences of user texts with six types of rare entities",
        {
            "train": "wnut17/wnut17train.conll.gz",
            "held_out": "wnut17/emerging.dev.conll.gz",
            "test": "wnut17/emerging.test.annotated.gz",
        },
    ),
    "squad-dev": DataSet(
        "answer",
        "the dev articles of SQuAD v1.1: 10.6k questions on 48 articles, of which the last are held out",
        {"train": "squad/dev-v1.1.json.gz"},
    ),
}

GENERATED = {
    "generated": ("language", "paragraphs of a small grammar"),
    "generated-pairs": ("translate", "2k sentences in English and a made-up language (en, toy)"),
    "generated-labels": ("classify", "2k sentences, positive or negative"),
    "generated-tags": ("tag", "2k sentences with names of people and places"),
    "generated-answers": ("answer", "400 questions on where people live"),
    "generated-series": ("series", "2k daily values with a trend, a yearly and a weekly season"),
    "generated-images": ("images", "2k grey images of four shapes, 16 × 16"),
}
SETS |= {
    name: DataSet(kind, f"{what}, made on the spot", generated.file_names(kind))
    for name, (kind, what) in GENERATED.items()
}


def find(name: str) -> DataSet:
    """A set by its name."""
    if name not in SETS:
        raise UnknownName(f"no data set is called {name!r}: {suggest(name, SETS)}")
    return SETS[name]


def is_generated(found: DataSet) -> bool:
    """Whether a set is generated by longspan."""
    return all(file.startswith("generated/") for file in found.files.values())


def paths(name: str, root: Path | None) -> dict[str, Path]:
    """The paths of a set's files by split, whether they exist or not."""
    found = find(name)
    folder = cache() / "data" if root is None or is_generated(found) else root
    return {split: folder / file for split, file in found.files.items()}


def terms(found: DataSet) -> str:
    """The licence of a set, and whom it asks to cite."""
    return sources.terms().get(next(iter(found.files.values())).partition("/")[0], "none known")


def can_download(found: DataSet) -> bool:
    """Whether all files of a set can be downloaded."""
    known = sources.sources()
    return all(file in known and known[file].url is not None for file in found.files.values())


def files(name: str, root: Path | None) -> dict[str, Path]:
    """The files of a set by split; generates them if needed."""
    found, here = find(name), paths(name, root)
    if is_generated(found):
        generated.write(found.kind, cache() / "data")
    for path in here.values():
        if path.is_file():
            continue
        fetch = f"`longspan data prepare {name}` downloads it; or " if can_download(found) else ""
        if root is None:
            raise InvalidInput(f"{name} is not there: {fetch}name the folder of data sets by --data or LONGSPAN_DATA")
        if not root.is_dir():
            raise InvalidInput(f"the folder of data sets, {root}, is not there; name it by --data or LONGSPAN_DATA")
        raise InvalidInput(f"{name} lacks {path}: {fetch}is {root} the folder of data sets?")
    return here


__all__ = ["SETS", "DataSet", "can_download", "files", "find", "is_generated", "paths", "terms"]
