"""Text classification and regression: a label or a number for a text or a pair (Devlin et al. 2018, section 4.1)."""

import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example, Examples, Groups
from longspan.data.order import Shuffled
from longspan.data.sets.named import find as find_set
from longspan.data.text.tables import TableRow
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, Notice
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.tasks import baselines, starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.gpt_format import GptTaskOptions, TaskReader, prepare_tokenizer
from longspan.tasks.metric_sums import ClassMetrics, NumberMetrics
from longspan.tasks.metrics import pearson, spearman
from longspan.tasks.splits import hold_out
from longspan.tasks.text_inputs import (
    data_of,
    files,
    limited,
    padding_facts,
    read_rows,
    tokenizer_for,
    with_set,
)

MOST_LABELS = 1000
FEW = 10  # rows in which a label that occurs once is no surprise


class LabelObjective(Objective):
    """The cross-entropy of a text's label."""

    unit = "texts"

    def __init__(self, names: Sequence[str], reader: TaskReader | None = None) -> None:
        self.names, self.reader = names, reader or TaskReader("classify")

    def count(self, batch: Batch) -> int:
        return len(batch["label"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, language = self.reader.outputs_and_language(model, batch)
        loss = self.reader.loss(cross_entropy(logits, batch["label"], reduction="sum"), language)
        return replace(loss, outputs=logits)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        return label_metrics(self.reader.outputs(model, batch), batch["label"], self.names), None


def label_metrics(logits: Tensor, labels: Tensor, names: Sequence[str]) -> ClassMetrics:
    """Loss, right and wrong labels, and confidence of a batch."""
    nats = float(cross_entropy(logits, labels, reduction="sum"))
    confidence, predicted = logits.softmax(-1).max(-1)
    return ClassMetrics.of(
        labels.tolist(), predicted.tolist(), len(names), nats, names=names, confidence=confidence.tolist()
    )


class NumberObjective(Objective):
    """The squared error of a number."""

    unit = "texts"

    def __init__(self, reader: TaskReader | None = None) -> None:
        self.reader = reader or TaskReader("regress")

    def count(self, batch: Batch) -> int:
        return len(batch["number"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        predicted, language = self.reader.outputs_and_language(model, batch)
        error = predicted.flatten() - batch["number"].to(predicted.dtype)
        return replace(self.reader.loss((error**2).sum(), language), outputs=predicted.flatten())

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        predicted = self.reader.outputs(model, batch).flatten()
        return NumberMetrics(batch["number"].tolist(), predicted.tolist()), None


class Classify(Task):
    """Labels or numbers of texts or pairs, from tables or from folders of texts, with labels of any name."""

    name = "classify"
    starting_model = starting.ENCODER
    starting_train = starting.LABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(GptTaskOptions):
        columns: tuple[str, ...] | None = option(None, "names of the columns, if the first line does not have them")
        text: str = option("text", "the column of the text", column=True)
        second: str | None = option(None, "the column of the second text, if texts come in pairs", column=True)
        label: str = option("label", "the column of the label or number", column=True)
        names: tuple[str, ...] | None = option(None, 'what labels of the file mean, as in "0=negative"')
        regression: bool = option(False, "whether labels are numbers to predict")
        both_orders: bool = option(False, "whether to train on both orders of a pair, if the order means nothing")
        symmetric: bool = option(
            False, "read both orders of a pair and add their states, so that the order cannot matter (GPT's similarity)"
        )
        shuffled_labels: bool = option(False, "a control: shuffles the labels of the training texts")

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = with_set(self.options, self.name)
        _check_symmetric(options)
        tables, names, held_out = self._rows(options, folders)
        tables["train"] = limited(tables["train"], options.limit, folders.seed)  # a few texts may not have all labels
        texts = [row.fields[name] for row in tables["train"] for name in _columns(options)]
        tokenizer = prepare_tokenizer(tokenizer_for(options, tokenizer, texts), options)
        splits = {split: _examples(table, options, tokenizer, names) for split, table in tables.items()}
        if options.both_orders and options.second is not None:
            splits["train"] += _examples(tables["train"], options, tokenizer, names, swap=True)
        if options.shuffled_labels:
            splits["train"] = _shuffled(splits["train"], folders.seed)
        data: Mapping[str, Examples] = data_of(splits, options, tokenizer, folders.seed)
        if options.symmetric:
            swapped = {split: _examples(table, options, tokenizer, names, swap=True) for split, table in tables.items()}
            data = _both_orders(splits, swapped, options, tokenizer, folders.seed)
        task = "regress" if options.regression else "classify"
        count = 1 if options.regression else len(names)
        head = Head(task=task, labels=count, names=tuple(names) or None, symmetric=options.symmetric)
        reader = TaskReader.of(task, options)
        facts = {
            **padding_facts(data),
            **({} if held_out is None else {"held out": held_out}),
            "cut": sum(len(example) >= options.length for example in splits["train"]),
            **({} if options.regression else {"labels": ", ".join(names)}),
            "baselines": _baselines(splits, tables["held_out"], options, count),
        }
        return Prepared(
            data["train"],
            data["held_out"],
            NumberObjective(reader) if options.regression else LabelObjective(names, reader),
            data.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "tasks": (head,)},
            facts=facts,
        )

    def _rows(
        self, options: "Classify.Options", folders: DataPaths
    ) -> tuple[dict[str, list[TableRow]], list[str], str | None]:
        """The rows of each split, the names of the labels, and what was held out if no file is."""
        wanted = [*_columns(options), options.label]
        paths = files(options, folders)
        tables = {split: read_rows(path, wanted, options) for split, path in paths.items()}
        if options.set is not None:
            tables |= {split: between(tables[split], *ends) for split, ends in find_set(options.set).lines.items()}
        names = [] if options.regression else label_names(tables["train"], options.label, renamed(options.names))
        if "held_out" in tables:
            return tables, names, None
        labels = None if options.regression else [row.fields[options.label] for row in tables["train"]]
        tables["train"], tables["held_out"], said = hold_out(
            tables["train"], options.share, folders, str(paths["train"]), labels
        )
        return tables, names, said


def between(table: Sequence[TableRow], first: int, last: int) -> list[TableRow]:
    """The rows of some lines of a file that has several splits."""
    kept = [row for row in table if first <= row.line <= last]
    if not kept:
        raise InvalidInput(f"{table[0].path}: there is no row from line {first} to line {last}")
    return kept


def _check_symmetric(options: "Classify.Options") -> None:
    if options.symmetric and options.second is None:
        raise InvalidOption("symmetric is for pairs of texts; name the column of the second text (second)")
    if options.symmetric and options.both_orders:
        raise InvalidOption("symmetric reads both orders already; leave out both_orders")


def _both_orders(
    splits: Mapping[str, Sequence[Example]],
    swapped: Mapping[str, Sequence[Example]],
    options: "Classify.Options",
    tokenizer: Tokenizer,
    seed: int,
) -> dict[str, Groups]:
    """Each pair with its swapped form; labels are those of the first form."""
    return {
        split: Groups(
            list(zip(examples, swapped[split])),
            options.batch,
            padding=tokenizer.pad or 0,
            seed=seed,
            shuffle=split == "train",
        )
        for split, examples in splits.items()
    }


def _columns(options: "Classify.Options") -> list[str]:
    return [options.text] if options.second is None else [options.text, options.second]


def renamed(entries: Sequence[str] | None) -> dict[str, str]:
    """What labels mean, from entries such as "0=negative"."""
    names = {}
    for entry in entries or ():
        label, sign, name = entry.partition("=")
        if not sign or not name:
            raise InvalidOption(f'names are written as in "0=negative", not {entry!r}')
        names[label] = name
    return names


def label_names(table: Sequence[TableRow], column: str, meanings: Mapping[str, str]) -> list[str]:
    """The names of the labels in training rows: numbers sorted by value, others alphabetically."""
    labels = Counter(row.fields[column] for row in table)
    path = table[0].path
    if len(labels) < 2:
        raise InvalidInput(f"{path}: all labels are {next(iter(labels))!r}; at least two are needed")
    if len(labels) > min(MOST_LABELS, max(20, len(table) // 2)):
        advice = "name the right column as label"
        if all(_is_number(label) for label in labels):
            advice = "to predict numbers, give regression = true"
        raise InvalidInput(
            f"{path}: the column {column!r} has {len(labels)} different values in {len(table)} rows, such as "
            f"{table[0].fields[column][:40]!r}: it does not look like a label; {advice}"
        )
    once = [row for row in table if labels[row.fields[column]] == 1] if len(table) >= FEW else []
    if once:
        more = f", and {len(once) - 1} more labels" if len(once) > 1 else ""
        label = once[0].fields[column]
        warnings.warn(Notice(f"{once[0].where}: the label {label!r} occurs only here{more}"), stacklevel=2)
    number = all(label.lstrip("-").isdigit() for label in labels)
    return [meanings.get(label, label) for label in sorted(labels, key=(lambda label: int(label)) if number else str)]


def _examples(
    table: Sequence[TableRow],
    options: "Classify.Options",
    tokenizer: Tokenizer,
    names: Sequence[str],
    *,
    swap: bool = False,
) -> list[Example]:
    columns = _columns(options)[::-1] if swap else _columns(options)
    pairs = None if options.second is None else [row.fields[columns[1]] for row in table]
    texts = [row.fields[columns[0]] for row in table]
    encoded = tokenizer.encode_many(texts, pairs, longest=options.length, truncate="right")
    meanings, numbers = renamed(options.names), {name: number for number, name in enumerate(names)}
    examples = []
    for row, text in zip(table, encoded):
        label = row.fields[options.label]
        whole: Mapping[str, float]
        if options.regression:
            whole = {"number": _number(label, row)}
        else:
            whole = {"label": label_number(label, row, numbers, meanings)}
        if not text.ids:
            raise InvalidInput(f"{row.where}: the text has no tokens")
        examples.append(Example(text.ids, text.segments, whole))
    return examples


def label_number(label: str, row: TableRow, numbers: Mapping[str, int], meanings: Mapping[str, str]) -> int:
    """The number of a label, which training rows must have."""
    name = meanings.get(label, label)
    if name not in numbers:
        raise InvalidInput(f"{row.where}: no training text has the label {label!r}; they have {_some([*numbers])}")
    return numbers[name]


def _number(label: str, row: TableRow) -> float:
    if not _is_number(label):
        raise InvalidInput(f"{row.where}: {label!r} is not a number")
    return float(label)


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label))
    except ValueError:
        return False


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" and more" if len(names) > 8 else "")


def _shuffled(examples: list[Example], seed: int) -> list[Example]:
    order = Shuffled(len(examples), seed, 1)
    return [Example(each.ids, each.segments, examples[order[at]].whole) for at, each in enumerate(examples)]


def _baselines(
    splits: Mapping[str, Sequence[Example]], held_out: Sequence[TableRow], options: "Classify.Options", labels: int
) -> dict[str, dict[str, float]]:
    train, held = splits["train"], splits["held_out"]
    if not options.regression:
        true, other = ([int(each.whole["label"]) for each in part] for part in (train, held))
        return {
            "majority": baselines.majority(true, other, labels),
            "bag of words": baselines.bag_of_words(train, held, labels),
        }
    mean = sum(each.whole["number"] for each in train) / len(train)
    numbers = [each.whole["number"] for each in held]
    scores = {"the mean": {"loss": sum((mean - each) ** 2 for each in numbers) / len(numbers)}}
    if options.second is not None:
        shared = [_overlap(row.fields[options.text], row.fields[options.second]) for row in held_out]
        scores["shared words"] = {"pearson": pearson(shared, numbers), "spearman": spearman(shared, numbers)}
    return scores


def _overlap(one: str, other: str) -> float:
    """The share of words that two texts have in common (Jaccard)."""
    first, second = {*one.lower().split()}, {*other.lower().split()}
    return len(first & second) / max(1, len(first | second))


__all__ = ["Classify", "LabelObjective", "NumberObjective", "label_metrics", "label_names", "label_number", "renamed"]
