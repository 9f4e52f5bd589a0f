"""A different layout for each group of heads."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts.base import Layout, wide


@dataclass(frozen=True)
class ByHead(Layout):
    """Each group of heads has its own layout; every head belongs to one group."""

    groups: tuple[tuple[tuple[int, ...], Layout], ...]

    @property
    def takes_bias(self) -> bool:  # type: ignore[override]
        return all(layout.takes_bias for _, layout in self.groups)

    @property
    def widths_differ(self) -> bool:
        return True

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        parts = [
            layout.scores(_pick(q, heads), _pick(k, heads), keep, None if bias is None else bias[list(heads)], scale)
            for heads, layout in self.groups
        ]
        widest = self.width(k.shape[2])
        parts = [pad(part, (0, widest - part.shape[-1]), value=BLOCKED) for part in parts]
        return _pick(torch.cat(parts, 1), self._back)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        parts = []
        for heads, layout in self.groups:
            group_weights = _pick(weights, heads)[..., : layout.width(v.shape[2])]
            parts.append(layout.mix(group_weights, _pick(v, heads)))
        return _pick(torch.cat(parts, 1), self._back)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        out, lse = torch.empty_like(q), q.new_empty(q.shape[:3], dtype=wide(q.dtype))
        for heads, layout in self.groups:
            group = list(heads)
            out[:, group], lse[:, group] = layout.forward(
                q[:, group], k[:, group], v[:, group], keep, None if bias is None else bias[group], scale
            )
        return out, lse

    def backward(
        self,
        g: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        keep: Tensor | None,
        bias: Tensor | None,
        out: Tensor,
        lse: Tensor,
        scale: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        gradients = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        for heads, layout in self.groups:
            group = list(heads)
            of_group = layout.backward(
                g[:, group],
                q[:, group],
                k[:, group],
                v[:, group],
                keep,
                None if bias is None else bias[group],
                out[:, group],
                lse[:, group],
                scale,
            )
            for total, gradient in zip(gradients, of_group):
                total[:, group] = gradient
        return gradients

    def width(self, keys: int) -> int:
        return max(layout.width(keys) for _, layout in self.groups)

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return sum(layout.pairs(len(group), queries, keys) for group, layout in self.groups)

    def of_heads(self, heads: slice) -> Layout:
        chosen = range(len(self._back))[heads]
        groups = [(tuple(chosen.index(x) for x in group if x in chosen), layout) for group, layout in self.groups]
        groups = [(group, layout) for group, layout in groups if group]
        return groups[0][1] if len(groups) == 1 else ByHead(tuple(groups))

    @property
    def _back(self) -> tuple[int, ...]:
        """The index of each head in the concatenation of the groups."""
        order = [head for heads, _ in self.groups for head in heads]
        return tuple(order.index(head) for head in range(len(order)))


def _pick(x: Tensor, heads: tuple[int, ...]) -> Tensor:
    return x[:, torch.tensor(heads, device=x.device)]
