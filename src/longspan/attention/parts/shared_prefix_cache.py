"""The key cache of sequences that share a prefix, such as the beams of a sentence: the prefix is stored once.

The keys of a group of beams are one row of the buffer: first the shared prefix, then at each step one key per member.
Each member has one row of a mask, added to its scores, that says which keys it may read. A member that continues
another one copies that one's mask row, and no key moves. Keys are compacted only when most are read by no member. All
members are compared with all keys of the group, so many members with few shared keys (64 samples of one short prompt)
do better apart: `crowded`.
"""

import torch
from torch import Tensor

from longspan.attention.kernels.flash_dropout import BLOCKED
from longspan.attention.state import Rows, Selection

PATIENCE = 32  # steps between two checks for keys that no member reads
CROWD = 8  # times as many keys as a member may read; one product for all members is no faster with more


class SharedPrefixCache:
    """Groups of `size` members, consecutive in the batch; `may` (families, size, keys, 1) is added to their scores."""

    def __init__(self, size: int, may: Rows, look: int, prefix: int) -> None:
        self.size, self._may, self._prefix = size, may, prefix
        self._look = look  # the number of keys from which it is worth checking for unread ones
        self._next: SharedPrefixCache | None = None
        self._masks: dict[int, Tensor] = {}

    @classmethod
    def begin(cls, families: int, size: int, past: int, seen: Tensor | None, like: Tensor) -> "SharedPrefixCache":
        """After a shared prefix of `past` keys; `seen` (families, past) says which of them may be read."""
        may = torch.zeros(families, size, past, 1, dtype=like.dtype, device=like.device)
        if seen is not None:
            may.masked_fill_(~seen[:, None, :, None], _blocked(may))
        return cls(size, Rows.empty(families).append(may), past + PATIENCE * size, past)

    @property
    def crowded(self) -> bool:
        """Whether the group has many more keys than a member would have by itself."""
        own = len(self._may) - self._prefix
        return len(self._may) > CROWD * (self._prefix + own / self.size)

    def append(self) -> "SharedPrefixCache":
        """One more key for each member, which the others do not read; all layers share the result."""
        if self._next is None:
            old = self._may.value
            new_keys = old.new_full((self.size, self.size), _blocked(old)).fill_diagonal_(0.0)
            grown = self._may.append(new_keys.expand(old.shape[0], -1, -1)[..., None])
            self._next = SharedPrefixCache(self.size, grown, self._look, self._prefix)
        return self._next

    def select(self, selection: Selection, families: list[int], size: int) -> tuple["SharedPrefixCache", Tensor | None]:
        """The selected groups, each with `size` members, and the keys that remain (families, some), or None for all."""
        rows = self._may.value[..., 0].flatten(0, 1).index_select(0, selection.rows)
        may = rows.view(len(families), size, -1)
        kept, look = None, self._look
        if may.shape[2] >= look:
            read = (may == 0).any(1)
            most = int(read.sum(1).max())
            if 2 * most <= may.shape[2]:
                kept = read_first(read)[:, :most]
                may = may.gather(2, kept[:, None].expand(-1, size, -1))
            look = may.shape[2] + PATIENCE * size
        return SharedPrefixCache(size, Rows.empty(len(families)).append(may[..., None]), look, self._prefix), kept

    def mask(self, groups: int) -> Tensor:
        """(families, 1, groups · size, keys), for queries shaped by `fold`."""
        if groups not in self._masks:
            self._masks[groups] = self._may.value[..., 0].repeat(1, groups, 1)[:, None]
        return self._masks[groups]

    def seen(self) -> Tensor:
        """(rows, keys): the keys that each member may read."""
        return (self._may.value[..., 0] == 0).flatten(0, 1)

    def fold(self, x: Tensor, heads: int) -> Tensor:
        """(rows, many heads, 1, width) as (families, heads, groups · size, width)."""
        parts = x.reshape(-1, self.size, heads, x.shape[1] // heads, x.shape[3])
        return parts.permute(0, 2, 3, 1, 4).flatten(2, 3)

    def unfold(self, x: Tensor) -> Tensor:
        """The inverse of `fold`."""
        parts: Tensor = x.unflatten(2, (-1, self.size))
        return parts.permute(0, 3, 1, 2, 4).reshape(x.shape[0] * self.size, -1, 1, x.shape[3])


def read_first(read: Tensor) -> Tensor:
    """The positions of the keys of each row, those that are read (True) before the others, in their order."""
    return read.int().argsort(dim=1, descending=True, stable=True)


def _blocked(like: Tensor) -> float:
    return max(BLOCKED, torch.finfo(like.dtype).min)


__all__ = ["SharedPrefixCache", "read_first"]
