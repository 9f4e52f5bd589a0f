"""The blocks of the Set Transformer (Lee et al. 2019, sections 3.1 and 3.2): attention for inputs without an order.

    MAB(X, Y)  = LayerNorm(H + rFF(H))  with  H = LayerNorm(X + Multihead(X, Y, Y))
    SAB(X)     = MAB(X, X)
    ISAB(X)    = MAB(X, MAB(I, X))      for `points` learned rows I
    PMA(Z)     = MAB(S, rFF(Z))         for `seeds` learned rows S

Multihead is `MultiHead` over `softmax`, with the paper's scale 1/sqrt(width): the full width, not that of a head. SAB
and ISAB are equivariant to the order of their input, PMA is invariant to it; none has positions or dropout.

The released code differs; it is variant="released": the residual is the projected query, the attention has no output
projection, rFF is one linear layer and a ReLU, PMA has no rFF in front, and there are no norms by default. If a block
changes the width, the residual is the projected query in both variants.

ISAB and the mechanism `inducing` are the same idea at two levels: `MultiHead(width, "inducing", heads=h, points=m)` is
only the attention of an ISAB, Multihead(X, Multihead(I, X, X)), for any block; ISAB is the paper's block, in which the
summary of the set has its own residuals, norms and feed-forward layer.

`key_mask` (batch, length) is True where an element belongs to its set, so a batch can have sets of different sizes.
The output at other elements is 0. The output for an empty set is finite.
"""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from longspan.attention import build
from longspan.errors import InvalidOption, UnknownName, suggest
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.residual import Residual
from longspan.shapes import Hidden, KeyMask

Variant = Literal["paper", "released"]


class MAB(nn.Module):
    """Multihead attention block: the rows of x read those of y.

    `x_width` and `y_width` are the widths of the inputs (default: `width`); `hidden` is the inner width of the paper's
    feed-forward layer (default: `width`); `norm` is "layer" in the paper's variant and "none" in the released one by
    default.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        x_width: int | None = None,
        y_width: int | None = None,
        variant: Variant = "paper",
        hidden: int | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        if variant not in get_args(Variant):
            raise UnknownName(f"no variant is called {variant!r}; {suggest(variant, get_args(Variant))}")
        if heads < 1 or width < 1 or width % heads:
            raise InvalidOption(f"heads must divide the width: {width} is not a multiple of {heads}")
        x_width = width if x_width is None else x_width
        y_width = width if y_width is None else y_width
        norm = ("layer" if variant == "paper" else "none") if norm is None else norm
        softmax = build("softmax", heads=heads, head_dim=width // heads, scale=width**-0.5)
        self.attention = MultiHead(x_width, softmax, context_width=y_width, out_width=width)
        if variant == "released":
            self.attention.out = nn.Identity()
        self.projected = variant == "released" or x_width != width
        self.feedforward = row_wise(width, variant, hidden)
        self.around_attention = Residual(width, norm=norm, norm_position="post")
        self.around_feedforward = Residual(width, norm=norm, norm_position="post")

    def forward(self, x: Hidden, y: Hidden, *, key_mask: KeyMask | None = None) -> Hidden:
        """(batch, rows of x, width); `key_mask` is True for the real rows of y."""
        residual = self.attention.project["q"](x) if self.projected else x
        h = self.around_attention(residual, lambda _: self.attention(x, y, key_mask=key_mask))
        out: Tensor = self.around_feedforward(h, self.feedforward)
        return out


class SAB(nn.Module):
    """Set attention block: every element reads every other, n² in the size of the set."""

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        x_width: int | None = None,
        variant: Variant = "paper",
        hidden: int | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        self.block = MAB(width, heads, x_width=x_width, y_width=x_width, variant=variant, hidden=hidden, norm=norm)

    def forward(self, x: Hidden, *, key_mask: KeyMask | None = None) -> Hidden:
        return _clear(self.block(x, x, key_mask=key_mask), key_mask)


class ISAB(nn.Module):
    """Induced set attention block: the set is read through `points` learned rows, n·points in its size.

    The two MABs share no weights. The mechanism `inducing` is only the attention of this block; see the module.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        points: int = 32,
        *,
        x_width: int | None = None,
        variant: Variant = "paper",
        hidden: int | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        form: dict[str, Any] = {"variant": variant, "hidden": hidden, "norm": norm}
        self.points = _learned("points", points, width)
        self.gather = MAB(width, heads, y_width=x_width, **form)
        self.spread = MAB(width, heads, x_width=x_width, **form)

    def forward(self, x: Hidden, *, key_mask: KeyMask | None = None) -> Hidden:
        return _clear(self.spread(x, self.summary(x, key_mask=key_mask)), key_mask)

    def summary(self, x: Hidden, *, key_mask: KeyMask | None = None) -> Hidden:
        """H = MAB(I, X): the points after reading the set, (batch, points, width)."""
        points: Tensor = self.gather(self.points.expand(x.shape[0], -1, -1), x, key_mask=key_mask)
        return points


class PMA(nn.Module):
    """Pooling by multihead attention: `seeds` learned rows read the set, and are the output."""

    def __init__(
        self,
        width: int,
        heads: int,
        seeds: int = 1,
        *,
        variant: Variant = "paper",
        hidden: int | None = None,
        norm: str | None = None,
    ) -> None:
        super().__init__()
        self.seeds = _learned("seeds", seeds, width)
        self.block = MAB(width, heads, variant=variant, hidden=hidden, norm=norm)
        self.feedforward = row_wise(width, variant, hidden) if variant == "paper" else nn.Identity()

    def forward(self, z: Hidden, *, key_mask: KeyMask | None = None) -> Hidden:
        """(batch, seeds, width)"""
        out: Tensor = self.block(self.seeds.expand(z.shape[0], -1, -1), self.feedforward(z), key_mask=key_mask)
        return out


def row_wise(width: int, variant: Variant = "paper", hidden: int | None = None) -> nn.Module:
    """rFF. The paper allows any layer that treats all rows alike: here the two layers of Vaswani et al. 2017."""
    if variant == "paper":
        return FeedForward(width, width if hidden is None else hidden)
    if hidden is not None:
        raise InvalidOption("hidden is for variant='paper': the released feed-forward layer has no inner width")
    return nn.Sequential(nn.Linear(width, width), nn.ReLU())


def _learned(name: str, rows: int, width: int) -> nn.Parameter:
    """Rows drawn Xavier-uniform over (1, rows, width), as released: within sqrt(6 / (rows · width + width))."""
    if rows < 1:
        raise InvalidOption(f"{name} must be at least 1, not {rows}")
    return nn.Parameter(nn.init.xavier_uniform_(torch.empty(1, rows, width)))


def _clear(x: Tensor, key_mask: Tensor | None) -> Tensor:
    return x if key_mask is None else x.masked_fill(~key_mask[:, :, None], 0.0)


__all__ = ["ISAB", "MAB", "PMA", "SAB", "Variant", "row_wise"]
