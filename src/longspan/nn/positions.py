"""Absolute position codes, added to the embedding: sinusoidal, learned and axial.

The other two ways to give positions to a model are rotations of queries and keys (`nn.rotary`) and biases of the scores
(`nn.biases`).

Positions count from 0. `start` is the position of the first token, to continue decoding; `positions` gives each token
its own, for left-padded or packed batches.
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

from longspan.attention.devices import host_may_read
from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest
from longspan.shapes import Hidden

SinusoidalLayout = Literal["interleaved", "split", "shifted_exponent"]
Positions = Int[Tensor, "batch length"]


def check_positions(batch: int, length: int, start: int, positions: Tensor | None) -> None:
    """Refuses positions of a wrong shape or type, and `start` together with `positions`."""
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


def check_layout(layout: str, known: tuple[str, ...]) -> None:
    if layout not in known:
        raise UnknownName(f"no layout is called {layout!r}; {suggest(layout, known)}")


class Waves:
    """Cached sines and cosines of positions, computed in float64: float32 angles are off by 1e-3 at position 10^4.

    The rows 0, 1, 2, … are kept and grow with the longest input. They are not a buffer: a checkpoint must not fix
    their number, and `module.half()` must not round them.
    """

    KEPT = 1 << 16  # rows at most: one far position must not fill the memory with all rows before it

    def __init__(self, encode: Callable[[Tensor], Tensor]) -> None:
        self.encode = encode
        self.kept: dict[tuple[torch.device, torch.dtype], Tensor] = {}

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return Waves, (self.encode,)  # a copy or a pickle computes its own rows

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
            # A tensor made in inference mode cannot be used for training.
            with torch.inference_mode(False):
                kept = self._compute(torch.arange(rows, device=device), device, dtype)
            if type(kept) is Tensor:  # not a fake tensor
                self.kept[device, dtype] = kept
        return kept[start:stop]

    def _compute(self, positions: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
        if device.type == "mps":  # has no float64
            positions = positions.cpu()
        return self.encode(positions.double()).to(device, dtype)


class AbsolutePositions(nn.Module, ABC):
    """A code per position, added to the input."""

    fixed_length = False  # whether it is a table with a last position

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Hidden, *, start: int = 0, positions: Positions | None = None) -> Hidden:
        if x.ndim != 3 or x.shape[2] != self.width:
            raise InvalidInput(f"expected (batch, length, {self.width}), got {tuple(x.shape)}")
        check_positions(x.shape[0], x.shape[1], start, positions)
        return x + self.code(x, start, positions)

    @abstractmethod
    def code(
        self, x: Hidden, start: int, positions: Positions | None
    ) -> Float[Tensor, "length width"] | Float[Tensor, "batch length width"]:
        """The codes of the tokens of `x`, in its type and on its device."""


class SinusoidalPositions(AbsolutePositions):
    """Sines and cosines of geometrically spaced frequencies (Vaswani et al. 2017, section 3.5), for any length.

    - `interleaved`: the paper's. Columns 2i and 2i+1 are the sine and cosine of t·10000^(-2i/width).
    - `split`: tensor2tensor's. All sines, then all cosines, the slowest frequency being exactly 1/10000.
    - `shifted_exponent`: the cosine takes 10000^(-(2i+1)/width), as in much teaching material. No rotation maps one
      position to another, so the shift property is lost; it is here for comparison.

    An odd width is the even width below it plus a column of zeros.
    """

    def __init__(self, width: int, layout: SinusoidalLayout = "interleaved") -> None:
        super().__init__(width)
        check_layout(layout, get_args(SinusoidalLayout))
        self.layout = layout
        self._waves = Waves(partial(_sinusoids, width=width, layout=layout))

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
    waves = torch.cat((sine, cosine), -1) if layout == "split" else torch.stack((sine, cosine), -1).flatten(-2)
    return functional.pad(waves, (0, width - 2 * pairs))


class _Table(AbsolutePositions):
    """Trained codes for the positions 0..length-1 only."""

    fixed_length = True
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
        elif positions.numel() and host_may_read(positions):
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


class LearnedPositions(_Table):
    """A trained vector per position (BERT, GPT).

    `offset` rows come before that of position 0, for the positions -offset..-1: the tables of RoBERTa and BART number
    positions after padding (offset 2).
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


class AxialPositions(_Table):
    """Positions folded into a grid, with one short table per axis (Kitaev et al. 2020, as released).

    Position p of a grid (n1, n2) gets table1[p // n2] and table2[p % n2], side by side: n1·d1 + n2·d2 numbers instead
    of n1·n2·(d1 + d2). The last axis varies fastest, for any number of axes. The released code has std 1.

    `summed` tables all have the full width and are added instead of concatenated (Child et al. 2019, section 5.3:
    rows, columns and channels of an image, or rows and columns of a text folded at the stride of its attention).
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int], *, std: float = 1.0, summed: bool = False) -> None:
        if len(shape) != len(widths) or not shape or min(*shape, *widths) < 1:
            raise InvalidOption(
                f"expected one width for each axis, all at least 1, got shape {tuple(shape)} and widths {tuple(widths)}"
            )
        if summed and len(set(widths)) > 1:
            raise InvalidOption(f"summed tables must have one width, got {tuple(widths)}")
        super().__init__(math.prod(shape), widths[0] if summed else sum(widths))
        self.shape, self.summed = tuple(shape), summed
        self.tables = nn.ParameterList(torch.randn(size, width) * std for size, width in zip(shape, widths))

    def rows(self, positions: Int[Tensor, "*places"]) -> Float[Tensor, "*places width"]:
        columns = coordinates(positions, self.shape)
        codes = [functional.embedding(column, table) for column, table in zip(columns, self.tables)]
        return torch.stack(codes).sum(0) if self.summed else torch.cat(codes, -1)

    def extra_repr(self) -> str:
        return f"shape={self.shape}, summed={self.summed}"


def coordinates(positions: Tensor, axes: Sequence[int]) -> list[Tensor]:
    """The coordinates of positions in a grid whose last axis varies fastest; the first axis is unbounded."""
    inner = []
    for size in reversed(axes[1:]):
        inner.append(positions % size)
        positions = positions // size
    return [positions, *reversed(inner)]


__all__ = [
    "AbsolutePositions",
    "AxialPositions",
    "LearnedPositions",
    "Positions",
    "SinusoidalPositions",
    "Waves",
    "check_layout",
    "check_positions",
    "coordinates",
]
