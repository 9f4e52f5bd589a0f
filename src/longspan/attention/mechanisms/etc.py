"""ETC: a short global input that reads everything, and a long input whose tokens read their neighbours and the global.

    a global row: softmax over [all global tokens | all long tokens]
    a long row:   softmax over [all global tokens | long tokens within `radius`]

Scores add learned terms for relative-position labels: q_i·(k_j + a_label) + b_label.
Ainslie et al. 2020, section 3.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Stream, Supports, masked_softmax
from longspan.attention.devices import host_may_read, on_cpu
from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Band, Dense, ceil_div
from longspan.attention.layouts.base import PIECE, blocked_where, wide
from longspan.attention.parts import relative_labels
from longspan.attention.parts.relative_labels import RelativeLabels
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights

_PROJECTIONS = (
    Stream(name="global_q", kind="heads", like="q", help="the queries of global tokens"),
    Stream(name="g2g_k", kind="heads", like="k", help="the keys of global tokens for global rows"),
    Stream(name="g2g_v", kind="heads", like="v", help="the values of global tokens for global rows"),
    Stream(name="g2l_k", kind="heads", like="k", help="the keys of long tokens for global rows"),
    Stream(name="g2l_v", kind="heads", like="v", help="the values of long tokens for global rows"),
    Stream(name="l2g_k", kind="heads", like="k", help="the keys of global tokens for long rows"),
    Stream(name="l2g_v", kind="heads", like="v", help="the values of global tokens for long rows"),
)
_SEGMENT = Stream(
    name="segment",
    kind="ids",
    required=False,
    help="the segment of each token: a global token summarises the long tokens of its segment; -1: of none",
)
_EXAMPLE = Stream(
    name="example", kind="ids", required=False, help="the example of each token, if several are packed in a sequence"
)


@dataclass(frozen=True)
class _Input:
    """One of the two inputs, without its projections; all (batch, tokens)."""

    at: Tensor  # (1, tokens): positions within the input
    keep: Tensor | None
    segment: Tensor | None
    example: Tensor | None


@dataclass(frozen=True)
class _Relation:
    """Pairs of tokens of one source of keys: the label of each pair, and whether it may be read."""

    labels: Tensor | None  # (batch or 1, queries, width), in the layout of the scores
    keep: Tensor | None

    @property
    def transposed(self) -> "_Relation":
        return _Relation(*(None if x is None else x.mT for x in (self.labels, self.keep)))

    def extra(self, terms: Tensor | None, q: Tensor) -> Tensor | None:
        """The addend of the scores, given the term of each query for each label."""
        if self.labels is None or terms is None:
            return None if self.keep is None else blocked_where(~self.keep, q)[:, None]
        chosen = terms.gather(-1, self.labels[:, None].expand(*terms.shape[:3], -1))
        return chosen if self.keep is None else chosen.masked_fill(~self.keep[:, None], BLOCKED)


class EtcAttention(Attention):
    """The two inputs are one sequence, whose first `global_tokens` positions are the global input.

    There are two softmaxes, not four: global rows over [g2g | g2l], long rows over [l2g | l2l] (section 3.2). q, k, v
    are the projections of long rows for l2l; the projections for the other three are streams, unless `shared`.
    """

    name = "etc"
    paper = "Ainslie et al. 2020"
    survey_class = ("FP", "M")
    order = "n·(radius + global_tokens)"
    exponent = 1.0
    supports = Supports(dropout=True, grouped=True)
    streams = (*_PROJECTIONS, _SEGMENT, _EXAMPLE)

    limited = ("global_tokens",)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        global_tokens: int = option(256, "how many positions at the front are the global input", low=1)
        radius: int = option(84, "neighbours that a long token reads on each side, besides its own position", low=1)
        labels: int = option(12, "distance from which relative positions share a label; 0: no labels at all", low=0)
        vocabulary: int | None = option(None, "rows of the label tables; 2 · labels + 3 unless given", low=1)
        hard: str = option(
            "none",
            "g2l: global tokens read only long tokens of their segment; both: and long ones only that global token",
            choices=("none", "g2l", "both"),
        )
        shared: bool = option(False, "whether both inputs share one projection each of queries, keys and values")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        shape.check_room("global_tokens", self.options.global_tokens)
        segment = replace(_SEGMENT, required=self.options.hard != "none")
        self.streams = (*(() if self.options.shared else _PROJECTIONS), segment, _EXAMPLE)
        # For long and for global rows, a vector and a number for each label and head: 2 · labels + 1 positions, pairs
        # across the inputs in different segments, and such pairs in the same segment.
        self.labels = nn.ParameterDict()
        if self.options.labels:
            count = self.options.vocabulary or 2 * self.options.labels + 3
            if count < 2 * self.options.labels + 3:
                raise InvalidOption(
                    f"option vocabulary must hold 2 · labels + 3 = {2 * self.options.labels + 3}, not {count}"
                )
            for rows in ("long", "global"):
                self.labels[f"{rows}_vectors"] = nn.Parameter(0.02 * torch.randn(shape.heads, count, shape.head_dim))
                self.labels[f"{rows}_numbers"] = nn.Parameter(torch.zeros(shape.heads, count))

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        count, position = self.options.global_tokens, torch.arange(q.shape[2], device=q.device)
        is_global = position < count
        row, column = is_global[:, None], is_global
        keys_of = {(True, True): "g2g_k", (True, False): "g2l_k", (False, True): "l2g_k"}
        queries = torch.where(row, extras.streams.get("global_q", q), q)
        scores = torch.einsum("bhid,bhjd->bhij", queries, k)
        for (of_row, of_column), name in keys_of.items():
            here = (row == of_row) & (column == of_column)
            products = torch.einsum("bhid,bhjd->bhij", queries, extras.streams.get(name, k))
            scores = torch.where(here, products, scores)

        offset, across = position - position[:, None], row != column
        linked, free = torch.zeros_like(across), torch.ones_like(across)
        if "segment" in extras.streams:
            segment = extras.streams["segment"]
            linked = (segment[:, :, None] == segment[:, None, :]) & (segment >= 0)[:, :, None]
            free = torch.where(row, (segment < 0)[:, :, None], (segment < 0)[:, None, :])  # of the global one of a pair

        if self.options.labels:  # q_i · (k_j + a_label) + b_label
            label = torch.where(across, 2 * self.options.labels + 1 + linked.long(), self.position_labels(offset))
            label = label.expand(q.shape[0], q.shape[1], *across.shape) if label.dim() == 2 else label[:, None]
            for rows, here in (("global", row), ("long", ~row)):
                terms = torch.einsum("bhid,hld->bhil", queries, self.labels[f"{rows}_vectors"])
                terms = terms + self.labels[f"{rows}_numbers"][:, None]
                terms = terms.gather(-1, label.expand(*q.shape[:2], -1, -1))
                scores = torch.where(here, scores + terms, scores)

        keep = row | column | (offset.abs() <= self.options.radius)
        if self.options.hard != "none":
            keep = keep & (~across | linked | free | (~row & (self.options.hard == "g2l")))
        if "example" in extras.streams:
            keep = keep & (extras.streams["example"][:, :, None] == extras.streams["example"][:, None, :])
        if extras.key_mask is not None:
            keep = keep & extras.key_mask[:, None, :]
        keep = keep if keep.dim() == 2 else keep[:, None]
        return masked_softmax(scores / self.shape.head_dim**0.5, keep.expand_as(scores))

    def position_labels(self, offset: Tensor) -> Tensor:
        """0 for the token itself, 1 … labels to its right, labels + 1 … 2 · labels to its left."""
        clip = self.options.labels
        return torch.where(offset >= 0, offset.clamp_max(clip), clip - offset.clamp_min(-clip))

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        count = self.options.global_tokens
        g2g_v, g2l_v, l2g_v = (extras.streams.get(name, v) for name in ("g2g_v", "g2l_v", "l2g_v"))
        global_rows = torch.cat([g2g_v[:, :, :count], g2l_v[:, :, count:]], dim=2)
        long_rows = torch.cat([l2g_v[:, :, :count], v[:, :, count:]], dim=2)
        return torch.cat([weights[:, :, :count] @ global_rows, weights[:, :, count:] @ long_rows], dim=2)

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        whole = {"q": self._split(q), "k": self._split(k), "v": self._split(v)}

        def heads(name: str, like: str, side: int) -> Tensor:
            if name not in extras.streams:
                projection = whole[like][side]
            elif side == 0:  # few rows: the gradient of a slice is cheaper than that of a split
                projection = extras.streams[name][:, :, : self.options.global_tokens]
            else:
                projection = self._split(extras.streams[name])[side]
            assert projection is not None
            return projection

        def source(layout: Band | Dense, name: str, side: int, read: _Input) -> KeySource:
            return KeySource(layout, heads(f"{name}_k", "k", side), heads(f"{name}_v", "v", side), read.keep)

        begin, rest = self._inputs(q, extras)
        g2g = source(Dense(), "g2g", 0, begin), self._within(Dense(), begin)
        if rest is None:
            return self._joint(heads("global_q", "q", 0), [g2g], "global")
        to_long, to_global = self._across(begin, rest)
        band = Band(self.options.radius, self.options.radius)
        global_rows = self._joint(
            heads("global_q", "q", 0), [g2g, (source(Dense(), "g2l", 1, rest), to_long)], "global"
        )
        long_queries, l2l, l2g = heads("", "q", 1), source(band, "", 1, rest), source(Dense(), "l2g", 0, begin)
        if self._only_labels(long_queries, rest):
            long_rows = self._labelled(long_queries, l2l, l2g, to_global)
        else:
            long_rows = self._joint(long_queries, [(l2l, self._within(band, rest)), (l2g, to_global)], "long")
        return torch.cat([global_rows, long_rows], dim=2)

    @property
    def shortest_exported(self) -> int:
        return self.options.global_tokens + 2

    def _split(self, x: Tensor, dim: int = 2) -> tuple[Tensor, Tensor | None]:
        """The global and the long input; None for the long one if the sequence is too short."""
        count, length = self.options.global_tokens, x.shape[dim]
        if length <= count:
            return x, None
        begin, rest = x.split([count, length - count], dim)
        return begin, rest

    def _inputs(self, q: Tensor, extras: Extras) -> tuple[_Input, _Input | None]:
        example = extras.streams.get("example")
        if example is not None and host_may_read(example) and bool((example == example[:, :1]).all()):
            example = None  # nothing is packed
        by_token = (extras.key_mask, extras.streams.get("segment"), example)
        pairs = [(None, None) if x is None else self._split(x, 1) for x in by_token]
        begin, rest = self._split(q)
        positions = [None if x is None else torch.arange(x.shape[2], device=q.device)[None] for x in (begin, rest)]
        first, second = (
            None if at is None else _Input(at, *(pair[i] for pair in pairs)) for i, at in enumerate(positions)
        )
        assert first is not None
        return first, second

    def _within(self, layout: Band | Dense, tokens: _Input) -> _Relation | None:
        """Of pairs within one input, g2g or l2l."""
        labels = keep = None
        count = tokens.at.shape[1]
        if self.options.labels:
            labels = self.position_labels(layout.along(tokens.at, count) - tokens.at[:, :, None])
        if tokens.example is not None:
            keep = layout.along(tokens.example, count) == tokens.example[:, :, None]
        return None if labels is None and keep is None else _Relation(labels, keep)

    def _across(self, begin: _Input, rest: _Input) -> tuple[_Relation | None, _Relation | None]:
        """Of pairs across the inputs, g2l and l2g."""
        shape = (1, begin.at.shape[1], rest.at.shape[1])
        linked = torch.zeros(shape, dtype=torch.bool, device=begin.at.device)
        labels = same = open = None
        if begin.segment is not None and rest.segment is not None:
            linked = (begin.segment[:, :, None] == rest.segment[:, None, :]) & (begin.segment >= 0)[:, :, None]
            open = linked | (begin.segment < 0)[:, :, None]
        if self.options.labels:
            labels = 2 * self.options.labels + 1 + linked.long()
        if begin.example is not None and rest.example is not None:
            same = begin.example[:, :, None] == rest.example[:, None, :]
        relations = []
        for hard in (self.options.hard != "none", self.options.hard == "both"):
            masks = [mask for mask in (same, open if hard else None) if mask is not None]
            keep = torch.stack(torch.broadcast_tensors(*masks)).all(dim=0) if masks else None
            if keep is not None and host_may_read(keep) and bool(keep.all()):
                keep = None
            relations.append(None if labels is None and keep is None else _Relation(labels, keep))
        g2l, l2g = relations
        return g2l, None if l2g is None else l2g.transposed

    def _only_labels(self, q: Tensor, rest: _Input) -> bool:
        """Whether labels are all that is added to the band's scores; not with dropout, nor for compilers."""
        plain = not on_cpu(q) or torch.compiler.is_compiling() or q.dtype != wide(q.dtype)
        return self.options.labels > 0 and not (plain or rest.example is not None or (self.training and self.dropout))

    def _labelled(self, q: Tensor, band: KeySource, begin: KeySource, to_global: _Relation | None) -> Tensor:
        assert to_global is not None and to_global.labels is not None
        linked = to_global.labels > 2 * self.options.labels + 1
        labels = RelativeLabels(
            self.options.radius, self.options.labels, linked if bool(linked.any()) else None, to_global.keep
        )
        scale = self.shape.head_dim**-0.5
        terms = self._terms(q, self.labels["long_vectors"], self.labels["long_numbers"][:, None], scale)
        values, width = band.v.shape[-1], max(q.shape[-1], band.v.shape[-1])  # the kernel needs one width
        q, k, v, begin_k, begin_v = (flash.widen(x, width) for x in (q, band.k, band.v, begin.k, begin.v))
        out = relative_labels.attend(q, k, v, band.keep, (begin_k, begin_v, begin.keep), terms, labels, scale)
        return out[..., :values]

    @staticmethod
    def _terms(q: Tensor, vectors: Tensor, numbers: Tensor, scale: float) -> Tensor:
        """The term of each query for each label, by one product with the whole vocabulary."""
        return (q @ (vectors * scale).to(q.dtype).mT + (numbers * scale).to(q.dtype)).to(wide(q.dtype))

    def _joint(self, q: Tensor, pairs: list[tuple[KeySource, _Relation | None]], rows: str) -> Tensor:
        """One softmax over all sources; fused if no source adds terms for pairs of tokens."""
        scale, dropout = self.shape.head_dim**-0.5, self.dropout if self.training else 0.0
        if all(relation is None for _, relation in pairs):
            return joint(q, [source for source, _ in pairs], scale=scale, dropout=dropout)

        def related(q: Tensor, vectors: Tensor | None, numbers: Tensor | None, *tensors: Tensor) -> Tensor:
            terms = None
            if vectors is not None and numbers is not None:
                terms = self._terms(q, vectors, numbers, scale)
            sources = [
                replace(source, k=k, v=v, extra=None if relation is None else relation.extra(terms, q))
                for (source, relation), k, v in zip(pairs, tensors[::2], tensors[1::2])
            ]
            return joint(q, sources, scale=scale, dropout=dropout)

        vectors = numbers = None
        if self.options.labels:
            vectors, numbers = self.labels[f"{rows}_vectors"], self.labels[f"{rows}_numbers"][:, None]
        inputs: tuple[Any, ...] = (q, vectors, numbers, *(x for source, _ in pairs for x in (source.k, source.v)))
        if torch.compiler.is_compiling():
            return related(*inputs)
        # A few heads at a time, recomputed in the backward pass, so that only their scores are in memory.
        key_heads = pairs[0][0].k.shape[1]
        share, width = q.shape[1] // key_heads, sum(source.layout.width(source.k.shape[2]) for source, _ in pairs)
        together = max(1, min(key_heads, PIECE // (share * q.shape[0] * q.shape[2] * width)))
        sizes = (share * together,) * 3 + (together,) * 2 * len(pairs)
        by_head = zip(
            *(
                (None,) * ceil_div(key_heads, together) if x is None else x.split(size, dim=-3)
                for x, size in zip(inputs, sizes)
            )
        )
        if not torch.is_grad_enabled():
            return torch.cat([related(*group) for group in by_head], dim=1)
        return torch.cat([checkpoint(related, *group, use_reentrant=False) for group in by_head], dim=1)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, clip = self.shape.heads, self.shape.fused_width, self.options.labels
        count = min(self.options.global_tokens, queries)
        rest = queries - count
        band = Band(self.options.radius, self.options.radius)
        pairs = heads * (count * queries + rest * count)
        if not clip:
            pairs += band.pairs(heads, rest, rest)
            return Cost(4 * pairs * width, heads * queries * (width + 1))  # kept: output and log-sum-exp
        pairs = heads * count * queries + relative_labels.pairs(heads, rest, count, self.options.radius)
        vocabulary = self.options.vocabulary or 2 * clip + 3
        flops = 4 * pairs * width + 2 * heads * queries * vocabulary * self.shape.head_dim
        # For long rows the output, the log-sum-exp, the terms and their vectors; global rows are recomputed.
        return Cost(flops, heads * (rest * (width + 1 + vocabulary) + vocabulary * width) if rest else 0)
