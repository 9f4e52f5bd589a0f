"""Rotary position embedding: queries and keys are rotated by their position (Su et al. 2021)."""

from collections.abc import Sequence
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.positions import Positions, Waves, check_layout, check_positions, coordinates
from longspan.nn.rotary_scaling import RotaryScaling, amplitude, frequencies

RotaryLayout = Literal["half", "interleaved"]
Heads = Float[Tensor, "batch heads length head_dim"]


class Rotary(nn.Module):
    """Rotates each pair of features of a query or key by position × frequency (Su et al. 2021, section 3.2).

    The product of a rotated query and a rotated key depends on their offset alone. `half` pairs feature i with
    i + rotated/2 (GPT-NeoX, Llama), `interleaved` pairs 2i with 2i+1 (the paper, GPT-J): the same model only after
    permuting its weights. The first `rotated` features are rotated (default: all); `scaling` changes their frequencies
    for longer texts.

    `axes` folds the sequence into a grid, such as the rows of an image: each axis rotates a share of the pairs by its
    own coordinate (Heo et al. 2024, section 3.2, axial frequencies), so that vertical neighbours are as near as
    horizontal ones. The length of the first axis follows from the sequence.
    """

    def __init__(
        self,
        head_dim: int,
        base: float = 10000.0,
        layout: RotaryLayout = "half",
        rotated: int | None = None,
        scaling: RotaryScaling | None = None,
        axes: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_layout(layout, get_args(RotaryLayout))
        rotated = head_dim if rotated is None else rotated
        if rotated % 2 or not 0 < rotated <= head_dim:
            raise InvalidOption(f"rotated must be even, above 0 and at most head_dim={head_dim}, got {rotated}")
        self.axes = None if axes is None else tuple(axes)
        if self.axes is not None and (not self.axes or min(self.axes) < 1 or rotated % (2 * len(self.axes))):
            raise InvalidOption(
                f"axes must be at least 1 and divide the {rotated} rotated features into pairs, not {self.axes}"
            )
        if scaling is not None and scaling.short is not None and len(scaling.short) != rotated // 2:
            raise InvalidOption(
                f"rotary scaling longrope has {len(scaling.short)} divisors for {rotated // 2} pairs of features"
            )
        self.head_dim = head_dim
        self.rotated = rotated
        self.base = base
        self.layout = layout
        self.scaling = scaling
        encode = partial(
            _rotation_waves, rotated=rotated, base=base, layout=layout, scaling=scaling, axes=self.axes or (1,)
        )
        self._waves = Waves(encode)
        # Texts above this length are rotated otherwise, all of their tokens.
        self.switch_length = scaling.original_length if scaling is not None and scaling.kind == "longrope" else None
        self._longer = Waves(partial(encode, longer=True)) if self.switch_length is not None else None

    def forward(
        self, x: Heads, *, start: int = 0, positions: Positions | None = None, limit: int | None = None
    ) -> Heads:
        """x rotated at its positions; with `limit`, those beyond it are rotated as if they were there."""
        if x.ndim != 4 or x.shape[3] != self.head_dim:
            raise InvalidInput(f"expected (batch, heads, length, {self.head_dim}), got {tuple(x.shape)}")
        check_positions(x.shape[0], x.shape[2], start, positions)
        # Half precision rotates in float32: a rounded angle is a wrong offset.
        precise = torch.promote_types(x.dtype, torch.float32)
        if limit is not None:
            waves = self._limited(x, start, positions, precise, limit)
        elif self._longer is None:
            waves = self._waves(x.shape[2], start, positions, x.device, precise)
        else:
            waves = self._by_length(x, start, positions, precise, self._longer)
        if positions is not None:
            waves = waves[:, None]  # the same for every head
        cosine, sine = waves.chunk(2, -1)
        rotated_part, rest = (
            (x, None) if self.rotated == self.head_dim else x.split((self.rotated, self.head_dim - self.rotated), -1)
        )
        rotated_part = rotated_part.to(precise)
        # Each feature times its cosine plus its partner times its sine: few calls, which matters when decoding.
        if self.layout == "half":
            other = rotated_part.roll(self.rotated // 2, -1)
        else:
            other = rotated_part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        out = torch.addcmul(rotated_part * cosine, other, sine).to(x.dtype)
        return out if rest is None else torch.cat((out, rest), -1)

    def _by_length(
        self, x: Tensor, start: int, positions: Tensor | None, precise: torch.dtype, longer: Waves
    ) -> Tensor:
        """The waves of texts that end here: other ones above the original length, for each row by itself."""
        assert self.switch_length is not None
        length = x.shape[2]
        if positions is None:
            chosen = longer if start + length > self.switch_length else self._waves
            return chosen(length, start, None, x.device, precise)
        short, long = (waves(length, start, positions, x.device, precise) for waves in (self._waves, longer))
        return torch.where((positions.amax(1) >= self.switch_length)[:, None, None], long, short)

    def _limited(self, x: Tensor, start: int, positions: Tensor | None, precise: torch.dtype, limit: int) -> Tensor:
        """The waves of positions of at most `limit`, chosen by the length of the whole text."""
        tables = [self._waves] if self._longer is None else [self._waves, self._longer]
        rows = [waves(limit + 1, 0, None, x.device, precise) for waves in tables]
        if positions is None:
            last = start + x.shape[2]
            table = rows[-1 if self.switch_length is not None and last > self.switch_length else 0]
            if not torch.compiler.is_compiling() and start >= limit:  # decoding: one row for all
                return table[limit:]
            return table[torch.arange(start, last, device=x.device).clamp_max(limit)]
        index = positions.clamp(0, limit)
        if self.switch_length is None:
            return rows[0][index]
        longer = (positions.amax(1) >= self.switch_length)[:, None, None]
        return torch.where(longer, rows[-1][index], rows[0][index])

    def extra_repr(self) -> str:
        shown = f"head_dim={self.head_dim}, rotated={self.rotated}, base={self.base:g}, layout={self.layout!r}"
        return shown if self.axes is None else f"{shown}, axes={self.axes}"


def _rotation_waves(
    positions: Tensor,
    *,
    rotated: int,
    base: float,
    layout: str,
    scaling: RotaryScaling | None,
    axes: tuple[int, ...],
    longer: bool = False,
) -> Tensor:
    """The cosines of all features, then the sines, negated for the first of each pair."""
    rates = frequencies(rotated // len(axes), base, scaling, longer=longer).to(positions.device)
    angles = torch.cat([column[..., None] * rates for column in coordinates(positions, axes)], -1)
    cosine, sine = angles.cos(), angles.sin()
    if layout == "half":
        waves = torch.cat((cosine, cosine, -sine, sine), -1)
    else:
        waves = torch.cat([torch.stack(pair, -1).flatten(-2) for pair in ((cosine, cosine), (-sine, sine))], -1)
    return waves if scaling is None else waves * amplitude(scaling)


__all__ = ["Rotary"]
