"""Stand-alone local attention for images (Ramachandran et al. 2019): it replaces a k × k convolution.

    y_ij = Σ_ab softmax_ab(q_ij · k_ab + q_ij · r_(a-i, b-j)) v_ab        over the k × k pixels (a, b) around (i, j)

r concatenates an embedding of the row offset and one of the column offset, each half as wide as a head. The scores are
not scaled. Pixels outside the image are masked; the paper does not say, and `borders="zeros"` gives them zero keys and
values instead, as a convolution would.

The map is cut into tiles. The pixels of a tile share one block of keys, the tile and a border of k // 2 pixels around
it. Everything but q · k depends on the query and on the key's row or column in the block. So it is a product too, of
further features: a query has its relative score for each row and each column, a key says in which it is. Rows and
columns outside the neighbourhood get the score `BLOCKED`. The whole is then plain attention, which fused kernels do.
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longspan.attention.kernels import sdpa
from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest

Borders = Literal["masked", "zeros"]
LARGEST_TILE = 8  # pixels of a side: with k = 7, a tile of 64 queries reads 196 keys
BLOCKED = -1e9  # finite, so that its product with 0 is 0
BLOCKED_HALF = -1e4  # in float16


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
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Scores of unit variance for inputs of unit variance: they are not scaled, so the queries start small."""
        for layer in (self.query, self.key, self.value):
            nn.init.kaiming_normal_(layer.weight, nonlinearity="linear")
        with torch.no_grad():
            self.query.weight.mul_((self.out_channels // self.heads) ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise InvalidInput(f"expected (batch, {self.in_channels} channels, height, width), got {tuple(x.shape)}")
        q, k, v = (layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value))
        out = self.attend(q, k, v).flatten(1, 2)
        return out if self.pool is None else self.pool(out)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """(batch, heads, head width, height, width) for queries, keys and values of that shape."""
        batch, (height, width), border = len(q), q.shape[-2:], self.kernel // 2
        tall, broad = _tile_side(height), _tile_side(width)
        below, right = -height % tall, -width % broad  # up to whole tiles
        queries = _tiles(pad(q, (0, right, 0, below)), tall, broad, 0)
        keys, values = (
            _tiles(pad(heads, (border, border + right, border, border + below)), tall, broad, border)
            for heads in (k, v)
        )
        where = self._key_features(height, width, tall, broad, keys).expand(*keys.shape[:-1], -1)
        queries = torch.cat([queries, self._query_features(queries, tall, broad)], -1)
        keys = torch.cat([keys, where], -1)
        tiles = sdpa.attend(*(x.flatten(0, 2) for x in (queries, keys, values)), scale=1.0)
        tiles = tiles.unflatten(2, (tall, broad)).unflatten(0, (batch, (height + below) // tall, -1))
        whole = tiles.permute(0, 3, 6, 1, 4, 2, 5).flatten(5).flatten(3, 4)  # batch, heads, head width, height, width
        out: Tensor = whole[..., :height, :width]
        return out

    def _query_features(self, queries: Tensor, tall: int, broad: int) -> Tensor:
        """The relative scores of each query for the rows and columns of its block, and what hides a key outside."""
        by_row, by_column = queries.chunk(2, -1)
        blocked = BLOCKED_HALF if queries.dtype == torch.float16 else BLOCKED
        rows = _offsets(tall, self.kernel, queries.device).repeat_interleave(broad, 0)
        columns = _offsets(broad, self.kernel, queries.device).repeat(tall, 1)
        features = [
            (part @ table.mT.to(part.dtype))
            .gather(-1, offsets.clamp(0, self.kernel - 1).expand(*part.shape[:-1], -1))
            .masked_fill((offsets < 0) | (offsets >= self.kernel), blocked)
            for part, table, offsets in ((by_row, self.rows, rows), (by_column, self.columns, columns))
        ]
        if self.borders == "masked":
            features.append(torch.full_like(features[0][..., :1], blocked))
        return torch.cat(features, -1)

    def _key_features(self, height: int, width: int, tall: int, broad: int, like: Tensor) -> Tensor:
        """In which row and column of its block a key is, and whether it is outside the map."""
        border = self.kernel // 2
        rows, columns = (
            torch.arange(0, size, tile, device=like.device)[:, None]
            + torch.arange(-border, tile + border, device=like.device)
            for size, tile in ((height, tall), (width, broad))
        )
        shape = (len(rows), len(columns), 1, rows.shape[1], columns.shape[1])
        features = [
            torch.eye(rows.shape[1], device=like.device)[:, None].expand(*shape, -1),
            torch.eye(columns.shape[1], device=like.device).expand(*shape, -1),
        ]
        if self.borders == "masked":
            outside_rows, outside_columns = (rows < 0) | (rows >= height), (columns < 0) | (columns >= width)
            outside = outside_rows[:, None, None, :, None] | outside_columns[:, None, None, :]
            features.append(outside[..., None].expand(*shape, 1))
        return torch.cat([x.to(like.dtype) for x in features], -1).flatten(3, 4)

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
        values = _tiles(self.value(x).unflatten(1, (self.mixtures, -1)), 4, 4, 0)  # batch, rows, columns, m, 16, width
        mixed = torch.einsum("brcmpw,pm->brcpw", values, self.mixture().flatten(0, 1))
        q, k = (_tiles(layer(x).unflatten(1, (self.heads, -1)), 4, 4, 0) for layer in (self.query, self.key))
        v = mixed.unflatten(-1, (self.heads, -1)).movedim(-2, 3)
        tiles = ((q @ k.mT).softmax(-1) @ v).unflatten(-2, (4, 4))
        whole = tiles.permute(0, 3, 6, 1, 4, 2, 5).flatten(5).flatten(3, 4).flatten(1, 2)
        out: Tensor = self.pool(self.norm(whole))
        return out


def _tile_side(size: int) -> int:
    """The side of tiles of about equal size that cover a map."""
    return -(-size // -(-size // LARGEST_TILE))


def _tiles(x: Tensor, tall: int, broad: int, border: int) -> Tensor:
    """(batch, tile rows, tile columns, heads, pixels, width): the tiles of a padded map, each with its border."""
    tiles = x.unfold(-2, tall + 2 * border, tall).unfold(-2, broad + 2 * border, broad)
    return tiles.permute(0, 3, 4, 1, 5, 6, 2).flatten(4, 5)


def _offsets(tile: int, kernel: int, device: torch.device) -> Tensor:
    """The index of the offset between a query and a key of a tile with its border, (tile, tile + kernel - 1)."""
    return torch.arange(tile + kernel - 1, device=device) - torch.arange(tile, device=device)[:, None]


__all__ = ["AttentionStem", "Borders", "LocalAttention2d"]
