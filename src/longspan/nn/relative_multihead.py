"""Multi-head relative attention of Transformer-XL (Dai et al. 2019), and a projection shared between segments."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention.mechanisms import relative
from longspan.attention.mechanisms.relative import Distances
from longspan.errors import InvalidOption
from longspan.nn.compression import content_attention
from longspan.nn.dropout import Dropout
from longspan.nn.positions import SinusoidalPositions
from longspan.precision import autocast_type, rounded
from longspan.shapes import Hidden, KeyMask


class RelativeAttention(nn.Module):
    """Relative attention with its projections q, k, v, r and out, all without bias (as in the released code).

    `u` and `w` are arguments, since all layers may share one pair.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        head_dim: int,
        u: nn.Parameter,
        w: nn.Parameter,
        *,
        dropout: float = 0.0,
        code_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if width % 2:
            raise InvalidOption(f"the width must be even (half sines, half cosines of the distance), not {width}")
        inner = heads * head_dim
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout
        self.q, self.kv = nn.Linear(width, inner, bias=False), nn.Linear(width, 2 * inner, bias=False)
        self.r, self.out = nn.Linear(width, inner, bias=False), nn.Linear(inner, width, bias=False)
        self.u, self.w = u, w
        self.codes, self.code_dropout = SinusoidalPositions(width), Dropout(code_dropout)

    def distances(self, count: int, clamp: int | None = None) -> Distances:
        """W_R r_t for t = 0 .. count - 1; distances above `clamp` share one row.

        The code is all sines, then all cosines (as in the released code).
        """
        distinct = count if clamp is None else min(count, clamp + 1)
        codes = self.codes.code(self.r.weight.new_empty(1, distinct, 0), 0, None)
        rows = self.split(self.r(self.code_dropout(codes.unflatten(-1, (-1, 2)).mT.flatten(-2)))[None])[0]
        if distinct == count:
            return rows
        return torch.cat([rows, rows[:, -1:].expand(-1, count - distinct, -1)], 1)

    def split(self, x: Hidden) -> Tensor:
        heads: Tensor = x.unflatten(-1, (-1, self.head_dim))
        return heads.transpose(1, 2)

    def keys(self, kv: Hidden) -> tuple[Tensor, Tensor]:
        k, v = kv.chunk(2, dim=-1)
        return self.split(k), self.split(v)

    def read(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        r: Distances,
        keep: Tensor | None,
        window: int | None,
        ages: Tensor | None,
    ) -> Tensor:
        rate = self.dropout if self.training else 0.0
        return relative.attend(q, k, v, r, self.u, self.w, keep=keep, window=window, ages=ages, dropout=rate)

    def merge(self, heads: Tensor) -> Hidden:
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out

    def content(self, x: Hidden, memory: Hidden, keep: KeyMask | None) -> Tensor:
        """Attention by content alone, through detached views of the projections, which it does not train."""
        q = functional.linear(x, self.q.weight.detach())
        k, v = self.keys(functional.linear(memory, self.kv.weight.detach()))
        return content_attention(self.split(q), k, v, keep)


def project_twice(y: Tensor, again: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """y Wᵀ computed once, as two results: one for this segment, and one for later segments.

    The gradient of the second goes to `again`, which has the values of y but is detached, so later segments train W
    and nothing before it.
    """
    half = autocast_type(y.device)
    if half is not None:
        y, again, weight = (rounded(x, half) for x in (y, again, weight))
    now, later = _ProjectTwice.apply(y, again, weight)  # type: ignore[no-untyped-call, unused-ignore]
    return now, later


class _ProjectTwice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, again: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(y, again if ctx.needs_input_grad[1] else None, weight)
        out = functional.linear(y, weight)
        return out, out.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y, again, weight = ctx.saved_tensors
        now, later = gradients
        if torch.is_grad_enabled() and again is not None:  # second derivatives need separate histories
            dweight = now.flatten(0, -2).mT @ y.flatten(0, -2) + later.flatten(0, -2).mT @ again.flatten(0, -2)
        else:
            dweight = (now + later).flatten(0, -2).mT @ y.flatten(0, -2)
        return now @ weight, later @ weight if ctx.needs_input_grad[1] else None, dweight


__all__ = ["RelativeAttention", "project_twice"]
