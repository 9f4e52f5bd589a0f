"""Rectangles of an image in block-raster order: a block of queries reads its surroundings (Image Transformer)."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.layouts import runs
from longspan.attention.layouts.base import PIECE, Layout, blocked_where, ceil_div, cut_rows, first_rows, products, wide
from longspan.attention.layouts.grid import position_in_blocks, rank_in_blocks
from longspan.attention.layouts.runs import BlockRun, mask_of, portions


@dataclass(frozen=True)
class Rectangles(Layout):
    """A query reads its block of an image and a flange around it; if causal, nothing after itself.

    The sequence is an image of `columns` columns in block-raster order. A query in the block with origin (r, c) reads
    the rows r - flange[0] … r + block[0] - 1 + flange[0] of the columns c - flange[1] … c + block[1] - 1 + flange[1].
    If causal, it reads no row below its block.

    `rows`, the height of the image, matters if it is not a multiple of the block's: the last blocks are then shorter.
    There are as many queries as keys, and the sequence may end anywhere.

    A row of blocks reads a strip of the image. Stored column by column, the strip is a sequence in which the rectangles
    of neighbouring blocks are overlapping views.
    """

    block: tuple[int, int]
    flange: tuple[int, int]
    columns: int
    rows: int | None = None
    causal: bool = False

    def scores(self, q: Tensor, k: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float) -> Tensor:
        strips, valid = self._strips(q.shape[2], 1, q.device)
        scores = products(self._split(q, 1), self._windows(k, strips), scale)
        if keep is not None:
            valid = valid & keep[:, strips.flatten()].unflatten(1, strips.shape)
        readable = valid.unfold(2, self._span, self._key_step)[:, None, :, :, None]
        if self.causal:
            readable = readable & ~self._later(q.device)
        return self._join(scores.masked_fill(~readable, BLOCKED), q.shape[2])

    def mix(self, weights: Tensor, v: Tensor) -> Tensor:
        strips, _ = self._strips(weights.shape[2], 1, v.device)
        return self._join(self._split(weights, 1) @ self._windows(v, strips), weights.shape[2])

    def forward(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, scale: float
    ) -> tuple[Tensor, Tensor]:
        length = q.shape[2]
        blocks = self._split(q)
        out, lse = torch.empty_like(blocks), blocks.new_empty(blocks.shape[:5], dtype=wide(q.dtype))
        strips, valid = self._strips(length, 0, q.device)
        for row, strip in enumerate(strips):
            keys, values = k.index_select(2, strip), v.index_select(2, strip)
            queries = blocks[:, :, row].flatten(2, 3)
            part, part_lse = runs.forward(queries, keys, values, self._runs(queries, strip, valid[:, row], keep), scale)
            out[:, :, row] = part.unflatten(2, out.shape[3:5])
            lse[:, :, row] = part_lse.unflatten(2, lse.shape[3:5])
        return self._join(out, length, cut_rows), self._join(lse[..., None], length, cut_rows)[..., 0]

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
        length, (tall, _) = q.shape[2], self.block
        blocks = [self._split(x) for x in (g, q, out, lse[..., None])]
        dq = torch.empty_like(blocks[1])
        strips, valid = self._strips(length, 0, q.device)
        broad = strips.shape[1] // self._tall  # of the image with its flanges
        dk, dv = (
            x.new_zeros(*x.shape[:2], self._tall + (strips.shape[0] - 1) * tall, broad, x.shape[3]) for x in (k, v)
        )
        for row, strip in enumerate(strips):
            keys, values = k.index_select(2, strip), v.index_select(2, strip)
            g_row, q_row, out_row, lse_row = (x[:, :, row].flatten(2, 3) for x in blocks)
            calls = self._runs(q_row, strip, valid[:, row], keep)
            dq_row, *parts = runs.backward(g_row, q_row, keys, values, out_row, lse_row[..., 0], calls, scale)
            dq[:, :, row] = dq_row.unflatten(2, dq.shape[3:5])
            for total, part in zip((dk, dv), parts):
                total[:, :, row * tall : row * tall + self._tall] += part.unflatten(2, (broad, self._tall)).transpose(
                    2, 3
                )
        index = self._image_index(length, broad, q.device)
        return self._join(dq, length), dk.flatten(2, 3).index_select(2, index), dv.flatten(2, 3).index_select(2, index)

    def width(self, keys: int) -> int:
        return self._span

    def pairs(self, heads: int, queries: int, keys: int) -> int:
        strips = ceil_div(queries, self.block[0] * self.columns)
        return heads * strips * self._across * self.block[0] * self.block[1] * self._span

    # Sizes

    @property
    def _across(self) -> int:
        """Blocks of a row."""
        return ceil_div(self.columns, self.block[1])

    @property
    def _tall(self) -> int:
        """Rows of a strip. If causal, the rows below the block are not read and therefore left out."""
        return self.block[0] + self.flange[0] * (1 if self.causal else 2)

    @property
    def _span(self) -> int:
        return self._tall * (self.block[1] + 2 * self.flange[1])

    @property
    def _key_step(self) -> int:
        return self._tall * self.block[1]

    # Queries

    @property
    def _whole(self) -> bool:
        """Whether every block has full size, so that the sequence is a concatenation of blocks."""
        return self.columns % self.block[1] == 0 and (self.rows or 0) % self.block[0] == 0

    def _split(self, x: Tensor, spare: int = 0) -> Tensor:
        """(batch, heads, rows of blocks, blocks, pixels of a block, …), padded on the right and below"""
        length = x.shape[2]
        strips = ceil_div(length, self.block[0] * self.columns) + spare
        sizes = (strips, self._across, self.block[0] * self.block[1])
        if self._whole:
            missing = math.prod(sizes) - length
            blocks: Tensor = (pad(x, (0, 0, 0, missing)) if spare or missing else x).unflatten(2, sizes)
            return blocks
        pixels = torch.arange(math.prod(sizes), device=x.device)
        row, column = position_in_blocks(pixels, None, self._across * self.block[1], self.block)
        index, valid = self._index(row, column, length)
        blocks = x.index_select(2, index).mul_(valid[:, None]).unflatten(2, sizes)
        return blocks

    def _join(self, x: Tensor, length: int, cut: Callable[[Tensor, int], Tensor] = first_rows) -> Tensor:
        """The inverse of `_split`."""
        x = x.flatten(2, 4)
        if self._whole:
            return cut(x, length)
        row, column = position_in_blocks(torch.arange(length, device=x.device), self.rows, self.columns, self.block)
        return x.index_select(2, rank_in_blocks(row, column, None, self._across * self.block[1], self.block))

    # Keys

    def _index(self, row: Tensor, column: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """The index of a pixel in the sequence, and whether it is in the sequence; index 0 if it is not."""
        valid = (row >= 0) & (column >= 0) & (column < self.columns)
        if self.rows is not None:
            valid = valid & (row < self.rows)
        index = rank_in_blocks(row, column, self.rows, self.columns, self.block)
        valid = valid & (index < length)
        return torch.where(valid, index, 0), valid

    def _strips(self, length: int, spare: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """The sequence index of every pixel of each strip, column by column, and (1, …) whether it exists."""
        count = ceil_div(length, self.block[0] * self.columns) + spare
        (tall, broad), (above, beside) = self.block, self.flange
        row = torch.arange(count, device=device)[:, None, None] * tall - above + torch.arange(self._tall, device=device)
        column = torch.arange(self._across * broad + 2 * beside, device=device) - beside
        index, valid = self._index(row, column[:, None], length)
        return index.flatten(1), valid.flatten(1)[None]

    def _windows(self, x: Tensor, strips: Tensor) -> Tensor:
        """(batch, heads, rows of blocks, blocks, span, width)"""
        pixels: Tensor = x.index_select(2, strips.flatten()).unflatten(2, strips.shape)
        return pixels.unfold(3, self._span, self._key_step).transpose(-1, -2)

    def _later(self, device: torch.device) -> Tensor:
        """(queries of a block, span): whether a key comes after a query in block-raster order."""
        (tall, broad), (above, beside) = self.block, self.flange
        key = torch.arange(self._span, device=device)
        row, column = key % self._tall - above, key // self._tall - beside  # from the block's origin
        query = torch.arange(tall * broad, device=device)[:, None]
        right, inside = column >= broad, (column >= 0) & (column < broad)
        return (row >= 0) & (right | (inside & (row * broad + column > query)))

    def _image_index(self, length: int, broad: int, device: torch.device) -> Tensor:
        """The raster index of each position of the sequence in the image with its flanges."""
        row, column = position_in_blocks(torch.arange(length, device=device), self.rows, self.columns, self.block)
        return (row + self.flange[0]) * broad + column + self.flange[1]

    def _runs(self, q: Tensor, strip: Tensor, valid: Tensor, keep: Tensor | None) -> Iterator[BlockRun]:
        """The fused calls of one row of blocks; q has its queries in order, and the strip its columns."""
        batch, heads, _, width = q.shape
        block, span, step = self.block[0] * self.block[1], self._span, self._key_step
        if keep is not None:
            valid = valid & keep.index_select(1, strip)
        spans = blocked_where(~valid, q).unfold(1, span, step)[:, :, None]
        later = blocked_where(self._later(q.device), q) if self.causal else None
        most = max(1, PIECE // ((block if self.causal else 1) * span))
        for begin in range(0, self._across, most):
            count = min(most, self._across - begin)
            mask = spans[:, begin : begin + count]
            mask = mask if later is None else mask + later
            size = max(1, PIECE // (count * span * width))
            for portion in portions(batch, heads, size):
                yield BlockRun(
                    portion, count, begin * block, block, block, begin * step, span, step, mask_of(mask, portion)
                )
