"""Multi-head attention by any mechanism: hidden states in, hidden states out.

A mechanism sees projected heads only. `MultiHead` computes them and the further streams that the mechanism declares,
applies the positions inside attention (rotary, biases of scores), and keeps the state of decoding.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention, Extras, check_some, share_heads
from longspan.attention.config import AttentionConfig
from longspan.attention.ranks import any_rank
from longspan.attention.registry import build
from longspan.attention.state import Selection, State
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.biases import DistanceBias
from longspan.nn.linear import Linear, ensure_fused, fuse_storage, fused_view, linear
from longspan.nn.norm import LayerNorm, RMSNorm, build_norm
from longspan.nn.positions import Positions
from longspan.nn.quantized import join
from longspan.nn.rotary import Rotary
from longspan.precision import autocast_type, state_type
from longspan.shapes import Hidden, KeyMask, Weights

Position = Rotary | DistanceBias
QK_NORMS = ("none", "head", "all")
NOTHING = Extras()  # no mask, bias or streams


@dataclass(frozen=True)
class MultiHeadState(State):
    """The mechanism's state, and the number of tokens read so far."""

    inner: State
    length: int


@dataclass(frozen=True)
class Context(State):
    """The other sequence of cross-attention, projected once and read at every decoding step.

    Each row serves `copies` consecutive rows of the batch: the beams of a sentence read one source.
    """

    k: Tensor
    v: Tensor
    key_mask: KeyMask | None
    copies: int = 1

    def select(self, rows: Tensor | Selection) -> Self:
        """Copies no source as long as equally many consecutive rows read each of them."""
        selection = Selection.of(rows)
        kept, copies = selection.families(self.copies) or (selection.owners(self.copies), 1)
        if kept == list(range(len(self.k))):
            return replace(self, copies=copies)
        index = selection.index(kept)
        mask = None if self.key_mask is None else self.key_mask.index_select(0, index)
        return type(self)(self.k.index_select(0, index), self.v.index_select(0, index), mask, copies)

    def fold(self, x: Tensor) -> Tensor:
        """Heads (batch, heads, queries, width) with the queries of all rows that read one source concatenated."""
        if self.copies == 1:
            return x
        grouped: Tensor = x.unflatten(0, (-1, self.copies))
        return grouped.transpose(1, 2).flatten(2, 3)

    def unfold(self, x: Tensor) -> Tensor:
        """The inverse of `fold`."""
        if self.copies == 1:
            return x
        grouped: Tensor = x.unflatten(2, (self.copies, -1))
        return grouped.transpose(1, 2).flatten(0, 1)


class MultiHead(nn.Module):
    """Multi-head attention by any mechanism, over one sequence or from one to another.

    >>> layer = MultiHead(512, heads=8, attention="window", causal=True, window=256)
    >>> y = layer(x, key_mask=mask)

    `attention` is one of:

    - a name: built in, of a plugin, or `package.module:Name`. `heads` is required, `head_dim` is width / heads unless
      given, and further keywords are the mechanism's options (see `longspan show NAME`);
    - an `AttentionConfig`, which has the options already;
    - a built mechanism, which has heads, head_dim, causal, max_length and dropout already:

    >>> layer = MultiHead(512, build("window", heads=8, head_dim=64, causal=True, window=256))

    `head_dim` is the width of a head. `key_dim` is that of its queries and keys and `value_dim` that of its values, if
    they differ from it (half-size queries and keys: Child et al. 2019); scores are scaled by 1/√key_dim. A built
    mechanism has both in its `shape`.

    `kv_heads` below `heads` gives grouped-query attention (1: multi-query). `context_width` is the width of the other
    sequence and `out_width` the width of the output, if they differ from `width`. `bias` is for the input projections
    and `out_bias` (default: the same) for the output projection. `persistent` is a number of learned keys and values
    per head that every query reads besides the sequence (Sukhbaatar et al. 2019).

    `qk_norm` normalises queries and keys before they are rotated: each head by itself with gains that all heads share
    ("head": Qwen3, Gemma 3), or all heads of a token as one vector ("all": OLMo 2).

    Inputs are (batch, length, width), or have any number of leading dimensions, none included; masks broadcast.

    `width` is positional only, so that `width=` can be an option of the mechanism (axial has one).
    """

    def __init__(
        self,
        width: int,
        /,
        attention: str | AttentionConfig | Attention = "softmax",
        *,
        heads: int | None = None,
        head_dim: int | None = None,
        causal: bool = False,
        max_length: int | None = None,
        dropout: float = 0.0,
        kv_heads: int | None = None,
        key_dim: int | None = None,
        value_dim: int | None = None,
        persistent: int = 0,
        context_width: int | None = None,
        out_width: int | None = None,
        position: Position | None = None,
        qk_norm: str = "none",
        qk_norm_kind: str = "rms",
        qk_norm_eps: float = 1e-6,
        bias: bool = True,
        out_bias: bool | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        shape = {
            "heads": heads,
            "head_dim": head_dim,
            "key_dim": key_dim,
            "value_dim": value_dim,
            "key_heads": None if isinstance(attention, Attention) else kv_heads,
            "causal": causal,
            "max_length": max_length,
            "dropout": dropout,
        }
        mechanism = _mechanism(width, attention, shape, options)
        if persistent:
            mechanism.add_persistent(persistent)
        heads = mechanism.shape.heads
        separate = mechanism.projects == ("q", "k", "v")
        if kv_heads is None:
            kv_heads = mechanism.shape.key_heads if separate else heads
        if kv_heads < 1 or heads % kv_heads:
            raise InvalidOption(f"kv_heads must divide the {heads} heads; {kv_heads} does not")
        if kv_heads != heads and not separate:
            reason = mechanism.one_head_each or "it has no separate keys and values"
            raise Unsupported(f"{mechanism.name} needs kv_heads={heads}, one for each query head: {reason}")
        if mechanism.key_weights and kv_heads != mechanism.shape.key_heads:
            raise InvalidOption(
                f"{mechanism.name} was built with weights for {mechanism.shape.key_heads} key heads, not {kv_heads}: "
                f"build it with key_heads={kv_heads}"
            )
        if isinstance(position, Rotary) and position.axes is not None and _limits(mechanism):
            raise Unsupported(
                f"{mechanism.name} reads first tokens at positions of the cache, and rotary positions of a grid have "
                "none; give sink_positions original"
            )
        self.mechanism, self.position, self.width = mechanism, position, width
        # The width of a head of each kind.
        self.widths = {"q": mechanism.shape.head_dim, "k": mechanism.shape.head_dim, "v": mechanism.shape.value_dim}
        self.heads = {name: heads if name == "q" else kv_heads for name in mechanism.projects}
        source_width = width if context_width is None else context_width
        # The number of heads of each kind if one matrix product can compute all.
        equal = mechanism.shape.value_dim == mechanism.shape.head_dim
        plain = mechanism.projects == ("q", "k", "v") and source_width == width and equal
        self.joins = [heads, kv_heads, kv_heads] if plain else None
        self.project = nn.ModuleDict(
            {
                name: Linear(width if name == "q" else source_width, self.widths[name] * count, bias=bias)
                for name, count in self.heads.items()
            }
        )
        if self.joins is not None:
            fuse_storage(list(self.project.values()))
        self.norms = self._build_norms(qk_norm, qk_norm_kind, qk_norm_eps)
        # The further streams, each with the projection that initialises it.
        self.likes: dict[str, str] = {
            stream.name: stream.like if stream.like in self.project else mechanism.projects[0]
            for stream in mechanism.streams
            if stream.kind == "heads"
        }
        self.extra = nn.ModuleDict(
            {name: Linear(width, self.widths[like] * self.heads[like], bias=bias) for name, like in self.likes.items()}
        )
        out_bias = bias if out_bias is None else out_bias
        self.out: nn.Module = Linear(self.widths["v"] * heads, width if out_width is None else out_width, bias=out_bias)
        self.reset()

    def _build_norms(self, qk_norm: str, kind: str, eps: float) -> nn.ModuleDict | None:
        """The norms of queries and keys; None if there are none, so that decoding skips them."""
        if qk_norm not in QK_NORMS:
            raise InvalidOption(f"qk_norm must be one of {', '.join(QK_NORMS)}, not {qk_norm!r}")
        if qk_norm == "none" or kind == "none":
            return None
        compared = [name for name in self.heads if name != "v"]
        if not compared:
            raise Unsupported(f"{self.mechanism.name} compares no queries and keys, so it has no qk_norm")
        return nn.ModuleDict(
            {
                name: build_norm(kind, self.widths[name] * (self.heads[name] if qk_norm == "all" else 1), eps)
                for name in compared
            }
        )

    @torch.no_grad()
    def reset(self) -> None:
        """Xavier for each projection, biases 0; further streams start as copies of the projection they resemble."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        for name, like in self.likes.items():
            self.extra[name].load_state_dict(self.project[like].state_dict())

    def tie(self) -> None:
        """Ties the projections of further streams to those that they resemble."""
        for name, like in self.likes.items():
            self.extra[name] = self.project[like]

    @any_rank(2)
    def forward(
        self,
        x: Hidden,
        context: Hidden | Context | None = None,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Hidden:
        """Attention of x to itself, or to `context`; `key_mask` (batch, keys) is True where a key may be read."""
        q, k, v, key_mask = self._heads(x, context, key_mask)
        all_streams = self._streams(x, streams, {"q": q, "k": k, "v": v}) | self._limited(q, 0, positions)
        q, k = self._rotate(q, k, context, 0, positions)
        out = self.mechanism(q, k, v, key_mask=key_mask, bias=self._bias(k.shape[2]), streams=all_streams)
        return self._merge(context.unfold(out) if isinstance(context, Context) else out)

    @any_rank(2)
    def weights(
        self,
        x: Hidden,
        context: Hidden | Context | None = None,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> Weights:
        """The attention map of each head (see `Attention.weights`)."""
        q, k, v, key_mask = self._heads(x, context, key_mask)
        all_streams = self._streams(x, streams, {"q": q, "k": k, "v": v}) | self._limited(q, 0, positions)
        q, k = self._rotate(q, k, context, 0, positions)
        weights = self.mechanism.weights(q, k, key_mask=key_mask, bias=self._bias(k.shape[2]), streams=all_streams)
        return context.unfold(weights) if isinstance(context, Context) else weights

    @any_rank(2)
    def prepare(self, context: Hidden, key_mask: KeyMask | None = None) -> Context:
        """The keys and values of another sequence, to read at every decoding step."""
        if not self.mechanism.supports.cross or set(self.project) != {"q", "k", "v"}:
            raise Unsupported(f"{self.mechanism.name} has no cross-attention: it reads its own sequence only")
        return Context(self._project("k", context), self._project("v", context), key_mask)

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> MultiHeadState:
        """The state before the first token, of `batch` sequences: the product of all leading dimensions, 1 without any.

        Type and device default to the module's.
        """
        dtype, device = state_type(self, dtype, device)
        half = autocast_type(device)
        if half is not None and dtype != torch.float64:
            dtype = half  # as the heads
        if self.joins is not None and not torch.is_grad_enabled() and not torch.compiler.is_compiling():
            ensure_fused([*self.project.values()])  # loading or copying a model separates them
        return MultiHeadState(self.mechanism.start(batch, dtype=dtype, device=device), 0)

    @any_rank(2)
    def extend(
        self,
        x: Hidden,
        state: MultiHeadState,
        *,
        key_mask: KeyMask | None = None,
        streams: Mapping[str, Tensor] | None = None,
        positions: Positions | None = None,
    ) -> tuple[Hidden, MultiHeadState]:
        """The next tokens, any number of them, and the state after them."""
        start, length = state.length if positions is None else 0, state.length + x.shape[1]
        q, k, v, limited = self._new_heads(x, start, positions)
        all_streams, bias = self._streams(x, streams) | limited, self._bias(length)
        plain = key_mask is None and bias is None and not streams and len(limited) == len(self.mechanism.streams)
        if plain and autocast_type(x.device) is None:
            # Skip the checks: the heads were computed here, and `start` has accepted the mechanism.
            extras = Extras(streams=limited) if limited else NOTHING
            out, inner = self.mechanism.extend_heads(q, k, v, state.inner, extras)
        else:
            out, inner = self.mechanism.extend(q, k, v, state.inner, key_mask=key_mask, bias=bias, streams=all_streams)
        return self._merge(out), MultiHeadState(inner, length)

    def _new_heads(
        self, x: Tensor, start: int, positions: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
        """Queries, keys and values of new tokens, by one matrix product if possible; and `_limited` queries."""
        # Traced graphs and autograd cannot rely on the weights' memory addresses.
        joins = None if torch.is_grad_enabled() or torch.compiler.is_compiling() else self.joins
        flat = None if joins is None else self._joined_product(x)
        if joins is None or flat is None:
            q, k, v, _ = self._heads(x, None, None)
            limited = self._limited(q, start, positions)
            return (*self._rotate(q, k, None, start, positions), v, limited)
        if self.norms is not None:
            parts = flat.split([count * self.widths["v"] for count in joins], -1)
            flat = torch.cat([self._normalise(name, part) for name, part in zip("qkv", parts)], -1)
        heads = flat.view(*x.shape[:2], -1, self.widths["v"]).transpose(1, 2)
        if isinstance(self.position, Rotary):  # rotate queries and keys together
            rotated = self.position(heads[:, : -joins[2]], start=start, positions=positions)
            q, k = rotated.split(joins[:2], 1)
            v, limited = heads[:, -joins[2] :], self._limited(heads[:, : joins[0]], start, positions)
        else:
            q, k, v = heads.split(joins, 1)
            limited = {}
        return (q, *self._shared(k, v), limited)

    # Projections

    def _joined_product(self, x: Tensor) -> Tensor | None:
        """q, k and v side by side from one product; None if the projections do not allow it."""
        layers = [*self.project.values()]
        fused = fused_view(layers)
        if fused is not None:
            self._check(x, None)
            return linear(x, *fused)
        quantised = join(layers)
        if quantised is None:
            return None
        self._check(x, None)
        out: Tensor = quantised(x)
        return out

    def _split(self, x: Tensor, kind: str) -> Tensor:
        return x.view(*x.shape[:-1], -1, self.widths[kind]).transpose(1, 2)

    def _project(self, name: str, x: Tensor) -> Tensor:
        return self._split(self._normalise(name, self.project[name](x)), name)

    def _normalise(self, name: str, x: Tensor) -> Tensor:
        """Projected queries or keys (batch, length, heads · width) with their norm, if they have one."""
        if self.norms is None or name not in self.norms:
            return x
        norm = self.norms[name]
        assert isinstance(norm, LayerNorm | RMSNorm)
        normalised: Tensor = norm(x.unflatten(-1, (-1, norm.normalized_shape[0])))
        return normalised.flatten(2)

    def _merge(self, heads: Tensor) -> Tensor:
        out: Tensor = self.out(heads.transpose(1, 2).flatten(2))
        return out

    def _heads(
        self, x: Tensor, context: Tensor | Context | None, key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        self._check(x, context)
        if isinstance(context, Context):
            if key_mask is not None:
                raise InvalidInput("a prepared context has its own key_mask; give it to prepare()")
            k, v = self._shared(context.k, context.v)
            return context.fold(self._project("q", x)), k, v, context.key_mask
        source = x if context is None else context
        heads = {name: self._project(name, x if name == "q" else source) for name in self.project}
        v = heads["v"]
        q = heads.get("q", v)
        k, v = self._shared(heads.get("k", q), v)
        return q, k, v, key_mask

    def _shared(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values repeated for each query head, unless the mechanism handles groups itself."""
        if self.mechanism.supports.grouped:
            return k, v
        return share_heads(k, self.mechanism.shape.heads), share_heads(v, self.mechanism.shape.heads)

    def _check(self, x: Tensor, context: Tensor | Context | None) -> None:
        if x.dim() != 3 or x.shape[-1] != self.width:
            raise InvalidInput(f"x must be (batch, length, width {self.width}), not {tuple(x.shape)}")
        check_some("x", x)
        if context is not None and not self.mechanism.supports.cross:
            raise Unsupported(f"{self.mechanism.name} has no cross-attention: it reads its own sequence only")
        if isinstance(context, Context):
            return
        source, expected = x if context is None else context, self.project["v"].in_features
        if source.dim() != 3 or source.shape[-1] != expected:
            what = "without context, x" if context is None else "context"
            raise InvalidInput(f"{what} must be (batch, length, width {expected}), not {tuple(source.shape)}")
        check_some("context", source)

    def _streams(
        self, x: Tensor, streams: Mapping[str, Tensor] | None, heads: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """The given streams and those projected from x; tied streams reuse `heads`, the unrotated heads of x."""
        all_streams = dict(streams or {})
        for stream in self.mechanism.streams:
            if stream.kind == "hidden":
                all_streams[stream.name] = x
            elif stream.kind == "heads" and (stream.beside is None or all_streams.get(stream.beside) is not None):
                projection, like = self.extra[stream.name], self.likes[stream.name]
                if heads is not None and projection is self.project[like]:
                    all_streams[stream.name] = heads[like]
                else:
                    split = self._split(self._normalise(like, projection(x)), like)
                    grouped = self.mechanism.supports.grouped
                    all_streams[stream.name] = split if grouped else share_heads(split, self.mechanism.shape.heads)
        return all_streams

    # Positions

    def _rotate(
        self, q: Tensor, k: Tensor, context: Tensor | Context | None, start: int, positions: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        if not isinstance(self.position, Rotary):
            return q, k
        if context is not None:
            raise Unsupported("rotary positions are for self-attention; cross-attention reads two sequences")
        start = start if positions is None else 0
        return (
            self.position(q, start=start, positions=positions),
            self.position(k, start=start, positions=positions),
        )

    def _limited(self, q: Tensor, start: int, positions: Tensor | None) -> dict[str, Tensor]:
        """Streams of queries that are rotated at limited positions; none without rotary positions."""
        if not isinstance(self.position, Rotary):
            return {}
        return {
            stream.name: self.position(q, start=start, positions=positions, limit=stream.limit)
            for stream in self.mechanism.streams
            if stream.kind == "queries"
        }

    def _bias(self, reach: int) -> Tensor | None:
        return self.position.table(reach) if isinstance(self.position, DistanceBias) else None


def _limits(mechanism: Attention) -> bool:
    return any(stream.kind == "queries" for stream in mechanism.streams)


def _mechanism(
    width: int, attention: str | AttentionConfig | Attention, shape: dict[str, Any], options: Mapping[str, Any]
) -> Attention:
    """The mechanism that `MultiHead` was given, or a new one by its name or configuration."""
    if isinstance(attention, Attention):
        extra = [*(name for name, value in shape.items() if value not in (None, False, 0.0)), *options]
        if extra:
            raise InvalidOption(
                f"{', '.join(extra)}: the mechanism given to MultiHead is already built; "
                f"build {attention.name} with this, or give its name as attention"
            )
        return attention
    if not isinstance(attention, str | AttentionConfig):
        raise InvalidOption(f"attention must be a name, an AttentionConfig or a built mechanism, not {attention!r}")
    if isinstance(attention, AttentionConfig) and options:
        raise InvalidOption(f"{', '.join(options)}: put options of {attention.name} into its AttentionConfig")
    heads = shape["heads"]
    if heads is None:
        name = attention if isinstance(attention, str) else attention.name
        raise InvalidOption(f"give the number of heads: MultiHead({width}, {name!r}, heads=8)")
    head_dim, key_dim, value_dim = (shape.pop(name) for name in ("head_dim", "key_dim", "value_dim"))
    if head_dim is None and (key_dim is None or value_dim is None):
        if heads < 1 or width % heads:
            raise InvalidOption(f"heads must divide the width: {width} is not a multiple of {heads}; or give head_dim")
        head_dim = width // heads
    shape["head_dim"] = head_dim if key_dim is None else key_dim
    shape["value_dim"] = head_dim if value_dim is None else value_dim
    if isinstance(attention, AttentionConfig):
        return attention.build(**shape)
    return build(attention, **shape, **options)
