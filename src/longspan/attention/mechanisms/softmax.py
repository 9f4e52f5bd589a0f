"""Dense softmax attention with six alignment scores (Bahdanau 2015, Luong 2015, Graves 2014, Vaswani 2017).

    out_i = Σ_j softmax_j(score(q_i, k_j)) v_j,    score(q, k) = q·k / √head_dim by default

Five of the six scores are a product of a transformed query and a transformed key, so they use the fused kernel. The
additive score is not a product; it is computed for a few queries at a time.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention, softplus

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.devices import has_fused_attention
from longspan.attention.groups import as_rows, interleave, members
from longspan.attention.kernels import sdpa
from longspan.attention.kernels.multi_source_softmax import FEW, KeySource, joint
from longspan.attention.layouts import Dense, check_reach, offset_bias, stream_queries
from longspan.attention.layouts.base import cap
from longspan.attention.map_factors import SoftmaxMap
from longspan.attention.parts import persistent_memory
from longspan.attention.parts.learned_sink import sink_logits, sink_softmax
from longspan.attention.parts.shared_prefix_cache import SharedPrefixCache, read_first
from longspan.attention.state import Rows, Selection, State, append_mask
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Keys, Output, Queries, Values, Weights

SCORES = ("scaled_dot", "dot", "general", "additive", "location", "cosine")
PLAIN = ("scaled_dot", "dot", "general")  # the keys stay as they are
EPSILON = 1e-8  # a zero vector has cosine 0, not NaN


@dataclass(frozen=True)
class SoftmaxState(State):
    k: Rows  # as the score needs them: transformed for `cosine` and `additive`
    v: Rows
    seen: Rows | None  # which of them may be read; None if all may
    places: bool = False  # whether rows cannot share keys: their position matters, or there are persistent vectors
    # Set if groups of rows (beams) share their keys and values; k and v then have one row for each group.
    family: SharedPrefixCache | None = None

    def select(self, rows: Tensor | Selection) -> Self:
        """Keys and values are not copied as long as all groups of rows have the same size."""
        selection, size = Selection.of(rows), 1 if self.family is None else self.family.size
        groups = selection.families(size)
        if self.family is None and (groups is None or groups[1] == 1 or self.places or not len(self.k)):
            return super().select(selection)
        if groups is None:
            return self.apart().select(selection)
        families, members = groups
        keys, values = (
            (self.k, self.v) if families == list(range(self.k.batch)) else self._of(selection.index(families))
        )
        if self.family is not None:
            old = self.family
            family, kept = selection.once(("family", id(old)), lambda: old.select(selection, families, members))
            if kept is not None:
                keys, values = keys.gather(kept), values.gather(kept)
            return replace(self, k=keys, v=values, family=family)
        seen = None if self.seen is None else self.seen.value[families, 0, :, 0]
        family = selection.once(
            ("family", len(keys), None if seen is None else id(self)),
            lambda: SharedPrefixCache.begin(len(families), members, len(keys), seen, keys.value),
        )
        return replace(self, k=keys, v=values, seen=None, family=family)

    def _of(self, families: Tensor) -> tuple[Rows, Rows]:
        return self.k.select(families), self.v.select(families)

    def apart(self) -> Self:
        """The same state with separate keys and values for each row: those that it may read."""
        assert self.family is not None
        owner = torch.arange(self.k.batch, device=self.k.value.device).repeat_interleave(self.family.size)
        read = self.family.seen()
        most = int(read.sum(1).max())
        kept = read_first(read)[:, :most]
        seen = read.gather(1, kept)
        k, v = (
            Rows.empty(len(owner)).append(x.value[owner[:, None], :, kept].transpose(1, 2)) for x in (self.k, self.v)
        )
        mask = None if bool(seen.all()) else Rows.empty(len(owner)).append(seen[:, None, :, None])
        return replace(self, k=k, v=v, seen=mask, family=None)


class SoftmaxAttention(Attention):
    name = "softmax"
    paper = "Vaswani et al. 2017"
    survey_class = ()
    order = "n²"
    exponent = 2.0
    quadratic_memory = True
    supports = Supports(
        causal=True,
        cross=True,
        streaming=True,
        bias=True,
        dropout=True,
        grouped=True,
        left_padding=True,
        persistent=True,
    )

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        score: str = option("scaled_dot", "how a query is compared with a key", choices=SCORES)
        scale: float | None = option(None, "factor on the scores; 1/sqrt(head_dim) for scaled_dot and 1 otherwise")
        softcap: float | None = option(None, "scores s become softcap·tanh(s/softcap); not by fused kernels", above=0)
        learned_sink: bool = option(False, "whether a learned logit per head joins each softmax, without a value")

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        score, heads, width = self.options.score, shape.heads, shape.head_dim
        for name in ("scale", "softcap", "learned_sink"):
            if getattr(self.options, name) not in (None, False) and score != "scaled_dot":
                raise InvalidOption(f"option {name} needs score scaled_dot, not {score}; leave it out")
        # Whether each row is a softmax of products and nothing else, so that any fused kernel computes it.
        self.plain = self.options.softcap is None and not self.options.learned_sink
        self.scaled_dot = score == "scaled_dot" and self.options.scale is None and self.plain
        if self.options.softcap is not None:
            self.supports = replace(self.supports, bias=False)
        self.sink_logits = sink_logits(shape) if self.options.learned_sink else None
        if score == "general":  # s · W h
            self.change = nn.Parameter(torch.empty(heads, width, width))
            nn.init.xavier_uniform_(self.change)
        elif score == "additive":  # v · tanh(W_q s + W_k h)
            self.change_query = nn.Parameter(torch.empty(heads, width, width))
            self.change_key = nn.Parameter(torch.empty(heads, width, width))
            self.direction = nn.Parameter(torch.empty(heads, width))
            for weight in (self.change_query, self.change_key, self.direction):
                nn.init.xavier_uniform_(weight)
        elif score == "location":  # softmax(W s), one row of W per position
            self.supports = replace(self.supports, left_padding=False)
            if shape.max_length is None:
                raise InvalidOption("score location has one row for each position: give max_length")
            self.fixed_length = True
            self.places = nn.Parameter(torch.empty(heads, shape.max_length, width))
            nn.init.xavier_uniform_(self.places)
        if score in ("additive", "location"):
            self.supports = replace(self.supports, persistent=False)
        if score == "cosine":  # key strength β = softplus(·), 1 at the start (Graves 2014)
            self.strength = nn.Parameter(torch.full((heads,), 1.0).expm1().log())

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        keep = readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device)
        scores = self._scores_by_definition(q, k)
        if extras.bias is not None:
            check_reach(extras.bias, max(q.shape[2], k.shape[2]) - 1)
            scores = scores + offset_bias(extras.bias, q.shape[2], k.shape[2])
        for source in persistent_memory.sources(self, q):
            added = self._scores_by_definition(q, source.k)
            keep = torch.cat([keep.expand(scores.shape), torch.ones_like(added, dtype=torch.bool)], -1)
            scores = torch.cat([scores, added], -1)
        return sink_softmax(cap(scores, self.options.softcap), keep, self.sink_logits)

    def _scores_by_definition(self, q: Tensor, k: Tensor) -> Tensor:
        score = self.options.score
        if score == "general":
            return torch.einsum("bhid,hde,bhje->bhij", q, self.change, k)
        if score == "additive":
            queries = torch.einsum("hde,bhie->bhid", self.change_query, q)
            keys = torch.einsum("hde,bhje->bhjd", self.change_key, k)
            return torch.einsum("hd,bhijd->bhij", self.direction, torch.tanh(queries[:, :, :, None] + keys[:, :, None]))
        if score == "location":
            return torch.einsum("hjd,bhid->bhij", self._places(k.shape[2]), q)
        if score == "cosine":
            lengths = torch.einsum("bhix,bhjx->bhij", _length(q), _length(k))
            return softplus(self.strength)[:, None, None] * torch.einsum("bhid,bhjd->bhij", q, k) / lengths
        return torch.einsum("bhid,bhjd->bhij", q, k) * self._scale

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        k = self._change_keys(k)
        if self.options.score == "additive":
            return self._additive(q, k, v, extras.key_mask, extras.bias)
        dropout = self.dropout if self.training else 0.0
        q = self._change_queries(q)
        plain = extras.key_mask is None and extras.bias is None and self.persistent is None and self.plain
        if plain and k.shape[1] == v.shape[1] and has_fused_attention(q, v, dropout=bool(dropout)):
            return sdpa.attend(q, k, v, scale=self._scale, causal=self.causal, dropout=dropout)
        return self._joint(q, k, v, extras.key_mask, extras.bias, dropout)

    def _joint(
        self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None, dropout: float = 0.0
    ) -> Tensor:
        if bias is not None:
            check_reach(bias, max(q.shape[2], k.shape[2]) - 1)
        if k.shape[1] != v.shape[1]:  # score location: each query head has keys of its own, and groups share values
            parts = [
                self._joint(q[:, heads], k[:, heads], v, keep, None if bias is None else bias[heads], dropout)
                for heads in members(q.shape[1], v.shape[1])
            ]
            return interleave(parts)
        sources = [KeySource(Dense(causal=self.causal), k, v, keep, bias)]
        for source in persistent_memory.sources(self, q):
            sources.append(replace(source, k=self._change_keys(source.k[:1]).expand_as(source.k)))
        sink = None if self.sink_logits is None else self.sink_logits[:, None]
        return joint(q, sources, scale=self._scale, dropout=dropout, sink=sink, softcap=self.options.softcap)

    def _last_row(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        """One query for each head, which reads every key; key heads are not repeated for the queries that share one."""
        heads = k.shape[1]
        grouped = q.reshape(q.shape[0], heads, -1, q.shape[3])  # the queries that read one key head, as rows
        if keep is None and self.plain:
            out = sdpa.attend(grouped, k, v, scale=self._scale)
        else:
            sink = None if self.sink_logits is None else self.sink_logits.view(heads, -1)
            sources = [KeySource(Dense(), k, v, keep)]
            out = joint(grouped, sources, scale=self._scale, sink=sink, softcap=self.options.softcap)
        return out.reshape(*q.shape[:3], -1)

    def _additive(self, q: Tensor, keys: Tensor, v: Tensor, keep: Tensor | None, bias: Tensor | None) -> Tensor:
        """A few queries at a time, so that the (queries, keys, width) tensor of the tanh stays small."""
        queries, known = q.shape[2], keys.shape[2]
        past = known - queries if self.causal else 0  # the last query is at the last key
        if bias is not None:
            check_reach(bias, max(queries, known) - 1)
        positions = torch.arange(known, device=q.device)

        def rows(piece: Tensor, begin: int) -> Tensor:
            offsets = positions - (torch.arange(piece.shape[2], device=q.device) + past + begin)[:, None]
            changed = piece @ self.change_query.to(piece.dtype).mT
            mixed = torch.tanh(changed[:, :, :, None] + keys[:, :, None])
            scores = (mixed @ self.direction.to(mixed.dtype)[:, None, :, None])[..., 0]
            if bias is not None:
                scores = scores + bias[:, offsets + bias.shape[1] // 2]
            may = offsets <= 0 if self.causal else torch.ones_like(offsets, dtype=torch.bool)
            weights = masked_softmax(scores, may if keep is None else may & keep[:, None, None, :])
            weights = nn.functional.dropout(weights, self.dropout, self.training)
            mixed_values = as_rows(weights, v.shape[1]) @ v
            return mixed_values.reshape(*weights.shape[:3], v.shape[3])

        return stream_queries(rows, q, rows=32)

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> SoftmaxMap | None:
        if self.options.score == "additive" or self.persistent is not None or self.options.softcap is not None:
            return None
        queries, keys, sink = self._change_queries(q), self._change_keys(k), self.sink_logits
        return SoftmaxMap(queries, keys, self._scale, self.causal, extras.key_mask, extras.bias, sink=sink)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, score = self.shape.heads, self.shape.fused_width, self.options.score
        narrow = self.shape.head_dim
        flops = 4 * heads * queries * keys * width
        kept = heads * queries * (width + 1)  # the output and the log-sum-exp
        if score == "general":
            flops += 2 * heads * queries * narrow**2
            kept += heads * queries * width
        elif score == "additive":
            flops = 2 * heads * (queries * keys * (narrow + self.shape.value_dim) + (queries + keys) * narrow**2)
            kept = heads * keys * narrow  # the transformed keys; the scores are recomputed in the backward pass
        elif score == "location":
            kept += heads * keys * width
        elif score == "cosine":  # transformed queries and keys, and their norms
            kept += heads * (queries * (width + 3) + 1) + self.shape.key_heads * keys * (width + 2)
        if self.options.softcap is not None:
            return self._plain_cost(queries, keys)
        return persistent_memory.add_cost(self, Cost(flops, kept), queries)

    def _plain_cost(self, queries: int, keys: int) -> Cost:
        """Without the fused kernel: scores, their cap and the weights are kept, unless they are many."""
        columns = keys + (0 if self.persistent is None else self.persistent.count)
        scores, narrow, values = self.shape.heads * queries * columns, self.shape.head_dim, self.shape.value_dim
        rows = self.shape.heads * queries
        kept = 3 * scores + rows * narrow if scores <= FEW else rows * (values + 2)
        return Cost(2 * scores * (narrow + values), kept)

    # Decoding

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> SoftmaxState:
        self._refuse_streaming()
        return SoftmaxState(Rows.empty(batch), Rows.empty(batch), None)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: SoftmaxState, extras: Extras) -> tuple[Output, State]:
        if state.family is not None:
            if q.shape[2] == 1 and extras.key_mask is None and not state.family.crowded:
                return self._decode_family(q, k, v, state, state.family)
            state = state.apart()
        seen = append_mask(state.seen, state.k.count, extras.key_mask, q)
        changed = self._change_keys(k, state.k.count)
        # Groups of rows share one call of torch's kernel, which reads no bias and no persistent vectors.
        alone = extras.bias is not None or self.persistent is not None
        positional = alone or not self.plain or self.options.score in ("additive", "location")
        state = SoftmaxState(state.k.append(changed), state.v.append(v), seen, positional)
        keep = None if seen is None else seen.value[:, 0, :, 0]
        keys, values = state.k.value, state.v.value
        if self.options.score == "additive":
            return self._additive(q, keys, values, keep, extras.bias), state
        q = self._change_queries(q)
        one = q.shape[2] == 1 and not alone and keys.shape[1] == values.shape[1]
        if one and (keep is None or not self.plain):  # one new token reads every key
            return self._last_row(q, keys, values, keep), state
        return self._joint(q, keys, values, keep, extras.bias), state

    def _decode_family(
        self, q: Tensor, k: Tensor, v: Tensor, state: SoftmaxState, family: SharedPrefixCache
    ) -> tuple[Tensor, State]:
        """One new token for each row of each group."""
        k = self._change_keys(k)
        keys, values = state.k.append(family.fold(k, k.shape[1])), state.v.append(family.fold(v, v.shape[1]))
        family, heads = family.append(), k.shape[1]
        out = scaled_dot_product_attention(
            family.fold(self._change_queries(q), heads),
            keys.value,
            values.value,
            attn_mask=family.mask(q.shape[1] // heads),
            scale=self._scale,
        )
        return family.unfold(out), replace(state, k=keys, v=values, family=family)

    # Scores as products of transformed queries and keys

    @property
    def _scale(self) -> float:
        if self.options.score != "scaled_dot":
            return 1.0
        return self.shape.head_dim**-0.5 if self.options.scale is None else self.options.scale

    def _change_queries(self, q: Tensor) -> Tensor:
        if self.options.score == "general":  # q·(W k) = (q W)·k, so that keys are not transformed for each query head
            return q @ self.change.to(q.dtype)
        if self.options.score != "cosine":
            return q
        return q * (softplus(self.strength)[:, None, None] / _length(q)).to(q.dtype)

    def _change_keys(self, k: Tensor, first: int = 0) -> Tensor:
        """The transformed keys, the first one at position `first`; of some scores, those of each query head."""
        score = self.options.score
        if score in PLAIN:
            return k
        if score == "additive":
            change, heads = self.change_key.to(k.dtype).mT, members(self.shape.heads, k.shape[1])
            return interleave([k @ change[member] for member in heads])
        if score == "location":
            return self._places(first + k.shape[2])[:, first:].to(k.dtype).expand(k.shape[0], -1, -1, -1)
        return k / _length(k)

    def _places(self, keys: int) -> Tensor:
        most = self.places.shape[1]
        if keys > most:
            raise InvalidInput(f"score location was built for max_length {most} and cannot read {keys} keys")
        return self.places.index_select(1, torch.arange(keys, device=self.places.device))


def _length(x: Tensor) -> Tensor:
    length: Tensor = x.norm(dim=-1, keepdim=True)
    return length.clamp_min(max(EPSILON, torch.finfo(x.dtype).tiny))
