"""The first readable tokens of each row, for mechanisms that keep them readable (Xiao et al. 2023).

With padding on the left, the first tokens are at other positions in each row; while a text is read in pieces, some rows
may not have all of theirs yet.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.attention.devices import host_may_read
from longspan.attention.state import State

FAR = 1 << 62  # the position of a token that has not come yet: nobody reads it


@dataclass(frozen=True)
class FirstTokens(State):
    """Keys and values (batch, heads, count, width) of the first tokens, and their positions."""

    k: Tensor
    v: Tensor
    at: Tensor  # (batch, count); FAR: not there yet
    filled: int = 0  # places known to be filled in every row

    @classmethod
    def of(cls, k: Tensor, v: Tensor, count: int, key_mask: Tensor | None) -> "FirstTokens":
        """The first `count` readable tokens of a text; without a mask, views of them, fewer in a shorter text."""
        if key_mask is None:
            first = k[:, :, :count]
            at = torch.arange(first.shape[2], device=k.device)[None]
            return cls(first, v[:, :, :count], at)
        return cls.none_of(k, v, count).extend(k, v, key_mask, 0)

    @classmethod
    def none_of(cls, k: Tensor, v: Tensor, count: int) -> "FirstTokens":
        """Room for the first `count` tokens of rows like k and v."""
        at = torch.full((k.shape[0], count), FAR, device=k.device)
        keys, values = (x.new_zeros(*x.shape[:2], count, x.shape[3]) for x in (k, v))
        return cls(keys, values, at)

    def extend(self, k: Tensor, v: Tensor, key_mask: Tensor | None, start: int) -> "FirstTokens":
        """With the next tokens, the first of them at the position `start`, in the places that are still free."""
        (batch, count), new = self.at.shape, k.shape[2]
        if self.filled == count:
            return self
        readable = k.new_ones(batch, new, dtype=torch.bool) if key_mask is None else key_mask
        places = torch.arange(1, count + 1, device=k.device).expand(batch, count).contiguous()
        filled = (self.at < FAR).sum(1, keepdim=True)
        # The rank of each new token among the readable ones; the first that reaches a place's number takes it.
        index = torch.searchsorted(filled + readable.cumsum(1), places)
        comes = (places > filled) & (index < new)
        index = index.clamp_max(new - 1)
        at = torch.where(comes, index + start, self.at)
        chosen, here = index[:, None, :, None], comes[:, None, :, None]
        keys, values = (
            torch.where(here, x.gather(2, chosen.expand(-1, x.shape[1], -1, x.shape[3])), old)
            for x, old in ((k, self.k), (v, self.v))
        )
        known = min(count, self.filled + new) if key_mask is None else self.filled
        if key_mask is not None and host_may_read(at):
            known = int((at < FAR).sum(1).min())
        return FirstTokens(keys, values, at, known)


__all__ = ["FAR", "FirstTokens"]
