"""BigBird: blocks of queries read the blocks around them, a few global blocks and a few random ones."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.kernels.multi_source_softmax import KeySource, WholeRows, joint
from longspan.attention.layouts import BlockTable, Dense, ceil_div
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights

RELEASED_TOKENS, RELEASED_LENGTH = 1024, 4096  # the release draws from the first 1024 tokens up to this length


class BigBirdAttention(Attention):
    """Zaheer et al. 2020, section 2. Row block i reads W_i ∪ G ∪ R_i, each key once, under one softmax:

    - W_i: the `window` blocks around it;
    - G: the first block and the last (ITC: existing tokens are global), or the first `global_tokens` positions (ETC:
      tokens were added for this, and blocks begin after them); global rows read everything;
    - R_i: `random` other blocks, drawn once and separately for each head.

    The last block is the block of the last key that may be read, so the amount of padding does not matter.

    The plan `hugging_face` reproduces what that library computes in evaluation: full attention up to 2·random + 5
    blocks; beyond that, the first block is read `random` more times instead of random blocks. There the last block is
    the last one of the input, even if it is padding, so the output of a text depends on its batch.
    """

    name = "bigbird"
    paper = "Zaheer et al. 2020"
    survey_class = ("FP", "M")
    order = "n·block·(window + random + 2)"
    exponent = 1.0
    scaled_dot = True
    supports = Supports(dropout=True, grouped=True)
    seed: Tensor

    limited = ("global_tokens",)

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        form: str = option(
            "itc",
            "global tokens: those of the first and last block (itc), or added ones at the front (etc)",
            choices=("itc", "etc"),
        )
        block: int = option(64, "positions of a block", low=1)
        window: int = option(3, "blocks of the window, centred on the query's block; odd", low=1)
        random: int | None = option(None, "random blocks; unless given, 3 in the itc form and 0 in the etc form", low=0)
        global_tokens: int = option(256, "etc: how many positions at the front are global", low=1)
        plan: str = option(
            "uniform",
            "where random blocks are drawn from: anywhere (uniform); the first 1024 tokens, for lengths 1024 to 4096, "
            "or the first 2·random + 5 blocks (released); none are drawn (hugging_face, as there in evaluation)",
            choices=("uniform", "released", "hugging_face"),
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given = self.options
        if given.window % 2 == 0:
            raise InvalidOption(f"option window must be odd, as many blocks on each side, not {given.window}")
        self.itc, self.ported = given.form == "itc", given.plan == "hugging_face"
        if self.ported and not self.itc:
            raise InvalidOption("the plan 'hugging_face' is of the itc form; the etc form has 'uniform' and 'released'")
        if not self.itc:
            shape.check_room("global_tokens", given.global_tokens)
        self.random = (3 if self.itc else 0) if given.random is None else given.random
        # The only random state. The tables for any length follow from it, so the module is not bound to a length.
        self.register_buffer("seed", torch.randint(1 << 32, (shape.heads,)))

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        heads, length = q.shape[1:3]
        first = 0 if self.itc else min(length, self.options.global_tokens)  # where blocks begin
        keep = readable(length, length, False, extras.key_mask, q.device)
        pattern = torch.ones(keep.shape[0], heads, length, length, dtype=torch.bool, device=q.device)
        if first < length and not self._whole(length):
            blocks = self._define_blocks(keep[:, 0, 0, first:])
            blocks = blocks.repeat_interleave(self.options.block, -1).repeat_interleave(self.options.block, -2)
            pattern[:, :, first:, first:] = blocks[..., : length - first, : length - first]
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / self.shape.head_dim**0.5
        if self.ported and not self._whole(length):
            block = torch.arange(length, device=q.device) // self.options.block
            again = ((block > 0) & (block < block[-1]))[:, None] & (block == 0)
            scores = scores + again.to(scores.dtype) * math.log(1 + self.random)  # keys that are read several times
        return masked_softmax(scores, pattern & keep)

    def _define_blocks(self, keep: Tensor) -> Tensor:
        """Which blocks each block reads, set by set: (batch, heads, blocks, blocks)."""
        last = self._last(keep)
        count = ceil_div(keep.shape[1], self.options.block)
        drawn = self._random_blocks(self._fixed_blocks(last, count), last).tolist()
        reads = torch.zeros(len(drawn), self.shape.heads, count, count, dtype=torch.bool, device=keep.device)
        for sequence, head, row in torch.cartesian_prod(*(torch.arange(size) for size in reads.shape[:3])).tolist():
            final = int(last[sequence])
            ends = {0, final} if self.itc else set()
            around = self.options.window // 2
            window = set(range(max(0, row - around), min(final, row + around) + 1))
            random = {block for block in drawn[sequence][head][row] if block >= 0}
            everything = set(range(final + 1))
            for block in everything if row in ends else window | ends | random:
                reads[sequence, head, row, block] = True
        return reads

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        return self._attend_itc(q, k, v, extras.key_mask) if self.itc else self._attend_etc(q, k, v, extras.key_mask)

    def _attend_itc(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        if self._whole(q.shape[2]):
            return self._joint(q, [KeySource(Dense(), k, v, keep)])
        last = self._last(torch.ones(1, q.shape[2], dtype=torch.bool, device=q.device) if keep is None else keep)
        layout = BlockTable(self._table(last, q.shape[2]), self.options.block)
        return self._joint(q, [KeySource(layout, k, v, keep)], self._global_rows(last, q.shape[2]))

    def _attend_etc(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        length, first = q.shape[2], self.options.global_tokens
        if length <= first:
            return self._joint(q, [KeySource(Dense(), k, v, keep)])
        keep_global, keep_rest = (None, None) if keep is None else (keep[:, :first], keep[:, first:])
        everything = torch.ones(1, length - first, dtype=torch.bool, device=q.device)
        last = self._last(everything if keep_rest is None else keep_rest)
        layout = BlockTable(self._table(last, length - first), self.options.block)
        sources = [
            KeySource(Dense(), k[:, :, :first], v[:, :, :first], keep_global),
            KeySource(layout, k[:, :, first:], v[:, :, first:], keep_rest),
        ]
        read_all = self._joint(q[:, :, :first], [KeySource(Dense(), k, v, keep)])
        return torch.cat([read_all, self._joint(q[:, :, first:], sources)], dim=2)

    def _joint(self, q: Tensor, sources: list[KeySource], whole: WholeRows | None = None) -> Tensor:
        dropout = self.dropout if self.training else 0.0
        return joint(q, sources, scale=self.shape.head_dim**-0.5, dropout=dropout, whole=whole)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, block = self.shape.heads, self.shape.fused_width, self.options.block
        if not self.itc:
            first = min(queries, self.options.global_tokens)
            rest = queries - first
            pairs = heads * (first * queries + rest * first)
            if rest:
                pairs += self._pairs(rest)
            return Cost(4 * pairs * width, heads * queries * (width + 1))  # the output and the log-sum-exp
        if self._whole(queries):
            return Cost(4 * heads * queries**2 * width, heads * queries * (width + 1))
        room = ceil_div(queries, block) * block
        rows = queries if room == block else 2 * block - (room - queries)  # that read everything
        flops = 4 * (self._pairs(queries) + heads * rows * queries) * width
        kept = room if self.shape.group == 1 else queries  # in whole blocks, unless heads are put together
        return Cost(flops, heads * kept * (width + 1))  # the output and the log-sum-exp

    def _pairs(self, length: int) -> int:
        count = ceil_div(length, self.options.block)
        slots = self.options.window + 2 * self.itc + min(self.random, count)
        apart = min(2, count) if self.itc else 0  # global rows
        return self.shape.heads * (count - apart) * slots * self.options.block**2

    # The tables

    def _whole(self, length: int) -> bool:
        """Whether attention is full, as for short texts in the plan `hugging_face`."""
        return self.ported and length <= (2 * self.random + 5) * self.options.block

    def _last(self, keep: Tensor) -> Tensor:
        """The block of the last readable key of each sequence: (batch,), or (1,) if it is the same for all."""
        if self.ported:
            return torch.full((1,), (keep.shape[1] - 1) // self.options.block, device=keep.device)
        position = torch.arange(keep.shape[1], device=keep.device)
        return torch.where(keep, position, 0).amax(1) // self.options.block

    def _global_rows(self, last: Tensor, length: int) -> WholeRows:
        """The first block and the last one; they may coincide, and either may be short."""
        within = torch.arange(self.options.block, device=last.device)
        ends = last[:, None] * self.options.block + within
        real = torch.cat([within.expand_as(ends) < length, (ends < length) & (last > 0)[:, None]], dim=1)
        return WholeRows(torch.cat([within.expand_as(ends), ends], dim=1), real)

    def _table(self, last: Tensor, length: int) -> Tensor:
        """Key blocks of each row block: (batch, heads, blocks, slots), -1 for none."""
        fixed = self._fixed_blocks(last, ceil_div(length, self.options.block))
        drawn = self._random_blocks(fixed, last)
        table = torch.cat([fixed[:, None].expand(-1, self.shape.heads, -1, -1), drawn], dim=-1)
        if not self.itc:
            return table
        row = torch.arange(fixed.shape[1], device=last.device)
        ends = (row == 0) | (row == last[:, None])
        return table.masked_fill(ends[:, None, :, None], -1)  # global rows are computed separately

    @property
    def shortest_exported(self) -> int:
        return self.options.block + 1

    def read_blocks(self, length: int, keep: Tensor | None) -> Tensor:
        """Which block each block reads, global rows included: (batch or 1, heads, blocks, blocks)."""
        keep = torch.ones(1, length, dtype=torch.bool, device=self.seed.device) if keep is None else keep
        last, count = self._last(keep), ceil_div(length, self.options.block)
        table = self._table(last, length)
        reads = torch.zeros(*table.shape[:3], count + 1, dtype=torch.bool, device=keep.device)
        reads = reads.scatter_(-1, table % (count + 1), True)[..., :count]  # −1 falls off the end
        if not self.itc:
            return reads
        row = torch.arange(count, device=keep.device)
        return reads | ((row == 0) | (row == last[:, None]))[:, None, :, None]

    def _fixed_blocks(self, last: Tensor, count: int) -> Tensor:
        """Window and global blocks of each row block: (batch, blocks, slots), -1 for none."""
        around, last = self.options.window // 2, last[:, None, None]
        row = torch.arange(count, device=last.device)[:, None]
        window = row + torch.arange(-around, around + 1, device=last.device)
        near = window.masked_fill((window < 0) | (window > last), -1)
        if not self.itc:
            return near
        # A global block inside the window counts as part of the window.
        begin = torch.where(row > around, 0, -1).expand(last.shape[0], -1, -1)
        end = torch.where(((row - last).abs() > around) & (last > 0), last, -1)
        return torch.cat([near, begin, end], dim=-1)

    def _random_blocks(self, fixed: Tensor, last: Tensor) -> Tensor:
        """Blocks that are neither in the window nor global, drawn without replacement: (batch, heads, blocks, random).

        The draws are hashes of seed, row and turn, so they need no table of a fixed size. They depend on the length of
        the text without its padding, and on no other length.
        """
        count = fixed.shape[1]
        if self.ported:
            return fixed.new_zeros(len(last), self.shape.heads, count, self.random)
        nowhere = torch.iinfo(torch.int64).max
        excluded = fixed.masked_fill(fixed < 0, nowhere).sort(dim=-1).values[:, None]  # batch 1 blocks slots
        limit = self._limit(last)[:, None, None]
        free = limit - (excluded < limit[..., None]).sum(-1)
        row = torch.arange(count, device=last.device)
        base = _mix(_mix(self.seed)[:, None] ^ row)
        chosen: list[Tensor] = []  # ranks among the free blocks
        blocks = []
        turns = self.random if torch.compiler.is_compiling() else min(self.random, count)
        for turn in range(turns):
            left = free - turn
            rank = _mix(base ^ turn) % left.clamp_min(1)
            rank = _skip(rank, torch.stack(chosen, -1).sort(dim=-1).values) if chosen else rank
            chosen.append(rank)
            blocks.append(torch.where(left > 0, _skip(rank, excluded), -1))
        if not blocks:
            return torch.empty(last.shape[0], self.shape.heads, count, 0, dtype=torch.int64, device=last.device)
        return torch.stack(blocks, dim=-1)

    def _limit(self, last: Tensor) -> Tensor:
        """Random blocks are drawn from the first blocks; how many: (batch,)."""
        if self.options.plan == "uniform":
            return last + 1
        length = (last + 1) * self.options.block
        early = (length >= RELEASED_TOKENS) & (length <= RELEASED_LENGTH)
        limit = torch.where(early, RELEASED_TOKENS // self.options.block, 2 * self.random + 5)
        return torch.minimum(limit, last + 1)


def _skip(rank: Tensor, excluded: Tensor) -> Tensor:
    """The number with `rank` smaller ones that are not in `excluded` (…, slots), which is in ascending order."""
    for number in excluded.unbind(-1):
        rank = rank + (rank >= number)
    return rank


def _mix(x: Tensor) -> Tensor:
    """A hash of 32 bits (Wellons' "lowbias32"); constants below 2³¹, so that products fit into int64."""
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
