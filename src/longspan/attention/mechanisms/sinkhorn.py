"""Sinkhorn attention: each block reads itself and a learned soft permutation of the other blocks (Tay et al. 2020b).

A sort network scores every block as a source for each block. Sinkhorn balancing turns the scores into a nearly doubly
stochastic matrix S, a soft permutation. Block i then reads K̃_i = Σ_j S_ij K_j: whole blocks, mixed offset by offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable, share_heads
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.kernels.running import running_max
from longspan.attention.layouts import Dense, ceil_div
from longspan.attention.layouts.base import pad_rows, wide
from longspan.attention.parts.sinkhorn_balance import Sorting, allowed_sources, filled_slots, mix
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.precision import state_type
from longspan.shapes import Keys, Output, Queries, Values, Weights


@dataclass(frozen=True)
class SinkhornState(State):
    k: Rows
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may
    total: Tensor  # (batch, heads, head_dim): the sum of all keys so far
    columns: Tensor  # (batch, heads, iterations, blocks): log of each column's sum so far
    mixed_k: Tensor  # (batch, heads, block, head_dim): what the current block reads of the others
    mixed_v: Tensor
    mixed_keep: Tensor  # (batch, block)


class SinkhornAttention(Attention):
    name = "sinkhorn"
    paper = "Tay et al. 2020b"
    survey_class = ("LP",)
    order = "n·block + n²/block"
    exponent = 2.0  # at a fixed block the mixing dominates; with blocks of about √n it is n^1.5
    supports = Supports(causal=True, streaming=True, dropout=True, grouped=True)
    key_weights = True  # the sort network: blocks are sorted once for all query heads that share them

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        block: int = option(64, "positions of a block", low=1)
        iterations: int = option(7, "rounds of balancing, each over rows and then columns", low=1)
        temperature: float = option(0.75, "divides the sort scores: lower is nearer to a permutation", low=0.01)
        noise: float = option(1.0, "size of the Gumbel noise on the sort scores, in training only; 0 for none", low=0.0)
        network: str = option("mlp", "the sort network, from a block's sum to its scores", choices=("linear", "mlp"))
        combine: str = option(
            "concat",
            "own and sorted block in one softmax (concat), in two that are added (sum), or the sorted block alone",
            choices=("concat", "sum", "sorted"),
        )
        sortcut: int = option(
            0,
            "sorted blocks that every query reads instead of `combine`; 0: off; encoders only",
            low=0,
        )
        mixture: bool = option(False, "whether to add dense attention, which is quadratic: an ablation of the paper")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        if shape.max_length is None:
            raise InvalidOption(f"{self.name} has one sort score for every block: give max_length")
        if causal and self.options.sortcut:
            raise Unsupported(f"{self.name} with sortcut reads blocks of the future; build it with sortcut=0")
        self.fixed_length = True
        most = ceil_div(shape.max_length, self.options.block)
        self.sorting = Sorting(shape.key_heads, shape.head_dim, most, self.options, causal)

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length, block, scale = q.shape[2], self.options.block, self.shape.head_dim**-0.5
        self._check_length(length)
        count = ceil_div(length, block)
        missing = count * block - length
        keep = readable(1, length, False, extras.key_mask, q.device)[:, 0, 0].expand(q.shape[0], -1)
        keep = pad(keep, (0, missing)).unflatten(1, (count, block))
        queries, keys = (pad(x, (0, 0, 0, missing)).unflatten(2, (count, block)) for x in (q, k))
        keys = keys.masked_fill(~keep[:, None, :, :, None], 0.0)  # masked keys are never used

        # Which blocks each block may read, the sort matrix S, and K̃_i = Σ_j S_ij K_j.
        alive = keep.any(2)
        earlier = torch.ones(count, count, dtype=torch.bool, device=q.device).tril(-1)
        allowed = alive[:, None, :] & (earlier if self.causal else alive[:, :, None])
        sorting = self._sort_by_definition(keys, allowed[:, None])
        mixed = torch.einsum("bhij,bhjpd->bhipd", sorting, keys)
        slots = (allowed[:, :, :, None] & keep[:, None]).any(2)  # an empty slot is not a key

        # Row o of block i has weights `to_mixed` on slots p of its sorted block, and slot p has a share S_ij of key p
        # of block j.
        shares = torch.einsum("bhij,bjp->bhijp", sorting, keep.to(q.dtype))
        if self.options.sortcut:
            first = alive & (alive.cumsum(1) <= self.options.sortcut)  # padded blocks do not count
            scores = torch.einsum("bhiod,bhjpd->bhiojp", queries, mixed) * scale
            may = (slots & first[:, :, None])[:, None, None, None].expand_as(scores)
            to_all = masked_softmax(scores.flatten(4), may.flatten(4)).unflatten(4, (count, block))
            weights = torch.einsum("bhiosp,bhsjp->bhiojp", to_all, shares)
        else:
            scores = torch.einsum("bhiod,bhipd->bhiop", queries, mixed) * scale
            own_scores = torch.einsum("bhiod,bhipd->bhiop", queries, keys) * scale
            may = slots[:, None, :, None].expand_as(scores)
            inside = readable(block, block, self.causal, None, q.device)
            may_own = keep[:, None, :, None].expand_as(own_scores) & inside
            if self.options.combine == "concat":
                both = masked_softmax(torch.cat([scores, own_scores], -1), torch.cat([may, may_own], -1))
                to_mixed, to_own = both.split(block, dim=-1)
            else:
                to_mixed, to_own = masked_softmax(scores, may), masked_softmax(own_scores, may_own)
            weights = torch.einsum("bhiop,bhijp->bhiojp", to_mixed, shares)
            if self.options.combine != "sorted":
                same = torch.eye(count, dtype=q.dtype, device=q.device)
                weights = weights + torch.einsum("bhiop,ij->bhiojp", to_own, same)
        weights = weights.flatten(4, 5).flatten(2, 3)[:, :, :length, :length]
        if self.options.mixture:
            dense = torch.einsum("bhid,bhjd->bhij", q, k) * scale
            weights = weights + masked_softmax(dense, readable(length, length, self.causal, extras.key_mask, q.device))
        return weights

    def _sort_by_definition(self, keys: Tensor, allowed: Tensor) -> Tensor:
        """S (batch, heads, blocks, blocks) from keys (batch, heads, blocks, block, width), without noise."""
        keys = keys[:, :: self.shape.group]  # of the key heads: S is repeated below
        count, block, network = keys.shape[2], keys.shape[3], self.sorting
        # If causal, the sum of all tokens up to and including the block's first one.
        sums = keys.flatten(2, 3).cumsum(2)[:, :, ::block] if self.causal else keys.sum(3)
        if self.options.network == "mlp":
            sums = (torch.einsum("hed,bhid->bhie", network.inner, sums) + network.inner_bias[:, None]).relu()
        scores = torch.einsum("hjd,bhid->bhij", network.sort, sums) + network.sort_bias[:, None]
        logs = scores[..., :count] / self.options.temperature

        def log_sum(rows: Tensor, dim: int) -> Tensor:
            may = allowed[..., : rows.shape[2], :]
            return rows.masked_fill(~may, BLOCKED).logsumexp(dim, keepdim=True)

        for _ in range(self.options.iterations):
            logs = logs - log_sum(logs, -1)
            if self.causal:  # the sum of a column includes rows up to this one only
                logs = logs - torch.cat([log_sum(logs[..., : row + 1, :], -2) for row in range(count)], -2)
            else:
                logs = logs - log_sum(logs, -2)
        return share_heads(logs.masked_fill(~allowed, BLOCKED).exp(), self.shape.heads)

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        batch, length, block = q.shape[0], q.shape[2], self.options.block
        self._check_length(length)
        dropout = self.dropout if self.training else 0.0
        exporting = torch.compiler.is_compiling()
        count = ceil_div(length, block) + exporting  # one extra, because exporters specialise sizes of 1
        missing = count * block - length
        keep = None
        if extras.key_mask is not None or exporting or missing:
            keep = readable(1, length, False, extras.key_mask, q.device)[:, 0, 0].expand(batch, -1)
            keep = pad(keep, (0, missing)).unflatten(1, (count, block))
        keys, values = (self._split(x, count) for x in (k, v))
        # Only masks and the extra block make blocks without readable keys.
        alive = None if keep is None or (extras.key_mask is None and not exporting) else keep.any(2)
        if extras.key_mask is not None and keep is not None:
            keys, values = (x.masked_fill(~keep[:, None, :, :, None], 0.0) for x in (keys, values))

        sums = self.sorting.sums(keys, None)
        sorting, _ = self.sorting(sums, allowed_sources(0, count, count, alive, self.causal, q.device), None)
        slots = filled_slots(keep, alive, count, block, self.causal, q)
        if self.options.sortcut:
            out = self._sortcut(q, keys, values, sorting, alive, slots, dropout)
        else:
            mixed = [_fold(mix(sorting, x)) for x in (keys, values)]
            unsorted = [_fold(x) for x in (keys, values)]
            slots, keep = (None if x is None else x.flatten(0, 1) for x in (slots, keep))
            queries = _fold(self._split(q, count))
            out = _unfold(self._combine(queries, mixed, unsorted, slots, keep, dropout), batch, length)
        if self.options.mixture:
            source = KeySource(Dense(causal=self.causal), k, v, extras.key_mask)
            out = out + joint(q, [source], scale=self._scale, dropout=dropout)
        return out

    def bucket_ids(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        """A token's own block, and the block that has the largest share in the one sorted next to it."""
        length, block = q.shape[2], self.options.block
        keys = self._split(k, ceil_div(length, block))
        count = keys.shape[2]
        allowed = allowed_sources(0, count, count, None, self.causal, q.device)
        sorting, _ = self.sorting(self.sorting.sums(keys, None), allowed, None)
        own = (torch.arange(length, device=q.device) // block).expand(*q.shape[:2], -1)
        sorting = share_heads(sorting, q.shape[1])
        other = sorting.argmax(-1).masked_fill(sorting.sum(-1) == 0, -1).gather(2, own)
        return torch.stack([own, other], 2), torch.stack([own, own], 2)

    def _combine(
        self,
        q: Tensor,
        mixed: Sequence[Tensor],
        unsorted: Sequence[Tensor],
        slots: Tensor | None,
        keep: Tensor | None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Queries of blocks with their mixed keys and values, and with those of the block itself (`unsorted`)."""
        to_mixed = KeySource(Dense(), mixed[0], mixed[1], slots)
        to_own = KeySource(Dense(causal=self.causal), unsorted[0], unsorted[1], keep)
        unions = {"concat": [[to_mixed, to_own]], "sum": [[to_mixed], [to_own]], "sorted": [[to_mixed]]}[
            self.options.combine
        ]
        outs = [joint(q, union, scale=self._scale, dropout=dropout) for union in unions]
        return outs[0] if len(outs) == 1 else outs[0] + outs[1]

    def _sortcut(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        sorting: Tensor,
        alive: Tensor | None,
        slots: Tensor | None,
        dropout: float,
    ) -> Tensor:
        """Every query with the first sorted blocks (section 3.4); blocks of padding do not count."""
        cut = self.options.sortcut
        if alive is None:
            sorting, slots = sorting[:, :, :cut], None if slots is None else slots[:, :cut].flatten(1)
        else:
            # Blocks with readable keys first; if there are too few, index 0, which is a row of zeros.
            order = (~alive).to(torch.int8).argsort(dim=1, stable=True) + 1
            chosen = pad(order, (0, cut)).index_select(1, torch.arange(cut, device=q.device))[:, None, :, None]
            sorting = _take(pad(sorting, (0, 0, 1, 0)), chosen)
            if slots is not None:
                slots = _take(pad(slots, (0, 0, 1, 0))[:, None], chosen)[:, 0].flatten(1)
        mixed_k, mixed_v = (mix(sorting, x).flatten(2, 3) for x in (keys, values))
        return joint(q, [KeySource(Dense(), mixed_k, mixed_v, slots)], scale=self._scale, dropout=dropout)

    @property
    def _scale(self) -> float:
        return float(self.shape.head_dim**-0.5)

    def _split(self, x: Tensor, count: int) -> Tensor:
        """(batch, heads, blocks, block, width)"""
        missing = count * self.options.block - x.shape[2]
        if torch.compiler.is_compiling() or missing:
            x = pad_rows(x, 0, missing)
        blocks: Tensor = x.unflatten(2, (count, self.options.block))
        return blocks

    def _check_length(self, length: int) -> None:
        most = self.shape.max_length
        assert most is not None
        if length > most:
            raise InvalidInput(f"{self.name} was built for max_length {most}, and there are {length} positions")

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, block = self.shape.heads, self.shape.fused_width, self.options.block
        sorted_heads = self.shape.key_heads
        narrow, both = self.shape.head_dim, self.shape.head_dim + self.shape.value_dim
        count = ceil_div(keys, block)
        rows = count * block
        cut = min(self.options.sortcut, count)
        flops = 2 * sorted_heads * count * narrow * (count + (narrow if self.options.network == "mlp" else 0))
        flops += 2 * sorted_heads * (cut or count) * count * block * both
        kept = sorted_heads * count * (narrow + count)  # the sums and S
        kept += 2 * sorted_heads * (cut or count) * block * width  # the mixed keys and values
        if rows != keys:
            kept += (2 * sorted_heads + (0 if cut else heads)) * rows * width  # padded
        sources = {"concat": 2, "sum": 2, "sorted": 1}[self.options.combine]
        if cut:
            flops += 4 * heads * queries * cut * block * width
            kept += heads * queries * (width + 1)
        else:
            flops += 4 * heads * rows * block * width * sources
            kept += heads * rows * (width + 1) * (2 if self.options.combine == "sum" else 1)
        if self.options.mixture:
            flops += 4 * heads * queries * keys * width
            kept += heads * queries * (width + 1)
        return Cost(flops, kept)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> SinkhornState:
        self._refuse_streaming()
        heads, width, block = self.shape.key_heads, self.shape.head_dim, self.options.block
        dtype, device = state_type(self, dtype, device)
        no_keys, no_values = (
            torch.zeros(batch, heads, 0, size, dtype=dtype, device=device) for size in (width, self.shape.value_dim)
        )
        total = torch.zeros(batch, heads, width, dtype=wide(dtype), device=device)
        columns = torch.zeros(batch, heads, self.options.iterations, 0, dtype=wide(dtype), device=device)
        keep = torch.zeros(batch, block, dtype=torch.bool, device=device)
        return SinkhornState(Rows.empty(batch), Rows.empty(batch), None, total, columns, no_keys, no_values, keep)

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: SinkhornState, extras: Extras
    ) -> tuple[Output, State]:
        new, block = q.shape[2], self.options.block
        self._check_length(len(state.k) + new)
        rest = -len(state.k) % block  # tokens missing from the current block
        outs = []
        for begin, end in ((0, min(rest, new)), (min(rest, new), new)):
            if begin < end:
                new_rows = slice(begin, end)
                mask = None if extras.key_mask is None else extras.key_mask[:, new_rows]
                out, state = self._advance(q[:, :, new_rows], k[:, :, new_rows], v[:, :, new_rows], mask, state)
                outs.append(out)
        return outs[0] if len(outs) == 1 else torch.cat(outs, 2), state

    def _advance(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, state: SinkhornState
    ) -> tuple[Tensor, SinkhornState]:
        """Tokens of the current block, or of new blocks from their first token on."""
        past, block, batch, length = len(state.k), self.options.block, q.shape[0], q.shape[2]
        seen = append_mask(state.seen, past, mask, q)
        state = replace(state, k=state.k.append(k), v=state.v.append(v), seen=seen)
        if past % block == 0:
            mixed, slots, columns = self._mix_new(k, mask, past // block, state)
            last_k, last_v = (x[:, :, -1] for x in mixed)
            state = replace(state, columns=columns, mixed_k=last_k, mixed_v=last_v, mixed_keep=slots[:, -1])
        else:
            mixed, slots = [x[:, :, None] for x in (state.mixed_k, state.mixed_v)], state.mixed_keep[:, None]
        readable_keys = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
        state = replace(state, total=state.total + readable_keys.sum(2, dtype=wide(k.dtype)))

        begin = past - past % block
        unsorted = [x.value[:, :, begin:] for x in (state.k, state.v)]
        keep = None if seen is None else seen.value[:, 0, begin:, 0]
        count = mixed[0].shape[2]
        if count == 1:  # within one block, earlier queries are not needed again
            out = self._combine(q, [x[:, :, 0] for x in mixed], unsorted, slots[:, 0], keep)
        else:
            keep = torch.ones(batch, length, dtype=torch.bool, device=q.device) if keep is None else keep
            keep = pad(keep, (0, count * block - length)).unflatten(1, (count, block)).flatten(0, 1)
            queries, *unsorted = (_fold(self._split(x, count)) for x in (q, *unsorted))
            mixed = [_fold(x) for x in mixed]
            out = _unfold(self._combine(queries, mixed, unsorted, slots.flatten(0, 1), keep), batch, length)
        if self.options.mixture:
            all_seen = None if seen is None else seen.value[:, 0, :, 0]
            source = KeySource(Dense(causal=True), state.k.value, state.v.value, all_seen)
            out = out + joint(q, [source], scale=self._scale)
        return out, state

    def _mix_new(
        self, k: Tensor, mask: Tensor | None, first: int, state: SinkhornState
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """The mixed keys and values of blocks that begin with the new tokens, their filled slots, and the columns."""
        block, count = self.options.block, ceil_div(k.shape[2], self.options.block)
        sources = first + count - 1  # all but the last are complete
        readable_keys = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
        sums = self.sorting.sums(self._split(readable_keys, count), state.total)
        keys, values = (x.value[:, :, : sources * block].unflatten(2, (sources, block)) for x in (state.k, state.v))
        keep = alive = None
        if state.seen is not None:
            keep = state.seen.value[:, 0, : sources * block, 0].unflatten(1, (sources, block))
            alive = keep.any(2)
            keys, values = (x.masked_fill(~keep[:, None, :, :, None], 0.0) for x in (keys, values))
        allowed = allowed_sources(first, count, sources, alive, True, k.device)
        columns = pad(state.columns, (0, sources - state.columns.shape[3]), value=BLOCKED).to(sums.dtype)
        sorting, columns = self.sorting(sums, allowed, columns)
        mixed = [mix(sorting, x) for x in (keys, values)]
        if keep is None:
            keep = torch.ones(k.shape[0], sources, block, dtype=torch.bool, device=k.device)
        filled = running_max(pad(keep, (0, 0, 1, 0)), 1)  # row i: whether a block before i has a key at each offset
        return mixed, filled[:, first:], columns


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, heads, rows, width)."""
    return x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))


def _fold(x: Tensor) -> Tensor:
    """(batch, heads, blocks, block, width) -> (batch · blocks, heads, block, width): a view of MultiHead's heads."""
    return x.transpose(1, 2).flatten(0, 1)


def _unfold(x: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of `_fold`, without the padding."""
    x = x.unflatten(0, (batch, x.shape[0] // batch)).transpose(1, 2).flatten(2, 3)
    if torch.compiler.is_compiling():  # a slice that may be the whole would specialise an exported program
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]
