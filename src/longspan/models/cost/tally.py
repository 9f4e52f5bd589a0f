"""Adds up the cost of a pass, part by part, and counts the layers that all models use."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import singledispatch
from typing import Any

from torch import nn

from longspan.attention.base import Cost
from longspan.errors import Unsupported
from longspan.models.base import Model
from longspan.nn.convolution import SeparableConvolution
from longspan.nn.experts import ExpertLayer
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.norm import LayerNorm, OffsetRMSNorm, RMSNorm

BYTES = 4  # of a float32


@dataclass(frozen=True)
class ModelCost:
    """The cost of one sequence; `parts` add up to the whole, and `notes` state conditions."""

    length: int
    parts: Mapping[str, Cost]
    notes: tuple[str, ...] = ()

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.parts.values())

    @property
    def bytes(self) -> int:
        return BYTES * sum(part.floats for part in self.parts.values())


class Tally:
    """The cost of each part, added up."""

    def __init__(self) -> None:
        self.parts: dict[str, Cost] = {}
        self.notes: list[str] = []

    @property
    def floats(self) -> int:
        return sum(part.floats for part in self.parts.values())

    def add(self, part: str, flops: int, floats: int) -> None:
        before = self.parts.get(part, Cost(0, 0))
        self.parts[part] = Cost(before.flops + flops, before.floats + floats)

    def add_all(self, other: "Tally", *, kept: bool = True) -> None:
        """Adds another tally; if not `kept`, its operations alone."""
        for part, cost in other.parts.items():
            self.add(part, cost.flops, cost.floats if kept else 0)

    def norm(self, norm: nn.Module, tokens: int, width: int) -> None:
        """A norm: its input and its statistics. Its output is counted with the layer that reads it."""
        if isinstance(norm, RMSNorm):  # torch composes it of several steps, and keeps the one before the gain
            gain = width if isinstance(norm, OffsetRMSNorm) else 0  # 1 + weight
            self.add("norms", 0, tokens * (2 * width + 1) + gain)
        elif any(isinstance(part, LayerNorm) for part in norm.modules()):
            self.add("norms", 0, tokens * (width + 2))

    def mixer(self, mixer: MultiHead, part: str, queries: int, keys: int, *, again: bool = False) -> None:
        """Attention; `again`: the keys and values are projected already."""
        mechanism, heads = mixer.mechanism, mixer.mechanism.shape.heads
        flops = floats = 0
        for name, linear in mixer.project.items():
            if name != "q" and again:
                continue
            tokens = queries if name == "q" else keys
            flops += products(linear, tokens)
            read = heads if not mechanism.supports.grouped else mixer.heads[name]  # as the mechanism is given them
            floats += tokens * read * mechanism.shape.fused_width
        for stream in mechanism.streams:
            # A stream beside another one depends on its input, which `cost` does not count either.
            projected = stream.kind == "heads" and stream.beside is None
            if projected and mixer.extra[stream.name] is not mixer.project[mixer.likes[stream.name]]:
                flops += products(mixer.extra[stream.name], queries)
                read = heads if not mechanism.supports.grouped else mixer.heads[mixer.likes[stream.name]]
                floats += queries * read * mechanism.shape.fused_width
        if mechanism.shape.value_dim < mechanism.shape.head_dim:  # merging copies heads that were padded
            floats += queries * heads * mechanism.shape.value_dim
        for name, norm in ({} if mixer.norms is None else mixer.norms).items():
            assert isinstance(norm, LayerNorm | RMSNorm)
            if name == "q" or not again:
                vectors = (queries if name == "q" else keys) * (mixer.widths[name] * mixer.heads[name])
                self.norm(norm, vectors // norm.normalized_shape[0], norm.normalized_shape[0])
        self.add(f"{part}: projections", flops + products(mixer.out, queries), floats + queries * mixer.width)
        self.add(part, *mechanism.cost(queries, keys))

    def transition(self, layer: nn.Module, tokens: int) -> None:
        """The layer that follows attention in a block."""
        if isinstance(layer, SeparableConvolution):
            self._convolution(layer, tokens)
            return
        if isinstance(layer, ExpertLayer):
            self._experts(layer, tokens)
            return
        assert isinstance(layer, FeedForward)
        flops = products(layer.inner, tokens) + products(layer.outer, tokens)
        kept = 0 if 0 < layer.chunk < tokens else activation_width(layer.activation)
        if layer.gated and kept:
            kept = 4  # both projections, the gate once more, and their product
        self.add("feed-forward", flops, tokens * (layer.inner.in_features + kept * layer.outer.in_features))

    def _experts(self, layer: ExpertLayer, tokens: int) -> None:
        """A router, and as many experts as read each token."""
        read, width, hidden = tokens * layer.options.active, layer.width, layer.hidden
        flops = products(layer.router, tokens) + read * 6 * width * hidden
        # Of each token its state; of each that an expert reads the gathered state, the outputs and its share, both
        # projections, the clamped gate, and the factors of the gated product and the product.
        clamped = 1 if layer.options.limit is not None else 0
        kept = tokens * width + read * (3 * width + (6 + clamped) * hidden + 2)
        self.add("feed-forward", flops, kept)

    def _convolution(self, layer: SeparableConvolution, tokens: int) -> None:
        width, hidden = layer.inner.in_features, layer.outer.in_features
        first, second = layer.kernels
        flops = products(layer.inner, tokens) + products(layer.outer, tokens)
        flops += 2 * tokens * (first * width + second * hidden)
        # Each convolution keeps its padded input, and each projection its input.
        padded = (tokens + first - 1) * width + (tokens + second - 1) * hidden
        activated = activation_width(layer.activation) - (
            layer.activation != "relu"
        )  # which is copied into the padding
        self.add("convolution", flops, padded + tokens * (width + hidden + activated * hidden))

    def output(self, width: int, vocabulary: int, tokens: int) -> None:
        self.add("output", 2 * tokens * width * vocabulary, tokens * (width + vocabulary))


def activation_width(name: str) -> int:
    """How many times its width an activation keeps: its input or output, and the input of the outer layer."""
    return {"relu": 1, "gelu_sigmoid": 3}.get(name, 2)


@singledispatch
def products(layer: Any, rows: int) -> int:
    """The operations of a linear layer on `rows` rows."""
    return 2 * rows * int(layer.in_features) * int(layer.out_features)


@singledispatch
def read(model: Model, length: int, tally: Tally) -> None:
    """Adds what it takes a model to read `length` tokens; every family registers its own."""
    raise Unsupported(f"the cost of {model.name} is not declared")


__all__ = ["BYTES", "Cost", "ModelCost", "Tally", "products", "read"]
