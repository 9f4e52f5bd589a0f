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
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
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
    columns: Tensor  # (batch, heads, iterations, blocks): the logarithm of what each column has given away so far
    mixed_k: Tensor  # (batch, heads, block, head_dim): what the current block reads of the others
    mixed_v: Tensor
    mixed_keep: Tensor  # (batch, block)


class SinkhornAttention(Attention):
    name = "sinkhorn"
    paper = "Tay et al. 2020b"
    survey_class = ("LP",)
    order = "n·block + n²/block"
    exponent = 2.0  # at a fixed block the mixing wins in the end; with blocks of about √n it is n^1.5
    supports = Supports(causal=True, streaming=True, dropout=True)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        block: int = option(64, "positions of a block", low=1)
        iterations: int = option(7, "rounds of balancing, each over rows and then columns", low=1)
        temperature: float = option(
            0.75, "what the sort scores are divided by: lower is nearer to a permutation", low=0.01
        )
        noise: float = option(1.0, "size of the Gumbel noise on the sort scores, in training only; 0 for none", low=0.0)
        network: str = option("mlp", "what makes sort scores of a block's sum", choices=("linear", "mlp"))
        combine: str = option(
            "concat",
            "own and sorted block in one softmax, in two that are added, or the sorted block alone",
            choices=("concat", "sum", "sorted"),
        )
        sortcut: int = option(
            0,
            "every query reads the first so many sorted blocks, in place of `combine`; 0 is off; encoders only",
            low=0,
        )
        mixture: bool = option(False, "adds ordinary dense attention, which is quadratic: an ablation of the paper")

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
        self.sorting = Sorting(shape.heads, shape.head_dim, most, self.options, causal)

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length, block, scale = q.shape[2], self.options.block, self.shape.head_dim**-0.5
        self._check_length(length)
        count = ceil_div(length, block)
        behind = count * block - length
        keep = readable(1, length, False, extras.key_mask, q.device)[:, 0, 0].expand(q.shape[0], -1)
        keep = pad(keep, (0, behind)).unflatten(1, (count, block))
        queries, keys = (pad(x, (0, 0, 0, behind)).unflatten(2, (count, block)) for x in (q, k))
        keys = keys.masked_fill(~keep[:, None, :, :, None], 0.0)  # nothing of a masked key is ever used

        # Which block may give to which, the sort matrix S, and K̃_i = Σ_j S_ij K_j.
        alive = keep.any(2)
        earlier = torch.ones(count, count, dtype=torch.bool, device=q.device).tril(-1)
        allowed = alive[:, None, :] & (earlier if self.causal else alive[:, :, None])
        sorting = self._sort_by_definition(keys, allowed[:, None])
        mixed = torch.einsum("bhij,bhjpd->bhipd", sorting, keys)
        slots = (allowed[:, :, :, None] & keep[:, None]).any(2)  # a slot that nothing may be mixed into is no key

        # Row o of block i puts `to_mixed` on the slots p of its sorted block; slot p is key p of block j for S_ij.
        shares = torch.einsum("bhij,bjp->bhijp", sorting, keep.to(q.dtype))
        if self.options.sortcut:
            first = alive & (alive.cumsum(1) <= self.options.sortcut)  # padded blocks do not count
            scores = torch.einsum("bhiod,bhjpd->bhiojp", queries, mixed) * scale
            may = (slots & first[:, :, None])[:, None, None, None].expand_as(scores)
            to_all = masked_softmax(scores.flatten(4), may.flatten(4)).unflatten(4, (count, block))
            weights = torch.einsum("bhiosp,bhsjp->bhiojp", to_all, shares)
        else:
            scores = torch.einsum("bhiod,bhipd->bhiop", queries, mixed) * scale
            own = torch.einsum("bhiod,bhipd->bhiop", queries, keys) * scale
            may = slots[:, None, :, None].expand_as(scores)
            may_own = keep[:, None, :, None].expand_as(own) & readable(block, block, self.causal, None, q.device)
            if self.options.combine == "concat":
                both = masked_softmax(torch.cat([scores, own], -1), torch.cat([may, may_own], -1))
                to_mixed, to_own = both.split(block, dim=-1)
            else:
                to_mixed, to_own = masked_softmax(scores, may), masked_softmax(own, may_own)
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
        count, block, network = keys.shape[2], keys.shape[3], self.sorting
        # When causal: of all tokens up to and including the first one of the block.
        sums = keys.flatten(2, 3).cumsum(2)[:, :, ::block] if self.causal else keys.sum(3)
        if self.options.network == "mlp":
            sums = (torch.einsum("hed,bhid->bhie", network.inner, sums) + network.inner_bias[:, None]).relu()
        scores = torch.einsum("hjd,bhid->bhij", network.sort, sums) + network.sort_bias[:, None]
        logs = scores[..., :count] / self.options.temperature

        def log_sum(part: Tensor, dim: int) -> Tensor:
            may = allowed[..., : part.shape[2], :]
            return part.masked_fill(~may, BLOCKED).logsumexp(dim, keepdim=True)

        for _ in range(self.options.iterations):
            logs = logs - log_sum(logs, -1)
            if self.causal:  # a column counts what rows up to this one have taken of it
                logs = logs - torch.cat([log_sum(logs[..., : row + 1, :], -2) for row in range(count)], -2)
            else:
                logs = logs - log_sum(logs, -2)
        return logs.masked_fill(~allowed, BLOCKED).exp()

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        batch, length, block = q.shape[0], q.shape[2], self.options.block
        self._check_length(length)
        dropout = self.dropout if self.training else 0.0
        exporting = torch.compiler.is_compiling()
        count = ceil_div(length, block) + exporting  # one to spare: exporters treat a size of 1 apart from all others
        behind = count * block - length
        keep = None
        if extras.key_mask is not None or exporting or behind:
            keep = readable(1, length, False, extras.key_mask, q.device)[:, 0, 0].expand(batch, -1)
            keep = pad(keep, (0, behind)).unflatten(1, (count, block))
        keys, values = (self._split(x, count) for x in (k, v))
        # Only masks and the spare block leave blocks with nothing to give.
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
            own = [_fold(x) for x in (keys, values)]
            slots, keep = (None if x is None else x.flatten(0, 1) for x in (slots, keep))
            queries = _fold(self._split(q, count))
            out = _unfold(self._combine(queries, mixed, own, slots, keep, dropout), batch, length)
        if self.options.mixture:
            source = KeySource(Dense(causal=self.causal), k, v, extras.key_mask)
            out = out + joint(q, [source], scale=self._scale, dropout=dropout)
        return out

    def _combine(
        self,
        q: Tensor,
        mixed: Sequence[Tensor],
        own: Sequence[Tensor],
        slots: Tensor | None,
        keep: Tensor | None,
        dropout: float = 0.0,
    ) -> Tensor:
        """Queries of blocks with the keys and values that were mixed for them and with their own."""
        to_mixed = KeySource(Dense(), mixed[0], mixed[1], slots)
        to_own = KeySource(Dense(causal=self.causal), own[0], own[1], keep)
        unions = {"concat": [[to_mixed, to_own]], "sum": [[to_mixed], [to_own]], "sorted": [[to_mixed]]}[
            self.options.combine
        ]
        parts = [joint(q, union, scale=self._scale, dropout=dropout) for union in unions]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]

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
            # The living ones to the front; behind them, where there are too few, a row of nothing that stands at 0.
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
        behind = count * self.options.block - x.shape[2]
        if torch.compiler.is_compiling() or behind:
            x = pad_rows(x, 0, behind)
        blocks: Tensor = x.unflatten(2, (count, self.options.block))
        return blocks

    def _check_length(self, length: int) -> None:
        most = self.shape.max_length
        assert most is not None
        if length > most:
            raise InvalidInput(f"{self.name} was built for max_length {most}, and there are {length} positions")

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, block = self.shape.heads, self.shape.fused_width, self.options.block
        narrow, both = self.shape.head_dim, self.shape.head_dim + self.shape.value_dim
        count = ceil_div(keys, block)
        rows = count * block
        cut = min(self.options.sortcut, count)
        flops = 2 * heads * count * narrow * (count + (narrow if self.options.network == "mlp" else 0))
        flops += 2 * heads * (cut or count) * count * block * both
        kept = heads * count * (narrow + count)  # the sums and S
        kept += 2 * heads * (cut or count) * block * width  # the mixed keys and values
        if rows != keys:
            kept += (2 if cut else 3) * heads * rows * width  # padded
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
        heads, width, block = self.shape.heads, self.shape.head_dim, self.options.block
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
        rest = -len(state.k) % block  # what the current block still lacks
        outs = []
        for begin, end in ((0, min(rest, new)), (min(rest, new), new)):
            if begin < end:
                here = slice(begin, end)
                mask = None if extras.key_mask is None else extras.key_mask[:, here]
                out, state = self._advance(q[:, :, here], k[:, :, here], v[:, :, here], mask, state)
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
        given = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
        state = replace(state, total=state.total + given.sum(2, dtype=wide(k.dtype)))

        begin = past - past % block
        own = [x.value[:, :, begin:] for x in (state.k, state.v)]
        keep = None if seen is None else seen.value[:, 0, begin:, 0]
        count = mixed[0].shape[2]
        if count == 1:  # within one block, queries that were answered before need not stand in front again
            out = self._combine(q, [x[:, :, 0] for x in mixed], own, slots[:, 0], keep)
        else:
            keep = torch.ones(batch, length, dtype=torch.bool, device=q.device) if keep is None else keep
            keep = pad(keep, (0, count * block - length)).unflatten(1, (count, block)).flatten(0, 1)
            queries, *own = (_fold(self._split(x, count)) for x in (q, *own))
            mixed = [_fold(x) for x in mixed]
            out = _unfold(self._combine(queries, mixed, own, slots.flatten(0, 1), keep), batch, length)
        if self.options.mixture:
            every = None if seen is None else seen.value[:, 0, :, 0]
            source = KeySource(Dense(causal=True), state.k.value, state.v.value, every)
            out = out + joint(q, [source], scale=self._scale)
        return out, state

    def _mix_new(
        self, k: Tensor, mask: Tensor | None, first: int, state: SinkhornState
    ) -> tuple[list[Tensor], Tensor, Tensor]:
        """What the blocks that begin with the new tokens read of earlier ones, once for each block."""
        block, count = self.options.block, ceil_div(k.shape[2], self.options.block)
        sources = first + count - 1  # all but the last are complete
        given = k if mask is None else k.masked_fill(~mask[:, None, :, None], 0.0)
        sums = self.sorting.sums(self._split(given, count), state.total)
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
        ever = pad(keep, (0, 0, 1, 0)).cummax(1).values  # row i: what blocks before i have at each offset
        return mixed, ever[:, first:], columns


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of (batch, heads, rows, width)."""
    return x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))


def _fold(x: Tensor) -> Tensor:
    """(batch, heads, blocks, block, width) -> (batch · blocks, heads, block, width): a view of MultiHead's."""
    return x.transpose(1, 2).flatten(0, 1)


def _unfold(x: Tensor, batch: int, length: int) -> Tensor:
    """The inverse of `_fold`, without the padding."""
    x = x.unflatten(0, (batch, x.shape[0] // batch)).transpose(1, 2).flatten(2, 3)
    if torch.compiler.is_compiling():  # whether a slice is the whole would tie an exported program to some lengths
        return x.index_select(2, torch.arange(length, device=x.device))
    return x[:, :, :length]
