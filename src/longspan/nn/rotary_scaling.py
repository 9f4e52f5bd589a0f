"""Rotary frequencies for texts longer than those of the first training.

A frequency makes `original_length · frequency / 2π` turns in a text of the original length. Three kinds divide low
frequencies by `factor`, so that a text `factor` times longer makes no more turns; `llama3` and `yarn` keep high ones.
`longrope` divides each frequency by a number of its own, and has other numbers for texts above the original length.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption

KINDS = ("linear", "llama3", "yarn", "longrope")


@dataclass(frozen=True, kw_only=True)
class RotaryScaling(config.Options):
    """Which rotary frequencies are divided, and by how much.

    `linear` (Chen et al. 2023) divides every frequency. `llama3` (Meta 2024) and `yarn` (Peng et al. 2023) blend from
    divided to original between `low` and `high` turns, the former linearly in turns, the latter in features.
    `longrope` (Ding et al. 2024) has a divisor for each pair: `short` for texts up to the original length, `long` for
    longer ones, all of whose tokens are then rotated otherwise.
    """

    kind: str = option("linear", "which frequencies are divided", choices=KINDS)
    factor: float = option(1.0, "what they are divided by", low=1)
    original_length: int | None = option(None, "llama3, yarn, longrope: the longest text of the first training", low=1)
    low: float = option(1.0, "llama3, yarn: turns up to which a frequency is divided (yarn's β slow)", low=0)
    high: float = option(4.0, "llama3, yarn: turns from which it is left alone (yarn's β fast: 32)", low=0)
    amplitude: float | None = option(
        None, "yarn, longrope: of the rotated features; by their papers' formulas of the factor unless given", low=0
    )
    short: tuple[float, ...] | None = option(None, "longrope: divisors up to the original length", above=0)
    long: tuple[float, ...] | None = option(None, "longrope: divisors above the original length", above=0)
    round_bounds: bool = option(
        True, "yarn: whether the first and last blended features are rounded to whole numbers", formerly="whole"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind == "linear":
            return
        if self.original_length is None:
            raise InvalidOption(f"rotary scaling {self.kind} depends on the first training; give original_length")
        if self.kind == "longrope":
            if self.short is None or self.long is None or len(self.short) != len(self.long):
                raise InvalidOption("rotary scaling longrope needs as many divisors short as long")
            return
        if not self.low < self.high:
            raise InvalidOption(f"rotary scaling {self.kind}: low {self.low:g} must be under high {self.high:g}")


def frequencies(
    rotated: int, base: float, scaling: RotaryScaling | None = None, *, longer: bool = False
) -> Float[Tensor, " pairs"]:
    """base^(-2i/rotated) for each pair of features, scaled; in float64.

    `longer`: of a text above the original length, which matters for `longrope`.
    """
    plain = base ** -(torch.arange(0, rotated, 2, dtype=torch.float64) / rotated)
    if scaling is None:
        return plain
    if scaling.kind == "linear":
        return plain / scaling.factor
    if scaling.kind == "longrope":
        divisors = scaling.long if longer else scaling.short
        return plain / torch.tensor(divisors, dtype=torch.float64)
    kept = _kept_by_turns(plain, scaling) if scaling.kind == "llama3" else _kept_by_features(rotated, base, scaling)
    return kept * plain + (1 - kept) * plain / scaling.factor


def amplitude(scaling: RotaryScaling | None) -> float:
    """The factor of rotated queries and keys."""
    if scaling is None or scaling.kind not in ("yarn", "longrope"):
        return 1.0
    if scaling.kind == "longrope" and scaling.amplitude is None:
        assert scaling.original_length is not None
        if scaling.factor <= 1 or scaling.original_length < 2:
            return 1.0
        return math.sqrt(1 + math.log(scaling.factor) / math.log(scaling.original_length))
    return 0.1 * math.log(scaling.factor) + 1 if scaling.amplitude is None else scaling.amplitude


def _kept_by_turns(plain: Tensor, scaling: RotaryScaling) -> Tensor:
    """The share of each frequency that is not divided, 0 to 1."""
    assert scaling.original_length is not None
    turns = scaling.original_length * plain / (2 * math.pi)
    return ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)


def _kept_by_features(rotated: int, base: float, scaling: RotaryScaling) -> Tensor:
    def pair(turns: float) -> float:
        """The (fractional) index of the pair that makes this many turns."""
        assert scaling.original_length is not None
        return rotated * math.log(scaling.original_length / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(scaling.high), pair(scaling.low)
    if scaling.round_bounds:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotated - 1)
    # The last bound counts features, not pairs, as in the authors' code; two equal bounds are a step.
    ramp = (torch.arange(rotated // 2, dtype=torch.float64) - first) / (last - first or 0.001)
    return 1 - ramp.clamp(0, 1)


__all__ = ["KINDS", "RotaryScaling", "amplitude", "frequencies"]
