"""Predictions of a trained model for the rows of a table: labels with their probabilities, or numbers."""

import csv
import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longspan.data.table_files import check_names, encode_rows, read_table
from longspan.data.text.tables import TableRow
from longspan.errors import InvalidOption, Notice
from longspan.hub.pretrained import Pretrained
from longspan.models.table_base import TableModel
from longspan.tasks.base import head_output
from longspan.tasks.predict import label_task, labelled


@dataclass(frozen=True)
class RowPredictions:
    """The rows of a table, and the prediction for each."""

    target: str  # the column that is predicted
    rows: Sequence[TableRow]
    answers: list[dict[str, Any]]

    def to_csv(self) -> str:
        """The table with the prediction as further columns, and the probability of a label."""
        text, kind = io.StringIO(), "value" if "value" in self.answers[0] else "label"
        name = f"predicted_{self.target}"
        further = [name] if kind == "value" else [name, f"{name}_probability"]
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.rows[0].fields, *further])
        for row, answer in zip(self.rows, self.answers):
            said = [f"{answer['value']:.6g}"] if kind == "value" else [answer["label"], f"{answer['probability']:.4f}"]
            writer.writerow([*row.fields.values(), *said])
        return text.getvalue()


@torch.inference_mode()
def predict_rows(
    pretrained: Pretrained,
    path: Path,
    *,
    encoding: str | None = None,
    batch: int = 1024,
) -> RowPredictions:
    """The label or number of each row of a table with the columns that the model was trained on.

    >>> predict_rows(hub.load("runs/houses"), Path("new.csv")).answers[0]["value"]
    """
    if batch < 1:
        raise InvalidOption(f"batch must be at least 1, not {batch}")
    model = TableModel.require(pretrained.model, "predictions for tables").eval()
    task = label_task(model)
    names, rows = read_table(path, encoding)
    check_names(path, [column.name for column in model.columns], names)
    encoded = encode_rows(rows, model.columns, model.decimal)
    for name, count in encoded.unknown.items():
        warnings.warn(
            Notice(f"{path}: {name} has {count:,} values that training did not have; they are read as missing"),
            stacklevel=2,
        )
    answers: list[dict[str, Any]] = []
    for first in range(0, len(rows), batch):
        part = slice(first, first + batch)
        numbers = torch.from_numpy(encoded.numbers[part]).to(model.dtype).to(model.device)
        categories = torch.from_numpy(encoded.categories[part]).to(model.device)
        out = head_output(model, model.outputs(numbers, categories), task).double().cpu()
        if task == "regress":
            values = model.target.mean + model.target.deviation * out[:, 0]
            answers += [{"value": value} for value in values.tolist()]
        else:
            answers += [labelled(pretrained, row) for row in out.softmax(-1).tolist()]
    return RowPredictions(model.target.name, rows, answers)


__all__ = ["RowPredictions", "predict_rows"]
