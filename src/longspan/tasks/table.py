"""Tables of numbers and categories: a label or a number for each row, from its other columns (Gorishniy et al. 2021).

The kinds of columns are found from the training file. Numbers are scaled by its mean and deviation, which the model
keeps. Scores are next to those of a linear model.
"""

import hashlib
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.order import Shuffled
from longspan.data.series_files import parse_number
from longspan.data.table_files import EncodedRows, check_names, encode_rows, find_columns, is_missing, read_table
from longspan.data.text.blocks import Batches
from longspan.data.text.tables import TableRow
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, Notice
from longspan.models.base import Model
from longspan.models.table_base import TableColumn, TableModel
from longspan.nn.heads import Head
from longspan.tasks import starting, table_baselines
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss, head_output
from longspan.tasks.classify import label_metrics, label_names, label_number, renamed
from longspan.tasks.splits import drop_empty, hold_out
from longspan.tasks.table_baselines import RegressionMetrics
from longspan.tasks.text_inputs import limited

MISSING = ("learn", "refuse")
FEW_NUMBERS = 20  # different numbers, up to which a label is not taken for a number to predict


class TableRows(Data):
    """Batches of `numbers`, `categories` and `target`: labels, or scaled numbers."""

    def __init__(
        self, rows: EncodedRows, target: np.ndarray, batch: int, *, seed: int = 0, shuffle: bool = True
    ) -> None:
        self.rows, self.target, self.batch, self.seed, self.shuffle = rows, target, batch, seed, shuffle

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        count = len(self.target)
        return Batches(Shuffled(count, self.seed, epoch) if self.shuffle else range(count), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        chosen = list(numbers)
        target = torch.from_numpy(self.target[chosen])
        return {
            "numbers": torch.from_numpy(self.rows.numbers[chosen]).float(),
            "categories": torch.from_numpy(self.rows.categories[chosen]),
            "target": target.float() if target.is_floating_point() else target,
        }

    def fingerprint(self) -> str:
        arrays = (self.rows.numbers, self.rows.categories, self.target)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()[:16]
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{digest}, {len(self.target)} rows, batches of {self.batch}, {order}"


class RowLabel(Objective):
    """The cross-entropy of a row's label."""

    unit = "rows"

    def __init__(self, columns: Sequence[TableColumn], names: Sequence[str]) -> None:
        self.columns, self.names = columns, names

    def count(self, batch: Batch) -> int:
        return len(batch["target"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        return _task_loss(
            model, cross_entropy(_read(model, batch, "classify", self.columns), batch["target"], reduction="sum"), batch
        )

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        return label_metrics(_read(model, batch, "classify", self.columns), batch["target"], self.names), None


class RowNumber(Objective):
    """The squared error of a row's number, in units of its deviation in training."""

    unit = "rows"

    def __init__(self, columns: Sequence[TableColumn], target: TableColumn) -> None:
        self.columns, self.target = columns, target

    def count(self, batch: Batch) -> int:
        return len(batch["target"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        error = _read(model, batch, "regress", self.columns).flatten() - batch["target"]
        return _task_loss(model, error.square().sum(), batch)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        predicted = _read(model, batch, "regress", self.columns).flatten()
        mean, deviation = self.target.mean, self.target.deviation
        true, said = (mean + deviation * each.double() for each in (batch["target"], predicted))
        return RegressionMetrics(true.tolist(), said.tolist(), deviation), None


def _read(model: Model, batch: Batch, task: str, columns: Sequence[TableColumn]) -> Tensor:
    reader = TableModel.require(model, TableTask.name)
    if reader.columns != tuple(columns):
        raise InvalidInput(
            "the model was trained on another table: columns, their scale or their categories differ; train a new one"
        )
    out = head_output(reader, reader.outputs(batch["numbers"], batch["categories"]), task)
    return out.to(torch.promote_types(out.dtype, torch.float32))


def _task_loss(model: Model, total: Tensor, batch: Batch) -> TaskLoss:
    extra = model.auxiliary_loss()
    return TaskLoss(total if extra is None else total + extra * len(batch["target"]), {})


class TableTask(Task):
    """Labels or numbers of the rows of a table, from its columns of numbers and categories."""

    name = "table"
    reads_text = False
    starting_model = starting.ROWS
    starting_train = starting.ROW_TRAINING

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        train: str | None = option(None, "a table with names in its first line (CSV, TSV, JSON, JSON lines, Parquet)")
        held_out: str | None = option(None, "a held-out file; a share of the first unless given")
        test: str | None = option(None, "a test file")
        encoding: str | None = option(None, "encoding of the files; by their first bytes, or UTF-8, unless given")
        share: float = option(0.1, "share of the rows to hold out, if held_out is not given", low=0, high=0.9)
        limit: int | None = option(None, "most rows to train on, drawn by the seed", low=1)
        label: str = option("label", "the column to predict", column=True)
        names: tuple[str, ...] | None = option(None, 'what labels of the file mean, as in "0=no"')
        regression: bool = option(False, "whether labels are numbers to predict")
        categorical: tuple[str, ...] | None = option(None, "columns of numbers that are categories, such as codes")
        leave_out: tuple[str, ...] | None = option(None, "columns that are not read, such as the number of a row")
        decimal: str = option(".", "the decimal mark of numbers", choices=(".", ","))
        missing: str = option(
            "learn", "missing values: learn a vector for them in each column, or refuse them", choices=MISSING
        )
        batch: int = option(128, "rows per batch", low=1)

    options: Options

    @classmethod
    def guess_options(cls, table: dict[str, Any]) -> list[str]:
        """Regression, if the label has many different numbers."""
        if "regression" in table:
            return []
        names, rows = read_table(Path(str(table["train"])), table.get("encoding"))
        label, decimal = str(table.get("label", "label")), str(table.get("decimal", "."))
        check_names(rows[0].path, [label], names)
        texts = {row.fields[label].strip() for row in rows if not is_missing(row.fields[label])}
        numbers = [parse_number(text, decimal) for text in texts]
        whole = all(number is not None and number == int(number) for number in numbers)
        if None in numbers or len(texts) <= (FEW_NUMBERS if whole else 2):
            return []
        table["regression"] = True
        return [f"regression = true: {label} has {len(texts):,} different numbers"]

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        tables, held_out = self._tables(folders)
        names = [] if options.regression else label_names(tables["train"], options.label, renamed(options.names))
        train = tables["train"] = limited(tables["train"], options.limit, folders.seed)
        inputs = [name for name in train[0].fields if name != options.label and name not in (options.leave_out or ())]
        columns, left_out = find_columns(train, inputs, categorical=options.categorical or (), decimal=options.decimal)
        for name, why in left_out.items():
            warnings.warn(Notice(f"{train[0].path}: the column {name!r} is left out: {why}"), stacklevel=2)
        if not columns:
            raise InvalidInput(f"{train[0].path}: no column is left to predict {options.label!r} from")
        encoded = {split: encode_rows(rows, columns, options.decimal) for split, rows in tables.items()}
        missing = self._missing(tables, columns)
        targets = {split: self._target(rows, names) for split, rows in tables.items()}
        target = _target_column(options.label, targets["train"], names)
        data = {
            split: TableRows(
                rows,
                (targets[split] - target.mean) / target.deviation if options.regression else targets[split],
                options.batch,
                seed=folders.seed,
                shuffle=split == "train",
            )
            for split, rows in encoded.items()
        }
        head = Head(
            task="regress" if options.regression else "classify",
            labels=len(names) or 1,
            names=tuple(names) or None,
            dropout=0.0,
        )
        categories = sum(column.kind == "category" for column in columns)
        return Prepared(
            data["train"],
            data["held_out"],
            RowNumber(columns, target) if options.regression else RowLabel(columns, names),
            data.get("test"),
            needs={"columns": columns, "target": target, "decimal": options.decimal, "tasks": (head,)},
            facts={
                **{f"{split} rows": len(rows) for split, rows in tables.items()},
                **({} if held_out is None else {"held out": held_out}),
                "columns": f"{len(columns) - categories} of numbers, {categories} of categories",
                **({"left out": ", ".join(left_out)} if left_out else {}),
                **({"missing values": missing} if missing else {}),
                **({} if options.regression else {"labels": ", ".join(names)}),
                "baselines": _baselines(encoded, targets, columns, len(names)),
            },
        )

    def _tables(self, folders: DataPaths) -> tuple[dict[str, list[TableRow]], str | None]:
        """The rows of each split with a label, and what was held out if no file is."""
        options = self.options
        if options.train is None:
            raise InvalidOption("[task] names no file: give train, a table (--train FILE)")
        given = {"train": options.train, "held_out": options.held_out, "test": options.test}
        tables: dict[str, list[TableRow]] = {}
        first: Sequence[str] | None = None
        for split, name in given.items():
            if name is None:
                continue
            columns, rows = read_table(Path(name), options.encoding)
            wanted = first or (options.label, *(options.categorical or ()), *(options.leave_out or ()))
            check_names(Path(name), wanted, columns)
            first = first or [column for column in columns if column not in (options.leave_out or ())]
            tables[split] = [row for row in rows if not self._unlabelled(row)]
            drop_empty([(row, options.label) for row in rows if self._unlabelled(row)], Path(name))
            if not tables[split]:
                raise InvalidInput(f"{name}: no row has a {options.label}")
        if "held_out" in tables:
            return tables, None
        labels = None if options.regression else [row.fields[options.label] for row in tables["train"]]
        tables["train"], tables["held_out"], said = hold_out(
            tables["train"], options.share, folders, options.train, labels
        )
        return tables, said

    def _unlabelled(self, row: TableRow) -> bool:
        text = row.fields[self.options.label]
        return is_missing(text) if self.options.regression else not text.strip()  # a label may be called "none"

    def _missing(self, tables: dict[str, list[TableRow]], columns: Sequence[TableColumn]) -> str | None:
        """How many values are missing, by column; an error if they are refused."""
        counts: Counter[str] = Counter()
        total = 0
        for rows in tables.values():
            total += len(rows) * len(columns)
            for column in columns:
                absent = [row for row in rows if is_missing(row.fields[column.name])]
                counts[column.name] += len(absent)
                if absent and self.options.missing == "refuse":
                    raise InvalidInput(
                        f"{absent[0].where}: {column.name} is missing, as in {len(absent):,} of {len(rows):,} rows; "
                        'fill it in, or give missing = "learn" to learn a vector for missing values'
                    )
        names = [f"{name} {count:,}" for name, count in counts.most_common() if count]
        more = f" and {len(names) - 5} more columns" if len(names) > 5 else ""
        return f"{counts.total():,} of {total:,} ({', '.join(names[:5])}{more})" if names else None

    def _target(self, rows: Sequence[TableRow], names: Sequence[str]) -> np.ndarray:
        options = self.options
        if not options.regression:
            numbers, meanings = {name: number for number, name in enumerate(names)}, renamed(options.names)
            return np.array([label_number(row.fields[options.label], row, numbers, meanings) for row in rows])
        values = []
        for row in rows:
            text = row.fields[options.label].strip()
            number = parse_number(text, options.decimal)
            if number is None:
                raise InvalidInput(f"{row.where}: {options.label} must be a number, not {text[:40]!r}")
            values.append(number)
        return np.array(values, dtype=np.float64)


def _target_column(name: str, target: np.ndarray, names: Sequence[str]) -> TableColumn:
    if names:
        return TableColumn(name=name, kind="category", values=tuple(names))
    return TableColumn(name=name, mean=float(target.mean()), deviation=float(target.std()) or 1.0)


def _baselines(
    encoded: dict[str, EncodedRows], targets: dict[str, np.ndarray], columns: Sequence[TableColumn], labels: int
) -> dict[str, dict[str, float]]:
    values = [len(column.values or ()) for column in columns if column.kind == "category"]
    absent = np.isnan(encoded["train"].numbers).any(0)
    train, held_out = (
        (table_baselines.features(encoded[split], values, absent), targets[split]) for split in ("train", "held_out")
    )
    if labels:
        return table_baselines.label_scores(train, held_out, labels)
    return table_baselines.number_scores(train, held_out)


__all__ = ["RowLabel", "RowNumber", "TableRows", "TableTask"]
