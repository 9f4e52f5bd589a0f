"""Groups of queries of any size, each with its own list of keys (Routing Transformer)."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.kernels.running import rank_in_group, stable_sort
from longspan.attention.layouts.base import PIECE, Layout, blocked_where, pick_rows, products, wide

TILE = 32  # queries of a tile: more waste products on empty rows, fewer waste gathers


@dataclass(frozen=True, eq=False)
class Routed(Layout):
    """Query i reads the keys `lists[group[i]]`. A query of group -1 reads nothing; an entry of -1 is no key.

    Groups may have any size, but shapes must not depend on it: queries go into tiles of `TILE` rows, each tile of one
    group, and there are as many tiles as the worst grouping needs.
    """

    group: Tensor  # (batch, heads, queries)
    lists: Tensor  # (batch, heads, groups, width)

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        tiles = self._tiles(q.shape[2])
        scores = products(tiles.queries(q), tiles.keys(k), scale).masked_fill(tiles.hidden(keep), BLOCKED)
        return tiles.back(scores, BLOCKED)

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        tiles = self._tiles(weights.shape[2])
        return tiles.back(tiles.queries(weights) @ tiles.keys(v), 0.0)

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        tiles = self._tiles(q.shape[2])
        hidden = tiles.hidden(keep)
        out = q.new_zeros(q.shape)
        lse = q.new_full(q.shape[:3], BLOCKED, dtype=wide(q.dtype))
        for row, head, run in self._pieces(tiles, q):
            index = tiles.list[row, head, run].flatten()
            tile_k, tile_v = (x[row, head].index_select(0, index).unflatten(0, (-1, self._width)) for x in (k, v))
            source = tiles.source[row, head, run.start * TILE : run.stop * TILE]
            tile_out, tile_lse = flash.forward(
                q[row, head].index_select(0, (source - 1).clamp_min_(0)).unflatten(0, (-1, TILE))[:, None],
                tile_k[:, None],
                tile_v[:, None],
                scale,
                mask=blocked_where(hidden[row, head, run], q)[:, None],
            )
            filled = source.nonzero()[:, 0]
            targets = source[filled] - 1
            out[row, head, targets] = tile_out.flatten(0, 2)[filled]
            lse[row, head, targets] = tile_lse.flatten()[filled]
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
        tiles = self._tiles(q.shape[2])
        hidden = tiles.hidden(keep)
        dq, dk, dv = q.new_zeros(q.shape), k.new_zeros(k.shape), v.new_zeros(v.shape)
        for row, head, run in self._pieces(tiles, q):
            index = tiles.list[row, head, run].flatten()
            tile_k, tile_v = (x[row, head].index_select(0, index).unflatten(0, (-1, self._width)) for x in (k, v))
            source = tiles.source[row, head, run.start * TILE : run.stop * TILE]
            rows = (source - 1).clamp_min_(0)
            g_tiles, queries, outs = (
                x[row, head].index_select(0, rows).unflatten(0, (-1, TILE))[:, None] for x in (g, q, out)
            )
            # An infinite log-sum-exp gives an empty row no weights, so it adds nothing to the keys of its tile.
            sums = lse[row, head].index_select(0, rows).masked_fill_(source == 0, -BLOCKED)
            dq_part, dk_part, dv_part = flash.backward(
                g_tiles,
                queries,
                tile_k[:, None],
                tile_v[:, None],
                outs,
                sums.unflatten(0, (-1, TILE))[:, None],
                scale,
                mask=blocked_where(hidden[row, head, run], q)[:, None],
            )
            filled = source.nonzero()[:, 0]
            dq[row, head, source[filled] - 1] = dq_part.flatten(0, 2)[filled]
            _add_rows(dk[row, head], index, dk_part.flatten(0, 2))
            _add_rows(dv[row, head], index, dv_part.flatten(0, 2))
        return dq, dk, dv

    def width(self, keys: int) -> int:
        return self._width

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        return heads * self._count(queries) * TILE * self._width

    @property
    def _width(self) -> int:
        return self.lists.shape[3]

    def _count(self, queries: int) -> int:
        """The most tiles that any grouping needs."""
        return (queries + self.lists.shape[2] * (TILE - 1)) // TILE

    def _tiles(self, queries: int) -> "_Tiles":
        groups, count = self.lists.shape[2], self._count(queries)
        unrouted = self.group < 0
        group = self.group.masked_fill(unrouted, groups)  # one more group, after the others
        value, order = stable_sort(group)
        index = torch.arange(queries, device=group.device).expand_as(group)
        rank = rank_in_group(value, groups + 1)
        rank = torch.empty_like(rank).scatter_(-1, order, rank)
        sizes = torch.zeros(*group.shape[:2], groups + 1, dtype=torch.long, device=group.device)
        sizes = sizes.scatter_add(-1, group, torch.ones_like(group))
        tiles = (sizes + TILE - 1) // TILE
        tile = (tiles.cumsum(-1) - tiles).gather(-1, group) + rank // TILE
        at = (tile * TILE + rank % TILE).masked_fill(unrouted, count * TILE)
        spare = torch.zeros(*group.shape[:2], count * TILE + 1, dtype=torch.long, device=group.device)
        source = spare.scatter(-1, at, index + 1)[..., :-1]
        owner = spare[..., : count + 1].scatter(-1, tile.masked_fill(unrouted, count), group.masked_fill(unrouted, 0))
        lists = self.lists.gather(2, owner[..., :-1, None].expand(-1, -1, -1, self._width))
        return _Tiles(source, at, lists.clamp_min(0), lists < 0)

    def _pieces(self, tiles: "_Tiles", q: Tensor) -> Iterator[tuple[int, int, slice]]:
        """(sequence, head, tiles): as many tiles as fit in cache."""
        count = tiles.list.shape[2]
        size = max(1, PIECE // (self._width * q.shape[-1]))
        for row in range(q.shape[0]):
            for head in range(q.shape[1]):
                for begin in range(0, count, size):
                    yield row, head, slice(begin, min(begin + size, count))


@dataclass(frozen=True, eq=False)
class _Tiles:
    """Which query is in which row of which tile, and the keys of each tile."""

    source: Tensor  # (batch, heads, tiles · TILE): the query in each row, counted from 1; 0 for none
    at: Tensor  # (batch, heads, queries): the row of each query; one past the last for a query that reads nothing
    list: Tensor  # (batch, heads, tiles, width): the keys
    empty: Tensor  # of that shape: entries without a key

    def queries(self, x: Tensor) -> Tensor:
        """(batch, heads, tiles, TILE, width)"""
        tiles: Tensor = pick_rows(pad(x, (0, 0, 1, 0)), self.source).unflatten(2, (self.list.shape[2], TILE))
        return tiles

    def keys(self, x: Tensor) -> Tensor:
        """(batch, heads, tiles, keys of a list, width)"""
        lists: Tensor = pick_rows(x, self.list.flatten(2)).unflatten(2, self.list.shape[2:])
        return lists

    def hidden(self, keep: Tensor | None) -> Tensor:
        """(batch, heads, tiles, 1, keys of a list)"""
        hidden = self.empty
        if keep is not None:
            masked = ~keep[:, None].expand(-1, hidden.shape[1], -1)
            hidden = hidden | masked.gather(2, self.list.flatten(2)).unflatten(2, self.list.shape[2:])
        return hidden[..., None, :]

    def back(self, x: Tensor, nothing: float) -> Tensor:
        """(batch, heads, queries, width)"""
        return pick_rows(pad(x.flatten(2, 3), (0, 0, 0, 1), value=nothing), self.at)


def _add_rows(total: Tensor, index: Tensor, rows: Tensor) -> None:
    """total[index] += rows. With an expanded index torch sorts and vectorises, unlike in index_add_."""
    total.scatter_add_(0, index[:, None].expand(-1, rows.shape[1]), rows)
