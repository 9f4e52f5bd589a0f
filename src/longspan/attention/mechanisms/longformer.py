"""Longformer: a sliding window, and global tokens that read every token and are read by every token.

an ordinary row i:  softmax(q_i·k_j/√d) over the window of i and all global tokens j
a global row g:     softmax(q'_g·k'_j/√d) over all tokens j, with projections q', k', v' for global rows
"""

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.weak import WeakTensorKeyDictionary

from longspan.attention.base import Cost, Extras, Shape, Stream, Supports, masked_softmax, readable
from longspan.attention.devices import host_may_read
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.kernels.running import stable_sort
from longspan.attention.layouts import Dense
from longspan.attention.map_factors import SoftmaxMap
from longspan.attention.parts import persistent_memory
from longspan.attention.parts.sliding_window import SlidingWindow
from longspan.config import option
from longspan.errors import InvalidInput
from longspan.shapes import Keys, Output, Queries, Values, Weights

PROJECTIONS = ("global_q", "global_k", "global_v")


def _of_globals(name: str, like: Literal["q", "k", "v"], help: str) -> Stream:
    return Stream(name=name, kind="heads", like=like, help=help, beside="global_mask", required=False)


class LongformerAttention(SlidingWindow):
    """Beltagy et al. 2020, section 3.1. The causal form and decoding are those of `window`.

    Global tokens are data, not an option: the stream `global_mask` says where they are. Their rows read every token
    through separate projections; all other rows read them as keys of the ordinary projections.
    """

    name = "longformer"
    paper = "Beltagy et al. 2020"
    survey_class = ("FP", "M")
    order = "n·(window + globals)"
    exponent = 1.0
    scaled_dot = True
    supports = Supports(causal=True, streaming=True, dropout=True, grouped=True, left_padding=True, persistent=True)
    streams: tuple[Stream, ...] = (
        Stream(name="global_mask", kind="mask", help="which tokens are global; none without it", required=False),
        _of_globals("global_q", "q", "the queries of global tokens"),
        _of_globals("global_k", "k", "the keys that global tokens read"),
        _of_globals("global_v", "v", "the values that global tokens read"),
    )

    @dataclass(frozen=True, kw_only=True)
    class Options(SlidingWindow.Options):
        window: int = option(
            256,
            "neighbours read on each side, besides the query's own position: half of the paper's w (256 for its 512)",
            low=1,
        )
        capacity: int = option(
            64, "global tokens that a compiled or exported program has room for; otherwise they are counted", low=1
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        if causal:  # a global token would read the future and pass it on
            self.streams = ()

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        marked = self._global_tokens(extras)
        if marked is None:
            return super().define(q, k, extras)
        every = readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device)
        read = (self.near(q.shape[2], q.device) | marked[:, None, None, :]) & every  # a union: no key twice
        local = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        global_q, global_k = extras.streams["global_q"], extras.streams["global_k"]
        whole = torch.einsum("bhid,bhjd->bhij", global_q, global_k) / self.shape.head_dim**0.5
        near, far = (
            masked_softmax(*persistent_memory.append_scores(self, scores, keep, queries))
            for scores, keep, queries in ((local, read, q), (whole, every, global_q))
        )
        return torch.where(marked[:, None, :, None], far, near)

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        marked = self._global_tokens(extras)
        if marked is None:
            return super().apply_weights(weights, v, extras)
        near = super().apply_weights(weights, v, extras)
        far = super().apply_weights(weights, extras.streams["global_v"], extras)
        return torch.where(marked[:, None, :, None], far, near)

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> SoftmaxMap | None:
        marked = self._global_tokens(extras)
        return super().factorise(q, k, extras) if marked is None or not bool(marked.any()) else None

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        marked = self._global_tokens(extras)
        room = 0 if marked is None else self._room(marked, extras.streams["global_mask"])
        if marked is None or room == 0:
            return super().attend(q, k, v, extras)
        index, filled = _find(marked, room)
        dropout, scale = self.dropout if self.training else 0.0, self.shape.head_dim**-0.5
        near = ~marked if extras.key_mask is None else extras.key_mask & ~marked
        sources = [
            KeySource(self._layout(), k, v, near),
            KeySource(Dense(), _take(k, index), _take(v, index), filled),
            *(persistent := persistent_memory.sources(self, q)),
        ]
        out = joint(q, sources, scale=scale, dropout=dropout)
        everything = KeySource(Dense(), extras.streams["global_k"], extras.streams["global_v"], extras.key_mask)
        rows = joint(_take(extras.streams["global_q"], index), [everything, *persistent], scale=scale, dropout=dropout)
        # Unfilled slots point to some row as well; they add 0 to it.
        rows = rows.masked_fill(~filled[:, None, :, None], 0.0)
        others = torch.where(marked[:, None, :, None], 0.0, out)  # faster than masked_fill
        return others.scatter_add_(2, _spread(index, rows), rows)

    def cost(self, queries: int, keys: int, global_tokens: int = 0) -> Cost:
        """The cost of `attend` for one sequence with this number of global tokens and no padding."""
        heads, width = self.shape.heads, self.shape.fused_width
        window = super().cost(queries, keys)
        pairs = Dense().pairs(heads, queries, global_tokens) + Dense().pairs(heads, global_tokens, keys)
        # Kept besides: the queries, keys and values of the global tokens, and the output and log-sum-exp of their rows.
        cost = Cost(window.flops + 4 * pairs * width, window.floats + heads * global_tokens * (4 * width + 1))
        if self.persistent is not None:
            cost = cost._replace(flops=cost.flops + 4 * heads * global_tokens * self.persistent.count * width)
        return cost

    def _global_tokens(self, extras: Extras) -> Tensor | None:
        """The global tokens (batch, length), or None without a mask; padding is never global."""
        marked = extras.streams.get("global_mask")
        if marked is None:
            return None
        for name in PROJECTIONS:
            if extras.streams.get(name) is None:
                raise InvalidInput(
                    f"{self.name} needs the stream {name!r} together with global_mask: the projection of global rows"
                )
        return marked if extras.key_mask is None else marked & extras.key_mask

    def _room(self, marked: Tensor, given: Tensor) -> int:
        """The largest number of global tokens in a sequence; `given` marks them before padding is removed."""
        if host_may_read(marked):
            return int(marked.sum(dim=1).max())
        if not torch.compiler.is_compiling() and not given.is_meta:
            return _count_once(given)
        counts = marked.sum(dim=1)
        capacity: int = self.options.capacity
        if marked.is_meta:
            return min(capacity, marked.shape[1])
        torch._assert_async(
            (counts <= capacity).all(), f"more global tokens than the option capacity, {capacity}, has room for"
        )
        return capacity


_counted: MutableMapping[Tensor, tuple[int, int]] = WeakTensorKeyDictionary()  # version of a mask, and its count


def _count_once(mask: Tensor) -> int:
    """The largest number of marked positions in a sequence, cached so that the host waits once for all layers."""
    known = _counted.get(mask)
    if known is None or known[0] != mask._version:
        known = _counted[mask] = mask._version, int(mask.sum(dim=1).max())
    return known[1]


def _find(marked: Tensor, room: int) -> tuple[Tensor, Tensor]:
    """The indices of the marked positions, in order, and which of the `room` slots are used: both (batch, room)."""
    wider = pad(marked, (0, room))  # there may be more room than positions
    if torch.compiler.is_exporting():  # ONNX sorts no bytes, and nothing stably
        index = stable_sort((~wider).long())[1][:, :room]
    else:
        index = wider.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :room]
    return index.clamp_max(marked.shape[1] - 1), wider.gather(1, index)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """The rows `index` (batch, rows) of (batch, heads, length, width)."""
    return x.gather(2, _spread(index, x))


def _spread(index: Tensor, like: Tensor) -> Tensor:
    return index[:, None, :, None].expand(-1, like.shape[1], -1, like.shape[3])
