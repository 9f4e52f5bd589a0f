"""Learning rate schedules: the rate as a function of the step."""

import math
from dataclasses import dataclass

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption

KINDS = ("constant", "linear", "linear_from_start", "cosine", "cosine_cycle", "noam", "rsqrt")


@dataclass(frozen=True, kw_only=True)
class Schedule(config.Options):
    """Warm-up, then one of several decays.

    `linear` falls from the end of the warm-up; `linear_from_start`, as in BERT's original code, follows the line from
    step 0, with a small jump at the end of the warm-up. `noam` is the schedule of Vaswani et al. (2017), scaled by
    `rate`. Two come from the Long Range Arena's code: `rsqrt` is rate · min(1, t/warmup) / √max(t, warmup), and
    `cosine_cycle` is a cosine over all steps that starts after the warm-up, and so ends above 0."""

    kind: str = option("cosine", "how the rate falls after the warm-up", choices=KINDS)
    rate: float = option(1e-3, "the highest rate; for noam and rsqrt a factor", low=0)
    warmup: int = option(0, "steps of linear warm-up", low=0)
    final: float = option(0.0, "the last rate as a fraction of the highest", low=0, high=1)

    def at(self, step: int, steps: int, width: int | None = None) -> float:
        """The rate of step 1, 2, …, `steps`; noam needs the model's `width`."""
        if self.kind == "noam":
            if width is None:
                raise InvalidOption("noam divides by the square root of the model's width, but this model has none")
            slope = step * float(max(self.warmup, 1)) ** -1.5
            return float(self.rate * width**-0.5 * min(step**-0.5, slope))
        if self.kind == "rsqrt":
            warm = max(self.warmup, 1)
            return float(self.rate * min(1.0, step / warm) * max(step, warm) ** -0.5)
        if step < self.warmup:
            return self.rate * step / self.warmup
        if self.kind == "constant":
            return self.rate
        if self.kind == "cosine_cycle":
            return self.rate * (1 + math.cos(math.pi * ((step - self.warmup) / steps % 1.0))) / 2
        first = 0 if self.kind == "linear_from_start" else self.warmup
        done = min(1.0, (step - first) / max(steps - first, 1))
        left = (1 + math.cos(math.pi * done)) / 2 if self.kind == "cosine" else 1 - done
        return self.rate * (self.final + (1 - self.final) * left)


__all__ = ["KINDS", "Schedule"]
