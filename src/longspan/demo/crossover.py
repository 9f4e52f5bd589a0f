"""From which length does a mechanism beat PyTorch's fused attention on this machine?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from longspan.attention import build
from longspan.measure.timing import compare

MECHANISMS: Mapping[str, Mapping[str, Any]] = {
    "window": {"window": 127},
    "linear": {},
    "performer": {"features": 64},
    "nystrom": {"landmarks": 32, "kernel": 0},
}
LENGTHS = (256, 512, 1024, 2048, 4096)
HEADS, WIDTH = 4, 64
FUSED = "fused attention"
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Crossover:
    """Seconds of a forward pass by length."""

    lengths: Sequence[int]
    seconds: Mapping[str, Sequence[float]]  # the mechanisms, and fused attention

    def pays_from(self, name: str) -> int | None:
        """The first length from which the mechanism is faster at all measured lengths; None: at none."""
        faster = [mine < fused for mine, fused in zip(self.seconds[name], self.seconds[FUSED])]
        for index, length in enumerate(self.lengths):
            if all(faster[index:]):
                return length
        return None


def crossover(tell: Tell, lengths: Sequence[int] = LENGTHS, repeats: int = 3) -> Crossover:
    """Time all mechanisms and fused attention in turns at each length; minima count."""
    torch.manual_seed(0)
    seconds: dict[str, list[float]] = {name: [] for name in (FUSED, *MECHANISMS)}
    sizes: dict[str, Any] = {"heads": HEADS, "head_dim": WIDTH, "max_length": max(lengths)}
    built = {name: build(name, **sizes, **options).eval() for name, options in MECHANISMS.items()}
    with torch.no_grad():
        for done, length in enumerate(lengths):
            tell(done, len(lengths), f"{length} tokens")
            q, k, v = (torch.randn(1, HEADS, length, WIDTH) for _ in range(3))
            cases: dict[str, Callable[[], object]] = {
                FUSED: partial(torch.nn.functional.scaled_dot_product_attention, q, k, v)
            }
            cases |= {name: partial(mechanism, q, k, v) for name, mechanism in built.items()}
            for name, least in compare(cases, repeats).items():
                seconds[name].append(least)
    return Crossover(tuple(lengths), seconds)
