"""Values that describe a mechanism and its inputs: Supports, Stream, Shape, Cost and Extras."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from torch import Tensor

from longspan.errors import InvalidOption
from longspan.shapes import Bias, KeyMask, Keys, Values


@dataclass(frozen=True, kw_only=True)
class Supports:
    """What a mechanism can do; what is False here raises `Unsupported`."""

    causal: bool = False  # has a form in which no row reads the future
    bidirectional: bool = True  # has a form in which rows read the future
    cross: bool = False  # the number of keys may differ from the number of queries
    cross_rows: bool = True  # cross: the output of a query does not depend on its position, so decoders can step
    key_mask: bool = True  # padding
    streaming: bool = False  # start() and extend(), when causal
    bias: bool = False  # a term per offset added to the scores (ALiBi, T5)
    dropout: bool = False  # on the attention weights
    grouped: bool = False  # fewer key heads than query heads, which are not repeated
    left_padding: bool = False  # causal: masked keys on the left of a row do not change its output
    persistent: bool = False  # learned keys and values that every query reads, under one softmax with the others
    map: bool = True  # the output is one (queries, keys) matrix times the values, the same for every channel


@dataclass(frozen=True, kw_only=True)
class Stream:
    """An input that a mechanism reads besides q, k and v. `nn.MultiHead` computes it or passes it on.

    Kinds: `heads` is a projection of the hidden states, `hidden` the hidden states themselves. `queries` are q again,
    rotated at their positions or at `limit`, whichever is less; only layers with rotary positions have them. `mask` and
    `ids` come from the user, as a boolean or an integer for each position.
    """

    name: str
    kind: Literal["heads", "queries", "hidden", "mask", "ids"]
    help: str
    like: Literal["q", "k", "v"] = "q"  # heads only: the projection whose weights it starts with
    beside: str | None = None  # heads only: the stream it belongs to; without that one it is not computed
    limit: int = 0  # queries only: the farthest position
    required: bool = True


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The sizes of a mechanism."""

    heads: int
    head_dim: int  # of queries and keys
    max_length: int | None = None  # needed only by mechanisms with a table of positions
    value_dim: int = None  # type: ignore[assignment]  # of values and outputs; head_dim unless given
    key_heads: int = None  # type: ignore[assignment]  # of keys and values; as many as heads unless given

    def __post_init__(self) -> None:
        for name, default in (("value_dim", self.head_dim), ("key_heads", self.heads)):
            if vars(self)[name] is None:
                object.__setattr__(self, name, default)
        for name in ("heads", "head_dim", "value_dim", "key_heads", "max_length"):
            value = getattr(self, name)
            if value is None and name == "max_length":
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidOption(f"{name} must be an int of at least 1, not {value!r}")
        if self.heads % self.key_heads:
            raise InvalidOption(f"key_heads must divide the {self.heads} heads; {self.key_heads} does not")

    @property
    def group(self) -> int:
        """How many query heads read one head of keys."""
        return self.heads // self.key_heads

    @property
    def fused_width(self) -> int:
        """The width of the fused kernels' rows: the narrower of keys and values is padded to the other."""
        return max(self.head_dim, self.value_dim)

    def check_room(self, option: str, value: int) -> None:
        """Refuse an option larger than the longest text: it could never take effect."""
        if self.max_length is not None and value > self.max_length:
            raise InvalidOption(f"option {option} must be at most the max_length of {self.max_length}, not {value}")


class Cost(NamedTuple):
    """The exact cost of the fast path for one sequence of a batch."""

    flops: int  # multiplications and additions of the matrix products, forward pass
    floats: int  # numbers kept for the backward pass, besides q, k, v and the mechanism's weights


@dataclass(frozen=True)
class Extras:
    """The optional inputs besides q, k and v. A mechanism receives them checked."""

    key_mask: KeyMask | None = None
    bias: Bias | None = None
    streams: Mapping[str, Tensor] = field(default_factory=dict)
    # Set for `define` and `apply_weights` only: the keys and values of the call.
    k: Keys | None = None
    v: Values | None = None


__all__ = ["Cost", "Extras", "Shape", "Stream", "Supports"]
