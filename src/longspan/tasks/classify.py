"""Text classification and regression: a label or a number for a text or a pair (Devlin et al. 2018, section 4.1)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example
from longspan.data.order import Shuffled
from longspan.data.text.tables import TableRow, rows
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.tasks import baselines
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.metric_sums import ClassMetrics, NumberMetrics
from longspan.tasks.metrics import pearson, spearman
from longspan.tasks.text_inputs import (
    TextTaskOptions,
    data_of,
    files,
    limited,
    padding_facts,
    read,
    split_off,
    tokenizer_for,
    with_auxiliary,
    with_set,
)


class LabelObjective(Objective):
    """The cross-entropy of a text's label."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names

    def count(self, batch: Batch) -> int:
        return len(batch["label"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits = read(model, batch, "classify").float()
        return with_auxiliary(model, cross_entropy(logits, batch["label"], reduction="sum"), self.count(batch))

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits = read(model, batch, "classify").float()
        nats = float(cross_entropy(logits, batch["label"], reduction="sum"))
        confidence, predicted = logits.softmax(-1).max(-1)
        metrics = ClassMetrics.of(
            batch["label"].tolist(),
            predicted.tolist(),
            len(self.names),
            nats,
            names=self.names,
            confidence=confidence.tolist(),
        )
        return metrics, None


class NumberObjective(Objective):
    """The squared error of a number."""

    def count(self, batch: Batch) -> int:
        return len(batch["number"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        predicted = read(model, batch, "regress").flatten()
        squares = ((predicted - batch["number"].to(predicted.dtype)) ** 2).sum()
        return with_auxiliary(model, squares, self.count(batch))

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        predicted = read(model, batch, "regress").flatten()
        return NumberMetrics(batch["number"].tolist(), predicted.tolist()), None


class Classify(Task):
    """Texts or pairs from CSV, tab-separated or JSON-lines files, with labels of any name."""

    name = "classify"

    @dataclass(frozen=True, kw_only=True)
    class Options(TextTaskOptions):
        columns: tuple[str, ...] | None = option(None, "names of the columns, if the first line does not have them")
        text: str = option("text", "the column of the text")
        second: str | None = option(None, "the column of the second text, if texts come in pairs")
        label: str = option("label", "the column of the label or number")
        names: tuple[str, ...] | None = option(None, 'what labels of the file mean, as in "0=negative"')
        regression: bool = option(False, "whether labels are numbers to predict")
        both_orders: bool = option(False, "whether to train on both orders of a pair, if the order means nothing")
        shuffled_labels: bool = option(False, "a control: shuffles the labels of the training texts")

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = with_set(self.options, self.name)
        tables = self._rows(options, folders)
        names = [] if options.regression else label_names(tables["train"], options)
        tables["train"] = limited(tables["train"], options.limit, folders.seed)  # a few texts may not have all labels
        texts = [row.fields[name] for row in tables["train"] for name in _columns(options)]
        tokenizer = tokenizer_for(options, tokenizer, texts)
        splits = {split: _examples(table, options, tokenizer, names) for split, table in tables.items()}
        if options.both_orders and options.second is not None:
            splits["train"] += _examples(tables["train"], options, tokenizer, names, swap=True)
        if options.shuffled_labels:
            splits["train"] = _shuffled(splits["train"], folders.seed)
        data = data_of(splits, options, tokenizer, folders.seed)
        task = "regress" if options.regression else "classify"
        count = 1 if options.regression else len(names)
        head = Head(task=task, labels=count, names=tuple(names) or None)
        facts = {
            **padding_facts(data),
            "cut": sum(len(example) >= options.length for example in splits["train"]),
            **({} if options.regression else {"labels": ", ".join(names)}),
            "baselines": _baselines(splits, tables["held_out"], options, count),
        }
        return Prepared(
            data["train"],
            data["held_out"],
            NumberObjective() if options.regression else LabelObjective(names),
            data.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "tasks": (head,)},
            facts=facts,
        )

    def _rows(self, options: "Classify.Options", folders: DataPaths) -> dict[str, list[TableRow]]:
        wanted = [*_columns(options), options.label]
        paths = files(options, folders)
        tables = {split: list(rows(path, wanted, options.columns, options.encoding)) for split, path in paths.items()}
        for table in tables.values():
            for row in table:
                for name in wanted:
                    if not row.fields[name].strip():
                        raise InvalidInput(f"{row.where}: {name} is empty")
        if "held_out" not in tables:
            train, held = split_off(len(tables["train"]), options.share, folders.seed)
            whole = tables["train"]
            tables["train"], tables["held_out"] = [whole[each] for each in train], [whole[each] for each in held]
        return tables


def _columns(options: "Classify.Options") -> list[str]:
    return [options.text] if options.second is None else [options.text, options.second]


def _renamed(options: "Classify.Options") -> dict[str, str]:
    names = {}
    for entry in options.names or ():
        label, sign, name = entry.partition("=")
        if not sign or not name:
            raise InvalidOption(f'names are written as in "0=negative", not {entry!r}')
        names[label] = name
    return names


def label_names(table: Sequence[TableRow], options: "Classify.Options") -> list[str]:
    """The names of the labels in training texts: numbers sorted by value, others alphabetically."""
    labels = {row.fields[options.label] for row in table}
    if len(labels) < 2:
        raise InvalidInput(f"{table[0].path}: all labels are {labels.pop()!r}; at least two are needed")
    if len(labels) > 1000:
        raise InvalidInput(
            f"{table[0].path}: {options.label!r} has {len(labels)} values; are they numbers (regression)?"
        )
    number = all(label.lstrip("-").isdigit() for label in labels)
    renamed = _renamed(options)
    return [renamed.get(label, label) for label in sorted(labels, key=(lambda label: int(label)) if number else str)]


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
    renamed, numbers = _renamed(options), {name: number for number, name in enumerate(names)}
    examples = []
    for row, text in zip(table, encoded):
        label = row.fields[options.label]
        whole: Mapping[str, float]
        if options.regression:
            whole = {"number": _number(label, row)}
        else:
            name = renamed.get(label, label)
            if name not in numbers:
                raise InvalidInput(f"{row.where}: no training text has the label {label!r}; they have {_some(names)}")
            whole = {"label": numbers[name]}
        if not text.ids:
            raise InvalidInput(f"{row.where}: the text has no tokens")
        examples.append(Example(text.ids, text.segments, whole))
    return examples


def _number(label: str, row: TableRow) -> float:
    try:
        value = float(label)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InvalidInput(f"{row.where}: {label!r} is not a number")
    return value


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


__all__ = ["Classify", "LabelObjective", "NumberObjective", "label_names"]
