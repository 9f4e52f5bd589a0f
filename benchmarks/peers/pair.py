"""A pair: an implementation of another package and longspan's, at one size and on the same input."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention import Attention, build
from longspan.nn.multihead import MultiHead


@dataclass(frozen=True)
class Size:
    """The sizes of both sides."""

    length: int
    heads: int = 8
    head_dim: int = 64

    @property
    def width(self) -> int:
        return self.heads * self.head_dim

    def fit(self, most: int) -> int:
        """The size of a window, block or rank: at most a quarter of the text."""
        return min(most, self.length // 4)


class Side:
    """One side of a pair: its call, and the inputs and weights that get gradients."""

    def __init__(self, run: Callable[..., Tensor], inputs: tuple[Tensor, ...], module: Any = None) -> None:
        self.run, self.inputs, self.module = run, inputs, module

    def forward(self) -> Tensor:
        """A forward pass in evaluation mode."""
        if self.module is not None:
            self.module.eval()
        with torch.no_grad():
            return self.run(*(each.detach() for each in self.inputs))

    def backward(self) -> None:
        """A forward and a backward pass, as in training."""
        if self.module is not None:
            self.module.train()
        out = self.run(*self.inputs)
        weights = () if self.module is None else (each for each in self.module.parameters() if each.requires_grad)
        torch.autograd.grad(out, (*self.inputs, *weights), torch.ones_like(out), allow_unused=True)


# How a peer generates
AGAIN = "reads the whole text again for each token"
NO_CAUSAL = "no causal form"

Make = Callable[[Size], Side]
Options = Callable[[Size], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """`tie` copies weights to the other side; then the outputs may differ by at most `close`."""

    peer: str  # the package
    what: str
    equal: str  # what is equal, and what is not
    theirs: Make
    ours: Make
    tie: Callable[[Any, Any], None] | None = None
    close: float | None = None
    decodes: str  # how the peer generates token by token
    ours_decodes: bool = False  # whether ours decodes at the cost of the mechanism
    kind: str = field(default="other")  # of `longspan.report.palette`: the colour in the chart

    @property
    def name(self) -> str:
        return f"{self.peer}: {self.what}"


# Inputs, the same for both sides


def heads(size: Size, count: int = 3) -> tuple[Tensor, ...]:
    """Queries, keys and values."""
    draw = torch.Generator().manual_seed(0)
    shape = (1, size.heads, size.length, size.head_dim)
    return tuple(torch.randn(shape, generator=draw).requires_grad_() for _ in range(count))


def hidden(size: Size) -> Tensor:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(1, size.length, size.width, generator=draw).requires_grad_()


# Our side


def _mechanism(name: str, size: Size, options: Options, causal: bool) -> Attention:
    torch.manual_seed(0)
    sizes = {"heads": size.heads, "head_dim": size.head_dim, "max_length": size.length}
    return build(name, **sizes, causal=causal, **options(size))


def our_heads(name: str, options: Options = lambda size: {}, *, causal: bool = False) -> Make:
    """A mechanism on projected heads; if it shares queries and keys, it gets two tensors."""

    def make(size: Size) -> Side:
        mechanism = _mechanism(name, size, options, causal)
        if "k" not in mechanism.projects:
            return Side(lambda qk, v: mechanism(qk, qk, v), heads(size, 2), mechanism)
        return Side(mechanism, heads(size), mechanism)

    return make


def our_layer(
    name: str,
    options: Options = lambda size: {},
    *,
    causal: bool = False,
    streams: Callable[[Size], Mapping[str, Tensor]] | None = None,
    **projections: bool,
) -> Make:
    """The same with its projections in and out; `projections` says which of them have a bias."""

    def make(size: Size) -> Side:
        layer = MultiHead(size.width, _mechanism(name, size, options, causal), **projections)
        given = None if streams is None else streams(size)
        return Side(partial(layer, streams=given), (hidden(size),), layer)

    return make


# Weights of one side for the other


@torch.no_grad()
def copy(layer: MultiHead, **weights: Tensor | nn.Linear) -> None:
    """Projections of q, k, v, out and further streams, each a matrix or a whole linear layer."""
    for name, weight in weights.items():
        own: Any = layer.out if name == "out" else layer.project[name] if name in layer.project else layer.extra[name]
        own.weight.copy_(weight.weight if isinstance(weight, nn.Linear) else weight)
        if isinstance(weight, nn.Linear) and weight.bias is not None:
            own.bias.copy_(weight.bias)


__all__ = [
    "AGAIN",
    "NO_CAUSAL",
    "Make",
    "Options",
    "Pair",
    "Side",
    "Size",
    "copy",
    "heads",
    "hidden",
    "our_heads",
    "our_layer",
]
