"""The one contract: projected heads in, heads out.

Conventions, stated once and held by `tests/contract` for every mechanism:

- q, k, v are (batch, heads, length, width), the order of torch's `scaled_dot_product_attention`.
- Masks are boolean, and True means *may be read*. The one for padding is `key_mask` (batch, keys). It says which keys
  may be read and nothing about queries.
- Masked keys are inert whatever they hold: keys and values of masked positions are set to 0 before any work.
- A row with nothing to read is exactly 0, with gradient 0: never NaN, never a uniform average.
- `causal` is fixed when the module is built. What a mechanism cannot do raises `Unsupported`.
- Any length works. Blocks are anchored at position 0, padded on the right, masked and sliced off.
- Under autocast, heads and streams are brought to one type, that of the output; inside, autocast is off.
- `forward` draws no random numbers but dropout. In evaluation it is deterministic and independent of the batch.

A mechanism writes `attend` (fast), `define` (the paper), `cost`, and, where it decodes, `start` and `extend_heads`. The
public faces `forward`, `oracle` and `extend` check their input once and call those.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.devices import host_may_read
from longspan.attention.state import State
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.precision import alike, autocast_type, full_precision
from longspan.shapes import Bias, Defined, KeyMask, Keys, Output, Queries, Values, Weights


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a mechanism can do; what is False here raises `Unsupported`."""

    causal: bool = False  # a form in which no row can read the future
    bidirectional: bool = True  # a form in which it can
    cross: bool = False  # another number of keys than of queries
    cross_rows: bool = True  # cross: a query reads the same wherever it stands, so that a decoder can go step by step
    key_mask: bool = True  # padding
    streaming: bool = False  # start() and extend(), when causal
    bias: bool = False  # a term per offset added to the scores (ALiBi, T5)
    dropout: bool = False  # on the attention weights
    grouped: bool = False  # fewer key heads than query heads
    left_padding: bool = False  # causal: a row with masked keys on its left gives what it gives without them
    map: bool = True  # the output is one (queries, keys) map on the values, the same for every channel


@dataclass(frozen=True, kw_only=True)
class Stream:
    """A further input that a mechanism reads, and that `nn.MultiHead` makes for it or hands on."""

    name: str
    # A projection of its own; the hidden states; from the user, a boolean or an integer for each position.
    kind: Literal["heads", "hidden", "mask", "ids"]
    help: str
    like: Literal["q", "k", "v"] = "q"  # heads only: which projection it starts as a copy of
    beside: str | None = None  # heads only: without this stream it is of no use, and not made
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes that a mechanism is built for."""

    heads: int
    head_dim: int
    max_length: int | None = None  # needed only where a table is fixed

    def __post_init__(self) -> None:
        for name in ("heads", "head_dim", "max_length"):
            value = getattr(self, name)
            if value is None and name == "max_length":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidOption(f"{name} must be an int of at least 1, not {value!r}")

    def check_room(self, option: str, value: int) -> None:
        """Any length works with any option, but what could never come to bear in the texts it is built for is wrong."""
        if self.max_length is not None and value > self.max_length:
            raise InvalidOption(f"option {option} must be at most the max_length of {self.max_length}, not {value}")


class Cost(NamedTuple):
    """What the fast path does for one sequence of a batch, exactly."""

    flops: int  # multiplications and additions of the matrix products, forward
    floats: int  # numbers kept for the backward pass beyond q, k, v and the mechanism's own weights


@dataclass(frozen=True)
class Extras:
    """What may come beside q, k and v; already checked when a mechanism sees it."""

    key_mask: KeyMask | None = None
    bias: Bias | None = None
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    # For definitions only: the heads of the call, where weights or values are made of more than is handed to them.
    k: Keys | None = None
    v: Values | None = None


OtherWay = Callable[["Attention", Tensor, Tensor, Tensor, Extras], Tensor | None]


class Attention(nn.Module, ABC):
    """The base of every mechanism; see the module's docstring for the contract."""

    name: ClassVar[str]  # the same as the file and the registry
    paper: ClassVar[str]  # "Vaswani et al. 2017"
    survey_class: ClassVar[tuple[str, ...]]  # the survey's classes: FP, M, LP, LR, KR, RC; () for dense
    # These are of the class; a form that differs sets its own in __init__.
    fixed_length: bool = False  # whether it has a table of max_length places and cannot read past them
    quadratic_memory: bool = False  # whether the paper's own definition needs tensors of n² elements
    # Whether scores are q·k/√head_dim and nothing else is made of q and k, so that zeros may be appended to both.
    scaled_dot: bool = False
    running_statistics: bool = False  # whether a pass in training mode moves buffers that later outputs depend on
    order: str  # time in the length n, with the option it depends on: "n·window"
    exponent: float  # the power of n in `order`, at fixed options
    supports: Supports
    streams: tuple[Stream, ...] = ()
    # Which of q, k, v have projections of their own. A mechanism that shares queries and keys leaves out k and is given
    # q in its place; one that compares nothing leaves out both and is given v.
    projects: tuple[str, ...] = ("q", "k", "v")

    limited: ClassVar[tuple[str, ...]] = ()  # options that may not be above max_length

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, shape: Shape, options: Any = None, *, causal: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        if causal and not self.supports.causal:
            raise Unsupported(f"{self.name} has no causal form; {_alternatives('causal')}")
        if not causal and not self.supports.bidirectional:
            raise Unsupported(f"{self.name} is causal only; build it with causal=True")
        if not 0.0 <= dropout < 1.0:
            raise InvalidOption(f"dropout must be at least 0 and below 1, not {dropout!r}")
        if dropout and not self.supports.dropout:
            raise Unsupported(f"{self.name} has no attention weights to drop; use dropout on its output instead")
        self.shape, self.causal, self.dropout = shape, causal, dropout
        self.options: Any = self.fit(self.Options(), (), shape) if options is None else options
        # Another way to the output that a device has (see `attention.flex`); it gives None for what it cannot do.
        self.other_way: OtherWay | None = None
        self.auxiliary_loss: Tensor | None = None  # what a training pass adds to the task's loss, where it does

    @classmethod
    def fit(cls, options: Any, said: Collection[str], shape: Shape) -> Any:
        """The options for texts of this length: a default that is too large for them shrinks, what was said stays."""
        most = shape.max_length
        if most is None:
            return options
        smaller = {name: most for name in cls.limited if name not in said and getattr(options, name) > most}
        return replace(options, **smaller) if smaller else options

    # What a user calls

    @final  # type: ignore[misc]  # nn.Module declares forward as an attribute
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
        half = autocast_type(q.device)
        if half is not None:
            with full_precision(q):
                q, k, v, streams = alike(half, q, k, v, streams)
                return self._run(*self._take(q, k, v, key_mask, bias, streams))
        return self._run(*self._take(q, k, v, key_mask, bias, streams))

    def _run(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        out = None if self.other_way is None else self.other_way(self, q, k, v, extras)
        return self.attend(q, k, v, extras) if out is None else out

    @final
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
        """The weights as the paper defines them, O(n²): the truth that the fast path answers to.

        `v` matters to mechanisms whose weights depend on the values; without it, the keys stand for them.
        """
        v = k if v is None else v
        q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        return self.define(q, k, replace(extras, k=k, v=v))

    @final
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
        """What `forward` must give: the oracle's weights applied to the values, O(n²)."""
        q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
        k, v = share_heads(k, q.shape[1]), share_heads(v, q.shape[1])
        extras = replace(extras, k=k, v=v)
        return self.apply_weights(self.define(q, k, extras), v, extras)

    @final
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
        """The map that the fast path really applies, whatever the mechanism: its output on the identity.

        Streams that stand beside the values (`like="v"`) are replaced by the identity as well.
        """
        if not self.supports.map:
            raise Unsupported(f"{self.name} changes its values, so that no one map says what it does; see oracle()")
        heads, keys, training = k.shape[1], k.shape[2], self.training
        identity = torch.eye(keys, dtype=k.dtype, device=k.device)
        columns = []
        try:
            self.train(False)  # the weights are those before dropout
            for part in identity.split(self.shape.head_dim, dim=-1):
                missing = self.shape.head_dim - part.shape[-1]  # the fused kernels want values as wide as keys
                values = nn.functional.pad(part, (0, missing)).expand(k.shape[0], heads, keys, -1)
                beside = {s.name: values for s in self.streams if s.kind == "heads" and s.like == "v"}
                out = self(q, k, values, key_mask=key_mask, bias=bias, streams={**(streams or {}), **beside})
                columns.append(out[..., : part.shape[-1]])
        finally:
            self.train(training)
        return torch.cat(columns, dim=-1)

    @final
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
        """The rows of the next tokens, any number of them, and the state after them.

        `key_mask` and `streams` speak of the new tokens only; the state remembers those of the old ones.
        """
        self._refuse_streaming()
        half = autocast_type(q.device)
        if half is not None:
            with full_precision(q):
                q, k, v, streams = alike(half, q, k, v, streams)
                q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
                return self.extend_heads(q, k, v, state, extras)
        q, k, v, extras = self._take(q, k, v, key_mask, bias, streams)
        return self.extend_heads(q, k, v, state, extras)

    # What a mechanism writes

    @abstractmethod
    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        """The fast path."""

    @abstractmethod
    def define(self, q: Queries, k: Keys, extras: Extras) -> Defined:
        """The paper's definition, so that a reader can check it against the paper."""

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        """What the paper does with the defined weights; more than a product where it changes the values first."""
        return weights @ v

    @abstractmethod
    def cost(self, queries: int, keys: int) -> Cost:
        """What `attend` costs on one sequence without masks."""

    def start(self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None) -> State:
        """The state before the first token."""
        raise Unsupported(f"{self.name} cannot decode step by step; {_alternatives('streaming')}")

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: Any, extras: Extras) -> tuple[Output, State]:
        """The rows of the next tokens and the new state; equal to the rows of the parallel pass."""
        raise Unsupported(f"{self.name} cannot decode step by step; {_alternatives('streaming')}")

    def extra_repr(self) -> str:
        return f"heads={self.shape.heads}, head_dim={self.shape.head_dim}, causal={self.causal}, {self.options}"

    # What comes in, checked once and before any work

    def _take(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, bias: Tensor | None, streams: Any
    ) -> tuple[Tensor, Tensor, Tensor, Extras]:
        """The input, checked; whatever masked keys hold, NaN included, is 0 from here on.

        This costs a pass over keys and values, and only where a mask hides something.
        """
        extras = self._check(q, k, v, key_mask, bias, streams)
        if key_mask is None or (host_may_read(key_mask) and bool(key_mask.all())):
            return q, k, v, extras
        hidden = ~key_mask[:, None, :, None]
        cleared: dict[int, Tensor] = {}  # the same tensor may stand for several

        def clear(x: Tensor) -> Tensor:
            if id(x) not in cleared:
                cleared[id(x)] = x.masked_fill(hidden, 0.0)
            return cleared[id(x)]

        of_keys = {stream.name for stream in self.streams if stream.kind == "heads" and stream.like != "q"}
        beside = {name: clear(x) if name in of_keys else x for name, x in extras.streams.items()}
        if "k" not in self.projects and "q" in self.projects:  # the queries are the keys
            q = clear(q)
        return q, clear(k), clear(v), replace(extras, streams=beside)

    def _refuse_streaming(self) -> None:
        if not self.supports.streaming:
            raise Unsupported(f"{self.name} cannot decode step by step; {_alternatives('streaming')}")
        if not self.causal:
            raise Unsupported(f"{self.name} was built with causal=False, and only a causal form decodes step by step")

    def _check(
        self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, bias: Tensor | None, streams: Any
    ) -> Extras:
        heads, head_dim = self.shape.heads, self.shape.head_dim
        _check_heads("q", q, heads, head_dim)
        key_heads = k.shape[1] if self.supports.grouped and k.dim() == 4 and k.shape[1] else heads
        if heads % key_heads:
            raise InvalidInput(f"k has {key_heads} heads, which do not divide the {heads} heads of q")
        _check_heads("k", k, key_heads, head_dim)
        _check_heads("v", v, key_heads, None)
        _check_like("k", k, q)
        _check_like("v", v, q)
        if q.shape[0] == 0:
            raise InvalidInput(f"there must be at least one sequence, not a batch of 0: q is {tuple(q.shape)}")
        queries, keys = q.shape[2], k.shape[2]
        if queries == 0 or keys == 0:
            raise InvalidInput(f"there must be a query and a key at least, not {queries} and {keys}")
        if v.shape[2] != keys:
            raise InvalidInput(f"k has length {keys} and v {v.shape[2]}; each key needs one value")
        if queries != keys and (self.causal or not self.supports.cross):
            what = "in its causal form needs" if self.supports.cross else "needs"
            raise Unsupported(f"{self.name} {what} as many queries as keys, not {queries} and {keys}")
        if key_mask is not None:
            if not self.supports.key_mask:
                raise Unsupported(f"{self.name} cannot mask keys; {_alternatives('key_mask')}")
            _check_mask("key_mask", key_mask, (q.shape[0], keys), q.device)
        if bias is not None:
            if not self.supports.bias:
                raise Unsupported(f"{self.name} takes no bias on its scores; {_alternatives('bias')}")
            if bias.dim() != 2 or bias.shape[0] != heads or bias.shape[1] % 2 == 0:
                raise InvalidInput(
                    f"bias must be (heads {heads}, an odd number of offsets), not {tuple(bias.shape)}; "
                    "the middle offset is 0"
                )
            if not bias.is_floating_point():
                raise InvalidInput(f"bias must be of a floating-point type, not {bias.dtype}")
            if bias.device != q.device:
                raise InvalidInput(f"bias is on {bias.device} and q on {q.device}; they must be on one device")
        return Extras(key_mask, bias, self._check_streams(q, k, streams))

    def _check_streams(self, q: Tensor, k: Tensor, given: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        given = {} if given is None else given
        known = {stream.name: stream for stream in self.streams}
        for name in given:
            if name not in known:
                reads = ", ".join(known) or "none"
                raise InvalidInput(f"{self.name} reads no stream {name!r}; it reads: {reads}")
        for name, stream in known.items():
            tensor = given.get(name)
            if tensor is None:
                if stream.required:
                    raise InvalidInput(f"{self.name} needs the stream {name!r}: {stream.help}")
            elif stream.kind == "mask":
                _check_mask(name, tensor, (q.shape[0], k.shape[2]), q.device)
            elif stream.kind == "ids":
                _check_ids(name, tensor, (q.shape[0], k.shape[2]), q.device)
            else:
                if stream.kind == "heads":
                    _check_heads(name, tensor, self.shape.heads, self.shape.head_dim)
                    if tensor.shape[2] != q.shape[2]:
                        raise InvalidInput(
                            f"q has length {q.shape[2]} and {name} {tensor.shape[2]}; they must be equal"
                        )
                elif tensor.dim() != 3 or tensor.shape[0] != q.shape[0]:
                    raise InvalidInput(f"{name} must be (batch {q.shape[0]}, length, width), not {tuple(tensor.shape)}")
                _check_like(name, tensor, q)
        return given


def share_heads(x: Tensor, heads: int) -> Tensor:
    """Key heads repeated for the query heads that read them (grouped queries)."""
    return x if x.shape[1] == heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def masked_softmax(scores: Tensor, keep: Tensor) -> Tensor:
    """Softmax over what may be read; a row with nothing to read is 0, and so is its gradient."""
    alive = keep.any(dim=-1, keepdim=True)
    finite = scores.masked_fill(~keep, float("-inf")).masked_fill(~alive, 0.0)
    return finite.softmax(dim=-1).masked_fill(~keep, 0.0)


def readable(queries: int, keys: int, causal: bool, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """Which key each query may read by time and padding alone: (batch or 1, 1, queries, keys)."""
    keep = torch.ones(queries, keys, dtype=torch.bool, device=device)
    if causal:
        keep = keep.tril()
    return keep[None, None] if key_mask is None else keep & key_mask[:, None, None, :]


def check_some(name: str, x: Tensor) -> None:
    """Refuse a batch of nothing and sequences of nothing: (batch, length, …)."""
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InvalidInput(f"{name} must hold at least one sequence of at least one position, not {tuple(x.shape)}")


def _check_heads(name: str, tensor: Tensor, heads: int, width: int | None) -> None:
    width_seen = tensor.shape[-1] if tensor.dim() else 0
    if tensor.dim() != 4 or tensor.shape[1] != heads or (width is not None and width_seen != width):
        wanted = f"(batch, heads {heads}, length, {'width' if width is None else f'head_dim {width}'})"
        raise InvalidInput(f"{name} must be {wanted}, not {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise InvalidInput(f"{name} must be of a floating-point type, not {tensor.dtype}")


def _check_like(name: str, tensor: Tensor, q: Tensor) -> None:
    if tensor.dtype != q.dtype:
        raise InvalidInput(f"q is {q.dtype} and {name} {tensor.dtype}; they must be of one type")
    if tensor.device != q.device:
        raise InvalidInput(f"q is on {q.device} and {name} on {tensor.device}; they must be on one device")
    if tensor.shape[0] != q.shape[0]:
        raise InvalidInput(f"q has batch {q.shape[0]} and {name} {tensor.shape[0]}")


def _check_mask(name: str, mask: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    if mask.dtype != torch.bool:
        raise InvalidInput(f"{name} must be boolean, True where it may be read, not {mask.dtype}; try {name}.bool()")
    _check_positions(name, mask, shape, device)


def _check_ids(name: str, ids: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    if ids.dtype != torch.int64:
        raise InvalidInput(f"{name} must be of integers (int64), not {ids.dtype}; try {name}.long()")
    _check_positions(name, ids, shape, device)


def _check_positions(name: str, tensor: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    if tensor.dim() != 2 or tuple(tensor.shape) != shape:
        raise InvalidInput(f"{name} must be (batch {shape[0]}, length {shape[1]}), not {tuple(tensor.shape)}")
    if tensor.device != device:
        raise InvalidInput(f"{name} is on {tensor.device} and q on {device}; they must be on one device")


def _alternatives(ability: str) -> str:
    """Which mechanisms can do what this one cannot."""
    from longspan.attention import registry  # the table knows the mechanisms, and they this file

    able = [name for name in registry.names() if getattr(registry.find(name).supports, ability)]
    return f"these can: {', '.join(able)}"
