"""Where a token stands, told to the model in three ways.

- A code added to the embedding: `Sinusoidal`, `Learned`, `Axial`.
- A rotation of queries and keys, whose product then depends on the offset alone: `Rotary`.
- A number added to the score, one per offset (key - query): `Alibi`, `RelativeBias`, `ClippedBias`.

Positions count from 0. `start` is the position of the first token given, to go on decoding; `positions` gives each
token its own, for left-padded or packed batches.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest
from longspan.nn.rotary_scaling import RotaryScaling, amplitude, frequencies
from longspan.shapes import Bias, Hidden

SinusoidalLayout = Literal["interleaved", "split", "shifted_exponent"]
RotaryLayout = Literal["half", "interleaved"]
Positions = Int[Tensor, "batch length"]
Heads = Float[Tensor, "batch heads length head_dim"]


def _check_place(batch: int, length: int, start: int, positions: Tensor | None) -> None:
    if start < 0:
        raise InvalidInput(f"expected start >= 0, got {start}")
    if positions is None:
        return
    if start:
        raise InvalidInput(f"expected start or positions, got both (start={start}); add start to the positions")
    if positions.shape != (batch, length) or positions.is_floating_point():
        raise InvalidInput(
            f"expected whole-number positions of shape ({batch}, {length}), one per token, "
            f"got {tuple(positions.shape)} of {positions.dtype}"
        )


def _check_layout(layout: str, known: tuple[str, ...]) -> None:
    if layout not in known:
        raise UnknownName(f"no layout is called {layout!r}; {suggest(layout, known)}")


class _Waves:
    """Sines and cosines of the position: computed in float64, since float32 angles are off by 1e-3 at position 10^4.

    Rows 0, 1, 2, … are kept and grow with the longest input. They are no buffer: a checkpoint must not fix their
    number, and `module.half()` must not round them.
    """

    KEPT = 1 << 16  # rows; one far position must not fill the memory with all the rows before it

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self.encode = encode
        self.kept: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return _Waves, (self.encode,)  # a copy, or a pickle, makes its own rows

    def __call__(
        self, length: int, start: int, positions: Tensor | None, device: torch.device, dtype: torch.dtype
    ) -> Tensor:
        if positions is not None:
            return self._compute(positions, device, dtype)
        stop = start + length
        if torch.compiler.is_compiling() or stop > self.KEPT:
            return self._compute(torch.arange(start, stop, device=device), device, dtype)
        kept = self.kept.get((device, dtype))
        if kept is None or len(kept) < stop:
            rows = 1 << (stop - 1).bit_length() if stop else 0
            # A table made in inference mode could never be used for training afterwards.
            with torch.inference_mode(False):
                kept = self._compute(torch.arange(rows, device=device), device, dtype)
            if type(kept) is Tensor:  # not the stand-in of a shape-only run
                self.kept[device, dtype] = kept
        return kept[start:stop]

    def _compute(self, positions: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        if device.type == "mps":  # has no float64
            positions = positions.cpu()
        return self.encode(positions.double()).to(device, dtype)


class Absolute(nn.Module, ABC):
    """A code per position, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Hidden, *, start: int = 0, positions: Positions | None = None) -> Hidden:
        if x.ndim != 3 or x.shape[2] != self.width:
            raise InvalidInput(f"expected (batch, length, {self.width}), got {tuple(x.shape)}")
        _check_place(x.shape[0], x.shape[1], start, positions)
        return x + self.code(x, start, positions)

    @abstractmethod
    def code(
        self, x: Hidden, start: int, positions: Positions | None
    ) -> Float[Tensor, "length width"] | Float[Tensor, "batch length width"]:
        """The codes of the tokens of `x`, in its type and on its device."""


class Sinusoidal(Absolute):
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5), for any length.

    - `interleaved`: the paper's. Columns 2i and 2i+1 are the sine and cosine of t·10000^(-2i/width).
    - `split`: tensor2tensor's. All sines, then all cosines, the slowest frequency being exactly 1/10000.
    - `shifted_exponent`: the cosine takes 10000^(-(2i+1)/width), as teaching material often has it. No rotation leads
      from one position to another, so the shift property is lost; it is here to be compared with.

    An odd width is the even one below it and a column of zeros.
    """

    def __init__(self, width: int, layout: SinusoidalLayout = "interleaved") -> None:
        super().__init__(width)
        _check_layout(layout, get_args(SinusoidalLayout))
        self.layout = layout
        self._waves = _Waves(partial(_sinusoids, width=width, layout=layout))

    def code(
        self, x: Hidden, start: int, positions: Positions | None
    ) -> Float[Tensor, "length width"] | Float[Tensor, "batch length width"]:
        return self._waves(x.shape[1], start, positions, x.device, x.dtype)

    def extra_repr(self) -> str:
        return f"width={self.width}, layout={self.layout!r}"


def _sinusoids(positions: Tensor, *, width: int, layout: str) -> Tensor:
    pairs = width // 2
    index = torch.arange(pairs, dtype=torch.float64, device=positions.device)
    exponents = index / max(pairs - 1, 1) if layout == "split" else index / max(pairs, 1)
    shift = 0.5 / max(pairs, 1) if layout == "shifted_exponent" else 0.0
    sine = torch.sin(positions[..., None] * 10000.0**-exponents)
    cosine = torch.cos(positions[..., None] * 10000.0 ** -(exponents + shift))
    together = torch.cat((sine, cosine), -1) if layout == "split" else torch.stack((sine, cosine), -1).flatten(-2)
    return functional.pad(together, (0, width - 2 * pairs))


class _Table(Absolute):
    """Trained codes for the positions 0..length-1, and for no others."""

    first = 0  # the lowest position that has a code

    def __init__(self, length: int, width: int) -> None:
        super().__init__(width)
        self.length = length

    def code(
        self, x: Hidden, start: int, positions: Positions | None
    ) -> Float[Tensor, "length width"] | Float[Tensor, "batch length width"]:
        if positions is None:
            positions = torch.arange(start, start + x.shape[1], device=x.device)
            least, most = start, start + x.shape[1] - 1
        elif positions.numel() and not torch.compiler.is_compiling():
            least, most = (int(bound) for bound in positions.aminmax())
        else:
            least, most = 0, 0
        if least < self.first or most >= self.length:
            raise InvalidInput(
                f"expected positions in {self.first}..{self.length - 1} (a table of {self.length}), "
                f"got position {least if least < self.first else most}; shorten the input or build a longer table"
            )
        return self.rows(positions).to(x.dtype)

    @abstractmethod
    def rows(self, positions: Int[Tensor, "*places"]) -> Float[Tensor, "*places width"]:
        """The codes of these positions."""


class Learned(_Table):
    """A trained vector per position (BERT, GPT).

    `offset` rows stand before that of position 0, as in tables that were numbered together with padding (RoBERTa,
    BART: 2); they belong to the positions -offset..-1.
    """

    def __init__(self, length: int, width: int, *, offset: int = 0, std: float = 0.02) -> None:
        super().__init__(length, width)
        self.first = -offset
        self.weight = nn.Parameter(torch.empty(offset + length, width))
        nn.init.normal_(self.weight, std=std)

    def rows(self, positions: Int[Tensor, "*places"]) -> Float[Tensor, "*places width"]:
        return functional.embedding(positions - self.first if self.first else positions, self.weight)

    def extra_repr(self) -> str:
        return f"length={self.length}, width={self.width}"


class Axial(_Table):
    """Positions folded into a grid, with one short table per axis (Kitaev et al. 2020, as released).

    Position p of a grid (n1, n2) gets table1[p // n2] and table2[p % n2], side by side: n1·d1 + n2·d2 numbers instead
    of n1·n2·(d1 + d2). The last axis moves fastest, for any number of axes. The released code draws with deviation 1.

    `summed` tables are all of the full width and are added up, not set side by side (Child et al. 2019, section 5.3:
    rows, columns and channels of an image, or rows and columns of a text folded at the stride of its attention).
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int], *, std: float = 1.0, summed: bool = False) -> None:
        if len(shape) != len(widths) or not shape or min(*shape, *widths) < 1:
            raise InvalidOption(
                f"expected one width for each axis, all at least 1, got shape {tuple(shape)} and widths {tuple(widths)}"
            )
        if summed and len(set(widths)) > 1:
            raise InvalidOption(f"tables that are added up must be of one width, got {tuple(widths)}")
        super().__init__(math.prod(shape), widths[0] if summed else sum(widths))
        self.shape, self.summed = tuple(shape), summed
        self.tables = nn.ParameterList(torch.randn(size, width) * std for size, width in zip(shape, widths))

    def rows(self, positions: Int[Tensor, "*places"]) -> Float[Tensor, "*places width"]:
        codes = []
        stride = self.length
        for size, table in zip(self.shape, self.tables):
            stride //= size
            codes.append(functional.embedding(positions // stride % size, table))
        return torch.stack(codes).sum(0) if self.summed else torch.cat(codes, -1)

    def extra_repr(self) -> str:
        return f"shape={self.shape}, summed={self.summed}"


class Rotary(nn.Module):
    """Turns each pair of features of a query or key by position × frequency (Su et al. 2021, section 3.2).

    The product of a turned query and a turned key depends on their offset alone. `half` pairs feature i with
    i + rotated/2 (GPT-NeoX, Llama), `interleaved` pairs 2i with 2i+1 (the paper, GPT-J): the same model only after
    permuting its weights. The first `rotated` features are turned, by default all; `scaling` makes their frequencies
    those of a longer text.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        layout: RotaryLayout = "half",
        rotated: int | None = None,
        scaling: RotaryScaling | None = None,
    ) -> None:
        super().__init__()
        _check_layout(layout, get_args(RotaryLayout))
        rotated = head_dim if rotated is None else rotated
        if rotated % 2 or not 0 < rotated <= head_dim:
            raise InvalidOption(f"rotated must be even, above 0 and at most head_dim={head_dim}, got {rotated}")
        self.head_dim = head_dim
        self.rotated = rotated
        self.base = base
        self.layout = layout
        self.scaling = scaling
        self._waves = _Waves(partial(_turns, rotated=rotated, base=base, layout=layout, scaling=scaling))

    def forward(self, x: Heads, *, start: int = 0, positions: Positions | None = None) -> Heads:
        if x.ndim != 4 or x.shape[3] != self.head_dim:
            raise InvalidInput(f"expected (batch, heads, length, {self.head_dim}), got {tuple(x.shape)}")
        _check_place(x.shape[0], x.shape[2], start, positions)
        # Half precision turns in float32: a rounded angle is a wrong offset.
        precise = torch.promote_types(x.dtype, torch.float32)
        waves = self._waves(x.shape[2], start, positions, x.device, precise)
        if positions is not None:
            waves = waves[:, None]  # the same for every head
        cosine, sine = waves.chunk(2, -1)
        turned, rest = (
            (x, None) if self.rotated == self.head_dim else x.split((self.rotated, self.head_dim - self.rotated), -1)
        )
        turned = turned.to(precise)
        # Each feature by its cosine, and the other one of its pair by its sine: few calls, which decoding feels.
        if self.layout == "half":
            other = turned.roll(self.rotated // 2, -1)
        else:
            other = turned.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        out = torch.addcmul(turned * cosine, other, sine).to(x.dtype)
        return out if rest is None else torch.cat((out, rest), -1)

    def extra_repr(self) -> str:
        return f"head_dim={self.head_dim}, rotated={self.rotated}, base={self.base:g}, layout={self.layout!r}"


def _turns(positions: Tensor, *, rotated: int, base: float, layout: str, scaling: RotaryScaling | None) -> Tensor:
    """The cosines of all features, then the sines; those of the first of each pair have the sign of a rotation."""
    angles = positions[..., None] * frequencies(rotated, base, scaling).to(positions.device)
    cosine, sine = angles.cos(), angles.sin()
    if layout == "half":
        waves = torch.cat((cosine, cosine, -sine, sine), -1)
    else:
        waves = torch.cat([torch.stack(pair, -1).flatten(-2) for pair in ((cosine, cosine), (-sine, sine))], -1)
    return waves if scaling is None else waves * amplitude(scaling)


class DistanceBias(nn.Module, ABC):
    """A number per head and offset (key - query), added to the scaled score."""

    @abstractmethod
    def table(self, reach: int) -> Bias:
        """(heads, 2·reach - 1): the offsets -(reach - 1) .. reach - 1, so that the middle one is offset 0."""


def _offsets(reach: int, device: torch.device) -> Int[Tensor, " offsets"]:
    if reach < 1:
        raise InvalidInput(f"expected a reach of at least 1, got {reach}")
    return torch.arange(1 - reach, reach, device=device)


class Alibi(DistanceBias):
    """-slope·|offset|, a fixed slope per head (Press et al. 2022, section 3). Not trained, any length."""

    slopes: Tensor

    def __init__(self, heads: int) -> None:
        super().__init__()
        if heads < 1:
            raise InvalidOption(f"heads must be at least 1, got {heads}")
        self.register_buffer("slopes", torch.tensor(_slopes(heads)), persistent=False)

    def table(self, reach: int) -> Bias:
        # At least float32: half precision cannot count offsets past 2048.
        slopes = self.slopes.to(torch.promote_types(self.slopes.dtype, torch.float32))
        return -slopes[:, None] * _offsets(reach, slopes.device).abs()

    def extra_repr(self) -> str:
        return f"heads={len(self.slopes)}"


def _slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), … for n heads; past a power of two, every other one of the next, as in the authors' code."""
    below = 1 << (heads.bit_length() - 1)
    whole = [2 ** (-8 * k / below) for k in range(1, below + 1)]
    between = [2 ** (-4 * k / below) for k in range(1, 2 * below, 2)]
    return whole + between[: heads - below]


class RelativeBias(DistanceBias):
    """A trained number per bucket of offsets (Raffel et al. 2020, section 2.1).

    Half of the buckets hold one distance each, the others are logarithmically wider up to `max_distance`, and the last
    holds all beyond. `bidirectional` has buckets for both directions; otherwise the future shares bucket 0.
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        least = 4 if bidirectional else 2
        if buckets % 2 or buckets < least:
            raise InvalidOption(f"buckets must be even and at least {least}, got {buckets}")
        if max_distance <= buckets // least:
            raise InvalidOption(
                f"max_distance must be above {buckets // least}, which {buckets} buckets hold one by one, "
                f"got {max_distance}"
            )
        self.buckets = buckets
        self.max_distance = max_distance
        self.bidirectional = bidirectional
        self.weight = nn.Parameter(torch.randn(buckets, heads) * 0.02)  # this way round in T5's checkpoints

    def bucket(self, offsets: Int[Tensor, "*places"]) -> Int[Tensor, "*places"]:
        """The bucket of each offset (key - query)."""
        count = self.buckets // 2 if self.bidirectional else self.buckets
        first = count * (offsets > 0) if self.bidirectional else torch.zeros_like(offsets)
        distance = offsets.abs() if self.bidirectional else (-offsets).clamp(min=0)
        single = count // 2
        # float32 on purpose: T5 rounds there, and a bucket's edge must not move for its trained weights.
        growth = torch.log(distance.clamp(min=single).float() / single) / math.log(self.max_distance / single)
        wide = (single + (growth * (count - single)).long()).clamp(max=count - 1)
        return first + torch.where(distance < single, distance, wide)

    def table(self, reach: int) -> Bias:
        return self.weight[self.bucket(_offsets(reach, self.weight.device))].T

    def extra_repr(self) -> str:
        return f"buckets={self.buckets}, max_distance={self.max_distance}, bidirectional={self.bidirectional}"


class ClippedBias(DistanceBias):
    """A trained number per offset within `reach`; those beyond share the outermost (Shaw et al. 2018, section 3.2)."""

    def __init__(self, heads: int, reach: int) -> None:
        super().__init__()
        if reach < 1:
            raise InvalidOption(f"reach must be at least 1, got {reach}")
        self.reach = reach
        self.weight = nn.Parameter(torch.randn(heads, 2 * reach - 1) * 0.02)

    def table(self, reach: int) -> Bias:
        last = self.reach - 1
        return self.weight[:, _offsets(reach, self.weight.device).clamp(-last, last) + last]

    def extra_repr(self) -> str:
        return f"reach={self.reach}"


__all__ = [
    "Absolute",
    "Alibi",
    "Axial",
    "ClippedBias",
    "DistanceBias",
    "Learned",
    "Positions",
    "RelativeBias",
    "Rotary",
    "Sinusoidal",
]
