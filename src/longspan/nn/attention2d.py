"""Attention over the pixels of a feature map: (N, C, H, W) in, (N, C, H, W) out, by any mechanism."""

from typing import Any

from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.multihead import MultiHead


class Attention2d(nn.Module):
    """Self-attention where every pixel is a token, in row order. It takes the place of a convolution.

    >>> layer = Attention2d(64, 128, heads=4)
    >>> layer(torch.randn(2, 64, 8, 8)).shape
    torch.Size([2, 128, 8, 8])
    >>> layer = Attention2d(64, heads=4, attention="linear")

    It knows no positions: a permutation of the pixels permutes the output. Add positions to the map before it, or use
    `LocalAttention2d`, which has relative ones. Further keywords are options of the mechanism.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int | None = None,
        *,
        heads: int = 1,
        head_dim: int | None = None,
        attention: str | AttentionConfig | Attention = "softmax",
        bias: bool = False,
        **options: Any,
    ) -> None:
        super().__init__()
        out_channels = in_channels if out_channels is None else out_channels
        if head_dim is None and out_channels % heads:
            raise InvalidOption(f"{out_channels} channels do not split into {heads} heads; give head_dim")
        self.in_channels = in_channels
        self.attention = MultiHead(
            in_channels,
            attention,
            heads=heads,
            head_dim=out_channels // heads if head_dim is None else head_dim,
            out_width=out_channels,
            bias=bias,
            **options,
        )

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1] != self.in_channels:
            raise InvalidInput(f"expected (batch, {self.in_channels} channels, height, width), got {tuple(x.shape)}")
        rows: Tensor = self.attention(x.flatten(2).mT)
        out: Tensor = rows.mT.unflatten(2, x.shape[2:])
        return out


__all__ = ["Attention2d"]
