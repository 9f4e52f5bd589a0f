"""Models with heads for tasks on their states: classification, tagging, masked tokens and the like."""

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
    """A model that has `heads`, one for each task of its option `tasks`."""

    heads: nn.ModuleDict

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The embedding's rows, which the head for masked tokens reads."""

    def read(self, x: Hidden, key_mask: Mask | None = None) -> dict[str, Tensor]:
        """What each head makes of the states, by the name of its task."""
        return {
            task: head(x, self.table) if isinstance(head, Masked) else head(x, key_mask)
            for task, head in self.heads.items()
        }


def build_heads(options: Any, width: int, vocabulary: int | None) -> nn.ModuleDict:
    """The heads that `options.tasks` names, on states of `width`."""
    tasks: Sequence[Head] = options.tasks or ()
    if len({head.task for head in tasks}) < len(tasks):
        raise InvalidOption(f"a task has one head; tasks are {', '.join(head.task for head in tasks)}")
    if not hasattr(options, "separator") and any(head.global_tokens or head.question for head in tasks):
        raise InvalidOption("only an encoder's heads say which tokens are global or a question")
    return nn.ModuleDict(
        {
            head.task: build_head(
                head,
                width,
                vocabulary=vocabulary,
                table_width=table_width(options),
                norm=options.norm,
                eps=options.eps,
            )
            for head in tasks
        }
    )


__all__ = ["Headed", "build_heads"]
