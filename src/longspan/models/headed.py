"""Task heads on the states of a model: classification, tagging, answers, masked tokens."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InvalidOption
from longspan.models.base import Mask, Model
from longspan.models.body import table_width
from longspan.nn.heads import Head, Masked, build_head
from longspan.nn.layer_features import FeatureHead
from longspan.nn.recorder import recording
from longspan.nn.stack import Body
from longspan.shapes import Hidden


class Headed(Model):
    """A model with `heads`, one for each task of its option `tasks`, on its hidden states."""

    heads: nn.ModuleDict

    @property
    @abstractmethod
    def table(self) -> Tensor:
        """The embedding matrix, which the head for masked tokens multiplies by."""

    @property
    def reads_layers(self) -> bool:
        """Whether a head reads the states of all layers, and not of the last one only."""
        return any(isinstance(head, FeatureHead) for head in self.heads.values())

    def read_from(
        self,
        body: Body,
        compute: Callable[[], Hidden],
        key_mask: Mask | None = None,
        chosen: Mask | None = None,
    ) -> dict[str, Tensor]:
        """The output of each head on the states that `compute` gives; `body` is the stack that it runs."""
        graph = torch.is_grad_enabled() and not getattr(self, "frozen", False)  # a frozen body needs none
        if not self.reads_layers:
            with torch.set_grad_enabled(graph):
                x = compute()
            return self.read(x, key_mask, chosen)
        with torch.set_grad_enabled(graph), recording(body, maps=False) as seen:
            x = compute()
        return self.read(x, key_mask, chosen, seen.states)

    def read(
        self,
        x: Hidden,
        key_mask: Mask | None = None,
        chosen: Mask | None = None,
        layers: Sequence[Hidden] = (),
    ) -> dict[str, Tensor]:
        """The output of each head on the states, by task; masked tokens at the `chosen` places only, if given.

        `layers` are the states of all layers, the embeddings first, for heads that read features of them.
        """
        places = x if chosen is None else x[chosen]
        outputs: dict[str, Tensor] = {}
        for task, head in self.heads.items():
            if isinstance(head, Masked):
                outputs[task] = head(places, self.table)
            else:
                outputs[task] = head(layers if isinstance(head, FeatureHead) else x, key_mask)
        return outputs


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
                layers=getattr(options, "layers", 0) + 1,
            )
            for head in tasks
        }
    )


__all__ = ["Headed", "build_heads"]
