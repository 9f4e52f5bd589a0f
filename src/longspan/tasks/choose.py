"""Multiple choice: one of several endings of a text is right (SWAG); one head scores each ending."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example, Groups
from longspan.data.text.tables import TableRow
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.tasks import baselines, starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.gpt_format import GptTaskOptions, TaskReader, prepare_tokenizer
from longspan.tasks.metric_sums import ClassMetrics
from longspan.tasks.splits import hold_out
from longspan.tasks.text_inputs import files, limited, padding_facts, read_rows, tokenizer_for


class ChoiceObjective(Objective):
    """The cross-entropy of the right choice."""

    unit = "questions"

    def __init__(self, choices: int, reader: TaskReader | None = None) -> None:
        self.choices, self.reader = choices, reader or TaskReader("choose")

    def count(self, batch: Batch) -> int:
        return len(batch["label"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        outputs, language = self.reader.outputs_and_language(model, batch)
        loss = cross_entropy(outputs.unflatten(0, batch["ids"].shape[:2]), batch["label"], reduction="sum")
        return self.reader.loss(loss, language)

    def scores(self, model: Model, batch: Batch) -> Tensor:
        """A score for each choice; the model reads each as a row of its own."""
        scores: Tensor = self.reader.outputs(model, batch).unflatten(0, batch["ids"].shape[:2])
        return scores

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits = self.scores(model, batch)
        nats = float(cross_entropy(logits, batch["label"], reduction="sum"))
        return ClassMetrics.of(batch["label"].tolist(), logits.argmax(-1).tolist(), self.choices, nats), None


class Choose(Task):
    """Texts with several endings, from a table with a column for each."""

    name = "choose"
    starting_model = starting.ENCODER
    starting_train = starting.LABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(GptTaskOptions):
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
        tokenizer = prepare_tokenizer(tokenizer_for(options, tokenizer, texts), options)
        data_by_split = {
            split: Groups(
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
            ChoiceObjective(len(options.choices), TaskReader.of("choose", options)),
            data_by_split.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "tasks": (Head(task="choose"),)},
            facts={**padding_facts(data_by_split), **facts, "baselines": {"majority": most}},
        )


def _group(row: TableRow, options: Choose.Options, tokenizer: Tokenizer) -> list[Example]:
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


__all__ = ["ChoiceObjective", "Choose"]
