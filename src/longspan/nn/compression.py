"""Compression functions of the Compressive Transformer (Rae et al. 2020, section 3.2).

c neighbouring memories become one slot. A remainder of fewer than c is dropped, as the paper rounds down. A slot may
be read if all memories that it was computed from may be read.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from longspan.errors import InvalidInput
from longspan.shapes import Hidden

COMPRESSIONS = ("convolution", "dilated", "max", "mean", "most_used")
DILATION = 2  # the paper names dilated convolutions and gives no rate


class Slots(NamedTuple):
    """Compressed memories."""

    value: Hidden
    keep: Bool[Tensor, "batch slots"] | None
    newest: Int[Tensor, "rows slots"]  # index of the newest memory in each slot; rows: batch or 1


class Compression(nn.Module):
    """f_c of the paper and, with `decoder`, the inverse g that the auto-encoding loss needs.

    - `convolution`: kernel and stride c, over all channels.
    - `dilated`: the same, but a slot reads c memories that are two apart; the first memory pads the front.
    - `max`, `mean`: over each group of c.
    - `most_used`: the memories with the largest attention in the last segment, in temporal order.
    """

    def __init__(self, width: int, ratio: int, kind: str = "convolution", *, decoder: bool = False) -> None:
        super().__init__()
        self.ratio, self.kind = ratio, kind
        convolves = kind in ("convolution", "dilated")
        dilation = DILATION if kind == "dilated" else 1
        self.convolution = nn.Conv1d(width, width, ratio, stride=ratio, dilation=dilation) if convolves else None
        self.decoder = nn.ConvTranspose1d(width, width, ratio, stride=ratio) if decoder else None

    def forward(
        self,
        old: Hidden,
        keep: Bool[Tensor, "batch memory"] | None = None,
        usage: Float[Tensor, "batch memory"] | None = None,
    ) -> Slots:
        count = old.shape[1] // self.ratio
        if self.kind == "most_used":
            return self._most_used(old, keep, usage, count)
        whole = old[:, : count * self.ratio]
        newest = torch.arange(1, count + 1, device=old.device)[None] * self.ratio - 1
        if count == 0:
            return Slots(whole, None if keep is None else keep[:, :0], newest)
        sources = self._sources(count, old.device)
        kept = None if keep is None else keep[:, sources].all(-1)
        if self.convolution is None:
            groups = whole.unflatten(1, (count, self.ratio))
            return Slots(groups.mean(2) if self.kind == "mean" else groups.amax(2), kept, newest)
        if self.kind == "dilated":
            back = (DILATION - 1) * (self.ratio - 1)
            whole = torch.cat([whole[:, :1].expand(-1, back, -1), whole], 1)
        return Slots(self.convolution(whole.mT).mT, kept, newest)

    def restore(self, slots: Hidden) -> Hidden:
        """g: an estimate of the memories that the slots were computed from."""
        assert self.decoder is not None
        memories: Tensor = self.decoder(slots.mT)
        return memories.mT

    def _sources(self, count: int, device: torch.device) -> Tensor:
        """(slots, c): the indices of the memories in each slot."""
        newest = torch.arange(1, count + 1, device=device) * self.ratio - 1
        step = DILATION if self.kind == "dilated" else 1
        return (newest[:, None] - step * torch.arange(self.ratio, device=device)).clamp_min(0)

    def _most_used(self, old: Tensor, keep: Tensor | None, usage: Tensor | None, count: int) -> Slots:
        if usage is None:
            raise InvalidInput("most_used selects by how much each memory was read: give usage")
        if keep is not None:
            usage = usage.masked_fill(~keep, -1.0)
        chosen = usage.topk(count, dim=1).indices.sort(dim=1).values
        value = old.gather(1, chosen[..., None].expand(-1, -1, old.shape[2]))
        return Slots(value, None if keep is None else keep.gather(1, chosen), chosen)


def distance(one: Hidden, other: Hidden) -> Float[Tensor, " batch"]:
    """The L2 norm of the difference, per sequence (not a mean of squares)."""
    norms: Tensor = (one - other).flatten(1).norm(dim=1)
    return norms


def content_attention(
    q: Tensor, k: Tensor, v: Tensor, keep: Bool[Tensor, "batch memory"] | None
) -> Float[Tensor, "batch heads queries head_dim"]:
    """softmax((hQ)(mK)ᵀ)(mV): no distances, no order (section 3.2)."""
    mask = None if keep is None else (keep | ~keep.any(1, keepdim=True))[:, None, None]
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)


__all__ = ["COMPRESSIONS", "Compression", "Slots", "content_attention", "distance"]
