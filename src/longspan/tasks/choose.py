"""Multiple choice: one of several endings of a text is right (SWAG); one head scores each ending."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example, Examples
from longspan.data.text.tables import TableRow
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.tasks import baselines, starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.metric_sums import ClassMetrics
from longspan.tasks.splits import hold_out
from longspan.tasks.text_inputs import TextTaskOptions, files, limited, padding_facts, read, read_rows, tokenizer_for


class Choices(Examples):
    """Examples of several texts each; batches are (examples, choices, tokens)."""

    def __init__(self, groups: Sequence[Sequence[Example]], batch: int, **given: Any) -> None:
        self.groups = groups
        longest = [max(group, key=len) for group in groups]
        super().__init__(longest, batch, **given)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        chosen = [self.groups[number] for number in numbers]
        flat = Examples([each for group in chosen for each in group], 1, padding=self.padding, shuffle=False)
        flat_batch = dict(flat.load(range(len(flat.examples)), epoch))
        shape = (len(chosen), len(chosen[0]))
        inputs = {name: torch.unflatten(flat_batch[name], 0, shape) for name in ("ids", "mask", "segments")}
        return {**inputs, "label": torch.unflatten(flat_batch["label"], 0, shape)[:, 0]}

    def fingerprint(self) -> str:
        flat = Examples([each for group in self.groups for each in group], self.batch, seed=self.seed)
        return f"choices of {flat.fingerprint()}"


class ChoiceObjective(Objective):
    """The cross-entropy of the right choice."""

    def __init__(self, choices: int) -> None:
        self.choices = choices

    def count(self, batch: Batch) -> int:
        return len(batch["label"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        return TaskLoss(cross_entropy(scores(model, batch), batch["label"], reduction="sum"), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits = scores(model, batch)
        nats = float(cross_entropy(logits, batch["label"], reduction="sum"))
        return ClassMetrics.of(batch["label"].tolist(), logits.argmax(-1).tolist(), self.choices, nats), None


def scores(model: Model, batch: Batch) -> Tensor:
    """A score for each choice; the model reads each as a row of its own."""
    flat = {name: batch[name].flatten(0, 1) for name in ("ids", "mask", "segments")}
    return torch.unflatten(read(model, flat, "choose").float(), 0, batch["ids"].shape[:2])


class Choose(Task):
    """Texts with several endings, from a table with a column for each."""

    name = "choose"
    starting_model = starting.ENCODER
    starting_train = starting.LABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(TextTaskOptions):
        columns: tuple[str, ...] | None = option(None, "names of the columns, if the first line does not have them")
        text: str = option("text", "the column of the text", column=True)
        choices: tuple[str, ...] = option(("choice0", "choice1"), "the columns of the choices", column=True)
        label: str = option("label", "the column with the number of the right choice", column=True)
        first: int = option(0, "the number of the first choice", low=0, high=1)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        if len(options.choices) < 2:
            raise InvalidOption("give at least two choices, by their columns")
        wanted = [options.text, *options.choices, options.label]
        paths = files(options, folders)
        tables = {split: read_rows(path, wanted, options) for split, path in paths.items()}
        facts: dict[str, Any] = {}
        if "held_out" not in tables:
            tables["train"], tables["held_out"], facts["held out"] = hold_out(
                tables["train"], options.share, folders, str(paths["train"])
            )
        tables["train"] = limited(tables["train"], options.limit, folders.seed)
        texts = [row.fields[name] for row in tables["train"] for name in wanted[:-1]]
        tokenizer = tokenizer_for(options, tokenizer, texts)
        data_by_split = {
            split: Choices(
                [_group(row, options, tokenizer) for row in table],
                options.batch,
                padding=tokenizer.pad or 0,
                seed=folders.seed,
                shuffle=split == "train",
            )
            for split, table in tables.items()
        }
        true = {split: [int(group[0].whole["label"]) for group in data.groups] for split, data in data_by_split.items()}
        most = baselines.majority(true["train"], true["held_out"], len(options.choices))
        return Prepared(
            data_by_split["train"],
            data_by_split["held_out"],
            ChoiceObjective(len(options.choices)),
            data_by_split.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "tasks": (Head(task="choose"),)},
            facts={**padding_facts(data_by_split), **facts, "baselines": {"majority": most}},
        )


def _group(row: TableRow, options: Any, tokenizer: Tokenizer) -> list[Example]:
    label = row.fields[options.label]
    count = len(options.choices)
    if not label.isdigit() or not 0 <= int(label) - options.first < count:
        raise InvalidInput(
            f"{row.where}: the label {label!r} is none of the numbers {options.first}..{options.first + count - 1}"
        )
    text = row.fields[options.text]
    second = [row.fields[name] for name in options.choices]
    encoded = tokenizer.encode_many([text] * count, second, longest=options.length, truncate="right")
    return [Example(each.ids, each.segments, {"label": int(label) - options.first}) for each in encoded]


__all__ = ["ChoiceObjective", "Choices", "Choose", "scores"]
