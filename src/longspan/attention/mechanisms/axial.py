"""Axial attention: each layer reads along one axis of a grid."""

import math
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Dense, GridAxis, Layout, Residue, ceil_div
from longspan.attention.parts import persistent_memory
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights

WIDTH = 64  # of a row, if neither axes nor a width are given


@dataclass(frozen=True)
class AxialState(State):
    k: Rows  # of the next position's slab: the row so far, or all columns so far
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may
    length: int  # positions read so far


class AxialAttention(Attention):
    """The sequence is a grid in row-major order (Ho et al. 2019).

    If causal, a position reads itself and earlier ones on its line: causal in the order of the sequence on any axis.
    """

    name = "axial"
    paper = "Ho et al. 2019 (Axial Transformer)"
    survey_class = ("FP",)
    order = "n·(length of the axis): n·√n for a square"
    exponent = 1.5
    scaled_dot = True
    supports = Supports(causal=True, streaming=True, dropout=True, grouped=True, persistent=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        axes: tuple[int, ...] | None = option(
            None, "sizes of the axes of the grid in row-major order; their product is the length", low=1
        )
        width: int | None = option(
            None, f"positions of a row, for any number of rows; {WIDTH} unless axes are given", low=1
        )
        axis: int = option(-1, "the axis that this layer reads along: 0 is the first, -1 the last (within rows)")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        axes, width, axis = self.options.axes, self.options.width, self.options.axis
        if axes is not None and width is not None:
            raise InvalidOption(f"options axes {axes!r} and width {width!r} both set the length of a row; give one")
        count = 2 if axes is None else len(axes)
        if not -count <= axis < count:
            raise InvalidOption(f"option axis must be {-count} to {count - 1} for {count} axes, not {axis!r}")
        # The known axes: if only the width is given, the number of rows follows from the length.
        self.known: tuple[int | None, ...] = (None, WIDTH if width is None else width) if axes is None else axes
        self.axis = axis % count
        self.stride = math.prod(size for size in self.known[self.axis + 1 :] if size is not None)
        self.line = self.known[self.axis]  # positions on a line, or None
        if axes is None:  # the width is fixed: rows cost n·width, and columns n·(n / width)
            self.exponent = 1.0 if self.axis == 1 else 2.0

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        axes = self.axes_of(length)
        indices = torch.tensor(list(product(*(range(size) for size in axes)))[:length], device=q.device)
        same = indices[:, None] == indices[None]  # queries keys axes
        other_axes = [axis for axis in range(len(axes)) if axis != self.axis]
        line = same[:, :, other_axes].all(dim=-1)
        if self.causal:  # keys up to the query on its line
            line = line & (indices[None, :, self.axis] <= indices[:, None, self.axis])
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        keep = line & readable(length, length, False, extras.key_mask, q.device)
        return masked_softmax(*persistent_memory.append_scores(self, scores, keep, q))

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        self.axes_of(q.shape[2])
        return self._joint(self._layout(), q, k, v, extras.key_mask)

    def _joint(self, layout: Layout, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        sources = [KeySource(layout, k, v, keep), *persistent_memory.sources(self, q)]
        return joint(q, sources, scale=self.shape.head_dim**-0.5, dropout=dropout)

    def _layout(self) -> GridAxis:
        return GridAxis(self.stride, self.line, self.causal)

    def axes_of(self, length: int) -> tuple[int, ...]:
        """The axes of a sequence of this length; an error if it does not fit them."""
        axes = self.options.axes
        if axes is None:
            width = self.known[1]
            assert width is not None
            return ceil_div(length, width), width
        if math.prod(axes) != length:
            sizes = " × ".join(map(str, axes))
            raise InvalidInput(
                f"axial was built for axes {sizes}, which is {math.prod(axes)} positions, not {length}; give width "
                "instead of axes to read any number of rows"
            )
        return tuple(axes)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width = self.shape.heads, self.shape.fused_width
        pairs = self._layout().pairs(heads, queries, keys)
        cost = Cost(4 * pairs * width, heads * queries * (width + 1))  # kept: output and log-sum-exp
        return persistent_memory.add_cost(self, cost, queries)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> AxialState:
        self._refuse_streaming()
        return AxialState(Rows.empty(batch), Rows.empty(batch), None, 0)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: AxialState, extras: Extras) -> tuple[Output, State]:
        begin, end = state.length, state.length + q.shape[2]
        if self.options.axes is not None and end > math.prod(self.options.axes):
            sizes = " × ".join(map(str, self.options.axes))
            raise InvalidInput(f"axial was built for axes {sizes}, and these tokens reach to {end}; start a new grid")
        seen = append_mask(state.seen, len(state.k), extras.key_mask, q)
        keys, values = state.k.append(k), state.v.append(v)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        # The rest of the current slab, then new slabs, which read nothing before them.
        first = begin - len(state.k)
        border = begin if first == begin else end if self._slab is None else min(end, first + self._slab)
        outs = []
        if border > begin:
            old = slice(0, border - first)
            mask = None if keep is None else keep[:, old]
            outs.append(self._within(q[:, :, : border - begin], keys.value[:, :, old], values.value[:, :, old], mask))
        if end > border:
            new = slice(border - first, None)
            mask = None if keep is None else keep[:, new]
            rest = q[:, :, border - begin :]
            outs.append(self._joint(self._layout(), rest, keys.value[:, :, new], values.value[:, :, new], mask))
        kept = end if self._slab is None else end % self._slab
        state = AxialState(keys.trim(kept), values.trim(kept), None if seen is None else seen.trim(kept), end)
        return torch.cat(outs, dim=2), state

    @property
    def _slab(self) -> int | None:
        """Positions of a slab, which holds whole lines: a position reads none before its slab. None: one slab."""
        return None if self.line is None else self.line * self.stride

    def _within(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """The last queries of a slab; the keys are those of the slab up to the last query."""
        queries, stride = q.shape[2], self.stride
        before = k.shape[2] - queries
        if queries == 1:
            line = slice(before % stride, None, stride)
            return self._joint(Dense(), q, k[:, :, line], v[:, :, line], None if keep is None else keep[:, line])
        if stride == 1:
            return self._joint(Dense(causal=True), q, k, v, keep)
        lead = before % stride  # positions of the first row before the first query
        out = self._joint(Residue(stride, Dense(causal=True)), pad(q, (0, 0, lead, 0)), k, v, keep)
        return out[:, :, lead:]
