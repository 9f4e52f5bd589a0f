"""What the causal and the full form of kernel attention share: rows of features, their scales, the division.

Scales. Exponential features overflow, so sums are kept divided by exp(c), where c bounds the exponents of the keys so
far. A decay γ is the same thing seen from the other side: instead of shrinking the state by γ at every step, let the
scale it is held in grow by 1/γ. Both meet in one number a row, its *level* b_i = c_i − i·log γ: it never falls, and
key j weighs exp(b_j − b_i) ≤ 1 in row i. A row's level depends on no later row, so the future cannot change the past,
not even its rounding. Scales are constants that cancel or are put back: they carry no gradient.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attention.devices import host_may_read
from longspan.attention.parts.features import ExponentialMap, FeatureMap, Features, Rows

# All positions of all heads of all examples: batch and heads are folded into one axis, for `bmm`.
ValueRows = Float[Tensor, "folded positions value_dim"]
Column = Float[Tensor, "folded positions 1"]
Hidden = Bool[Tensor, "folded positions 1"]  # True: this key may not be read
Offset = Float[Tensor, "folded 1 1"]

# Levels are whole multiples of this, so that they change seldom: a chunk without a change needs no weights at all. The
# price is that the largest feature may be e^-8 instead of 1, far from where float32 ends (e^-87).
LEVEL_STEP = 8.0

LOG2_E = math.log2(math.e)

# How many features are alive at a time, in one buffer. Larger blocks cost cache misses, smaller ones calls.
BLOCK_FEATURES = 2**19


@dataclass(frozen=True)
class ScanPlan:
    """What stays the same from block to block."""

    feature_map: FeatureMap
    width: int  # features
    chunk: int
    epsilon: float
    normalise: bool
    dtype: torch.dtype  # of sums, features and everything between input and output
    log_decay: Float[Tensor, "folded 1 1"] | None = None  # float64: it is multiplied by positions

    @property
    def exponential(self) -> bool:
        return isinstance(self.feature_map, ExponentialMap)

    @property
    def cancels(self) -> bool:
        """Whether a factor on a query's features leaves the output as it is."""
        return self.normalise and self.epsilon == 0

    def columns(self, value_dim: int) -> int:
        return value_dim + 1 if self.normalise else value_dim

    def drop(self, positions: int, limit: int | None = None) -> Column | None:
        """log γ^i for i = 1, 2, …; positions past the limit are padding, where time stands still."""
        if self.log_decay is None:
            return None
        steps = torch.arange(1, positions + 1, device=self.log_decay.device)
        return self.log_decay * (steps if limit is None else steps.clamp(max=limit))[:, None]

    def pull_queries(self, x: Rows, features: Features, gradient: Features, out: Rows) -> None:
        if self.cancels and isinstance(self.feature_map, ExponentialMap):
            self.feature_map.pull_exponents(x, features, gradient, out)
        else:
            self.feature_map.pull(x, features, gradient, out)


class Workspace:
    """Named buffers, shared by all blocks of a pass: fresh ones would cost more in page faults than the arithmetic."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.like, self.dtype = like, dtype
        self.held: dict[tuple[str, tuple[int, ...]], Tensor] = {}

    def __call__(self, name: str, *shape: int) -> Tensor:
        buffer = self.held.get((name, shape))
        if buffer is None:
            buffer = self.held[name, shape] = self.like.new_empty(shape, dtype=self.dtype)
        return buffer


def no_buffer(name: str, *shape: int) -> None:
    """The workspace of the loop-free forms: autograd keeps what it needs."""


Work = Workspace | Callable[..., None]


def block_length(plan: ScanPlan, folded: int, columns: int, features: int = BLOCK_FEATURES) -> int:
    """How many positions to take at a time: whole chunks.

    As many as the buffers of features and chunk states are meant for, but at least so many that the state saved for
    them has half as many numbers as their features: what is kept for the backward stays below n·m a head.
    """
    states = max(1.0, columns / plan.chunk)
    positions = max(features / (folded * plan.width * states), 2 * columns)
    return plan.chunk * math.ceil(positions / plan.chunk)


def blocks(x: Tensor, sizes: int | list[int], dtype: torch.dtype, *, backwards: bool = False) -> Iterator[Tensor]:
    """(batch, heads, length, …) in folded blocks, made as they are asked for: views where the layout allows."""
    parts: Sequence[Tensor] = x.split(sizes, 2)
    for part in reversed(parts) if backwards else parts:
        yield part.to(dtype).flatten(0, 1)


def columns(x: Tensor | None, sizes: int | list[int], *, backwards: bool = False) -> Iterator[Any]:
    """The same for what is folded already, or is not there."""
    if x is None:
        return repeat(None)
    parts: Sequence[Tensor] = x.split(sizes, 1)
    return reversed(parts) if backwards else iter(parts)


def query_rows(plan: ScanPlan, x: Rows, work: Work, buffer: str = "queries") -> tuple[Features, Column | None]:
    """Features of queries, each row in a scale of its own, and the logarithm of that scale where it matters."""
    shape = (*x.shape[:2], plan.width)
    if not isinstance(plan.feature_map, ExponentialMap):
        return plan.feature_map.features(x, work(buffer, *shape)), None
    exponents = plan.feature_map.exponents(x, work(buffer, *shape))
    most = exponents.detach().amax(-1, keepdim=True)
    if plan.cancels:  # the part that all features of a row share, too
        return exponential_(exponents, -most), None
    common = plan.feature_map.common(x)
    scale = most + common.detach()
    return exponential_(exponents, common - scale), scale


def exponential_(exponents: Features, shift: Column) -> Features:
    """exp(exponents + shift), in place: by exp2, which torch computes in half the time that `exp` takes."""
    if exponents.requires_grad or torch.compiler.is_compiling():
        return (exponents + shift).exp()
    # Finite, as it was: before the first key the scale is the lowest number, and a hidden key -inf.
    shift = (shift * LOG2_E).clamp_(max=torch.finfo(shift.dtype).max)
    return torch.add(shift, exponents, alpha=LOG2_E, out=exponents).exp2_()


class KeyRows(NamedTuple):
    features: Features
    level: Column | None  # None: every row has the level that the block began with
    scale: Column | Offset | None  # log of what the features were divided by; None: 1


def key_rows(
    plan: ScanPlan,
    x: Rows,
    hidden: Hidden | None,
    offset: Offset,
    drop: Column | None,
    work: Work,
    *,
    still: bool = False,
) -> KeyRows:
    """Features of keys, in the scale of their level. `still` says that no key here raises the level."""
    buffer = work("keys", *x.shape[:2], plan.width)
    if not isinstance(plan.feature_map, ExponentialMap):
        features = plan.feature_map.features(x, buffer)
        # Hidden after the map, because φ(0) need not be 0.
        return KeyRows(
            features if hidden is None else features.masked_fill(hidden, 0.0), None if drop is None else -drop, None
        )
    exponents, common = plan.feature_map.exponents(x, buffer), plan.feature_map.common(x)
    if hidden is not None:
        exponents.masked_fill_(hidden, -math.inf)
    level, scale = None, offset
    if drop is not None or not still:
        rise = exponents.detach().amax(-1, keepdim=True) + common.detach()
        # Where the host may not look at the numbers, the answer is always yes.
        if drop is not None or work is no_buffer or not host_may_read(rise) or bool((rise > offset).any()):
            rise = rise if drop is None else rise - drop
            level = torch.maximum((rise / LEVEL_STEP).ceil() * LEVEL_STEP, offset).cummax(1).values
            scale = level if drop is None else (level + drop).to(plan.dtype)
    return KeyRows(exponential_(exponents, common - scale), level, scale)


class Weights(NamedTuple):
    """How rows and states of different level count for each other, chunk by chunk; at most 1, all of them."""

    carry: Float[Tensor, "chunks rows 1"]  # the incoming state, in each row
    inner: Float[Tensor, "chunks rows keys"]  # each key, in each row that comes after it
    leave: Float[Tensor, "chunks rows 1"]  # each key, in the outgoing state
    keep: Float[Tensor, "folded chunks 1 1"]  # the incoming state, in the outgoing one
    ends: Float[Tensor, "folded chunks_and_one 1"]  # the levels between chunks, from which the rest follows


def weigh(plan: ScanPlan, level: Column | None, offset: Offset, chunk: int) -> Weights | None:
    if level is None:
        return None
    ends = torch.cat([offset.to(level.dtype), level[:, chunk - 1 :: chunk]], 1)
    level, before, end = level.unflatten(1, (level.shape[1] // chunk, chunk)), ends[:, :-1, None], ends[:, 1:, None]
    # Counted from the chunk's end, where the numbers are small: float32 is then enough.
    local, fall = (level - end).to(plan.dtype), (before - end).to(plan.dtype)
    return Weights(
        carry=(fall - local).exp().flatten(0, 1),
        inner=(local.mT - local).clamp_(max=0.0).exp_().flatten(0, 1),
        leave=local.exp().flatten(0, 1),
        keep=fall.exp(),
        ends=ends,
    )


def inverse_of(plan: ScanPlan, denominator: Column | None, scale: Column | None) -> Column | None:
    """What rows of φ(q)·S are multiplied by to become the output. `scale` is the log of what they were divided by."""
    if denominator is None:
        return None if scale is None else scale.exp()
    if plan.epsilon:
        denominator = denominator + (plan.epsilon if scale is None else plan.epsilon * (-scale).exp())
    # Nothing to read, or nothing left of it in this precision: 1/inf makes the row 0, and its gradient too.
    lost = denominator.abs() < torch.finfo(denominator.dtype).tiny
    return denominator.masked_fill(lost, math.inf).reciprocal()


def gradient_rows(
    plan: ScanPlan, gradient: ValueRows, out: ValueRows, inverse: Column | None, work: Workspace
) -> tuple[ValueRows, Column | None]:
    """The gradients on φ(q)·S and on what it was divided by, from that on the output."""
    if inverse is None:
        return gradient, None
    rows = torch.mul(gradient, inverse, out=work("gradients", *gradient.shape))
    if not plan.normalise:
        return rows, None
    # A quotient's: on the denominator, it is minus that on the numerator times the quotient.
    product = torch.mul(rows, out, out=work("product", *rows.shape))
    return rows, product.sum(-1, keepdim=True).neg_()
