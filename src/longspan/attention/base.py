"""The base class of every attention mechanism: projected heads in, heads out.

The contract, which `tests/contract` checks for every mechanism:

- q, k and v are (batch, heads, length, width), in the order of torch's `scaled_dot_product_attention`. Public methods
  take any number of leading dimensions in place of the batch, none included (`ranks.py`).
- Masks are boolean; True means *may be read*. `key_mask` (batch, keys) marks padding: it says which keys may be read
  and nothing about queries.
- Masked keys are inert whatever they hold: their keys and values are set to 0 before any work.
- A row with nothing to read is exactly 0, with gradient 0: never NaN, never a uniform average.
- `causal` is fixed when the module is built. What a mechanism cannot do raises `Unsupported`.
- Any length works. Blocks start at position 0; the last one is padded on the right, masked and sliced off.
- Under autocast, heads and streams are cast to one type, the type of the output; inside, autocast is off.
- `forward` draws no random numbers except for dropout. In evaluation it is deterministic, and a row does not depend on
  the rest of its batch.

A mechanism writes `attend` (the fast path), `define` (the paper's definition), `cost` and, if it decodes step by step,
`start` and `extend_heads`. The public methods `forward`, `oracle`, `reference`, `weights` and `extend` check their
input once and call those.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast, final, runtime_checkable

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention import checks
from longspan.attention.checks import check_some
from longspan.attention.devices import host_may_read
from longspan.attention.map_columns import map_columns
from longspan.attention.ranks import any_rank, broadcast_positions
from longspan.attention.spec import Cost, Extras, Shape, Stream, Supports
from longspan.attention.state import State
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.precision import full_precision, unify_dtypes
from longspan.shapes import Bias, Defined, KeyMask, Keys, Output, Queries, Values, Weights

if TYPE_CHECKING:
    from longspan.attention.map_factors import MapFactors
    from longspan.attention.parts.persistent_memory import PersistentMemory

OptionsT = TypeVar("OptionsT", bound=config.Options)
OptionsOf = TypeVar("OptionsOf", bound=config.Options, covariant=True)


# A faster way to the output on some device (see `attention.kernels.flex`); None means: use `attend`.
OtherWay = Callable[["Attention", Tensor, Tensor, Tensor, Extras], Tensor | None]


@runtime_checkable
class HasOptions(Protocol[OptionsOf]):
    """A class with a nested class `Options`: lets type checkers see the type of `self.options`."""

    @property
    def Options(self) -> type[OptionsOf]: ...


class Attention(nn.Module, ABC):
    """The base of every mechanism; see the module's docstring for the contract."""

    name: ClassVar[str]  # the name in the registry
    paper: ClassVar[str]  # "Vaswani et al. 2017"
    survey_class: ClassVar[tuple[str, ...]]  # the survey's classes: FP, M, LP, LR, KR, RC; () for dense
    # Defaults of the class; a form that differs sets its own in __init__.
    fixed_length: bool = False  # it has a table of max_length positions and cannot read beyond it
    quadratic_memory: bool = False  # the paper's own definition needs tensors of n² elements
    scaled_dot: bool = False  # scores are q·k/√head_dim and nothing else depends on q and k
    equal_widths: str = ""  # why values must be as wide as keys, if they must
    one_head_each: str = ""  # why each query head needs a head of keys and values of its own, if it does
    key_weights: bool = False  # has weights for each key head, so that it must be built with their number
    running_statistics: bool = False  # a pass in training mode changes buffers that later outputs depend on
    order: str  # time in the length n, with the option it depends on: "n·window"
    exponent: float  # the power of n in `order`, at fixed options
    supports: Supports
    streams: tuple[Stream, ...] = ()
    # Which of q, k and v are projected. A mechanism that shares queries and keys leaves out k and receives q in its
    # place; one that compares nothing leaves out both and receives v.
    projects: tuple[str, ...] = ("q", "k", "v")

    limited: ClassVar[tuple[str, ...]] = ()  # options that may not exceed max_length

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        """The options of a mechanism: each one declares its own class under this name."""

    def __init__(
        self, shape: Shape, options: config.Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__()
        if causal and not self.supports.causal:
            raise Unsupported(f"{self.name} has no causal form; {_alternatives('causal')}")
        if not causal and not self.supports.bidirectional:
            raise Unsupported(f"{self.name} is causal only; build it with causal=True")
        if not 0.0 <= dropout < 1.0:
            raise InvalidOption(f"dropout must be at least 0 and below 1, not {dropout!r}")
        if dropout and not self.supports.dropout:
            raise Unsupported(f"{self.name} has no attention weights to drop; use dropout on its output instead")
        if shape.value_dim != shape.head_dim and self.equal_widths:
            raise Unsupported(
                f"{self.name} needs values as wide as queries and keys, not {shape.value_dim} and {shape.head_dim}: "
                f"{self.equal_widths}"
            )
        self.shape, self.causal, self.dropout = shape, causal, dropout
        if self.key_weights and shape.group == 1:
            self.supports = replace(self.supports, grouped=False)
        self._options = self.fit(self.Options(), (), shape) if options is None else options
        self.other_way: OtherWay | None = None
        self.persistent: PersistentMemory | None = None
        self.auxiliary_loss: Tensor | None = None  # what the last training pass adds to the task's loss, if anything

    @property
    def options(self: HasOptions[OptionsOf]) -> OptionsOf:
        """The options it was built with, of its own class `Options`."""
        return cast(OptionsOf, cast(Attention, self)._options)

    @property
    def padding_counts(self) -> bool:
        """Whether masked keys at the end of a row change its output, as in code that was released so."""
        return False

    @property
    def shortest_exported(self) -> int:
        """The shortest text that an exported program with a dynamic length reads; shorter ones are padded to it."""
        return 1

    @classmethod
    def fit(cls, options: OptionsT, given: Collection[str], shape: Shape) -> OptionsT:
        """The options for texts of this length: defaults above max_length shrink to it, `given` ones stay."""
        most = shape.max_length
        if most is None:
            return options
        smaller = {name: most for name in cls.limited if name not in given and getattr(options, name) > most}
        return replace(options, **smaller) if smaller else options

    def add_persistent(self, count: int) -> None:
        """Gives each head `count` learned keys and values that every query reads besides the others."""
        if not self.supports.persistent:
            raise Unsupported(
                f"{self.name} cannot read persistent vectors under one softmax with its keys; "
                f"{_alternatives('persistent')}"
            )
        from longspan.attention.parts.persistent_memory import PersistentMemory  # it imports layouts

        self.persistent = PersistentMemory(self.shape, count)

    # Public methods

    @final  # type: ignore[misc]  # nn.Module declares forward as an attribute
    @any_rank(3)
    def forward(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> Output:
        """Attention by the fast path."""
        q, k, v, streams = unify_dtypes(q, k, v, streams)
        with full_precision(q):
            q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
            out = None if self.other_way is None else self.other_way(self, q, k, v, extras)
            return self.attend(q, k, v, extras) if out is None else out

    @final
    @any_rank(3)
    def oracle(
        self,
        q: Queries,
        k: Keys,
        v: Values | None = None,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> Defined:
        """The attention weights as the paper defines them, in O(n²). The fast path must agree with them.

        `v` matters only to mechanisms whose weights depend on the values; the keys replace it if it is left out.
        """
        q, k, v, extras = self._take(q, k, self._stand_in(k) if v is None else v, key_mask, bias, streams)
        k, v, extras = self._repeat(q, k, v, extras)
        return self.define(q, k, extras)

    @final
    @any_rank(3)
    def reference(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> Output:
        """What `forward` must return: the oracle's weights applied to the values, in O(n²)."""
        q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
        k, v, extras = self._repeat(q, k, v, extras)
        return self.apply_weights(self.define(q, k, extras), v, extras)

    @final
    @any_rank(3)
    @torch.no_grad()
    def weights(
        self,
        q: Queries,
        k: Keys,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> Weights:
        """The attention weights that the fast path applies, measured: its output when the values are the identity.

        Streams that are projected like values (`like="v"`) are replaced by the identity as well.
        """
        columns = self.map_columns(q, k, key_mask=key_mask, bias=bias, streams=streams)
        return torch.cat([block for _, block in columns], dim=-1)

    @final
    def map_columns(
        self,
        q: Queries,
        k: Keys,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> Iterator[tuple[int, Weights]]:
        """`weights` without the whole map in memory: (first key, the columns of the next keys), for one batch axis."""
        return map_columns(self, q, k, streams, key_mask=key_mask, bias=bias)

    @final
    @torch.no_grad()
    def map_factors(
        self,
        q: Queries,
        k: Keys,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> "MapFactors | None":
        """What any row or tile of the map can be computed from, or None: then only `map_columns` gives the map."""
        q, k, _, extras = self._take(q, k, self._stand_in(k), key_mask, bias, streams)
        return self.factorise(q, share_heads(k, q.shape[1]), extras)

    @final
    @any_rank(3)
    def extend(
        self,
        q: Queries,
        k: Keys,
        v: Values,
        state: State,
        *,
        key_mask: KeyMask | None = None,
        bias: Bias | None = None,
        streams: Mapping[str, Tensor] | None = None,
    ) -> tuple[Output, State]:
        """The outputs for the next tokens, one or more, and the state after them.

        `key_mask` and `streams` cover the new tokens only; the state remembers those of earlier tokens.
        """
        self._refuse_streaming()
        q, k, v, streams = unify_dtypes(q, k, v, streams)
        with full_precision(q):
            q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
            return self.extend_heads(q, k, v, state, extras)

    # Methods that a mechanism writes

    @abstractmethod
    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        """The fast path."""

    @abstractmethod
    def define(self, q: Queries, k: Keys, extras: Extras) -> Defined:
        """The attention weights, written as in the paper and in O(n²)."""

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        """The output from the weights of `define`; override it if the paper transforms the values first."""
        if self.persistent is not None:  # the last columns of the weights are theirs
            v = torch.cat([v, self.persistent.vectors(v)[1].expand(len(v), -1, -1, -1)], 2)
        return weights @ v

    @abstractmethod
    def cost(self, queries: int, keys: int) -> Cost:
        """The cost of `attend` for one sequence without masks."""

    def start(self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        """The state before the first token."""
        raise Unsupported(f"{self.name} cannot decode step by step; {_alternatives('streaming')}")

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: Any, extras: Extras) -> tuple[Output, State]:
        """The outputs for the next tokens and the new state; equal to those rows of `attend` on the whole text."""
        raise Unsupported(f"{self.name} cannot decode step by step; {_alternatives('streaming')}")

    def extra_repr(self) -> str:
        values = "" if self.shape.value_dim == self.shape.head_dim else f"value_dim={self.shape.value_dim}, "
        sizes = f"heads={self.shape.heads}, head_dim={self.shape.head_dim}, {values}"
        return f"{sizes}causal={self.causal}, {self.options}"

    def factorise(self, q: Queries, k: Keys, extras: Extras) -> "MapFactors | None":
        """The map as factors (see `map_factors.py`), if the mechanism has such a form; keys are those of each head."""
        return None

    def bucket_ids(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor] | None:
        """If content decides who meets: the buckets of queries and of keys (batch, heads, rounds, length), -1: none."""
        return None

    def _repeat(self, q: Tensor, k: Tensor, v: Tensor, extras: Extras) -> tuple[Tensor, Tensor, Extras]:
        """For definitions: keys, values and streams like them, repeated for the query heads that share them."""
        heads = {stream.name for stream in self.streams if stream.kind == "heads"}
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        streams = {name: share_heads(x, q.shape[1]) if name in heads else x for name, x in extras.streams.items()}
        return k, v, replace(extras, k=k, v=v, streams=streams)

    def _stand_in(self, k: Tensor) -> Tensor:
        """Values of the right shape, where none were given."""
        value_dim = self.shape.value_dim
        return k if k.shape[-1] == value_dim else k[..., :1].expand(*k.shape[:-1], value_dim)

    # Checks of the input, once and before any work

    def _take(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        bias: Tensor | None,
        streams: Mapping[str, Tensor] | None,
    ) -> tuple[Tensor, Tensor, Tensor, Extras]:
        """The checked input, with masked keys and values set to 0, even if they are NaN.

        This costs a pass over keys and values, but only if the mask hides something.
        """
        if key_mask is not None and key_mask.dim() and q.dim() == 4:
            key_mask = broadcast_positions("key_mask", key_mask, q.shape[:1])
        extras = self._check(q, k, v, key_mask, bias, streams)
        if key_mask is None or (host_may_read(key_mask) and bool(key_mask.all())):
            return q, k, v, extras
        hidden = ~key_mask[:, None, :, None]
        cleared: dict[int, Tensor] = {}  # the same tensor may be both keys and values

        def clear(x: Tensor) -> Tensor:
            if id(x) not in cleared:
                cleared[id(x)] = x.masked_fill(hidden, 0.0)
            return cleared[id(x)]

        of_keys = {stream.name for stream in self.streams if stream.kind == "heads" and stream.like != "q"}
        cleared_streams = {name: clear(x) if name in of_keys else x for name, x in extras.streams.items()}
        if "k" not in self.projects and "q" in self.projects:  # the queries are the keys
            q = clear(q)
        return q, clear(k), clear(v), replace(extras, streams=cleared_streams)

    def _refuse_streaming(self) -> None:
        if not self.supports.streaming:
            raise Unsupported(f"{self.name} cannot decode step by step; {_alternatives('streaming')}")
        if not self.causal:
            raise Unsupported(f"{self.name} was built with causal=False; only causal=True decodes step by step")

    def _check(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        key_mask: Tensor | None,
        bias: Tensor | None,
        streams: Mapping[str, Tensor] | None,
    ) -> Extras:
        self._check_key_heads(k)
        checks.check_qkv(q, k, v, self.shape.heads, self.shape.head_dim, grouped=self.supports.grouped)
        queries, keys = q.shape[2], k.shape[2]
        if queries != keys and (self.causal or not self.supports.cross):
            form = "in its causal form needs" if self.supports.cross else "needs"
            raise Unsupported(f"{self.name} {form} as many queries as keys, not {queries} and {keys}")
        if key_mask is not None:
            if not self.supports.key_mask:
                raise Unsupported(f"{self.name} cannot mask keys; {_alternatives('key_mask')}")
            checks.check_mask("key_mask", key_mask, (q.shape[0], keys), q.device)
        if bias is not None:
            if not self.supports.bias:
                raise Unsupported(f"{self.name} takes no bias on its scores; {_alternatives('bias')}")
            checks.check_bias(bias, self.shape.heads, q)
        return Extras(key_mask, bias, self._check_streams(q, k, v, {} if streams is None else streams))

    def _check_key_heads(self, k: Tensor) -> None:
        """Refuse fewer key heads than query heads where they cannot be read as they are."""
        heads, shape = k.shape[1] if k.dim() == 4 else 0, self.shape
        if self.key_weights and heads and shape.heads % heads == 0 and heads != shape.key_heads:
            raise InvalidInput(
                f"{self.name} was built with weights for {shape.key_heads} key heads, and k has {heads}; "
                f"build it with key_heads={heads}"
            )
        if 0 < heads < shape.heads and not self.supports.grouped:
            reason = f": {self.one_head_each}" if self.one_head_each else ""
            raise Unsupported(
                f"{self.name} needs a head of keys and values for each of the {shape.heads} query heads, not {heads}"
                f"{reason}; repeat them for it; without that, {_alternatives('grouped')}"
            )

    def _check_streams(self, q: Tensor, k: Tensor, v: Tensor, given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        known = {stream.name: stream for stream in self.streams}
        for name in given:
            if name not in known:
                raise InvalidInput(f"{self.name} reads no stream {name!r}; it reads: {', '.join(known) or 'none'}")
        for name, stream in known.items():
            tensor = given.get(name)
            if tensor is None:
                if stream.required:
                    raise InvalidInput(f"{self.name} needs the stream {name!r}: {stream.help}")
            elif stream.kind == "mask":
                checks.check_mask(name, tensor, (q.shape[0], k.shape[2]), q.device)
            elif stream.kind == "ids":
                checks.check_ids(name, tensor, (q.shape[0], k.shape[2]), q.device)
            elif stream.kind in ("heads", "queries"):
                width = v.shape[-1] if stream.like == "v" else self.shape.head_dim
                checks.check_heads(name, tensor, self.shape.heads if stream.like == "q" else k.shape[1], width)
                if tensor.shape[2] != q.shape[2]:
                    raise InvalidInput(f"q has length {q.shape[2]} and {name} {tensor.shape[2]}; they must be equal")
                checks.check_like(name, tensor, q)
            else:
                if tensor.dim() != 3 or tensor.shape[0] != q.shape[0]:
                    raise InvalidInput(f"{name} must be (batch {q.shape[0]}, length, width), not {tuple(tensor.shape)}")
                checks.check_like(name, tensor, q)
        return given


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Repeat key heads for the query heads that read them (grouped queries)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def masked_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Softmax over the keys of `keep`; a row without any is 0, and so is its gradient."""
    alive = keep.any(dim=-1, keepdim=True)
    finite = scores.masked_fill(~keep, float("-inf")).masked_fill(~alive, 0.0)
    return finite.softmax(dim=-1).masked_fill(~keep, 0.0)


def readable(queries: int, keys: int, causal: bool, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """Which keys each query may read by causality and padding: (batch or 1, 1, queries, keys), boolean."""
    keep = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        keep = keep.tril()
    return keep[None, None] if key_mask is None else keep & key_mask[:, None, None, :]


def _alternatives(ability: str) -> str:
    """The mechanisms that have an ability: `Supports` by the name of its field."""
    from longspan.attention import registry  # it imports this module

    able = [name for name in registry.names() if getattr(registry.find(name).supports, ability)]
    return f"these can: {', '.join(able)}"


__all__ = [
    "Attention",
    "Cost",
    "Extras",
    "HasOptions",
    "OptionsT",
    "OtherWay",
    "Shape",
    "State",
    "Stream",
    "Supports",
    "check_some",
    "masked_softmax",
    "readable",
    "share_heads",
]
