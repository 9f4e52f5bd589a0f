"""Stand-alone local attention for images (Ramachandran et al. 2019): it replaces a k × k convolution.

    y_ij = Σ_ab softmax_ab(q_ij · k_ab + q_ij · r_(a-i, b-j)) v_ab        over the k × k pixels (a, b) around (i, j)

r concatenates an embedding of the row offset and one of the column offset, each half as wide as a head. The scores are
not scaled. Pixels outside the image are masked; the paper does not say, and `borders="zeros"` gives them zero keys and
values instead, as a convolution would.

The map is cut into tiles. The pixels of a tile share one block of keys, the tile and a border of k // 2 pixels around
it, so that all products are matrix products and nothing is copied k² times.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest

Borders = Literal["masked", "zeros"]
TILE = 7  # pixels of a tile's side: with k = 7, a tile of 49 queries reads 169 keys


class LocalAttention2d(nn.Module):
    """Local attention with relative positions, in place of `nn.Conv2d(in_channels, out_channels, kernel, stride)`.

    Stride 2 is attention followed by average pooling, as in the paper. With `grouped`, each head reads its own share of
    the input channels: the paper's text; its parameter counts are those of dense projections, which are the default.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int = 7,
        heads: int = 8,
        stride: int = 1,
        grouped: bool = False,
        borders: Borders = "masked",
    ) -> None:
        super().__init__()
        if borders not in get_args(Borders):
            raise UnknownName(f"no borders are called {borders!r}; {suggest(borders, get_args(Borders))}")
        if kernel < 1 or kernel % 2 == 0:
            raise InvalidOption(f"kernel must be odd, so that it has a centre, not {kernel}")
        if out_channels % (2 * heads) or (grouped and in_channels % heads):
            raise InvalidOption(
                f"{out_channels} channels must split into {heads} heads of even width: half of each codes the row"
                + (f", and {in_channels} input channels into {heads} groups" if grouped else "")
            )
        if stride < 1:
            raise InvalidOption(f"stride must be at least 1, not {stride}")
        self.in_channels, self.out_channels = in_channels, out_channels
        self.kernel, self.heads, self.borders = kernel, heads, borders
        groups = heads if grouped else 1
        self.query, self.key, self.value = (
            nn.Conv2d(in_channels, out_channels, 1, bias=False, groups=groups) for _ in range(3)
        )
        half = out_channels // heads // 2
        self.rows = nn.Parameter(torch.randn(heads, kernel, half))  # embeddings of the offsets -k//2 … k//2
        self.columns = nn.Parameter(torch.randn(heads, kernel, half))
        self.pool = nn.AvgPool2d(stride, stride, ceil_mode=True) if stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise InvalidInput(f"expected (batch, {self.in_channels} channels, height, width), got {tuple(x.shape)}")
        q, k, v = (layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        out = self.attend(q, k, v).flatten(1, 2)
        return out if self.pool is None else self.pool(out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, heads, head width, height, width) for queries, keys and values of that shape."""
        height, width = q.shape[-2:]
        border = self.kernel // 2
        tall, broad = min(TILE, height), min(TILE, width)
        below, right = -height % tall, -width % broad  # up to whole tiles
        queries = _tiles(pad(q, (0, right, 0, below)), tall, broad, 0)
        keys, values = (
            _tiles(pad(heads, (border, border + right, border, border + below)), tall, broad, border)
            for heads in (k, v)
        )
        scores = queries @ keys.mT + self._relative(queries, tall, broad)
        hidden = self._hidden(height, width, tall, broad, q.device)
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        tiles = (weights @ values).unflatten(-2, (tall, broad))  # batch, heads, rows, columns, tall, broad, width
        whole = tiles.permute(0, 1, 6, 2, 4, 3, 5).flatten(5).flatten(3, 4)
        out: Tensor = whole[..., :height, :width]
        return out

    def _relative(self, queries: Tensor, tall: int, broad: int) -> Tensor:
        """q · r for each query and key of a tile; offsets outside the kernel are masked later, and read any row."""
        by_row, by_column = queries.chunk(2, -1)
        tile = self.rows[:, None, None], self.columns[:, None, None]
        rows = _offsets(tall, self.kernel, queries.device).repeat_interleave(broad, 0)
        columns = _offsets(broad, self.kernel, queries.device).repeat(tall, 1)
        scores_of_rows = (by_row @ tile[0].mT).gather(-1, rows.expand(*by_row.shape[:-1], -1))
        scores_of_columns = (by_column @ tile[1].mT).gather(-1, columns.expand(*by_row.shape[:-1], -1))
        return (scores_of_rows[..., :, None] + scores_of_columns[..., None, :]).flatten(-2)

    def _hidden(self, height: int, width: int, tall: int, broad: int, device: torch.device) -> Tensor:
        """True where a query of a tile does not read a key: (tile rows, tile columns, queries, keys)."""
        near_rows, real_rows = self._axis(height, tall, device)
        near_columns, real_columns = self._axis(width, broad, device)
        near = near_rows[:, None, :, None] & near_columns[None, :, None, :]
        readable = near.flatten(2).flatten(0, 1)
        if self.borders == "masked":
            real = (real_rows[:, None, :, None] & real_columns[None, :, None, :]).flatten(2)
            readable = readable & real[:, :, None]
        # A query past the edge of the map reads its own tile: its output is cut off, and must not be NaN.
        return ~(readable | ~readable.any(-1, keepdim=True))

    def _axis(self, size: int, tile: int, device: torch.device) -> tuple[Tensor, Tensor]:
        """For one axis: whether a key of a tile is within the kernel of a query, and whether it is in the map."""
        border = self.kernel // 2
        key = torch.arange(tile + 2 * border, device=device) - border
        near = (key - torch.arange(tile, device=device)[:, None]).abs() <= border
        place = torch.arange(0, size, tile, device=device)[:, None] + key
        return near, (place >= 0) & (place < size)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, kernel={self.kernel}, heads={self.heads}"


class AttentionStem(nn.Module):
    """The paper's stem (section 3.2, appendix): attention within 4 × 4 pixels, batch norm, 4 × 4 max pooling.

    Values depend on where a pixel is in its block, through a mixture of `mixtures` matrices:
    v_ab = (Σ_m p(a, b, m) W_m) x_ab with p = softmax_m((row_a + column_b) · ν_m).
    """

    def __init__(self, in_channels: int, out_channels: int, *, heads: int = 8, mixtures: int = 4) -> None:
        super().__init__()
        if out_channels % heads:
            raise InvalidOption(f"{out_channels} channels do not split into {heads} heads")
        self.in_channels, self.heads, self.mixtures = in_channels, heads, mixtures
        self.query, self.key = (nn.Conv2d(in_channels, out_channels, 1, bias=False) for _ in range(2))
        self.value = nn.Conv2d(in_channels, mixtures * out_channels, 1, bias=False)
        self.rows, self.columns, self.mixing = (
            nn.Parameter(torch.randn(count, out_channels // heads)) for count in (4, 4, mixtures)
        )
        self.norm, self.pool = nn.BatchNorm2d(out_channels), nn.MaxPool2d(4)

    def mixture(self) -> Tensor:
        """p: (4, 4, mixtures)"""
        return ((self.rows[:, None] + self.columns) @ self.mixing.T).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_channels or x.shape[2] % 4 or x.shape[3] % 4:
            raise InvalidInput(
                f"expected (batch, {self.in_channels} channels, height, width) with sides that are multiples of 4, "
                f"got {tuple(x.shape)}"
            )
        values = _tiles(self.value(x).unflatten(1, (self.mixtures, -1)), 4, 4, 0)  # batch, m, rows, columns, 16, width
        mixed = torch.einsum("bmrcpw,pm->brcpw", values, self.mixture().flatten(0, 1))
        q, k = (_tiles(layer(x).unflatten(1, (self.heads, -1)), 4, 4, 0) for layer in (self.query, self.key))
        v = mixed.unflatten(-1, (self.heads, -1)).permute(0, 4, 1, 2, 3, 5)
        tiles = ((q @ k.mT).softmax(-1) @ v).unflatten(-2, (4, 4))
        whole = tiles.permute(0, 1, 6, 2, 4, 3, 5).flatten(5).flatten(3, 4).flatten(1, 2)
        out: Tensor = self.pool(self.norm(whole))
        return out


def _tiles(x: Tensor, tall: int, broad: int, border: int) -> Tensor:
    """(batch, heads, tile rows, tile columns, pixels, width): the tiles of a padded map, each with its border."""
    tiles = x.unfold(-2, tall + 2 * border, tall).unfold(-2, broad + 2 * border, broad)
    return tiles.permute(0, 1, 3, 4, 5, 6, 2).flatten(4, 5)


def _offsets(tile: int, kernel: int, device: torch.device) -> Tensor:
    """The index of the offset between a query and a key of a tile with its border, (tile, tile + kernel - 1)."""
    keys = torch.arange(tile + kernel - 1, device=device)
    return (keys - torch.arange(tile, device=device)[:, None]).clamp(0, kernel - 1)


__all__ = ["AttentionStem", "Borders", "LocalAttention2d"]
