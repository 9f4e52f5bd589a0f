"""The ability to read the rows of a table (see `models/base.py`), and what a model knows of its columns."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor, nn

from longspan import config
from longspan.config import option
from longspan.models.base import Model
from longspan.nn.table_embedding import Categories, Numbers

KINDS = ("number", "category")


@dataclass(frozen=True, kw_only=True)
class TableColumn(config.Options):
    """A column of the training table, so that other tables are read alike."""

    name: str = option("x", "its name in the first line of the file")
    kind: str = option("number", "whether it has numbers or categories", choices=KINDS)
    mean: float = option(0.0, "mean of its numbers in training")
    deviation: float = option(1.0, "standard deviation of its numbers in training", above=0)
    values: tuple[str, ...] | None = option(None, "its categories in training; others are read as missing ones")


class TableModel(Model):
    """A model that reads rows of numbers and categories, and has `heads`, one for each task of its option `tasks`.

    Numbers are scaled by the mean and deviation of their column, NaN if they are missing. Categories count the values
    of their column from 1; 0 is missing or unknown. Predicted numbers are scaled as the column `target`.
    """

    ability = "a model of tables"
    heads: nn.ModuleDict
    columns: tuple[TableColumn, ...]  # numbers and categories, in the order of the file
    target: TableColumn  # the column that it predicts
    decimal: str  # the decimal mark of the file

    @abstractmethod
    def outputs(self, numbers: Numbers, categories: Categories) -> dict[str, Tensor]:
        """The output of each head, by task."""


__all__ = ["TableColumn", "TableModel"]
