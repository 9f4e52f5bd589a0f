"""The non-local block (Wang et al. 2018): attention over all positions of a feature map or a video.

    y_i = (1/C) Σ_j f(x_i, x_j) g(x_j)        z = W y + x

| form            | f                   | C         | computed in           |
|-----------------|---------------------|-----------|-----------------------|
| gaussian        | exp(x_i · x_j)      | Σ_j f     | fused attention       |
| embedded        | exp(θ_i · φ_j)      | Σ_j f     | fused attention       |
| dot             | θ_i · φ_j           | keys      | linear time: θ (φᵀ g) |
| concatenation   | relu(w · [θ_i; φ_j])| keys      | n log n: sorted sums  |

θ, φ, g and W are 1×1 convolutions, inside half the width. The norm after W starts at 0 (without a norm, W does), so a
new block is the identity and can be put into a pretrained network. With `subsample`, keys and values are pooled 2×2 in
space. The paper does not scale the products; the released code divides by the root of the inner width (`scaled`).
"""

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest

Form = Literal["embedded", "gaussian", "dot", "concatenation"]


class NonLocalBlock(nn.Module):
    """A non-local block for maps (N, C, H, W), or videos (N, C, T, H, W) with `axes=3`.

    >>> block = NonLocalBlock(256)
    >>> block(torch.randn(2, 256, 14, 14)).shape
    torch.Size([2, 256, 14, 14])
    """

    def __init__(
        self,
        channels: int,
        *,
        inner: int | None = None,
        form: Form = "embedded",
        axes: int = 2,
        subsample: bool = False,
        scaled: bool = False,
        norm: bool = True,
    ) -> None:
        super().__init__()
        if form not in get_args(Form):
            raise UnknownName(f"no form of a non-local block is called {form!r}; {suggest(form, get_args(Form))}")
        if axes not in (1, 2, 3):
            raise InvalidOption(f"axes must be 1 (sequences), 2 (maps) or 3 (videos), not {axes}")
        inner = max(channels // 2, 1) if inner is None else inner
        if channels < 1 or inner < 1:
            raise InvalidOption(f"channels and inner must be at least 1, not {channels} and {inner}")
        self.form, self.axes, self.scaled = form, axes, scaled
        convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
        self.query = self.key = None
        if form != "gaussian":
            self.query, self.key = convolution(channels, inner, 1), convolution(channels, inner, 1)
        self.value, self.out = convolution(channels, inner, 1), convolution(inner, channels, 1)
        self.weights = nn.Parameter(torch.empty(2, inner)) if form == "concatenation" else None
        self.norm = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1](channels) if norm else None
        self.pool: nn.Module | None = None
        if subsample:  # in space only: a video keeps its frames
            self.pool = (nn.MaxPool1d(2), nn.MaxPool2d(2), nn.MaxPool3d((1, 2, 2)))[axes - 1]
        self._initialise()

    def _initialise(self) -> None:
        for layer in self.modules():
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                nn.init.normal_(layer.weight, std=0.01)
                nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        if self.weights is not None:
            nn.init.normal_(self.weights, std=0.01)
        nn.init.zeros_(self.out.weight if self.norm is None else self.norm.weight)

    def forward(self, x: Tensor) -> Tensor:
        self._check(x)
        source = x if self.pool is None else self.pool(x)
        value = _rows(self.value(source))
        query = _rows(x if self.query is None else self.query(x))
        key = _rows(source if self.key is None else self.key(source))
        read = self._read(query, key, value).mT.unflatten(2, x.shape[2:])
        change: Tensor = self.out(read)
        return x + (change if self.norm is None else self.norm(change))

    def _read(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """(N, positions, inner)"""
        scale = query.shape[-1] ** -0.5 if self.scaled else 1.0
        if self.form in ("embedded", "gaussian"):
            return scaled_dot_product_attention(query[:, None], key[:, None], value[:, None], scale=scale)[:, 0]
        if self.form == "dot":
            return query @ (key.mT @ value) * (scale / key.shape[1])
        assert self.weights is not None
        return relu_pairs(query @ self.weights[0], key @ self.weights[1], value) / key.shape[1]

    def _check(self, x: Tensor) -> None:
        names = ("length", "height, width", "frames, height, width")[self.axes - 1]
        channels = self.out.out_channels
        if x.ndim != self.axes + 2 or x.shape[1] != channels:
            raise InvalidInput(f"expected (batch, {channels} channels, {names}), got {tuple(x.shape)}")
        if self.pool is not None and min(x.shape[-2:] if self.axes > 1 else x.shape[-1:]) < 2:
            raise InvalidInput(f"subsample pools 2 × 2 pixels, and the map has {tuple(x.shape[2:])}; leave it out")

    def extra_repr(self) -> str:
        return f"form={self.form!r}, subsample={self.pool is not None}, scaled={self.scaled}"


def relu_pairs(a: Tensor, b: Tensor, values: Tensor) -> Tensor:
    """Σ_j relu(a_i + b_j) v_j for a (…, n), b (…, m), values (…, m, d), in n log m.

    The pairs with a_i + b_j > 0 are a prefix of the keys in descending order of b. So a_i Σ v_j + Σ b_j v_j over that
    prefix needs two running sums, and one search for its end. Half precision is summed in float32.
    """
    dtype = values.dtype
    wide = torch.promote_types(dtype, torch.float32)
    a, b, values = a.to(wide), b.to(wide), values.to(wide)
    ordered, order = b.sort(-1, descending=True)
    rows = values.gather(-2, order[..., None].expand_as(values))
    sums = torch.cat([rows, ordered[..., None] * rows], -1).cumsum(-2)
    sums = torch.cat([torch.zeros_like(sums[..., :1, :]), sums], -2)  # the sum of no key
    count = torch.searchsorted(-ordered.detach().contiguous(), a.detach().contiguous())  # keys with -b_j < a_i
    plain, weighted = sums.gather(-2, count[..., None].expand(*count.shape, sums.shape[-1])).chunk(2, -1)
    return (a[..., None] * plain + weighted).to(dtype)


def _rows(x: Tensor) -> Tensor:
    """(N, positions, channels)"""
    return x.flatten(2).mT


__all__ = ["Form", "NonLocalBlock", "relu_pairs"]
