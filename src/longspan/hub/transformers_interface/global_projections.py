"""Projections of global tokens (Longformer, ETC), which a layer of theirs does not have.

They start as copies of the layer's own. They are attached to it as `layer.longspan_projections`, and are trained and
saved with it.
"""

from copy import deepcopy

from torch import Tensor, nn

from longspan.attention.base import Attention, Stream
from longspan.errors import Unsupported

PROJECTIONS = "longspan_projections"
NAMES = {
    "q": ("query", "q_proj", "q_lin", "q"),
    "k": ("key", "k_proj", "k_lin", "k"),
    "v": ("value", "v_proj", "v_lin", "v"),
}


def projected(mechanism: Attention) -> list[Stream]:
    """The streams of a mechanism that are projections of the hidden states."""
    return [stream for stream in mechanism.streams if stream.kind == "heads"]


def copies(layer: nn.Module, mechanism: Attention, name: str) -> nn.ModuleDict:
    """A copy of the layer's own projection for each stream."""
    made = nn.ModuleDict()
    for stream in projected(mechanism):
        parts = (getattr(layer, other, None) for other in NAMES[stream.like])
        own = next((part for part in parts if isinstance(part, nn.Linear)), None)
        if own is None:
            raise Unsupported(
                f"{name} needs projections for its global tokens that start as the layer's own, and "
                f"{type(layer).__name__} has none for {stream.like} alone"
            )
        made[stream.name] = deepcopy(own)
    return made


def project(layer: nn.Module, stream: Stream, hidden: Tensor, heads: int) -> Tensor | None:
    """A stream's heads (batch, heads, length, width); None if the layer has no projection for it."""
    projections = getattr(layer, PROJECTIONS, None)
    if not isinstance(projections, nn.ModuleDict):
        return None
    x: Tensor = projections[stream.name](hidden)
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(1, 2)


__all__ = ["PROJECTIONS", "copies", "project", "projected"]
