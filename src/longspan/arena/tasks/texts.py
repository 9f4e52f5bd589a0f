"""Text and Retrieval: bytes of film reviews, and of pairs of papers of which one may cite the other."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from longspan import config
from longspan.arena.tasks import baselines
from longspan.arena.tasks.data_files import (
    SPLITS,
    DataFiles,
    FileLayout,
    FileOptions,
    byte_lines,
    byte_rows,
    file_notes,
    find,
    read_label,
    sample_rows,
    subset_note,
)
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.data.order import Shuffled
from longspan.errors import InvalidInput
from longspan.parsing import parse_json

VOCABULARY = 257  # padding, and every byte + 1
HELD_OUT = 10  # one review in this many is held out, to select the best step

TABLES = FileLayout("tsv files", ("imdb",), {split: (f"{split}.tsv.gz", f"{split}.tsv") for split in ("train", "test")})
FOLDERS = FileLayout(
    "folders of reviews",
    ("imdb", "imdb/aclImdb", "aclImdb"),
    {f"{split}.{label}": (f"{split}/{label}",) for split in ("train", "test") for label in ("neg", "pos")},
)
REVIEWS = {"train": 25_000, "test": 25_000}
GET_REVIEWS = (
    "unpack aclImdb_v1.tar.gz of https://ai.stanford.edu/~amaas/data/sentiment in the folder of data sets, "
    "or name its folder by the option files"
)

NAMES = {"train": "train", "held_out": "eval", "test": "test"}
AAN = FileLayout(
    "AAN",
    ("aan", "lra_release/tsv_data", "lra_release/lra_release/tsv_data", "tsv_data"),
    {split: (f"new_aan_pairs.{name}.tsv", f"new_aan_pairs.{name}.tsv.gz") for split, name in NAMES.items()},
)
STAND_IN = FileLayout(
    "ACL stand-in",
    ("acl_citation_pairs",),
    {"papers": ("docs.jsonl.gz", "docs.jsonl")} | {split: (f"pairs.{name}.tsv",) for split, name in NAMES.items()},
)
PAIRS = {"train": 147_086, "held_out": 18_090, "test": 17_437}
CUT = 10_000  # bytes of a paper; the rest is never read
GET_PAIRS = (
    "unpack lra_release.gz of https://github.com/google-research/long-range-arena in the folder of data sets, "
    "or name the folder of its tsv files by the option files"
)


def encode(text: bytes) -> np.ndarray:
    """One token per byte; 0 is padding and never a byte."""
    return np.frombuffer(text, np.uint8).astype(np.uint16) + np.uint16(1)


def decode(tokens: np.ndarray) -> bytes:
    """The bytes of tokens."""
    if len(tokens) and not (tokens.min() >= 1 and tokens.max() < VOCABULARY):
        raise InvalidInput(f"tokens of bytes are 1 to {VOCABULARY - 1}, not {tokens.min()} to {tokens.max()}")
    return (tokens - 1).astype(np.uint8).tobytes()


def examples_of(texts: Sequence[bytes], labels: Sequence[int], source: str, per_label: int = 1) -> LabelledSequences:
    """Examples of `per_label` texts each."""
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
    return LabelledSequences(encode(b"".join(texts)), starts, np.array(labels, dtype=np.int64), source, per_label)


def _splits(examples: Mapping[str, LabelledSequences], length: int, notes: Mapping[str, Any]) -> Splits:
    train, held_out, test = (examples[split] for split in SPLITS)
    return Splits(train, held_out, test, VOCABULARY, classes=2, length=length, padded=True, notes=notes)


@dataclass(frozen=True)
class Review:
    """A review's first bytes, and whether it is positive."""

    text: bytes
    label: int


class TextTask(ArenaTask):
    """Whether a film review is positive (Maas et al. 2011), from its bytes."""

    name = "text"
    title = "Text"
    generated = False

    @dataclass(frozen=True, kw_only=True)
    class Options(FileOptions):
        length: int = config.option(4000, "bytes of a review, from its beginning", low=8, high=1 << 20)

    options: "TextTask.Options"

    def check(self, folders: DataFolders) -> None:
        self._find(folders)

    def _find(self, folders: DataFolders) -> DataFiles:
        return find("the task text", "IMDb", [TABLES, FOLDERS], folders, self.options.files, GET_REVIEWS)

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        files = self._find(folders)
        reviews = {split: list(self._reviews(files, split)) for split in ("train", "test")}
        times = Counter(review.text for review in reviews["train"])
        chosen = _held_out([times[review.text] == 1 for review in reviews["train"]], seed, str(files.folder))
        sources: dict[str, Iterator[Review]] = {
            "train": (review for number, review in enumerate(reviews["train"]) if number not in chosen),
            "held_out": (reviews["train"][number] for number in sorted(chosen)),
            "test": iter(reviews["test"]),
        }
        examples = {}
        for split, rows in sources.items():
            sample, _ = sample_rows(rows, self.options.limit(split), seed, split)
            source = f"{split} of {files.folder}"
            examples[split] = examples_of(
                [review.text for review in sample], [review.label for review in sample], source
            )
        notes = {
            **file_notes(files, examples),
            **subset_note("IMDb", REVIEWS, {split: len(rows) for split, rows in reviews.items()}),
            "length": self.options.length,
            "selection": "a tenth of train, drawn by the seed; the original selects on the test",
            "repeated_in_train": sum(count - 1 for count in times.values()),
            "test_also_in_train": sum(review.text in times for review in reviews["test"]),
        }
        return _splits(examples, self.options.length, notes)

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {"majority": baselines.majority(splits), "bag_of_bytes": baselines.bag_of_bytes(splits)}

    def _reviews(self, files: DataFiles, split: str) -> Iterator[Review]:
        length = self.options.length
        if files.layout is TABLES:
            path = files.files[split]
            for number, (label, _, _, text) in byte_rows(path, 4, header=b"label\trating\tid\ttext"):
                if not text:
                    raise InvalidInput(f"{path}, row {number}: the review is empty")
                yield Review(text[:length], read_label(label, path, number))
            return
        for positive, name in enumerate(("neg", "pos")):
            for path in _in_order(files.files[f"{split}.{name}"]):
                with path.open("rb") as file:
                    text = file.read(length)
                if not text:
                    raise InvalidInput(f"{path} is empty: a review was expected")
                yield Review(text, positive)


def _in_order(folder: Path) -> list[Path]:
    """The reviews sorted by their numbers, so that folders and tables give the same splits."""
    numbered = []
    for path in folder.glob("*.txt"):
        name = re.fullmatch(r"(\d+)_(\d+)\.txt", path.name)
        if name is None:
            raise InvalidInput(f"{path} is not named like a review, such as 200_8.txt: move it away")
        numbered.append((int(name[1]), int(name[2]), path))
    if not numbered:
        raise InvalidInput(f"{folder} has no reviews, such as 200_8.txt")
    return [path for _, _, path in sorted(numbered)]


def _held_out(single: Sequence[bool], seed: int, source: str) -> frozenset[int]:
    """A tenth, of reviews that occur once only: a repeated review could also be in the training set."""
    candidates = [number for number, once in enumerate(single) if once]
    count = min(max(1, len(single) // HELD_OUT), len(candidates))
    if not 0 < count < len(single):
        raise InvalidInput(f"train of {source} has {len(single)} reviews, too few to hold any out")
    return frozenset(candidates[index] for index in Shuffled(len(candidates), seed)[:count])


@dataclass(frozen=True)
class Pair:
    """The first bytes of two papers, and whether one cites the other."""

    label: int
    one: bytes
    other: bytes


class Retrieval(ArenaTask):
    """Whether one of two papers cites the other (Radev et al. 2013), from the bytes of both."""

    name = "retrieval"
    title = "Retrieval"
    generated = False

    @dataclass(frozen=True, kw_only=True)
    class Options(FileOptions):
        length: int = config.option(4000, "bytes of each paper, from its beginning", low=8, high=CUT)

    options: "Retrieval.Options"
    stand_in: ClassVar[str] = (
        "Not AAN: a stand-in of papers of the ACL Anthology and of who cites whom among them, with far fewer pairs "
        "and other negatives, whose figures compare only with each other."
    )

    def check(self, folders: DataFolders) -> None:
        self._find(folders)

    def _find(self, folders: DataFolders) -> DataFiles:
        return find("the task retrieval", "AAN", [AAN, STAND_IN], folders, self.options.files, GET_PAIRS)

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        files = self._find(folders)
        papers = {} if files.layout is AAN else self._papers(files.files["papers"])
        examples, counts = {}, {}
        for split in SPLITS:
            rows = (
                self._pairs_in_rows(files, split) if files.layout is AAN else self._pairs_by_name(files, split, papers)
            )
            sample, counts[split] = sample_rows(rows, self.options.limit(split), seed, split)
            texts = [text for pair in sample for text in (pair.one, pair.other)]
            examples[split] = examples_of(texts, [pair.label for pair in sample], str(files.files[split]), 2)
        stand_in = subset_note("AAN", PAIRS, counts) if files.layout is AAN else {"stand_in": self.stand_in}
        notes = {**file_notes(files, examples), **stand_in, "length": self.options.length}
        return _splits(examples, self.options.length, notes)

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {"majority": baselines.majority(splits), "shared_runs": baselines.shared_runs(splits)}

    def _pairs_in_rows(self, files: DataFiles, split: str) -> Iterator[Pair]:
        """Pairs from rows that hold both texts."""
        path, length = files.files[split], self.options.length
        for number, (label, _, _, one, other) in byte_rows(path, 5):
            if not one or not other:
                raise InvalidInput(f"{path}, row {number}: the {'second' if one else 'first'} text is empty")
            yield Pair(read_label(label, path, number), one[:length], other[:length])

    def _pairs_by_name(self, files: DataFiles, split: str, papers: Mapping[bytes, bytes]) -> Iterator[Pair]:
        """Pairs from rows that name two papers of another file."""
        path = files.files[split]
        for number, (label, *names) in byte_rows(path, 3, header=b"label\tid1\tid2"):
            for name in names:
                if name not in papers:
                    shown = name.decode(errors="backslashreplace")
                    raise InvalidInput(f"{path}, row {number}: {files.files['papers']} has no paper {shown!r}")
            yield Pair(read_label(label, path, number), papers[names[0]], papers[names[1]])

    def _papers(self, path: Path) -> dict[bytes, bytes]:
        """The first bytes of each paper, by its name."""
        papers: dict[bytes, bytes] = {}
        for number, line in byte_lines(path):
            try:
                paper = parse_json(line, path)
                name, text = paper["id"].encode(), paper["text"].encode()
            except (ValueError, KeyError, TypeError, AttributeError):  # not JSON, or not such an object
                raise InvalidInput(f'{path}, line {number}: expected {{"id": …, "text": …}}') from None
            if not text:
                raise InvalidInput(f"{path}, line {number}: the paper is empty")
            papers[name] = text[: self.options.length]
        return papers


__all__ = ["Retrieval", "TextTask", "decode", "encode", "examples_of"]
