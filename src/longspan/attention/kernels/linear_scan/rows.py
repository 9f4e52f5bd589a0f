"""What causal and full linear attention share: rows of features, their scales, the division.

Scales: exponential features overflow, so sums are stored divided by exp(c), where c bounds the exponents of the keys so
far. A decay γ fits in too: instead of shrinking the state by γ at every step, its scale grows by 1/γ. Both combine to
one number per row, its *level* b_i = c_i − i·log γ: it never falls, and key j weighs exp(b_j − b_i) ≤ 1 in row i. A
row's level depends on no later row, so the future cannot change the past, not even its rounding. Scales are constants
that cancel or are multiplied back, so they carry no gradient.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.attention.buffers import Buffers
from longspan.attention.devices import host_may_read
from longspan.attention.kernels.running import running_max
from longspan.attention.parts.features import ExponentialMap, FeatureMap, Features, Rows

# "folded": batch and heads in one axis, for `bmm`.
ValueRows = Float[Tensor, "folded positions value_dim"]
Column = Float[Tensor, "folded positions 1"]
Hidden = Bool[Tensor, "folded positions 1"]  # True: this key may not be read
Offset = Float[Tensor, "folded 1 1"]

# Levels are multiples of this, so that they seldom change: a chunk without a change needs no weights. The price is that
# the largest feature may be e^-8 instead of 1, far above the smallest float32 (e^-87).
LEVEL_STEP = 8.0

LOG2_E = math.log2(math.e)

# Features in memory at a time, in one buffer. Larger blocks cost cache misses, smaller ones calls.
BLOCK_FEATURES = 2**19


@dataclass(frozen=True)
class ScanPlan:
    """What all blocks share."""

    feature_map: FeatureMap
    width: int  # features
    chunk: int
    epsilon: float
    normalise: bool
    dtype: torch.dtype  # of sums, features and everything else between input and output
    log_decay: Float[Tensor, "folded 1 1"] | None = None  # float64, as it is multiplied by positions

    @property
    def exponential(self) -> bool:
        return isinstance(self.feature_map, ExponentialMap)

    @property
    def cancels(self) -> bool:
        """Whether a factor on a query's features cancels in the output."""
        return self.normalise and self.epsilon == 0

    def columns(self, value_dim: int) -> int:
        return value_dim + 1 if self.normalise else value_dim

    def drop(self, positions: int, limit: int | None = None) -> Column | None:
        """log γ^i for i = 1, 2, …; positions past the limit are padding and do not decay."""
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
    """The buffers of a pass, all of one dtype and device."""

    def __init__(self, like: Tensor, dtype: torch.dtype) -> None:
        self.buffers, self.dtype, self.device = Buffers(), dtype, like.device

    def __call__(self, name: str, *shape: int) -> Tensor:
        return self.buffers(name, shape, self.dtype, self.device)


def no_buffer(name: str, *shape: int) -> None:
    """The workspace of the loop-free forms: none, as autograd stores what it needs."""


Work = Workspace | Callable[..., None]


def block_length(plan: ScanPlan, folded: int, columns: int, features: int = BLOCK_FEATURES) -> int:
    """The number of positions to process at a time: whole chunks.

    As many as the buffers of features and chunk states are meant for, but enough that the saved state has at most half
    as many numbers as their features: storage for the backward pass then stays below n·m per head.
    """
    states = max(1.0, columns / plan.chunk)
    positions = max(features / (folded * plan.width * states), 2 * columns)
    return plan.chunk * math.ceil(positions / plan.chunk)


def blocks(x: Tensor, sizes: int | list[int], dtype: torch.dtype, *, backwards: bool = False) -> Iterator[Tensor]:
    """Folded blocks of (batch, heads, length, …), computed on demand: views where the layout allows."""
    split: Sequence[Tensor] = x.split(sizes, 2)
    for block in reversed(split) if backwards else split:
        yield block.to(dtype).flatten(0, 1)


def columns(x: Tensor | None, sizes: int | list[int], *, backwards: bool = False) -> Iterator[Any]:
    """The same for a tensor that is folded already, or for None."""
    if x is None:
        return repeat(None)
    parts: Sequence[Tensor] = x.split(sizes, 1)
    return reversed(parts) if backwards else iter(parts)


def query_rows(plan: ScanPlan, x: Rows, work: Work, buffer: str = "queries") -> tuple[Features, Column | None]:
    """Features of queries, each row in its own scale, and the log of that scale where it matters."""
    shape = (*x.shape[:2], plan.width)
    if not isinstance(plan.feature_map, ExponentialMap):
        return plan.feature_map.features(x, work(buffer, *shape)), None
    exponents = plan.feature_map.exponents(x, work(buffer, *shape))
    largest = exponents.detach().amax(-1, keepdim=True)
    if plan.cancels:  # so does the part that all features of a row share
        return exponential_(exponents, -largest), None
    common = plan.feature_map.common(x)
    scale = largest + common.detach()
    return exponential_(exponents, common - scale), scale


def exponential_(exponents: Features, shift: Column) -> Features:
    """exp(exponents + shift), in place, by exp2: torch computes it twice as fast as `exp`."""
    if exponents.requires_grad or torch.compiler.is_compiling():
        return (exponents + shift).exp()
    # Keep it finite: before the first key the scale is the lowest number, and a hidden key is -inf.
    shift = (shift * LOG2_E).clamp_(max=torch.finfo(shift.dtype).max)
    return torch.add(shift, exponents, alpha=LOG2_E, out=exponents).exp2_()


class KeyRows(NamedTuple):
    features: Features
    level: Column | None  # None: every row has the level at the start of the block
    scale: Column | Offset | None  # log of the factor that the features were divided by; None: 1


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
    """Features of keys in the scale of their level. `still` says that no key of the block raises the level."""
    buffer = work("keys", *x.shape[:2], plan.width)
    if not isinstance(plan.feature_map, ExponentialMap):
        features = plan.feature_map.features(x, buffer)
        # Masked after the map, because φ(0) may not be 0.
        return KeyRows(
            features if hidden is None else features.masked_fill(hidden, 0.0), None if drop is None else -drop, None
        )
    exponents, common = plan.feature_map.exponents(x, buffer), plan.feature_map.common(x)
    if hidden is not None:
        exponents.masked_fill_(hidden, -math.inf)
    level, scale = None, offset
    if drop is not None or not still:
        rise = exponents.detach().amax(-1, keepdim=True) + common.detach()
        # If the host may not read the values, assume that some key raises the level.
        if drop is not None or work is no_buffer or not host_may_read(rise) or bool((rise > offset).any()):
            rise = rise if drop is None else rise - drop
            level = running_max(torch.maximum((rise / LEVEL_STEP).ceil() * LEVEL_STEP, offset), 1)
            scale = level if drop is None else (level + drop).to(plan.dtype)
    return KeyRows(exponential_(exponents, common - scale), level, scale)


class Weights(NamedTuple):
    """Weights between rows and states of different level, chunk by chunk; all at most 1."""

    carry: Float[Tensor, "chunks rows 1"]  # of the incoming state, in each row
    inner: Float[Tensor, "chunks rows keys"]  # of each key, in each later row
    leave: Float[Tensor, "chunks rows 1"]  # of each key, in the outgoing state
    keep: Float[Tensor, "folded chunks 1 1"]  # of the incoming state, in the outgoing one
    ends: Float[Tensor, "folded chunks_and_one 1"]  # levels between chunks, from which the weights follow


def weigh(plan: ScanPlan, level: Column | None, offset: Offset, chunk: int) -> Weights | None:
    if level is None:
        return None
    ends = torch.cat([offset.to(level.dtype), level[:, chunk - 1 :: chunk]], 1)
    level, before, end = level.unflatten(1, (level.shape[1] // chunk, chunk)), ends[:, :-1, None], ends[:, 1:, None]
    # Relative to the chunk's end, where the numbers are small enough for float32.
    local, fall = (level - end).to(plan.dtype), (before - end).to(plan.dtype)
    return Weights(
        carry=(fall - local).exp().flatten(0, 1),
        inner=(local.mT - local).clamp_(max=0.0).exp_().flatten(0, 1),
        leave=local.exp().flatten(0, 1),
        keep=fall.exp(),
        ends=ends,
    )


def inverse_of(plan: ScanPlan, denominator: Column | None, scale: Column | None) -> Column | None:
    """The factor from φ(q)·S to the output. `scale` is the log of what the rows were divided by."""
    if denominator is None:
        return None if scale is None else scale.exp()
    if plan.epsilon:
        denominator = denominator + (plan.epsilon if scale is None else plan.epsilon * (-scale).exp())
    # Nothing to read, or underflow: 1/inf makes the row 0, and its gradient too.
    lost = denominator.abs() < torch.finfo(denominator.dtype).tiny
    return denominator.masked_fill(lost, math.inf).reciprocal()


def gradient_rows(
    plan: ScanPlan, gradient: ValueRows, out: ValueRows, inverse: Column | None, work: Workspace
) -> tuple[ValueRows, Column | None]:
    """Gradients of φ(q)·S and of its denominator, from the gradient of the output."""
    if inverse is None:
        return gradient, None
    rows = torch.mul(gradient, inverse, out=work("gradients", *gradient.shape))
    if not plan.normalise:
        return rows, None
    # Quotient rule: the denominator's gradient is minus the numerator's times the quotient.
    product = torch.mul(rows, out, out=work("product", *rows.shape))
    return rows, product.sum(-1, keepdim=True).neg_()
