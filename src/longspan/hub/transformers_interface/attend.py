"""The attention function: their projected heads in, (batch, queries, heads, width) and perhaps the weights out.

A layer is computed by the named mechanism wherever it can be, and exactly where it cannot and nothing would be gained:

    self-attention                      the mechanism
    sliding layers                      their window, by our `window` (the smaller one if that is the mechanism)
    cross-attention                     the mechanism if it can read another sequence step by step, else exact
    layers that `layers=` leaves out    exact

Everything else that a mechanism cannot do is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, share_heads
from longspan.attention.mechanisms.window import WindowAttention
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.transformers_interface import dense, mask_codes
from longspan.hub.transformers_interface.global_projections import PROJECTIONS, project
from longspan.hub.transformers_interface.layers import is_causal, is_cross, layer_number
from longspan.hub.transformers_interface.mask_codes import Seen
from longspan.hub.transformers_interface.mechanisms import HIDDEN, mechanism_of
from longspan.hub.transformers_interface.names import Implementation
from longspan.hub.transformers_interface.packing import separately, texts_of_lengths

SOFTMAX = Implementation("softmax")
Result = tuple[Tensor, Tensor | None]


@dataclass(frozen=True)
class Heads:
    """The heads of one call and what their queries see."""

    q: Tensor
    k: Tensor
    v: Tensor
    seen: Seen
    extra: dense.Extra
    scaling: float
    dropout: float

    @property
    def queries(self) -> int:
        return self.q.shape[2]

    @property
    def past(self) -> int:
        """The keys before the first query, of causal self-attention."""
        return self.k.shape[2] - self.queries if self.seen.causal else 0

    def exact(self) -> tuple[Tensor, Tensor]:
        """Output and weights by exact attention, with everything that their families add."""
        seen, keys = self.seen, self.k.shape[2]
        texts = None if seen.key_mask is None and not seen.packed else seen.texts
        keep = None
        if seen.causal or seen.window is not None or texts is not None:
            keep = dense.readable(self.queries, keys, seen.causal, seen.window, texts, self.q.device)
        return dense.attend(self.q, self.k, self.v, keep, self.extra, scaling=self.scaling, dropout=self.dropout)


def attention_function(implementation: Implementation) -> Callable[..., Result]:
    """The function to register under the implementation's name."""

    def attend(
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **given: Any,
    ) -> Result:
        keys = key.shape[2]
        heads = _heads(implementation, module, query, key, value, attention_mask, dropout, scaling, given)
        cross = is_cross(module) or (not heads.seen.causal and heads.queries != heads.k.shape[2])
        chosen = _choose(implementation, module, heads, cross)
        wants_weights = bool(given.get("output_attentions")) or _collecting()
        if chosen is None:
            out, weights = heads.exact()
            return _finish(out, weights if wants_weights else None, keys)
        run = _Run(chosen, module, heads, cross)
        out = run(heads.v)
        return _finish(out, run.weights() if wants_weights else None, keys)

    return attend


def _heads(
    implementation: Implementation,
    module: nn.Module,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    dropout: float,
    scaling: float | None,
    given: dict[str, Any],
) -> Heads:
    scaling = q.shape[3] ** -0.5 if scaling is None else float(scaling)
    own = None
    if mask is not None and mask_codes.is_code(mask):
        seen = mask_codes.read(mask)
    else:
        causal = mask is None and is_causal(module, given) and not is_cross(module)
        texts = torch.ones(len(k), k.shape[2], dtype=torch.long, device=k.device)
        window = given.get("sliding_window") if mask is None else None
        window = window - 1 if window and not causal else window  # which counts the query, as a mask's does not
        seen, own = Seen(texts, causal, window), mask
    if len(seen.texts) != len(k):
        seen = replace(seen, texts=seen.texts.expand(len(k), -1))
    filled = seen.keys
    lengths = given.get("cu_seq_lens_k")
    if lengths is not None and implementation.packing and not is_cross(module):
        if filled != q.shape[2]:
            raise InvalidInput("cu_seq_lens_k is for whole packed texts, not for a step after a cache")
        seen = replace(seen, texts=texts_of_lengths(lengths, *seen.texts.shape) * (seen.texts > 0))
    bias = given.get("position_bias")
    if bias is not None and not bool(bias.any()):  # T5's cross-attention has one of zeros
        bias = None
    extra = dense.Extra(given.get("softcap"), given.get("s_aux"), bias, own)
    return Heads(q, k[:, :, :filled], v[:, :, :filled], seen, extra, scaling, float(dropout))


def _choose(implementation: Implementation, module: nn.Module, heads: Heads, cross: bool) -> Implementation | None:
    """The mechanism that computes this layer; None: exact attention with queries × keys weights."""
    seen, extra, kind = heads.seen, heads.extra, implementation.kind
    if extra.names and implementation.mechanism != "softmax" and implementation.covers(layer_number(module)):
        raise Unsupported(
            f"{implementation.name} cannot be used in {type(module).__name__}, which has {' and '.join(extra.names)}; "
            'use "longspan:softmax"'
        )
    chosen: Implementation | None = implementation
    if not implementation.covers(layer_number(module)) or (
        cross and not (kind.supports.cross and kind.supports.cross_rows)
    ):
        chosen = SOFTMAX
    elif seen.window is not None and not cross:
        chosen = _window(implementation, seen.window - 1 if seen.causal else seen.window)
    if chosen is None or extra.names:
        return None
    if _is_plain_softmax(chosen) and not _plain(heads):
        return None
    if extra.bias is not None and not chosen.kind.supports.bias:
        raise Unsupported(
            f"{chosen.name} cannot be used in {type(module).__name__}, which adds a bias by position to its scores; "
            'these can: "longspan:softmax", "longspan:window"'
        )
    if heads.dropout and not chosen.kind.supports.dropout:
        raise Unsupported(
            f"{chosen.name} has no attention weights to drop, and this model trains with a dropout of "
            f"{heads.dropout:g} on them; set the attention dropout of its configuration to 0"
        )
    return chosen


def _window(implementation: Implementation, reach: int) -> Implementation | None:
    """The window of a sliding layer, `reach` tokens to each side; a smaller one if that is the mechanism."""
    if implementation.mechanism != "window":
        return Implementation("window", {"window": reach}) if reach else None
    own = config.make(WindowAttention.Options, implementation.options, "window")
    farthest = max(own.dilation) if isinstance(own.dilation, tuple) else own.dilation
    width = min(own.window, reach // farthest)
    return Implementation("window", {**implementation.options, "window": width}) if width else None


def _is_plain_softmax(implementation: Implementation) -> bool:
    return implementation.mechanism == "softmax" and not implementation.options


def _plain(heads: Heads) -> bool:
    """Whether `softmax` computes it without queries × keys: no bias or window, and a whole text or a single step."""
    whole = not heads.past or heads.queries == 1
    return heads.extra.bias is None and heads.seen.window is None and whole


class _Run:
    """A mechanism on the heads of a call, with the values to be given."""

    def __init__(self, implementation: Implementation, module: nn.Module, heads: Heads, cross: bool) -> None:
        self.name, self.heads, self.cross = implementation.name, heads, cross
        # A single step of exact attention reads every key: nothing is in its future.
        one_step = _is_plain_softmax(implementation) and bool(heads.past) and heads.queries == 1
        self.causal = heads.seen.causal and not one_step
        self.past = heads.past if self.causal else 0
        self.mechanism: Attention = mechanism_of(
            implementation, module, heads.q, self.causal, heads.dropout, heads.v.shape[3]
        )
        self.bias = None if heads.extra.bias is None else by_offset(heads.extra.bias, heads.past, heads.k.shape[2])
        self.factor = heads.scaling * heads.q.shape[3] ** 0.5  # mechanisms divide by √width themselves
        self.q = heads.q * self.factor
        self.k = heads.k
        if not self.mechanism.supports.grouped:
            self.k = share_heads(self.k, self.q.shape[1])
        if self.past:
            self.q = pad(self.q, (0, 0, self.past, 0))
        self.module, self.first = module, implementation.global_first
        self.hidden = self._hidden()
        self.measuring = False  # whether the values are the identity, to see the weights
        if (
            "k" not in self.mechanism.projects
        ):  # one projection is queries and keys: of the two, their cache holds the keys
            self.q = share_heads(self.k, self.q.shape[1])

    def _hidden(self) -> Tensor | None:
        """The hidden states of the layer, if the mechanism reads them or projections of them."""
        reads = any(stream.kind == "hidden" for stream in self.mechanism.streams)
        if not reads and not hasattr(self.module, PROJECTIONS):
            return None
        hidden: Tensor | None = getattr(self.module, HIDDEN, None)
        if self.past:
            raise Unsupported(
                f"{self.name} reads the hidden states of all tokens, which their cache does not keep; "
                "give use_cache=False"
            )
        if hidden is None:
            raise Unsupported(f"{self.name} reads the hidden states of its layer: use longspan.hub.use_attention")
        return hidden

    def _streams(self, hidden: Tensor | None, key_mask: Tensor | None, v: Tensor) -> dict[str, Tensor] | None:
        if hidden is None:
            return None
        streams: dict[str, Tensor] = {}
        for stream in self.mechanism.streams:
            if stream.kind == "hidden":
                streams[stream.name] = hidden
            elif stream.kind == "heads":
                heads = self.q.shape[1] if stream.like == "q" else self.k.shape[1]
                x = project(self.module, stream, hidden, heads)
                if x is not None:
                    x = v if self.measuring and stream.like == "v" else x
                    streams[stream.name] = x * self.factor if stream.like == "q" else x
            elif stream.name == "global_mask" and self.first is not None:
                real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if key_mask is None else key_mask
                streams[stream.name] = real & (real.cumsum(1) <= self.first)
        return streams

    def __call__(self, v: Tensor) -> Tensor:
        if not self.mechanism.supports.grouped:
            v = share_heads(v, self.q.shape[1])
        seen = self.heads.seen
        if seen.packed:
            out = v.new_zeros(len(v), self.q.shape[1], self.q.shape[2], v.shape[3])
            return separately(self._one_text(v), seen.texts, out)[:, :, self.past :]
        return self._whole(self.q, self.k, v, seen.key_mask, self.hidden)[:, :, self.past :]

    def _one_text(self, v: Tensor) -> Callable[[int, slice, slice], Tensor]:
        def compute(row: int, queries: slice, keys: slice) -> Tensor:
            at = slice(row, row + 1)
            hidden = None if self.hidden is None else self.hidden[at, keys]
            return self._whole(self.q[at, :, queries], self.k[at, :, keys], v[at, :, keys], None, hidden)

        return compute

    def _whole(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, hidden: Tensor | None) -> Tensor:
        """The mechanism, on rows whose padding stands on the right if it counts positions."""
        if key_mask is None or self.mechanism.supports.left_padding or bool(key_mask[:, 0].all()):
            streams = self._streams(hidden, key_mask, v)
            out: Tensor = self.mechanism(q, k, v, key_mask=key_mask, bias=self.bias, streams=streams)
            return out
        keys = torch.arange(k.shape[2], device=k.device)
        leading = (key_mask.cumsum(1) == 0).sum(1, keepdim=True)
        forth, back = (keys + leading) % k.shape[2], (keys - leading) % k.shape[2]
        k, v, key_mask = _take(k, forth), _take(v, forth), key_mask.gather(1, forth)
        if self.cross:
            out = self.mechanism(q, k, v, key_mask=key_mask, bias=self.bias)
            return out
        if hidden is not None:
            hidden = hidden.gather(1, forth[:, :, None].expand_as(hidden))
        q = _take(q, forth) if "k" in self.mechanism.projects else share_heads(k, q.shape[1])
        streams = self._streams(hidden, key_mask, v)
        out = self.mechanism(q, k, v, key_mask=key_mask, bias=self.bias, streams=streams)
        return _take(out, back).masked_fill((keys < leading)[:, None, :, None], 0.0)  # padding reads nothing

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The weights that the mechanism applied: its output where the values are the identity."""
        if not self.mechanism.supports.map:
            raise Unsupported(
                f"{self.name} transforms its values, so it has no (queries, keys) weights: leave out output_attentions"
            )
        v = self.heads.v
        training = self.mechanism.training
        identity = torch.eye(v.shape[2], dtype=v.dtype, device=v.device)
        try:
            self.measuring = True
            self.mechanism.train(False)  # the weights are those before dropout
            columns = []
            for block in identity.split(v.shape[3], 1):
                values = pad(block, (0, v.shape[3] - block.shape[1])).expand(*v.shape)
                columns.append(self(values)[..., : block.shape[1]])
        finally:
            self.measuring = False
            self.mechanism.train(training)
        return torch.cat(columns, 3)


def by_offset(bias: Tensor, past: int, keys: int) -> Tensor:
    """A bias of queries × keys (1, heads, queries, keys) as one number per offset, (heads, 2·keys − 1)."""
    bias = bias[..., :keys]
    queries = bias.shape[2]
    if len(bias) != 1 or bool((bias[:, :, 1:, 1:] != bias[:, :, :-1, :-1]).any()):
        raise Unsupported('a bias that is not one number per distance is for "longspan:softmax" only')
    behind = bias[0, :, -1, : past + queries]  # offsets −(past + queries − 1) .. 0 of the last query
    ahead = bias[0, :, 0, past + 1 :]  # offsets 1 .. of the first one
    behind = pad(behind, (keys - behind.shape[1], 0))
    return torch.cat([behind, pad(ahead, (0, keys - 1 - ahead.shape[1]))], 1)


def _take(x: Tensor, index: Tensor) -> Tensor:
    """Rows of heads (batch, heads, length, width) by an index (batch, length)."""
    return x.gather(2, index[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3]))


def _collecting() -> bool:
    """Whether transformers collects attention weights in this pass; some models do not pass the wish on."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # another version: the wish comes as an argument
        return False
    wanted = _active_collector.get()
    return wanted is not None and any(key.endswith("attentions") for key in wanted)


def _finish(out: Tensor, weights: Tensor | None, keys: int) -> Result:
    if weights is not None:
        weights = pad(weights, (0, keys - weights.shape[3]))
    return out.transpose(1, 2).contiguous(), weights


__all__ = ["attention_function", "by_offset"]
