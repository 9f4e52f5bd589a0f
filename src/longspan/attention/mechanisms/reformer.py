"""Reformer: each token reads the tokens in its hash bucket (LSH attention), over several rounds of hashing.

Queries and keys are one projection: keys are normalised to length 1, and the query's length is the temperature (Kitaev
et al. 2020, section 2). The argument k is ignored: it is q.

Three ways to cut the sorted buckets into chunks:

- `paper`: chunks over the whole sorted sequence. Their borders depend on the number of tokens in lower buckets, later
  tokens included, so the future can change which tokens the past reads.
- `strict`: chunks within each bucket, by a token's rank in it. A later token never changes an earlier rank, so this
  form is strictly causal and can decode, at the same cost. It is the default for causal=True.
- `released`: the authors' later code, for models that were trained with it. Chunks are those of `paper`, but a token
  reads whole chunks whatever the buckets, a pair counts once for every round that shows it, and the chunks of all
  rounds form a ring (`layouts/ring.py`).

A masked token is in no bucket: no token reads it, it reads nothing, and it takes no room in a chunk.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.devices import host_may_read
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.kernels.running import rank_in_group, shift, stable_sort
from longspan.attention.layouts import Layout, Ring, Sorted, ceil_div
from longspan.attention.layouts.base import wide
from longspan.attention.layouts.ring import shown_in_ring
from longspan.attention.parts.lsh import buckets, buckets_by_definition, draw
from longspan.attention.state import Rows, State, is_number
from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.precision import state_type
from longspan.recompute import remember
from longspan.shapes import Keys, Output, Queries, Values, Weights

FORMS = ("paper", "strict", "released")
BLOCK = 32  # least queries of one matrix product; shorter chunks are processed together
MANY = 64  # new tokens from which decoding uses the parallel form
LATE = 1 << 40  # a position after all others
CHUNKS = 1 << 32  # slots reserved for each bucket in a decoding state


@dataclass(frozen=True)
class ReformerState(State):
    k: Rows  # of length 1
    v: Rows
    slot: Rows  # (batch, heads, tokens, rounds): bucket · CHUNKS + chunk + 1; -1: masked
    counts: Tensor  # (batch, heads, rounds, buckets): how many tokens each bucket holds


class ReformerAttention(Attention):
    name = "reformer"
    paper = "Kitaev et al. 2020"
    survey_class = ("LP",)
    order = "n·log n + n·rounds·chunk"
    exponent = 1.0
    supports = Supports(causal=True, streaming=True, dropout=True)
    projects = ("q", "v")
    one_head_each = "its queries are its keys"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        rounds: int = option(4, "rounds of hashing; a token reads the union of all rounds", low=1)
        chunk: int = option(64, "tokens of a chunk; a token reads its own chunk and the one before", low=1)
        buckets: int | tuple[int, ...] = option(
            64, "even; a tuple multiplies several small hashes; the paper takes 2 · length / chunk", low=2
        )
        form: str | None = option(
            None, "how buckets are cut into chunks; strict if causal and paper otherwise", choices=FORMS
        )
        reads_self: str = option("alone", "when a token reads itself", choices=("alone", "always"))
        bucket_mask: bool = option(True, "whether a chunk's tokens of other buckets are hidden, as in the paper")
        count_correction: bool = option(True, "whether a pair that several rounds show counts once, as in the paper")
        chunks_before: int = option(
            1, "released form: chunks before its own that a token reads", low=0, formerly="before"
        )
        chunks_after: int = option(0, "released form: chunks after its own that a token reads", low=0, formerly="after")
        eps: float = option(0.0, "added to the mean square of a key before it is normalised", low=0)
        seed: int | None = option(
            None, "seed of the rotations, which are then the same in all layers (released: hash_seed)", low=0
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given, form = self.options.buckets, self.options.form
        self.factors: tuple[int, ...] = given if isinstance(given, tuple) else (given,)
        if any(factor % 2 for factor in self.factors):
            raise InvalidOption(f"option buckets must be even, each half being the other's mirror, not {given!r}")
        if form == "strict" and not causal:
            raise InvalidOption("option form strict goes with causal=True; without a direction, paper leaks nothing")
        self.released = form == "released"
        if not self.released and (self.options.chunks_before, self.options.chunks_after) != (1, 0):
            raise InvalidOption(
                "options chunks_before and chunks_after are for form released; others read 1 chunk before"
            )
        if self.released and not (self.options.bucket_mask and self.options.count_correction):
            raise InvalidOption("form released has no bucket mask and no count correction; leave those options out")
        self.strict = causal and form in (None, "strict")
        if self.strict and not self.options.bucket_mask:
            raise InvalidOption("option bucket_mask=False goes with form paper; strict chunks lie within a bucket")
        if causal and not self.strict:
            self.supports = replace(self.supports, streaming=False)
        self.register_buffer("rotations", draw(shape, self.options.rounds, self.factors, self.options.seed))
        self.rotations: Tensor

    @property
    def padding_counts(self) -> bool:
        """The released chunks count padding too."""
        return self.released

    @torch.no_grad()
    def redraw(self) -> None:
        """Draw new random rotations, as the paper does at every training step; not while decoding a sequence."""
        self.rotations.normal_()

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        position = torch.arange(length, device=q.device)
        real = torch.ones(q.shape[0], length, dtype=torch.bool, device=q.device)
        real = (real if extras.key_mask is None else extras.key_mask)[:, None, :]
        may_read = real[..., :, None] & readable(length, length, self.causal, extras.key_mask, q.device)
        if self.released:
            by_round = [buckets_by_definition(q, turn, self.factors) for turn in self.rotations.unbind(1)]
            order = torch.stack([b.masked_fill(~real, self._buckets).argsort(dim=-1, stable=True) for b in by_round], 2)
            count = shown_in_ring(order, *self._sizes) * may_read
            return self._weigh(q, count)
        shown = []  # per round, which pairs it shows
        for turn in range(self.options.rounds):
            bucket = buckets_by_definition(q, self.rotations[:, turn], self.factors).masked_fill(~real, self._buckets)
            if self.strict:  # rank among the real tokens of the same bucket
                earlier = (bucket[..., None] == bucket[..., None, :]) & (position[None] < position[:, None])
                chunk = earlier.sum(dim=-1) // self.options.chunk
            else:  # rank in the order by bucket, then position
                chunk = (bucket * length + position).argsort(dim=-1).argsort(dim=-1) // self.options.chunk
            step = chunk[..., :, None] - chunk[..., None, :]
            near = (step == 0) | (step == 1)
            if self.options.bucket_mask:
                near &= bucket[..., :, None] == bucket[..., None, :]
            shown.append(near & may_read)
        # The paper's appendix: rounds share one normaliser, and each score is reduced by log N_ij, so a pair that N_ij
        # rounds show counts once: the softmax over the union. Without the correction it counts N_ij times.
        return self._weigh(q, torch.stack(shown).sum(dim=0))

    def _weigh(self, q: Queries, count: Tensor) -> Weights:
        """The softmax over pairs, given in how many rounds each pair is shown."""
        union = count > 0
        if self.options.reads_self == "alone":
            itself = torch.eye(q.shape[2], dtype=torch.bool, device=q.device)
            union = union & ~(itself & (union & ~itself).any(dim=-1, keepdim=True))
        scores = torch.einsum("bhid,bhjd->bhij", q, self.unit_keys(q))
        if self.released or not self.options.count_correction:
            scores = scores + count.clamp_min(1).to(scores.dtype).log()
        return masked_softmax(scores, union)

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        if self.released:
            return self._attend_ring(q, v, extras.key_mask)
        layout = remember(lambda: self._arrange(self._hash(q), extras.key_mask))
        return self._joint(q, self.unit_keys(q), v, layout)

    def _attend_ring(self, q: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        ring = remember(lambda: self._ring(self._hash(q), keep))
        out = self._joint(q, self.unit_keys(q), v, ring, keep)
        return out if keep is None else out.masked_fill(~keep[:, None, :, None], 0.0)

    def _ring(self, bucket: Tensor, keep: Tensor | None) -> Ring:
        if keep is not None:
            bucket = bucket.masked_fill(~keep[:, None, None, :], self._buckets)
        alone = self.options.reads_self == "alone"
        return Ring(bucket.argsort(dim=-1, stable=True), *self._sizes, causal=self.causal, alone=alone)

    @property
    def _sizes(self) -> tuple[int, int, int]:
        return self.options.chunk, self.options.chunks_before, self.options.chunks_after

    def unit_keys(self, q: Tensor) -> Tensor:
        """The keys: the queries with length 1."""
        return _unit(q, self.options.eps)

    def _joint(self, q: Tensor, k: Tensor, v: Tensor, layout: Layout, keep: Tensor | None = None) -> Tensor:
        return joint(q, [KeySource(layout, k, v, keep)], scale=1.0, dropout=self.dropout if self.training else 0.0)

    @property
    def _buckets(self) -> int:
        return math.prod(self.factors)

    @property
    def _block(self) -> int:
        return self.options.chunk * ceil_div(BLOCK, self.options.chunk)

    @property
    def _back(self) -> int:
        """How far back a token's keys are in the sorted order; if strict, buckets begin anywhere in a block."""
        return self.options.chunk * (2 if self.strict else 1)

    def _hash(self, q: Tensor) -> Tensor:
        """The bucket of each token in each round, (batch, heads, rounds, length)."""
        return buckets(q, self.rotations, self.factors)

    def bucket_ids(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        return self._hash(q), self._hash(q)

    def _arrange(self, bucket: Tensor, keep: Tensor | None) -> Sorted:
        """For each round the sorted order and the slots, and which tokens read themselves."""
        length, chunk = bucket.shape[-1], self.options.chunk
        real = None if keep is None else keep[:, None, None, :]
        if real is not None:  # masked tokens come last, where they shift no other token
            bucket = bucket.masked_fill(~real, self._buckets)
        value, order = stable_sort(bucket)
        if self.strict:
            rank = rank_in_group(value, self._buckets + 1)
        else:
            rank = torch.arange(length, device=bucket.device).expand_as(order)
        slot = rank // chunk + 1
        before = True
        if self.strict and host_may_read(slot) and int(slot.max()) <= 2:
            slot, before = torch.ones_like(slot), False  # at most two chunks: all earlier tokens of a bucket are read
        if self.options.bucket_mask:
            slot = slot + value * (ceil_div(length, chunk) + 1)  # one unused slot between buckets
        if real is not None:
            slot = slot.masked_fill(value == self._buckets, -1)
        reads_self = self._reads_self(order, slot)
        slot = torch.empty_like(slot).scatter_(-1, order, slot)
        correct = self.options.count_correction
        return Sorted(order, slot, reads_self, self._block, self._back, self.causal, correct, before)

    def _reads_self(self, order: Tensor, slot: Tensor) -> Tensor:
        """Which tokens read themselves, (batch, heads, length), given the slots in sorted order."""
        real = slot >= 0
        if self.options.reads_self == "always":
            alone = real
        elif self.causal and not self.options.bucket_mask:  # a chunk is not in the order of positions
            alone = real & (self._earliest(order, real) >= order)
        else:  # it depends on the nearest neighbours in the sorted order
            step = slot - shift(slot, 1, -3)
            alone = real & (step != 0) & (step != 1)
            if not self.causal:
                alone = alone & (slot != shift(slot, -1, -3))
        return torch.empty_like(alone).scatter_(-1, order, alone).all(dim=2)

    def _earliest(self, order: Tensor, real: Tensor) -> Tensor:
        """The earliest real position in each token's chunk and the one before, in sorted order."""
        length, chunk = order.shape[-1], self.options.chunk
        count = ceil_div(length, chunk)
        at = pad(order.masked_fill(~real, LATE), (0, count * chunk - length), value=LATE)
        least = at.unflatten(-1, (count, chunk)).amin(dim=-1)
        least = torch.minimum(least, shift(least, 1, LATE))
        return least.repeat_interleave(chunk, dim=-1)[..., :length]

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, rounds = self.shape.heads, self.shape.fused_width, self.options.rounds
        order = torch.empty(1, heads, rounds, queries, device="meta")
        layout: Layout = (
            Ring(order, *self._sizes)
            if self.released
            else Sorted(order, order, order, self._block, self._back, self.causal)
        )
        pairs = layout.pairs(heads, queries, keys)
        hashing = 2 * heads * queries * self.shape.head_dim * rounds * self.rotations.shape[3]
        # Kept: the output and its log-sum-exp, the normalised keys and their lengths.
        return Cost(hashing + 4 * pairs * width, heads * queries * (2 * width + 3))

    # Decoding

    def _refuse_streaming(self) -> None:
        if self.causal and not self.strict:
            raise Unsupported(f"{self.name} decodes in its strict form only, where the future changes nothing")
        super()._refuse_streaming()

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> ReformerState:
        self._refuse_streaming()
        _, device = state_type(self, dtype, device)
        counts = torch.zeros(
            batch, self.shape.heads, self.options.rounds, self._buckets, dtype=torch.long, device=device
        )
        return ReformerState(Rows.empty(batch), Rows.empty(batch), Rows.empty(batch), counts)

    def extend_heads(
        self, q: Queries, k: Keys, v: Values, state: ReformerState, extras: Extras
    ) -> tuple[Output, State]:
        past, new = state.k.count, q.shape[2]
        bucket = remember(lambda: self._hash(q))
        slot, counts = self._continue(bucket, state.counts, extras.key_mask)
        state = ReformerState(
            state.k.append(self.unit_keys(q)), state.v.append(v), state.slot.append(slot.transpose(2, 3)), counts
        )
        keys, values, slots = state.k.value, state.v.value, state.slot.value
        if is_number(new, 1) if torch.compiler.is_exporting() else new < MANY:
            return self._read(q, keys, values, slot, slots.transpose(2, 3)), state
        # The parallel form over all tokens, with zeros for earlier queries.
        known = (slots // CHUNKS).transpose(2, 3)
        keep = known[:, 0, 0] >= 0
        layout = self._arrange(known, None if host_may_read(keep) and bool(keep.all()) else keep)
        return self._joint(pad(q, (0, 0, past, 0)), keys, values, layout)[:, :, past:], state

    def _continue(self, bucket: Tensor, counts: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """The slots of new tokens after those that their buckets already hold, and the new counts of the buckets."""
        real = torch.ones_like(bucket) if keep is None else keep[:, None, None, :].expand_as(bucket).long()
        value, order = stable_sort(bucket)
        rank = rank_in_group(value, self._buckets, real.gather(-1, order))
        rank = torch.empty_like(rank).scatter_(-1, order, rank) + counts.gather(-1, bucket)
        slot = bucket * CHUNKS + rank // self.options.chunk + 1
        return slot.masked_fill(real == 0, -1), counts.scatter_add(-1, bucket, real)

    def _read(self, q: Tensor, k: Tensor, v: Tensor, reading: Tensor, slot: Tensor) -> Tensor:
        """A few queries, which are the last tokens: each compares its slots with those of every key."""
        new, known = q.shape[2], k.shape[2]
        step = reading[..., :, None] - slot[..., None, :]  # batch, heads, rounds, queries, keys
        count = (((step == 0) | (step == 1)) & (slot >= 0)[..., None, :]).sum(dim=2)
        at = torch.arange(known - new, known, device=q.device)[:, None]
        position = torch.arange(known, device=q.device)
        count = count.masked_fill(position > at, 0)
        if self.options.reads_self == "alone":
            others = count.masked_fill(position == at, 0).any(dim=-1, keepdim=True)
            count = count.masked_fill((position == at) & others, 0)
        most = 2 * self.options.chunk * self.options.rounds
        if (
            new == 1 and not torch.compiler.is_exporting() and known > 2 * most
        ):  # gathering what is read is cheaper than reading everything
            shown = count[:, :, 0].topk(most, dim=-1)
            count = shown.values[:, :, None]
            k, v = (x.gather(2, shown.indices[..., None].expand(-1, -1, -1, x.shape[-1])) for x in (k, v))
        scores = (q @ k.mT).to(wide(q.dtype))
        if not self.options.count_correction:
            scores = scores + count.clamp_min(1).to(scores.dtype).log()
        return masked_softmax(scores, count > 0).to(v.dtype) @ v


def _unit(q: Tensor, eps: float = 0.0) -> Tensor:
    """Keys of length 1, or slightly shorter with `eps`; a zero vector stays zero."""
    if eps:
        return q * torch.rsqrt(q.square().mean(dim=-1, keepdim=True) + eps) / float(q.shape[-1] ** 0.5)
    length: Tensor = q.norm(dim=-1, keepdim=True)
    return q / length.clamp_min(torch.finfo(q.dtype).tiny)
