"""Tagging: a tag for each word, such as the entity it belongs to (Devlin et al. 2018, section 5.3).

The tag of a word is read at its first token. A sentence that is too long for the model is cut into overlapping windows,
and each word is tagged in the window where it has the most context: every word gets exactly one tag.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example
from longspan.data.text import text_files
from longspan.data.text.tables import TableRow, format_of
from longspan.data.text.windows import Around, around, most_context, windows
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.nn.loss import IGNORED
from longspan.tasks import baselines, starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.metric_sums import TagMetrics
from longspan.tasks.metrics import to_iob2
from longspan.tasks.splits import hold_out
from longspan.tasks.text_inputs import (
    TextTaskOptions,
    data_of,
    files,
    limited,
    padding_facts,
    read,
    read_rows,
    tokenizer_for,
    with_set,
)

OUTSIDE = "O"
TABLES = ("csv", "json", "jsonl", "parquet", "hub")  # formats of tables; a .tsv may be a CoNLL file


@dataclass(frozen=True)
class TaggedSentence:
    """Words and their tags, and the line of the file with the first word."""

    words: list[str]
    tags: list[str]
    path: Path
    line: int
    rows: bool = False  # a row of a table holds the whole sentence

    def line_of(self, word: int) -> int:
        return self.line if self.rows else self.line + word


def sentences(path: Path, word: int = 0, tag: int = -1, encoding: str | None = None) -> list[TaggedSentence]:
    """The sentences of a CoNLL file: a word and its columns per line, an empty line between sentences; tags as IOB2."""
    parsed: list[TaggedSentence] = []
    held: list[tuple[str, str]] = []
    number = start = 0

    def close() -> None:
        if held:
            words, tags = [each for each, _ in held], to_iob2([each for _, each in held])
            parsed.append(TaggedSentence(words, tags, path, start))
            held.clear()

    for number, line in enumerate(_lines(path, encoding), start=1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            close()
            continue
        fields = line.split("\t") if "\t" in line else line.split()
        try:
            pair = fields[word].strip(), fields[tag].strip()
        except IndexError:
            pair = "", ""
        if len(fields) < 2 or not all(pair):
            raise InvalidInput(f"{path}, line {number}: expected a word and its tag, got {line[:60]!r}")
        if pair[1] != OUTSIDE and pair[1][:2] not in ("B-", "I-"):
            raise InvalidInput(f"{path}, line {number}: {pair[1]!r} is not a tag; tags are O, B-TYPE and I-TYPE")
        if not held:
            start = number
        held.append(pair)
    close()
    if not parsed:
        raise InvalidInput(f"{path} has no sentences")
    return parsed


def _lines(path: Path, encoding: str | None) -> Iterator[str]:
    with text_files.hinting():
        yield from text_files.lines(path, encoding)


def pieces(words: Sequence[str], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The ids of a sentence, and the word that each id begins (-1: it continues a word).

    Words are joined by spaces before they are tokenized. A word without tokens becomes the unknown token.
    """
    encoded = tokenizer.encode(" ".join(words), special=False)
    starts: list[int] = []  # the word of each character; of a space, the word before it
    for number, text in enumerate(words):
        starts.extend([number] * (len(text) + 1))
    ids: list[int] = []
    begins: list[int] = []
    last = -1
    for number, (start, stop) in zip(encoded.ids, encoded.offsets):
        word = starts[stop - 1] if stop > start else last  # some tokens include the space before their word
        for lost in range(last + 1, word):
            ids.append(_unknown(tokenizer))
            begins.append(lost)
        ids.append(number)
        begins.append(word if word > last else -1)
        last = max(last, word)
    for lost in range(last + 1, len(words)):
        ids.append(_unknown(tokenizer))
        begins.append(lost)
    return ids, begins


def _unknown(tokenizer: Tokenizer) -> int:
    found = next((each for each in (tokenizer.unk, tokenizer.mask, tokenizer.pad) if each is not None), None)
    return 0 if found is None else found


def examples(
    words: Sequence[str], tags: Sequence[int], number: int, tokenizer: Tokenizer, edge: Around, length: int
) -> list[Example]:
    """The windows of a sentence; each word has its target in one of them."""
    ids, begins = pieces(words, tokenizer)
    room = length - edge.size
    spans = windows(len(ids), room, max(1, room // 2))
    best_window = [most_context(index, spans) if word >= 0 else -1 for index, word in enumerate(begins)]
    result = []
    for window, (start, stop) in enumerate(spans):
        mine = [begins[index] if best_window[index] == window else -1 for index in range(start, stop)]
        before, after = len(edge.before[0]), len(edge.after[0])
        held = [-1] * before + mine + [-1] * after
        result.append(
            Example(
                [*edge.before[0], *ids[start:stop], *edge.after[0]],
                [*edge.before[1], *[edge.segments[0]] * (stop - start), *edge.after[1]],
                {"sentence": number},
                {"words": held, "targets": [IGNORED if word < 0 else tags[word] for word in held]},
            )
        )
    return result


class Tags(Objective):
    """The cross-entropy of each word's tag."""

    unit = "words"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = list(names)

    def count(self, batch: Batch) -> int:
        return int((batch["targets"] != IGNORED).sum())

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits = read(model, batch, "tag").float()
        total = cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=IGNORED, reduction="sum")
        return TaskLoss(total, {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits = read(model, batch, "tag").float()
        targets = batch["targets"]
        nats = cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum")
        metrics = TagMetrics(nats=float(nats))
        predicted = logits.argmax(-1)
        for row, index in (targets != IGNORED).nonzero().tolist():
            words = metrics.tags.setdefault(int(batch["sentence"][row]), {})
            pair = self.names[int(targets[row, index])], self.names[int(predicted[row, index])]
            words[int(batch["words"][row, index])] = pair
        return metrics, None


class Tag(Task):
    """Words with tags from CoNLL files or from tables with a sentence per row, in IOB1 or IOB2."""

    name = "tag"
    starting_model = starting.ENCODER
    starting_train = starting.BY_F1

    @dataclass(frozen=True, kw_only=True)
    class Options(TextTaskOptions):
        word_column: int = option(0, "the column of the word; negative ones count from the end")
        tag_column: int = option(-1, "the column of the tag")
        words: str = option(
            "words", "the column of the words, if the file is a table with a sentence per row", column=True
        )
        tags: str = option(
            "tags", "the column of their tags; words and tags are lists or separated by spaces", column=True
        )

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = with_set(self.options, self.name)
        paths = files(options, folders)
        tables = {split: self._sentences(path, options) for split, path in paths.items()}
        said: dict[str, Any] = {}
        if "held_out" not in tables:
            tables["train"], tables["held_out"], said["held out"] = hold_out(
                tables["train"], options.share, folders, str(paths["train"])
            )
        names = tag_names(tables["train"])
        tables["train"] = limited(tables["train"], options.limit, folders.seed)  # a few sentences may not have all tags
        tokenizer = tokenizer_for(options, tokenizer, [" ".join(sentence.words) for sentence in tables["train"]])
        edge = around(tokenizer, pair=False)
        splits = {split: _windows(table, names, tokenizer, edge, options.length) for split, table in tables.items()}
        data = data_of(splits, options, tokenizer, folders.seed)
        tagged = {split: [(sentence.words, sentence.tags) for sentence in table] for split, table in tables.items()}
        usual = baselines.usual_tags(tagged["train"], tagged["held_out"])
        facts = {
            **padding_facts(data),
            **said,
            "in windows": sum(len(splits[split]) - len(table) for split, table in tables.items()),
            "labels": ", ".join(names),
            "baselines": {"the usual tag of each word": usual},
        }
        head = Head(task="tag", labels=len(names), names=tuple(names))
        return Prepared(
            data["train"],
            data["held_out"],
            Tags(names),
            data.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "tasks": (head,)},
            facts=facts,
        )

    def _sentences(self, path: Path, options: "Tag.Options") -> list[TaggedSentence]:
        if format_of(path) in TABLES:
            table = read_rows(path, [options.words, options.tags], options)
            return [tagged_row(row, options.words, options.tags) for row in table]
        return sentences(path, options.word_column, options.tag_column, options.encoding)


def tagged_row(row: TableRow, words: str, tags: str) -> TaggedSentence:
    """The sentence of a table's row."""
    spelled = [_listed(row.fields[name]) for name in (words, tags)]
    if len(spelled[0]) != len(spelled[1]):
        raise InvalidInput(f"{row.where}: {len(spelled[0])} words and {len(spelled[1])} tags; each word needs its tag")
    wrong = next((tag for tag in spelled[1] if tag != OUTSIDE and tag[:2] not in ("B-", "I-")), None)
    if wrong is not None:
        raise InvalidInput(f"{row.where}: {wrong!r} is not a tag; tags are O, B-TYPE and I-TYPE")
    return TaggedSentence(spelled[0], to_iob2(spelled[1]), row.path, row.line, rows=True)


def _listed(text: str) -> list[str]:
    """The items of a JSON list, or what spaces separate."""
    if text.lstrip().startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            items = None
        if isinstance(items, list):
            return [str(item) for item in items]
    return text.split()


def tag_names(table: Sequence[TaggedSentence]) -> list[str]:
    """The tags of training sentences, O first; each type has both B- and I-."""
    seen = {tag[2:] for sentence in table for tag in sentence.tags if tag != OUTSIDE}
    if not seen:
        raise InvalidInput(f"{table[0].path} has no tag other than {OUTSIDE}")
    return [OUTSIDE, *(f"{prefix}-{kind}" for kind in sorted(seen) for prefix in "BI")]


def _windows(
    table: Sequence[TaggedSentence], names: Sequence[str], tokenizer: Tokenizer, edge: Around, length: int
) -> list[Example]:
    numbers: Mapping[str, int] = {name: number for number, name in enumerate(names)}
    result = []
    for number, sentence in enumerate(table):
        for offset, tag in enumerate(sentence.tags):
            if tag not in numbers:
                raise InvalidInput(
                    f"{sentence.path}, line {sentence.line_of(offset)}: no training sentence has {tag!r}"
                )
        tags = [numbers[tag] for tag in sentence.tags]
        result.extend(examples(sentence.words, tags, number, tokenizer, edge, length))
    return result


__all__ = ["Tag", "TaggedSentence", "Tags", "examples", "pieces", "sentences", "tag_names", "tagged_row"]
