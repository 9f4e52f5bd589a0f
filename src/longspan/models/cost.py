"""What a model weighs and does: unique parameters by part, and the operations and memory of a pass at a length.

Nothing is run and no weight is allocated: `blank` builds a model without numbers, the mechanisms declare their own
cost, and what stands around them is counted here. Counts are for one sequence:

- operations: multiplications and additions of the matrix products, forward, as `torch.utils.flop_counter` counts them;
  a backward pass takes about twice as many;
- memory: float32 numbers that are alive after the forward pass for the backward one, without dropout (whose masks are
  not numbers), and the output itself; neither weights nor gradients nor the optimiser's state.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan.attention.base import Attention
from longspan.attention.base import Cost as Cost
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import Model
from longspan.models.transformer import Decoder, Encoder, Transformer
from longspan.nn.block import Block
from longspan.nn.embed import TokenEmbedding
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.norm import LayerNorm, RMSNorm
from longspan.nn.positions import Absolute, DistanceBias
from longspan.nn.stack import Stack

BYTES = 4  # of a float32


class _NoNumbers(TorchFunctionMode):
    """Weights without numbers are neither drawn nor scaled: torch would load its compiler to find their shape."""

    DRAWS = ("normal_", "uniform_", "xavier_uniform_", "kaiming_uniform_")  # of tensors and of torch.nn.init
    SCALES = (Tensor.mul, Tensor.mul_)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.DRAWS:
            return args[0] if args else kwargs["tensor"]
        if func in self.SCALES and isinstance(args[1], (int, float)):
            return args[0]
        return func(*args, **kwargs)


@contextmanager
def blank() -> Iterator[None]:
    """Models built inside have shapes and no numbers, so that the largest takes a second and no memory.

    >>> with blank():
    ...     model = build("gpt3-175b")
    """
    with torch.device("meta"), _NoNumbers():
        yield


# Parameters


def count(model: nn.Module) -> dict[str, int]:
    """Parameters by part, each storage once and under the first of its names; their sum is the model's size."""
    kinds = dict(model.named_modules())
    seen: set[int] = set()
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            part = _part(name.split("."), kinds)
            parts[part] = parts.get(part, 0) + parameter.numel()
    return parts


# What a reader calls a part, innermost first: a parameter belongs to the first of these that holds it.
_NAMES: tuple[tuple[type, str], ...] = (
    (Attention, "mechanism"),
    (Absolute, "positions"),
    (DistanceBias, "positions"),
    (LayerNorm, "norms"),
    (RMSNorm, "norms"),
    (FeedForward, "feed-forward"),
    (TokenEmbedding, "tokens"),
)


def _part(path: list[str], kinds: Mapping[str, nn.Module]) -> str:
    first = path[0]
    for depth in range(len(path) - 1, 0, -1):
        module, own = kinds[".".join(path[:depth])], path[depth - 1]
        if isinstance(module, MultiHead):
            return f"{first}: cross-attention" if own == "cross" else f"{first}: attention"
        for kind, name in _NAMES:
            if isinstance(module, kind):
                return f"{first}: {name}"
    words = [word for word in path[:-1] if not word.isdigit() and word != "blocks"]
    return ": ".join(words[:2]) or first


# Operations and memory


@dataclass(frozen=True)
class ModelCost:
    """The cost of one sequence; `parts` adds up to the whole."""

    length: int
    parts: Mapping[str, Cost]

    @property
    def flops(self) -> int:
        return sum(part.flops for part in self.parts.values())

    @property
    def bytes(self) -> int:
        return BYTES * sum(part.floats for part in self.parts.values())


class _Tally:
    """Adds up what each part costs."""

    def __init__(self) -> None:
        self.parts: dict[str, Cost] = {}

    def add(self, part: str, flops: int, floats: int) -> None:
        before = self.parts.get(part, Cost(0, 0))
        self.parts[part] = Cost(before.flops + flops, before.floats + floats)

    def stack(self, stack: Stack, tokens: int, context: int = 0) -> None:
        width = 0
        for block in stack.blocks:
            assert isinstance(block, Block)
            self.block(block, tokens, context)
            width = block.mixer.width
        self.norm(stack.norm, tokens, width)

    def block(self, block: Block, tokens: int, context: int) -> None:
        width = block.mixer.width
        self.mixer(block.mixer, "attention", tokens, tokens)
        self.norm(block.around_mixer.norm, tokens, width)
        if block.cross is not None and block.around_cross is not None:
            self.mixer(block.cross, "cross-attention", tokens, context)
            self.norm(block.around_cross.norm, tokens, width)
        assert isinstance(block.feedforward, FeedForward)
        self.feedforward(block.feedforward, tokens)
        self.norm(block.around_feedforward.norm, tokens, width)

    def norm(self, norm: nn.Module, tokens: int, width: int) -> None:
        """What the norm reads, and its statistics; what it gives is counted with whoever reads that."""
        if isinstance(norm, LayerNorm):
            self.add("norms", 0, tokens * (width + 2))
        elif isinstance(norm, RMSNorm):  # torch composes it of several steps, and keeps the one before the gain
            self.add("norms", 0, tokens * (2 * width + 1))

    def mixer(self, mixer: MultiHead, part: str, queries: int, keys: int) -> None:
        mechanism, heads = mixer.mechanism, mixer.mechanism.shape.heads
        flops = floats = 0
        for name, linear in mixer.project.items():
            tokens = queries if name == "q" else keys
            flops += _linear(linear, tokens)
            read = heads if not mechanism.supports.grouped else mixer.heads[name]  # as the mechanism is given them
            floats += tokens * read * mixer.head_dim
        for linear in mixer.extra.values():
            flops += _linear(linear, queries)
            floats += queries * heads * mixer.head_dim
        self.add(f"{part}: projections", flops + _linear(mixer.out, queries), floats + queries * mixer.width)
        self.add(part, *mechanism.cost(queries, keys))

    def feedforward(self, layer: FeedForward, tokens: int) -> None:
        flops = _linear(layer.inner, tokens) + _linear(layer.outer, tokens)
        # What each activation keeps, in inner widths: its input or its output, and what the outer layer reads.
        kept = 0 if 0 < layer.chunk < tokens else {"relu": 1, "gelu_sigmoid": 3}.get(layer.activation, 2)
        if layer.gated and kept:
            kept = 4  # both projections, the gate once more, and their product
        self.add("feed-forward", flops, tokens * (layer.inner.in_features + kept * layer.outer.in_features))

    def embed(self, layer: TokenEmbedding, tokens: int) -> None:
        if layer.norm is not None:
            self.norm(layer.norm, tokens, layer.weight.shape[1])

    def output(self, width: int, vocabulary: int, tokens: int) -> None:
        self.add("output", 2 * tokens * width * vocabulary, tokens * (width + vocabulary))


def _linear(layer: Any, tokens: int) -> int:
    return 2 * tokens * layer.in_features * layer.out_features


def _encoder(model: Encoder, length: int, tally: _Tally) -> None:
    tally.embed(model.embedding, length)
    tally.stack(model.stack, length)
    tally.add("output", 0, length * model.options.width)


def _decoder(model: Decoder, length: int, tally: _Tally) -> None:
    tally.embed(model.embedding, length)
    tally.stack(model.stack, length)
    tally.output(model.options.width, model.vocabulary, length)


def _transformer(model: Transformer, length: int, tally: _Tally) -> None:
    """The source is of the length; the target too, or as long as the decoder can hold."""
    target = length if model.max_length is None else min(length, model.max_length)
    tally.embed(model.target if model.source is None else model.source, length)
    tally.embed(model.target, target)
    tally.stack(model.encoder, length)
    tally.add("output", 0, length * model.options.width)  # what the decoder reads
    tally.stack(model.decoder, target, length)
    tally.output(model.options.width, model.vocabulary, target)


COUNTED: dict[type[Model], Callable[[Any, int, _Tally], None]] = {
    Encoder: _encoder,
    Decoder: _decoder,
    Transformer: _transformer,
}


def longest(model: Model) -> int | None:
    """The longest text that the model can read; None: any."""
    return getattr(model.options, "source_length", None) or getattr(model, "max_length", None)


def cost(model: Model, length: int) -> ModelCost:
    """The operations and the memory of one pass over a sequence of `length` tokens."""
    if length < 1:
        raise InvalidInput(f"a length is at least 1, not {length}")
    most = longest(model)
    if most is not None and length > most:
        raise InvalidInput(f"this {model.name} holds at most {most} tokens, not {length}")
    for kind in type(model).__mro__:
        if kind in COUNTED:
            tally = _Tally()
            COUNTED[kind](model, length, tally)
            return ModelCost(length, tally.parts)
    raise Unsupported(f"the cost of {model.name} is not declared; these are: {', '.join(k.name for k in COUNTED)}")


__all__ = ["BYTES", "Cost", "ModelCost", "blank", "cost", "count", "longest"]
