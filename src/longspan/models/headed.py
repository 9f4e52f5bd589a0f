"""Task heads on the states of a model: classification, tagging, answers, masked tokens."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from longspan.errors import InvalidOption
from longspan.models.base import Mask, Model
from longspan.models.body import table_width
from longspan.nn.heads import Head, Masked, build_head
from longspan.shapes import Hidden


class Headed(Model):
    """A model with `heads`, one for each task of its option `tasks`, on its hidden states."""

    heads: nn.ModuleDict

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The embedding matrix, which the head for masked tokens multiplies by."""

    def read(self, x: Hidden, key_mask: Mask | None = None, chosen: Mask | None = None) -> dict[str, Tensor]:
        """The output of each head on the states, by task; masked tokens at the `chosen` places only, if given."""
        places = x if chosen is None else x[chosen]
        return {
            task: head(places, self.table) if isinstance(head, Masked) else head(x, key_mask)
            for task, head in self.heads.items()
        }


def build_heads(options: Any, width: int, vocabulary: int | None) -> nn.ModuleDict:
    """The heads for `options.tasks`, on states of `width`."""
    tasks: Sequence[Head] = options.tasks or ()
    if len({head.task for head in tasks}) < len(tasks):
        raise InvalidOption(f"each task has one head; tasks are {', '.join(head.task for head in tasks)}")
    if not hasattr(options, "separator") and any(head.global_tokens or head.question for head in tasks):
        raise InvalidOption("global_tokens and question are for the heads of an encoder")
    return nn.ModuleDict(
        {
            head.task: build_head(
                head,
                width,
                vocabulary=vocabulary,
                table_width=width if vocabulary is None else table_width(options),
                norm=getattr(options, "norm", "layer"),
                eps=getattr(options, "eps", 1e-5),
            )
            for head in tasks
        }
    )


__all__ = ["Headed", "build_heads"]
