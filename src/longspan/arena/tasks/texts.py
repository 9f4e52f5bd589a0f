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
    FileLayout,
    FileOptions,
    Found,
    byte_lines,
    byte_rows,
    find,
    notes,
    part_of,
    read_label,
    some,
)
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.data.order import Shuffled
from longspan.errors import InvalidInput
from longspan.parsing import parse_json

VOCABULARY = 257  # padding, and every byte + 1
HELD_OUT = 10  # of so many reviews one is for selection

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
CUT = 10_000  # bytes of a paper, before all else
GET_PAIRS = (
    "unpack lra_release.gz of https://github.com/google-research/long-range-arena in the folder of data sets, "
    "or name the folder of its tsv files by the option files"
)


def encode(text: bytes) -> np.ndarray:
    """A token for each byte; 0 is never one."""
    return np.frombuffer(text, np.uint8).astype(np.uint16) + np.uint16(1)


def decode(tokens: np.ndarray) -> bytes:
    """The bytes of tokens."""
    if len(tokens) and not (tokens.min() >= 1 and tokens.max() < VOCABULARY):
        raise InvalidInput(f"tokens of bytes are 1 to {VOCABULARY - 1}, not {tokens.min()} to {tokens.max()}")
    return (tokens - 1).astype(np.uint8).tobytes()


def examples_of(texts: Sequence[bytes], labels: Sequence[int], source: str, each: int = 1) -> LabelledSequences:
    """Texts of which `each` have a label."""
    starts = np.concatenate([[0], np.cumsum([len(text) for text in texts], dtype=np.int64)]).astype(np.int64)
    return LabelledSequences(encode(b"".join(texts)), starts, np.array(labels, dtype=np.int64), source, each)


def _splits(made: Mapping[str, LabelledSequences], length: int, said: Mapping[str, Any]) -> Splits:
    train, held_out, test = (made[split] for split in SPLITS)
    return Splits(train, held_out, test, VOCABULARY, classes=2, length=length, padded=True, notes=said)


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

    def check(self, place: DataFolders) -> None:
        self._found(place)

    def _found(self, place: DataFolders) -> Found:
        return find("the task text", "IMDb", [TABLES, FOLDERS], place, self.options.files, GET_REVIEWS)

    def splits(self, place: DataFolders, seed: int = 0) -> Splits:
        found = self._found(place)
        reviews = {split: list(self._reviews(found, split)) for split in ("train", "test")}
        times = Counter(review.text for review in reviews["train"])
        chosen = _held_out([times[review.text] == 1 for review in reviews["train"]], seed, str(found.folder))
        parts: dict[str, Iterator[Review]] = {
            "train": (review for number, review in enumerate(reviews["train"]) if number not in chosen),
            "held_out": (reviews["train"][number] for number in sorted(chosen)),
            "test": iter(reviews["test"]),
        }
        made = {}
        for split, part in parts.items():
            kept, _ = some(part, self.options.limit(split), seed, split)
            source = f"{split} of {found.folder}"
            made[split] = examples_of([each.text for each in kept], [each.label for each in kept], source)
        said = {
            **notes(found, made),
            **part_of("IMDb", REVIEWS, {split: len(part) for split, part in reviews.items()}),
            "length": self.options.length,
            "selection": "a tenth of train, drawn by the seed; the original selects on the test",
            "repeated_in_train": sum(count - 1 for count in times.values()),
            "test_also_in_train": sum(review.text in times for review in reviews["test"]),
        }
        return _splits(made, self.options.length, said)

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {"majority": baselines.majority(splits), "bag_of_bytes": baselines.bag_of_bytes(splits)}

    def _reviews(self, found: Found, split: str) -> Iterator[Review]:
        length = self.options.length
        if found.layout is TABLES:
            path = found.files[split]
            for number, (label, _, _, text) in byte_rows(path, 4, header=b"label\trating\tid\ttext"):
                if not text:
                    raise InvalidInput(f"{path}, row {number}: the review is empty")
                yield Review(text[:length], read_label(label, path, number))
            return
        for positive, name in enumerate(("neg", "pos")):
            for path in _in_order(found.files[f"{split}.{name}"]):
                with path.open("rb") as file:
                    text = file.read(length)
                if not text:
                    raise InvalidInput(f"{path} is empty: a review was expected")
                yield Review(text, positive)


def _in_order(folder: Path) -> list[Path]:
    """By the numbers of the reviews, so that folders and tables give the same splits."""
    found = []
    for path in folder.glob("*.txt"):
        name = re.fullmatch(r"(\d+)_(\d+)\.txt", path.name)
        if name is None:
            raise InvalidInput(f"{path} is not called as reviews are, such as 200_8.txt: move it away")
        found.append((int(name[1]), int(name[2]), path))
    if not found:
        raise InvalidInput(f"{folder} has no reviews, such as 200_8.txt")
    return [path for _, _, path in sorted(found)]


def _held_out(single: Sequence[bool], seed: int, source: str) -> frozenset[int]:
    """A tenth, of the reviews that occur once: otherwise some would be learned by heart."""
    may = [number for number, once in enumerate(single) if once]
    count = min(max(1, len(single) // HELD_OUT), len(may))
    if not 0 < count < len(single):
        raise InvalidInput(f"train of {source} has {len(single)} reviews, too few to hold any out")
    return frozenset(may[place] for place in Shuffled(len(may), seed)[:count])


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

    def check(self, place: DataFolders) -> None:
        self._found(place)

    def _found(self, place: DataFolders) -> Found:
        return find("the task retrieval", "AAN", [AAN, STAND_IN], place, self.options.files, GET_PAIRS)

    def splits(self, place: DataFolders, seed: int = 0) -> Splits:
        found = self._found(place)
        papers = {} if found.layout is AAN else self._papers(found.files["papers"])
        made, counts = {}, {}
        for split in SPLITS:
            rows = self._joined(found, split) if found.layout is AAN else self._apart(found, split, papers)
            kept, counts[split] = some(rows, self.options.limit(split), seed, split)
            texts = [text for pair in kept for text in (pair.one, pair.other)]
            made[split] = examples_of(texts, [pair.label for pair in kept], str(found.files[split]), 2)
        stand_in = part_of("AAN", PAIRS, counts) if found.layout is AAN else {"stand_in": self.stand_in}
        said = {**notes(found, made), **stand_in, "length": self.options.length}
        return _splits(made, self.options.length, said)

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {"majority": baselines.majority(splits), "shared_runs": baselines.shared_runs(splits)}

    def _joined(self, found: Found, split: str) -> Iterator[Pair]:
        """Rows with both texts."""
        path, length = found.files[split], self.options.length
        for number, (label, _, _, one, other) in byte_rows(path, 5):
            if not one or not other:
                raise InvalidInput(f"{path}, row {number}: the {'second' if one else 'first'} text is empty")
            yield Pair(read_label(label, path, number), one[:length], other[:length])

    def _apart(self, found: Found, split: str, papers: Mapping[bytes, bytes]) -> Iterator[Pair]:
        """Rows that name papers of another file; each is in memory once until it is encoded."""
        path = found.files[split]
        for number, (label, *names) in byte_rows(path, 3, header=b"label\tid1\tid2"):
            for name in names:
                if name not in papers:
                    said = name.decode(errors="backslashreplace")
                    raise InvalidInput(f"{path}, row {number}: {found.files['papers']} has no paper {said!r}")
            yield Pair(read_label(label, path, number), papers[names[0]], papers[names[1]])

    def _papers(self, path: Path) -> dict[bytes, bytes]:
        """The beginnings of all papers by their names."""
        found: dict[bytes, bytes] = {}
        for number, line in byte_lines(path):
            try:
                paper = parse_json(line, path)
                name, text = paper["id"].encode(), paper["text"].encode()
            except (ValueError, KeyError, TypeError, AttributeError):  # no JSON, or of another form
                raise InvalidInput(f'{path}, line {number}: expected {{"id": …, "text": …}}') from None
            if not text:
                raise InvalidInput(f"{path}, line {number}: the paper is empty")
            found[name] = text[: self.options.length]
        return found


__all__ = ["Retrieval", "TextTask", "decode", "encode", "examples_of"]
