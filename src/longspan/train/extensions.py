"""Extensions: further tables of a recipe, which change its model or its objective, such as [distill] and [adapter].

An extension is found by the name of its table. This layer imports none of them, so that they may use what is above it.
"""

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import tomli_w

from longspan import config
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidOption
from longspan.models.base import Model
from longspan.registry import Registry
from longspan.tasks.base import Objective, Prepared
from longspan.train.options import TrainOptions


class Extension(ABC):
    """A table of a recipe; a subclass declares its `Options` and overrides what it changes."""

    name: ClassVar[str]
    options: Any

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        self.options = options

    def located(self) -> Mapping[str, Any]:
        """The table with absolute paths, so that a run can be opened from any folder."""
        table: Mapping[str, Any] = config.plain(self.options)
        return table

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that the model must have, if no pretrained model gives one."""
        return None

    def adapt_model(self, model: Model, table: Mapping[str, Any], options: TrainOptions) -> None:  # noqa: B027
        """Changes the new model in place; `table` is the recipe's [model]."""

    def adapt_objective(self, objective: Objective, model: Model, prepared: Prepared) -> Objective:
        """The objective to train with."""
        return objective


EXTENSIONS: Registry[Extension] = Registry(
    "table of a recipe",
    "longspan.extensions",
    "longspan.train.extensions:Extension",
    {
        "distill": "longspan.adapt.distill.table:Distill",
        "adapter": "longspan.adapt.adapters.table:AdapterTable",
    },
)


def build(tables: Mapping[str, Mapping[str, Any]], source: str) -> list[Extension]:
    """The extensions of a recipe, in the order of the table of extensions: a teacher before an adapter."""
    extensions = []
    for name in (name for name in EXTENSIONS.names() if name in tables):
        cls = EXTENSIONS.find(name)
        if not isinstance(tables[name], Mapping):
            raise InvalidOption(f"{source}: {name} must be a table")
        extensions.append(cls(config.make(cls.Options, tables[name], f"{source}: [{name}]")))
    return extensions


def to_toml(tables: Mapping[str, Any]) -> str:
    """TOML text. None values are left out, since TOML has none."""
    return tomli_w.dumps(_without_none(tables))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, (list, tuple)) else value


__all__ = ["EXTENSIONS", "Extension", "build", "to_toml"]
