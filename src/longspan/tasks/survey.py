"""What is in a file or a named set: columns, lengths, labels, duplicates, empty rows; in one pass over its rows."""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from longspan.data.images.image_files import Pictures, read_pictures
from longspan.data.images.image_folders import read_image_folder
from longspan.data.text import text_files
from longspan.data.text.columns import SAMPLE, Guess, guess_columns
from longspan.data.text.headings import headed_paragraphs, is_wikitext
from longspan.data.text.hub_datasets import is_hub_dataset
from longspan.data.text.parallel import find_pair, read_pairs
from longspan.data.text.tables import TableRow, ending, exists, format_of, is_table, rows
from longspan.data.text.text_folders import holds_images
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.tasks import registry as tasks
from longspan.tasks.answer import is_squad, questions
from longspan.tasks.base import Task
from longspan.tasks.tag import TABLES, sentences

SHOWN = 3  # examples, and lines of each fault
NOTHING: dict[str, str] = {}  # the fields of a row of which only the place is kept
TOGETHER = 1000  # texts that are tokenized together
TAGGED = (".conll", ".iob", ".iob2", ".bio")
IMAGES = (".npz",)


@dataclass
class Opened:
    """The rows of a file: their format, the columns of texts, and the labels of a row."""

    path: Path
    format: str
    rows: Iterator[TableRow]
    texts: dict[str, str]  # column by role
    label: str | None = None
    why: dict[str, str] = field(default_factory=dict)  # by column
    columns: list[str] = field(default_factory=list)
    labels: Callable[[TableRow], Iterable[str]] | None = None  # where a row has several
    separate: bool = False  # whether empty rows separate documents, as in plain text
    found: dict[str, str] = field(default_factory=dict)  # every guessed or given column by role
    unit: str = "line"


def open_rows(
    path: Path,
    kind: str | None = None,
    *,
    given: dict[str, str] | None = None,
    columns: Sequence[str] | None = None,
    encoding: str | None = None,
    roles: Mapping[str, str] | None = None,
    word_column: int = 0,
    tag_column: int = -1,
) -> Opened:
    """Opens a file of texts. `kind` is a task, where the ending does not decide; `given` names columns by role.

    `roles` are the columns that are looked for, each with its expected name: those of the task unless given.
    """
    given = given or {}
    if not exists(path) and kind != "translate":
        raise InvalidInput(f"there is no file or folder {path}")
    if kind == "translate" and not is_hub_dataset(path) and (not path.is_file() or ending(path) == ".tsv"):
        return _pairs(path, given, encoding)
    if kind == "summarize" and is_wikitext(path):
        return _headings(path)
    if (kind == "tag" and format_of(path) not in TABLES) or ending(path) in TAGGED:
        return _tagged(path, encoding, word_column, tag_column)
    if kind in (None, "answer") and (ending(path) == ".json" or kind is not None) and is_squad(path, encoding):
        return _squad(path, encoding)
    if not is_table(path) and columns is None and kind in (None, *UNLABELLED):
        first = next(_lines(path, encoding), "")
        if not first.count("\t") or kind in UNLABELLED:
            return _plain(path, encoding)
    roles = roles_of(tasks.find(kind or "classify")) if roles is None else roles
    return _table(path, roles, given, columns, encoding)


UNLABELLED = ("language", "masked", "detect", "denoise")
NO_TEXT = ("answer", "tags")  # roles whose columns may be empty, or are labels


def roles_of(task: type[Task]) -> dict[str, str]:
    """The options of a task that name a column, each with its default."""
    return {
        item.name: item.default
        for item in fields(task.Options)
        if item.metadata.get("column") and isinstance(item.default, str)
    }


def _table(
    path: Path,
    roles: Mapping[str, str],
    given: dict[str, str],
    columns: Sequence[str] | None,
    encoding: str | None,
) -> Opened:
    table = rows(path, columns=columns, encoding=encoding)
    sample = list(islice(table, SAMPLE))
    names = list(sample[0].fields)
    for name in given.values():
        if name not in names:
            next(rows(path, [name], columns, encoding))  # the error names the columns that exist
    guesses = {
        **guess_columns(sample, {**roles, **given}),
        **{role: Guess(name, "given") for role, name in given.items()},
    }
    found = {role: guess.column for role, guess in guesses.items()}
    texts = {role: column for role, column in found.items() if role not in ("label", *NO_TEXT)}
    why = {guess.column: f"{role}: {guess.why}" for role, guess in guesses.items()}
    return Opened(path, _format(path), chain(sample, table), texts, found.get("label"), why, names, found=found)


def _plain(path: Path, encoding: str | None) -> Opened:
    lines = (TableRow(path, number, {"text": line}) for number, line in enumerate(_lines(path, encoding), start=1))
    return Opened(path, _format(path, "plain text"), lines, {"text": "text"}, columns=["text"], separate=True)


def _lines(path: Path, encoding: str | None) -> Iterator[str]:
    with text_files.hinting():
        yield from text_files.lines(path, encoding)


def _tagged(path: Path, encoding: str | None, word_column: int, tag_column: int) -> Opened:
    found = sentences(path, word_column, tag_column, encoding)
    table = (
        TableRow(path, sentence.line, {"words": " ".join(sentence.words), "tags": " ".join(sentence.tags)})
        for sentence in found
    )

    def entities(row: TableRow) -> list[str]:
        return [tag[2:] for tag in row.fields["tags"].split() if tag.startswith("B-")]

    why = {"words": "words", "tags": "tags"}
    return Opened(
        path, _format(path, "CoNLL"), table, {"words": "words"}, None, why, ["words", "tags"], labels=entities
    )


def _squad(path: Path, encoding: str | None) -> Opened:
    table = (
        TableRow(path, number, {"question": one.text, "passage": one.passage, "answer": " / ".join(one.gold)})
        for number, one in enumerate(questions(path, encoding), start=1)
    )
    texts = {"question": "question", "passage": "passage"}
    names = ["question", "passage", "answer"]
    why = {name: name for name in names}
    return Opened(path, _format(path, "SQuAD JSON"), table, texts, why=why, columns=names, unit="question")


def _headings(path: Path) -> Opened:
    names = ["text", "summary"]
    texts = {name: name for name in names}
    return Opened(
        path, _format(path, "WikiText"), headed_paragraphs(path), texts, why=texts, columns=names, found=texts
    )


def _pairs(path: Path, given: dict[str, str], encoding: str | None) -> Opened:
    source, target = given.get("source", "en"), given.get("target", "de")
    both = find_pair(str(path), source, target)
    firsts, seconds = read_pairs(*both, (source, target), encoding)
    table = (
        TableRow(both[0], number, {source: first, target: second})
        for number, (first, second) in enumerate(zip(firsts, seconds), start=1)
    )
    why = {source: "source", target: "target"}
    texts = {"source": source, "target": target}
    return Opened(both[0], "sentence pairs", table, texts, why=why, columns=[source, target])


def _format(path: Path, name: str | None = None) -> str:
    packed = f", packed ({path.suffix})" if path.suffix in text_files.PACKED else ""
    kinds = {
        "hub": "data set of Hugging Face",
        "folder": "folder of texts",
        "tsv": "tab-separated",
        "csv": "CSV",
        "json": "JSON",
        "jsonl": "JSON lines",
    }
    return (name or kinds.get(format_of(path), "Parquet")) + packed


def survey(
    opened: Opened, *, tokenizer: Tokenizer | None = None, length: int | None = None, others: Iterable[Opened] = ()
) -> dict[str, Any]:
    """The contents of a file, ready for JSON; rows that are also in `others` are counted."""
    counter = _Counter(opened, tokenizer)
    for row in opened.rows:
        counter.add(row)
    if not counter.rows:
        raise InvalidInput(f"{opened.path} has no rows")
    counter.encode()
    return {
        "file": str(opened.path),
        "format": opened.format,
        "rows": counter.rows,
        **({"documents": counter.documents} if opened.separate else {}),
        "columns": [{"name": name, "use": opened.why.get(name, "")} for name in opened.columns],
        "lengths": counter.summaries(),
        "labels": dict(counter.labels.most_common()),
        "labels_once": [{"label": name, "where": where} for name, where in counter.once()],
        "empty": {"rows": len(counter.empty), "first": counter.empty[:SHOWN]},
        "duplicates": {
            "rows": counter.duplicates,
            "other_label": counter.other_label,
            "first": counter.repeated[:SHOWN],
        },
        "cut": counter.cut(length),
        "shared": [_shared(other, counter.seen) for other in others],
        "examples": counter.examples,
    }


class _Counter:
    """Counts the rows of a file; keeps a digest of each, not the row."""

    def __init__(self, opened: Opened, tokenizer: Tokenizer | None) -> None:
        self.opened, self.tokenizer = opened, tokenizer
        self.rows = self.documents = self.duplicates = self.other_label = 0
        self.in_document = False
        self.labels: Counter[str] = Counter()
        self.first: dict[str, str] = {}  # where a label was seen first
        self.seen: dict[bytes, tuple[TableRow, str]] = {}  # where a text was seen first, and its label
        self.empty: list[str] = []
        self.repeated: list[str] = []
        self.examples: list[dict[str, str]] = []
        self.characters = {name: array("q") for name in opened.texts.values()}
        self.words = {name: array("q") for name in opened.texts.values()}
        self.tokens = array("q")
        self.held: list[list[str]] = []

    def add(self, row: TableRow) -> None:
        texts = [row.fields.get(name, "") for name in self.opened.texts.values()]
        blank = not any(text.strip() for text in texts)
        if self.opened.separate:
            self.documents += not blank and not self.in_document
            self.in_document = not blank
            if blank:
                return
        self.rows += 1
        missing = next((name for name, text in zip(self.opened.texts.values(), texts) if not text.strip()), None)
        label = "" if self.opened.label is None else row.fields.get(self.opened.label, "").strip()
        if missing is None and self.opened.label is not None and not label:
            missing = self.opened.label
        if missing is not None:
            self.empty.append(f"{row.where}, {missing}")
            return
        for name, text in zip(self.opened.texts.values(), texts):
            self.characters[name].append(len(text))
            self.words[name].append(len(text.split()))
        for one in self.opened.labels(row) if self.opened.labels else [label] if self.opened.label else []:
            self.labels[one] += 1
            self.first.setdefault(one, row.where)
        self._compare(row, texts, label)
        if len(self.examples) < SHOWN:
            self.examples.append(dict(row.fields))
        if self.tokenizer is not None:
            self.held.append(texts)
            if len(self.held) >= TOGETHER:
                self.encode()

    def _compare(self, row: TableRow, texts: Sequence[str], label: str) -> None:
        digest = _digest(texts)
        if digest not in self.seen:
            self.seen[digest] = TableRow(row.path, row.line, NOTHING), label
            return
        first, before = self.seen[digest]
        self.duplicates += 1
        self.other_label += label != before
        if len(self.repeated) < SHOWN:
            self.repeated.append(_same(row, first, self.opened) + ", another label" * (label != before))

    def encode(self) -> None:
        """Counts the tokens of the texts that are held; a pair is one sequence."""
        if self.tokenizer is not None and self.held:
            firsts = [texts[0] for texts in self.held]
            pairs = [texts[1] for texts in self.held] if len(self.held[0]) > 1 else None
            self.tokens.extend(len(text.ids) for text in self.tokenizer.encode_many(firsts, pairs))
            self.held = []

    def summaries(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            name: {"characters": summary(self.characters[name]), "words": summary(self.words[name])}
            for name in self.opened.texts.values()
            if len(self.characters[name])
        }
        if len(self.tokens):
            found["tokens"] = summary(self.tokens)
        return found

    def once(self) -> list[tuple[str, str]]:
        return [(label, self.first[label]) for label, count in self.labels.items() if count == 1]

    def cut(self, length: int | None) -> dict[str, Any] | None:
        """How many rows are longer than `length`: in tokens, or in words where there is no tokenizer."""
        if length is None:
            return None
        unit = "tokens" if len(self.tokens) else "words"
        sizes = np.array(self.tokens) if len(self.tokens) else sum(np.array(words) for words in self.words.values())
        longer = int((np.asarray(sizes) > length).sum())
        return {"length": length, "unit": unit, "rows": longer, "share": longer / max(1, self.rows)}


def _digest(texts: Sequence[str]) -> bytes:
    return blake2b("\t".join(" ".join(text.split()) for text in texts).encode(), digest_size=8).digest()


def _same(row: TableRow, first: TableRow, opened: Opened) -> str:
    places = [f"{opened.unit} {one.line}" if not opened.path.is_dir() else str(one.path) for one in (row, first)]
    return f"{places[0]}: the same text as {places[1]}"


def _shared(other: Opened, seen: dict[bytes, tuple[TableRow, str]]) -> dict[str, Any]:
    """The rows of another file whose texts are in this one."""
    count = total = 0
    first: list[str] = []
    for row in other.rows:
        texts = [row.fields.get(name, "") for name in other.texts.values()]
        if not any(text.strip() for text in texts):
            continue
        total += 1
        place = seen.get(_digest(texts))
        if place is not None:
            count += 1
            if len(first) < SHOWN:
                first.append(_same(row, place[0], other))
    return {"file": str(other.path), "rows": total, "shared": count, "first": first}


def summary(numbers: Sequence[int]) -> dict[str, float]:
    """Least, median, mean, 95 % and largest of numbers."""
    values = np.asarray(numbers)
    return {
        "min": int(values.min()),
        "median": float(np.median(values)),
        "mean": round(float(values.mean()), 1),
        "95 %": float(np.percentile(values, 95)),
        "max": int(values.max()),
    }


def is_images(path: Path) -> bool:
    """Whether a path is a folder of images, or a file of them."""
    return holds_images(path) if path.is_dir() else path.suffix in IMAGES or "-ubyte" in path.name


def survey_images(path: Path, labels: Path | None = None, resize: Sequence[int] | None = None) -> dict[str, Any]:
    """The images of a folder or a file, ready for JSON."""
    pictures: Pictures = read_image_folder(path, resize) if path.is_dir() else read_pictures(path, labels)
    counts = Counter(pictures.names[label] for label in pictures.labels.tolist())
    height, width = pictures.size
    digests: Counter[bytes] = Counter(blake2b(image.tobytes(), digest_size=8).digest() for image in pictures.pixels)
    return {
        "file": str(path),
        "format": "folder of images" if path.is_dir() else "images",
        "rows": len(pictures),
        "height": height,
        "width": width,
        "channels": pictures.channels,
        "labels": dict(counts.most_common()),
        "labels_once": [{"label": name, "where": str(path)} for name, count in counts.items() if count == 1],
        "duplicates": {"rows": sum(count - 1 for count in digests.values()), "other_label": 0, "first": []},
    }


__all__ = ["Opened", "is_images", "open_rows", "roles_of", "summary", "survey", "survey_images"]
