"""Linformer: keys and values are projected along the length to a fixed rank, and queries read the projected ones.

    head = softmax(Q (E K)ᵀ / sqrt(d)) (F V)          E, F of (rank, max_length), acting on the length

E and F mix all positions, so there is no causal form and no decoding; lengths above `max_length` have no columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax
from longspan.attention.kernels import flash
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Dense
from longspan.attention.layouts.base import ceil_div, pad_rows, wide
from longspan.attention.map_factors import ProductMap
from longspan.config import option
from longspan.derivatives import twice_differentiable
from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import KeyMask, Keys, Output, Queries, Values, Weights

PROJECTIONS = ("linear", "convolution", "mean", "max")
SHARINGS = ("none", "headwise", "kv", "layerwise")
RANK = 256  # the usual value in the paper


class Projection(nn.Module):
    """The weights of E and F, in a separate module so that several mechanisms can share it.

    `keys` is (heads or 1, rank, max_length), or for a convolution (heads or 1, window). `values` has the same shape, or
    is None if E = F.
    """

    def __init__(self, heads: int, size: tuple[int, ...], sharing: str) -> None:
        super().__init__()
        shape = (heads if sharing == "none" else 1, *size)
        # At the full length, projected rows then have the variance of the input; a larger E saturates the softmax.
        deviation = size[-1] ** -0.5
        self.keys = nn.Parameter(torch.randn(shape) * deviation)
        self.values = nn.Parameter(torch.randn(shape) * deviation) if sharing in ("none", "headwise") else None

    @property
    def pair(self) -> tuple[Tensor, Tensor]:
        """E and F."""
        return self.keys, self.keys if self.values is None else self.values

    @property
    def matrices(self) -> int:
        """The number of different matrices."""
        return sum(len(weight) for weight in self.parameters())


class LinformerAttention(Attention):
    name = "linformer"
    paper = "Wang et al. 2020"
    survey_class = ("LR",)
    order = "n·rank"
    exponent = 1.0
    supports = Supports(cross=True, dropout=True, grouped=True)  # no map with projection max

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        rank: int | None = option(
            None, f"rows after projecting keys and values; {RANK} or, if less, max_length unless given", low=1
        )
        projection: str = option(
            "linear", "by a free matrix, or over windows of max_length / rank keys", choices=PROJECTIONS
        )
        sharing: str = option(
            "kv",
            "what has a separate matrix: keys and values of each head (none), keys and values (headwise), the layer "
            "(kv), or the network (layerwise: see share_projection)",
            choices=SHARINGS,
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        kind = self.options.projection
        if shape.max_length is None:
            raise InvalidOption("linformer has one column per position: give max_length")
        self.max_length = shape.max_length
        self.fixed_length = True
        self.rank = min(RANK, self.max_length) if self.options.rank is None else self.options.rank
        if self.rank > self.max_length:
            raise InvalidOption(f"option rank must be at most max_length {self.max_length}, not {self.rank}")
        self.window, rest = divmod(self.max_length, self.rank)
        if rest and kind != "linear":
            raise InvalidOption(
                f"option rank must divide max_length {self.max_length} for projection {kind}, not be {self.rank}; "
                f"try max_length {(self.window + 1) * self.rank}"
            )
        self.projection: Projection | None = None  # pooling has no weights
        if kind in ("linear", "convolution"):
            size = (self.rank, self.max_length) if kind == "linear" else (self.window,)
            self.projection = Projection(shape.heads, size, self.options.sharing)
        if kind == "max":  # the largest value may come from another key in each channel
            self.supports = replace(type(self).supports, map=False)

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        """softmax(Q (E K)ᵀ / sqrt(d)) F as (queries, keys); for max, the weight of each key's window."""
        keep = self._keep(k, extras.key_mask)
        slots = self._slots_by_definition(keep)
        if self.options.projection == "max":
            weights = self._softmax_by_definition(q, self._largest_by_definition(k, keep), slots)
            window = torch.arange(k.shape[2], device=k.device) // self.window  # of each key
            return weights[..., window] * keep[:, None, None, :]
        project_keys, project_values = self._matrices_by_definition(keep, k)
        projected = torch.einsum("bhrj,bhjd->bhrd", project_keys, k)
        return torch.einsum("bhir,bhrj->bhij", self._softmax_by_definition(q, projected, slots), project_values)

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        if self.options.projection != "max":
            return weights @ v
        largest = self._largest_by_definition(v, self._keep(v, extras.key_mask))
        by_window = weights.split(self.window, dim=-1)
        of_windows = [keys.amax(dim=-1) for keys in by_window]  # the keys of a window have one weight, or 0
        return torch.einsum("bhir,bhrd->bhid", torch.stack(of_windows, dim=-1), largest[:, :, : len(of_windows)])

    def _softmax_by_definition(self, q: Tensor, projected: Tensor, slots: Tensor) -> Tensor:
        scores = torch.einsum("bhid,bhrd->bhir", q, projected) / self.shape.head_dim**0.5
        return masked_softmax(scores, slots[:, None, None, :].expand_as(scores))

    def _slots_by_definition(self, keep: Tensor) -> Tensor:
        """Which of the `rank` rows have a key: with free matrices all or none, else those with one in their window."""
        if self.options.projection == "linear":
            return keep.any(dim=1, keepdim=True).expand(-1, self.rank)
        begins = range(0, self.max_length, self.window)
        return torch.stack([keep[:, begin : begin + self.window].any(dim=1) for begin in begins], dim=1)

    def _matrices_by_definition(self, keep: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """E and F as (batch, heads, rank, keys), 0 at keys that may not be read."""
        keys, heads, kind = keep.shape[1], self.shape.heads, self.options.projection
        if kind == "linear":
            pair = list(self._weights)
        elif kind == "convolution":  # row r has the filter at the keys of window r
            pair = [torch.stack([torch.block_diag(*[f[None]] * self.rank) for f in weight]) for weight in self._weights]
        else:
            ones = torch.ones(1, self.window, dtype=like.dtype, device=like.device)
            pair = [torch.block_diag(*[ones] * self.rank)[None]] * 2
        pair = [matrix[:, :, :keys].expand(heads, -1, -1) * keep[:, None, None, :] for matrix in pair]
        if kind == "mean":  # over the keys of the window that may be read
            pair = [matrix / matrix.sum(dim=-1, keepdim=True).clamp_min(1) for matrix in pair]
        return pair[0], pair[1]

    def _largest_by_definition(self, x: Tensor, keep: Tensor) -> Tensor:
        """The largest readable number of each channel in each window; 0 if there is none."""
        hidden, largest = ~keep[:, None, :, None], []
        for begin in range(0, self.max_length, self.window):
            rows = slice(begin, begin + self.window)
            if begin >= x.shape[2]:
                largest.append(x.new_zeros(*x.shape[:2], x.shape[3]))
                continue
            highest = x[:, :, rows].masked_fill(hidden[:, :, rows], float("-inf")).max(dim=2).values
            largest.append(highest.masked_fill(hidden[:, :, rows].all(dim=2), 0.0))
        return torch.stack(largest, dim=2)

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        self._check_length(k.shape[2])
        kind, keep = self.options.projection, extras.key_mask
        hidden = None if keep is None else ~keep
        if kind == "linear":
            k, v = (_project_groups(weight, x, hidden) for weight, x in zip(self._weights, (k, v)))
            slots = None if keep is None else keep.any(dim=1, keepdim=True).expand(-1, self.rank)
        else:
            slots, inverse = self._slots(keep, k)
            if kind == "convolution":
                k, v = (self._filter(weight, x, hidden) for weight, x in zip(self._weights, (k, v)))
            elif kind == "mean":
                k, v = (self._mean(x, hidden, inverse) for x in (k, v))
            else:
                k, v = (self._max(x, hidden, slots) for x in (k, v))
        dropout = self.dropout if self.training else 0.0
        return joint(q, [KeySource(Dense(), k, v, slots)], scale=self.shape.head_dim**-0.5, dropout=dropout)

    def _windows(self, x: Tensor) -> Tensor:
        """(batch, heads, windows, window, width), padded with zeros; at most `rank` windows."""
        count = ceil_div(x.shape[2], self.window)
        windows: Tensor = pad_rows(x, 0, count * self.window - x.shape[2]).unflatten(2, (-1, self.window))
        return windows

    def _all_slots(self, x: Tensor) -> Tensor:
        """`rank` slots; those past the end of the keys are zeros and masked."""
        return pad(x, (0, 0, 0, self.rank - x.shape[2]))

    def _slots(self, keep: Tensor | None, like: Tensor) -> tuple[Tensor, Tensor]:
        """Which slots have a key that may be read (batch, rank), and 1 / the number of such keys."""
        if keep is None:
            keep = torch.ones(like.shape[0], like.shape[2], dtype=torch.bool, device=like.device)
        marks = keep[:, None, :, None].to(wide(like.dtype))
        counts = self._all_slots(self._windows(marks).sum(dim=3))
        return counts[:, 0, :, 0] > 0, counts.clamp_min(1.0).reciprocal()

    def _filter(self, weight: Tensor, x: Tensor, hidden: Tensor | None) -> Tensor:
        def rows(weight: Tensor, x: Tensor) -> Tensor:
            windows = self._windows(_without(x, hidden, 0.0))
            if len(weight) <= x.shape[1]:
                return self._all_slots((weight.to(x.dtype)[:, None, None, :] @ windows)[:, :, :, 0])
            # The filters of the query heads that share a head of x are the rows of one product.
            filters = weight.to(x.dtype).unflatten(0, (x.shape[1], -1))[:, None]
            return self._all_slots((filters @ windows).transpose(2, 3).flatten(1, 2))

        if torch.compiler.is_compiling() or not torch.is_grad_enabled():
            return rows(weight, x)
        # Recomputing is cheap, and autograd would store padded or permuted copies of all keys and values.
        recomputed: Tensor = checkpoint(rows, weight, x, use_reentrant=False, preserve_rng_state=False)
        return recomputed

    def _mean(self, x: Tensor, hidden: Tensor | None, inverse: Tensor) -> Tensor:
        sums = self._windows(_without(x, hidden, 0.0)).sum(dim=3, dtype=inverse.dtype)
        return (self._all_slots(sums) * inverse).to(x.dtype)

    def _max(self, x: Tensor, hidden: Tensor | None, slots: Tensor) -> Tensor:
        count = ceil_div(x.shape[2], self.window)
        missing = count * self.window - x.shape[2]
        filled = pad(_without(x, hidden, float("-inf")), (0, 0, 0, missing), value=float("-inf"))
        largest = filled.unflatten(2, (-1, self.window)).max(dim=3).values
        return self._all_slots(largest).masked_fill(~slots[:, None, :, None], 0.0)

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> ProductMap | None:
        """softmax(Q (E K)ᵀ / sqrt(d)) and F are thin: `rank` columns and rows."""
        if self.options.projection == "max":
            return None
        keep = self._keep(k, extras.key_mask)
        project_keys, project_values = self._matrices_by_definition(keep, k)
        left = self._softmax_by_definition(q, project_keys @ k, self._slots_by_definition(keep))
        return ProductMap(left, project_values.mT)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, rank = self.shape.heads, self.shape.fused_width, self.rank
        both, kind = self.shape.head_dim + self.shape.value_dim, self.options.projection
        # Heads of projected keys: those of keys, unless each query head has its own projection.
        projected = heads if self.projection is not None and len(self.projection.keys) > 1 else self.shape.key_heads
        flops = 4 * heads * queries * rank * width
        kept = heads * queries * (width + 1) + 2 * projected * rank * width  # output, log-sum-exp, projected keys
        if kind == "linear":
            flops += 2 * projected * rank * keys * both
        elif kind == "convolution":
            flops += 2 * projected * ceil_div(keys, self.window) * self.window * both
        elif kind == "mean":
            kept += rank  # the number of keys of each slot
        return Cost(flops, kept)

    # Sizes

    @property
    def _weights(self) -> tuple[Tensor, Tensor]:
        assert self.projection is not None, "pooling has no weights"
        return self.projection.pair

    def _keep(self, k: Tensor, key_mask: KeyMask | None) -> Tensor:
        self._check_length(k.shape[2])
        return torch.ones(k.shape[0], k.shape[2], dtype=torch.bool, device=k.device) if key_mask is None else key_mask

    def _check_length(self, keys: int) -> None:
        if keys > self.max_length:
            raise InvalidInput(f"linformer was built for max_length {self.max_length}, and there are {keys} keys")


def share_projection(model: nn.Module) -> nn.Module:
    """Make all Linformers of a model with sharing="layerwise" use the projection of the first one.

    Call it on the whole model, and again after copying single layers. A deep copy of the whole model keeps the sharing.
    """
    linformers = [module for module in model.modules() if isinstance(module, LinformerAttention)]
    layers = [layer for layer in linformers if layer.options.sharing == "layerwise" and layer.projection is not None]
    if not layers:
        raise InvalidOption('no linformer in this model has sharing="layerwise" and weights')
    first = layers[0]
    for layer in layers:
        for name, expected, actual in (
            ("projection", first.options.projection, layer.options.projection),
            ("rank", first.rank, layer.rank),
            ("max_length", first.max_length, layer.max_length),
        ):
            if actual != expected:
                raise InvalidOption(f"layers that share one projection need one {name}, not {expected} and {actual}")
    for layer in layers:
        layer.projection = first.projection
    return model


def _project_groups(weight: Tensor, x: Tensor, hidden: Tensor | None) -> Tensor:
    """`project`; the matrices of the query heads that share a head of x are the rows of one."""
    key_heads = x.shape[1]
    if len(weight) <= key_heads:
        return project(weight, x, hidden)
    stacked = weight.unflatten(0, (key_heads, -1)).flatten(1, 2)
    rows: Tensor = project(stacked, x, hidden).unflatten(2, (-1, weight.shape[1]))
    return rows.flatten(1, 2)


def _without(x: Tensor, hidden: Tensor | None, value: float) -> Tensor:
    return x if hidden is None else x.masked_fill(hidden[:, None, :, None], value)


def project(weight: Tensor, x: Tensor, hidden: Tensor | None) -> Tensor:
    """The first columns of `weight` (heads or 1, rank, max_length) times x (batch, heads, length, width).

    Hidden positions (batch, length) are set to 0 before they are projected.
    """
    if torch.compiler.is_exporting():  # a slice is specialised to lengths at which it is the whole tensor
        matrix = weight.index_select(2, torch.arange(x.shape[2], device=x.device)).to(x.dtype)
    else:
        matrix = weight[:, :, : x.shape[2]].to(x.dtype)
    if torch.compiler.is_compiling() or not flash.fits(x, x, x):
        return matrix @ _without(x, hidden, 0.0)
    projected: Tensor = _Project.apply(matrix, x, hidden)  # type: ignore[no-untyped-call, unused-ignore]
    return projected


def _recompute(ctx: Any, saved: Sequence[Any]) -> tuple[Tensor, Sequence[Tensor | None]]:
    matrix, x, hidden = saved
    return matrix @ _without(x, hidden, 0.0), (matrix, x, None)


class _Project(torch.autograd.Function):
    """Projects without copying a shared matrix for each head and sequence, forward and backward."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, x: Tensor, hidden: Tensor | None) -> Tensor:
        ctx.save_for_backward(matrix, x, hidden)
        out = x.new_empty(*x.shape[:2], matrix.shape[1], x.shape[3])
        for row in range(len(x)):
            torch.bmm(_for_heads(matrix, x), _row(x, hidden, row), out=out[row])
        return out

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        matrix, x, hidden = ctx.saved_tensors
        dmatrix = dx = None
        if ctx.needs_input_grad[1]:
            dx = torch.empty_like(x)
            for row in range(len(x)):
                torch.bmm(_for_heads(matrix, x).mT, g[row], out=dx[row])
            dx = dx if hidden is None else dx.masked_fill_(hidden[:, None, :, None], 0.0)
        if ctx.needs_input_grad[0]:
            dmatrix = torch.zeros(matrix.shape, dtype=matrix.dtype, device=matrix.device)
            for row in range(len(x)):
                g_rows, x_rows = g[row], _row(x, hidden, row)
                if len(matrix) == 1:  # concatenate the heads: one product sums over them
                    g_rows, x_rows = (rows.transpose(0, 1).flatten(1)[None] for rows in (g_rows, x_rows))
                dmatrix.baddbmm_(g_rows, x_rows.mT)
        return dmatrix, dx, None


def _for_heads(matrix: Tensor, x: Tensor) -> Tensor:
    return matrix.expand(x.shape[1], -1, -1)


def _row(x: Tensor, hidden: Tensor | None, row: int) -> Tensor:
    return x[row] if hidden is None else x[row].masked_fill(hidden[row, :, None], 0.0)
