"""Sparse Transformer: each query reads its neighbourhood and a regular subset of all earlier keys."""

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, OptionsT, Shape, Supports, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.layouts import Band, Dense, Layout, OwnBlock, Strided, Summaries, ceil_div
from longspan.attention.parts import persistent_memory
from longspan.attention.state import Rows, State, append_mask, is_number
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights


class Group(NamedTuple):
    """Consecutive heads that read the same sets."""

    begin: int
    end: int
    local: bool  # they read A1
    distant: bool  # they read A2
    share: int = 1  # query heads that read one head of keys

    def of(self, x: Tensor) -> Tensor:
        return x[:, self.begin : self.end]

    def keys_of(self, x: Tensor) -> Tensor:
        """The heads of keys or values that they read; the first and the last may be read by other heads too."""
        return x[:, self.begin // self.share : ceil_div(self.end, self.share)]

    def runs(self) -> list[tuple[slice, slice]]:
        """(query heads, key heads), counted from the group's first: each key head with as many query heads."""
        inner = (ceil_div(self.begin, self.share) * self.share, self.end // self.share * self.share)
        borders = sorted({self.begin, self.end, *(border for border in inner if self.begin < border < self.end)})
        first = self.begin // self.share
        return [
            (slice(a - self.begin, b - self.begin), slice(a // self.share - first, ceil_div(b, self.share) - first))
            for a, b in pairwise(borders)
        ]


@dataclass(frozen=True)
class KeysState(State):
    """The keys and values of single positions that one group of heads remembers."""

    k: Rows
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may


@dataclass(frozen=True)
class SummaryState(State):
    """The fixed pattern: the keys of the unfinished block (at most stride - 1), and the summaries of the others."""

    block: KeysState
    summaries: KeysState | None  # None for heads that read A1 only
    length: int


@dataclass(frozen=True)
class SparseState(State):
    first: KeysState | SummaryState
    second: KeysState | SummaryState | None  # of the second half of the heads, if they are split


class SparseAttention(Attention):
    """Two sets of earlier keys (Child et al. 2019, section 4.3):

    - strided: A1 is the last `window` positions, A2 every stride-th position counted back from the query;
    - fixed: A1 is the query's own block of `stride` positions, A2 the summary columns of every block.
    """

    name = "sparse"
    paper = "Child et al. 2019"
    survey_class = ("FP",)
    order = "n·(stride + n/stride)"
    exponent = 2.0  # n·√n when the stride grows as √n
    scaled_dot = True
    supports = Supports(causal=True, bidirectional=False, streaming=True, dropout=True, grouped=True, persistent=True)

    limited = ("stride",)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pattern: str = option(
            "strided", "which sets are read, the paper's strided or fixed", choices=("strided", "fixed")
        )
        stride: int = option(128, "distance of the strided keys, or length of a fixed block; about √n", low=1)
        summary: int = option(32, "fixed: how many columns of each block are read by all later queries", low=1)
        window: int | None = option(
            None,
            "strided: local keys, with the query's own; stride + 1 (the paper) if none, stride in the release",
            low=1,
        )
        heads_pattern: str = option(
            "merged",
            "the sets of each head: both in one softmax (merged); A1 (local) or A2 (distant) alone, to alternate by "
            "layer; or A1 for the first half of the heads and A2 for the others (split)",
            choices=("merged", "local", "distant", "split"),
        )

    @classmethod
    def fit(cls, options: OptionsT, given: Collection[str], shape: Shape) -> OptionsT:
        fitted = super().fit(options, given, shape)
        if isinstance(fitted, cls.Options) and "summary" not in given and fitted.summary > fitted.stride:
            return replace(fitted, summary=fitted.stride)  # a block has no more columns
        return fitted

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given, heads = self.options, shape.heads
        shape.check_room("stride", given.stride)
        self.strided = given.pattern == "strided"
        if not self.strided and given.summary > given.stride:
            raise InvalidOption(f"option summary must be at most the stride of {given.stride}, not {given.summary}")
        if not self.strided and given.window is not None:
            raise InvalidOption("option window goes with pattern strided; a fixed block is as long as its stride")
        if given.heads_pattern == "split" and heads < 2:
            raise InvalidOption("heads_pattern split needs at least 2 heads, not 1")
        self.window = given.stride + 1 if given.window is None else given.window
        # Heads summarise by different columns (section 4.3): the last `summary` of a block, those before them …
        apart = max(1, given.stride // given.summary)
        self.columns = tuple(given.stride - (head % apart + 1) * given.summary for head in range(heads))
        self.groups: tuple[Group, ...]
        if given.heads_pattern == "split":
            half = ceil_div(heads, 2)
            self.groups = (Group(0, half, True, False), Group(half, heads, False, True))
        else:
            local, distant = given.heads_pattern != "distant", given.heads_pattern != "local"
            self.groups = (Group(0, heads, local, distant),)

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length, stride = q.shape[2], self.options.stride
        i, j = torch.arange(length, device=q.device)[:, None], torch.arange(length, device=q.device)
        masks = []
        for group in self.groups:
            for head in range(group.begin, group.end):
                if self.strided:
                    local = i - j < self.window
                    distant = (i - j) % stride == 0
                else:
                    local = i // stride == j // stride
                    first = self.columns[head]
                    distant = ((j % stride >= first) & (j % stride < first + self.options.summary)).expand(length, -1)
                masks.append((local & group.local) | (distant & group.distant))
        keep = torch.stack(masks) & readable(length, length, True, extras.key_mask, q.device)
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        return masked_softmax(*persistent_memory.append_scores(self, scores, keep, q))

    @property
    def shortest_exported(self) -> int:
        return 1 if self.strided else self.options.stride + 1

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        outs = []
        for group in self._groups(k):
            keys, values = group.keys_of(k), group.keys_of(v)
            sources = [KeySource(layout, keys, values, extras.key_mask) for layout in self._layouts(group)]
            outs.append(self._joint(group, group.of(q), sources))
        return outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)

    def _groups(self, k: Tensor) -> list[Group]:
        """The groups of heads, for as many heads of keys as k has."""
        return [group._replace(share=self.shape.heads // k.shape[1]) for group in self.groups]

    def _layouts(self, group: Group, past: int = 0) -> list[Layout]:
        """A1 and what A2 has besides, for queries that follow `past` keys (strided only)."""
        stride = self.options.stride
        if self.strided:
            # If merged, strided keys within the window are left to it, so that each counts once.
            within = ceil_div(self.window, stride) if group.local else 0
            near: Layout = Band(self.window - 1, 0, past)
            far: Layout = Strided(stride, within)
        else:
            near = OwnBlock(stride)
            far = self._summaries(group, with_block=not group.local)
        return [near] * group.local + [far] * group.distant

    def _summaries(self, group: Group, with_block: bool) -> Summaries:
        return Summaries(self.options.stride, self.options.summary, self.columns[group.begin : group.end], with_block)

    def _joint(self, group: Group, q: Tensor, sources: list[KeySource]) -> Tensor:
        for persistent in persistent_memory.sources(self, q):
            sources = [*sources, replace(persistent, k=group.of(persistent.k), v=group.of(persistent.v))]
        scale, dropout = self.shape.head_dim**-0.5, self.dropout if self.training else 0.0
        runs = group.runs()
        if len(runs) == 1:
            return joint(q, sources, scale=scale, dropout=dropout)
        # The border between the halves of the heads divides those of one key head.
        outs = [
            joint(q[:, heads], [_of_run(source, q, heads, keys) for source in sources], scale=scale, dropout=dropout)
            for heads, keys in runs
        ]
        return torch.cat(outs, dim=1)

    def cost(self, queries: int, keys: int) -> Cost:
        pairs = sum(
            layout.pairs(group.end - group.begin, queries, keys)
            for group in self.groups
            for layout in self._layouts(group)
        )
        width = self.shape.fused_width
        cost = Cost(4 * pairs * width, self.shape.heads * queries * (width + 1))  # the output and the log-sum-exp
        return persistent_memory.add_cost(self, cost, queries)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> SparseState:
        self._refuse_streaming()
        states = [self._start(group, batch) for group in self.groups]
        return SparseState(states[0], states[1] if len(states) == 2 else None)

    def _start(self, group: Group, batch: int) -> KeysState | SummaryState:
        recent = KeysState(Rows.empty(batch, self._reach(group)), Rows.empty(batch, self._reach(group)), None)
        if self.strided:
            return recent
        return SummaryState(recent, KeysState(Rows.empty(batch), Rows.empty(batch), None) if group.distant else None, 0)

    def _reach(self, group: Group) -> int | None:
        """The number of single keys to remember; None for all."""
        if not self.strided:
            return int(self.options.stride - 1)
        # A2 needs all keys; every stride-th of them is a view.
        return None if group.distant else self.window - 1

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: SparseState, extras: Extras) -> tuple[Output, State]:
        outs: list[Tensor] = []
        after: list[KeysState | SummaryState] = []
        for group, before in zip(self._groups(k), (state.first, state.second)):
            assert before is not None
            keys, values = group.keys_of(k), group.keys_of(v)
            out, new = self._decode_group(group, group.of(q), keys, values, before, extras.key_mask)
            outs.append(out)
            after.append(new)
        return torch.cat(outs, dim=1), SparseState(after[0], after[1] if len(after) == 2 else None)

    def _decode_group(
        self, group: Group, q: Tensor, k: Tensor, v: Tensor, state: KeysState | SummaryState, key_mask: Tensor | None
    ) -> tuple[Tensor, KeysState | SummaryState]:
        if isinstance(state, SummaryState):
            return self._decode_fixed(group, q, k, v, state, key_mask)
        return self._decode_strided(group, q, k, v, state, key_mask)

    def _decode_strided(
        self, group: Group, q: Tensor, k: Tensor, v: Tensor, state: KeysState, key_mask: Tensor | None
    ) -> tuple[Tensor, KeysState]:
        past = state.k.count
        state = _append(state, k, v, key_mask, self._reach(group))
        keys, values, keep = _read(state)
        if torch.compiler.is_exporting() and is_number(q.shape[2], 1):
            distance = keys.shape[2] - 1 - torch.arange(keys.shape[2], device=q.device)
            read = (distance < self.window) & group.local | (distance % self.options.stride == 0) & group.distant
            out = self._joint(group, q, [KeySource(Dense(), keys, values, read[None] if keep is None else read & keep)])
        elif group.distant and q.shape[2] < self.options.stride:
            # One by one, each query costs window + n/stride; folding the text by residues would cost n.
            outs = [self._step(group, q[:, :, i : i + 1], keys, values, keep, past + i) for i in range(q.shape[2])]
            out = torch.cat(outs, dim=2)
        else:
            out = self._joint(
                group, q, [KeySource(layout, keys, values, keep) for layout in self._layouts(group, past)]
            )
        return out, _trim(state)

    def _step(self, group: Group, q: Tensor, keys: Tensor, values: Tensor, keep: Tensor | None, at: int) -> Tensor:
        """The one query at position `at`."""
        stride = self.options.stride
        near = slice(max(0, at + 1 - self.window), at + 1)
        within = ceil_div(self.window, stride) if group.local else 0
        far = slice(at % stride, max(0, at + 1 - within * stride), stride)
        read = [near] * group.local + [far] * (group.distant and far.start < far.stop)
        sources = [
            KeySource(Dense(), keys[:, :, index], values[:, :, index], None if keep is None else keep[:, index])
            for index in read
        ]
        return self._joint(group, q, sources)

    def _decode_fixed(
        self, group: Group, q: Tensor, k: Tensor, v: Tensor, state: SummaryState, key_mask: Tensor | None
    ) -> tuple[Tensor, SummaryState]:
        """Block by block: all queries of a block read the same summaries."""
        stride, outs, begin = self.options.stride, [], 0
        while begin < q.shape[2]:
            end = min(q.shape[2], begin + stride - state.length % stride)
            here = slice(begin, end)
            mask = None if key_mask is None else key_mask[:, here]
            out, state = self._decode_block(group, q[:, :, here], k[:, :, here], v[:, :, here], state, mask)
            outs.append(out)
            begin = end
        return torch.cat(outs, dim=2), state

    def _decode_block(
        self, group: Group, q: Tensor, k: Tensor, v: Tensor, state: SummaryState, key_mask: Tensor | None
    ) -> tuple[Tensor, SummaryState]:
        """Queries that are in one block."""
        filled = state.length % self.options.stride + q.shape[2]
        block, summaries = _append(state.block, k, v, key_mask, self._reach(group)), state.summaries
        keys, values, keep = _read(block, last=filled)
        layout: Layout = Dense(causal=True) if group.local else self._summaries(group, with_block=True)
        sources = [KeySource(layout, keys, values, keep)]
        if summaries is not None:
            if len(summaries.k):
                old_keys, old_values, _ = _read(summaries)
                seen = None if summaries.seen is None else summaries.seen.value[..., 0]  # it differs by head
                same = self._same_columns(group)
                if len(set(same)) < len(same):  # some heads read the same columns of the same keys, kept once
                    old_keys, old_values = old_keys[:, same], old_values[:, same]
                    seen = None if seen is None else seen[:, same]
                sources.append(KeySource(Dense(), old_keys, old_values, seen))
            if filled == self.options.stride:
                summaries = self._summarise(group, summaries, keys, values, keep)
        out = self._joint(group, q, sources)
        return out, SummaryState(_trim(block), summaries, state.length + q.shape[2])

    def _summarise(
        self, group: Group, summaries: KeysState, keys: Tensor, values: Tensor, keep: Tensor | None
    ) -> KeysState:
        """`summaries` and those of a finished block."""
        same = self._same_columns(group)
        chosen = [group.begin + same.index(number) for number in range(max(same) + 1)]
        columns = torch.tensor([self.columns[head] for head in chosen], device=keys.device)[:, None]
        columns = columns + torch.arange(self.options.summary, device=keys.device)
        first = group.begin // group.share
        head = torch.tensor([head // group.share - first for head in chosen], device=keys.device)[:, None]
        seen = summaries.seen
        if keep is not None:
            if seen is None:
                seen = Rows.empty(keys.shape[0])
                if len(summaries.k):  # the first mask comes late: all summaries so far may be read
                    shape = (len(keys), len(chosen), len(summaries.k), 1)
                    all_may = torch.ones(shape, dtype=torch.bool, device=keys.device)
                    seen = seen.append(all_may)
            seen = seen.append(keep[:, columns][..., None])
        return KeysState(summaries.k.append(keys[:, head, columns]), summaries.v.append(values[:, head, columns]), seen)

    def _same_columns(self, group: Group) -> list[int]:
        """For each head, the number of its summaries: heads with the same columns of the same key head share them."""
        kinds = [(head // group.share, self.columns[head]) for head in range(group.begin, group.end)]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
        return [numbers[kind] for kind in kinds]


def _of_run(source: KeySource, q: Tensor, heads: slice, keys: slice) -> KeySource:
    """A source for some of the query heads; its keys are those of each query head or of each group of them."""
    chosen = heads if source.k.shape[1] == q.shape[1] else keys
    keep = source.keep if source.keep is None or source.keep.dim() == 2 else source.keep[:, heads]
    layout = source.layout.of_heads(heads)
    return replace(source, layout=layout, k=source.k[:, chosen], v=source.v[:, chosen], keep=keep)


def _append(state: KeysState, k: Tensor, v: Tensor, key_mask: Tensor | None, keep: int | None) -> KeysState:
    seen = append_mask(state.seen, state.k.count, key_mask, k, keep)
    return KeysState(state.k.append(k), state.v.append(v), seen)


def _trim(state: KeysState) -> KeysState:
    return KeysState(state.k.trim(), state.v.trim(), None if state.seen is None else state.seen.trim())


def _read(state: KeysState, last: int | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """The last keys and values, or all, and which of them may be read."""
    first = 0 if last is None else len(state.k) - last
    keep = None if state.seen is None else state.seen.value[:, 0, first:, 0]
    return state.k.value[:, :, first:], state.v.value[:, :, first:], keep
