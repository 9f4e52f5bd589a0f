"""Adaptive computation time: each position halts after its own number of steps.

Graves 2016, applied by Dehghani et al. 2018 (section 2.2, appendix C) to every position of a text. At step t a running
position halts with probability p. While the probabilities sum to at most the threshold, the step has weight p; the step
that exceeds it is the last one, and its weight is the remainder, what is left of 1.

Text and listing of the paper differ in two points; both variants are implemented:

- The output. The listing averages, y ← w·s + (1 - w)·y from y = 0, so earlier steps fade and the weights do not sum
  to 1: combine="listing". Graves sums, y ← y + w·s: combine="accumulate".
- The state that others read of a halted position. The text copies it: halted="copy". The listing continues to update
  it and freezes only y: halted="evolve".

In the listing, the weights of a position that is still running at the last step sum to less than 1; with
`force_remainder` its last step gets the rest. Padding never runs: it does not prolong the loop, and it does not count
in the mean ponder time.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.attention.devices import traced
from longspan.errors import InvalidOption, UnknownName, suggest
from longspan.nn.linear import Linear
from longspan.shapes import Hidden, KeyMask

Combine = Literal["listing", "accumulate"]
Halted = Literal["evolve", "copy"]
PerPosition = Float[Tensor, "batch length"]


@dataclass(frozen=True)
class HaltingProgress:
    """The running sums of each position."""

    output: Hidden  # y
    running: Bool[Tensor, "batch length"]
    total: PerPosition  # c: sum of the probabilities so far
    updates: PerPosition  # N: steps taken
    remainder: PerPosition  # R: weight of the last step of halted positions

    @property
    def done(self) -> bool:
        """Whether every position has halted; always False in a compiled program, which cannot look.

        On an accelerator this waits for the device, which costs less than a step of the whole stack.
        """
        return not traced(self.running) and not bool(self.running.any())


class Halting(nn.Module):
    """The halting unit σ(w·x + b), and the bookkeeping of each position.

    >>> progress = halting.start(x, key_mask)
    >>> for step in range(steps):
    ...     x, progress = halting.step(progress, halting.probability(x), x, block(x), last=step == steps - 1)
    >>> y, cost = progress.output, halting.cost(progress, key_mask)

    The bias starts at 1, as in the released code: untrained positions halt after two steps.
    """

    def __init__(
        self,
        width: int,
        *,
        threshold: float = 0.99,
        combine: Combine = "listing",
        halted: Halted = "evolve",
        force_remainder: bool = False,
        ponder: float = 0.01,
    ) -> None:
        super().__init__()
        for name, known in ((combine, get_args(Combine)), (halted, get_args(Halted))):
            if name not in known:
                raise UnknownName(f"no halting variant is called {name!r}; {suggest(name, known)}")
        if not 0 < threshold < 1:
            raise InvalidOption(f"threshold must be above 0 and below 1, not {threshold!r}")
        self.threshold, self.combine, self.halted = threshold, combine, halted
        self.force_remainder, self.ponder = force_remainder, ponder
        self.unit = Linear(width, 1)
        self.reset()

    @torch.no_grad()
    def reset(self) -> None:
        """Xavier, and the bias 1."""
        nn.init.xavier_uniform_(self.unit.weight)
        nn.init.ones_(self.unit.bias)

    def probability(self, x: Hidden) -> PerPosition:
        """The probability of halting at this step, in at least float32, as many are summed and compared."""
        logits: Tensor = self.unit(x)[..., 0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()

    def start(self, x: Hidden, key_mask: KeyMask | None = None) -> HaltingProgress:
        """Before the first step: every real position runs."""
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
        zero = torch.zeros(x.shape[:2], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        return HaltingProgress(torch.zeros_like(x), running, zero, zero, zero)

    def step(
        self, progress: HaltingProgress, probability: PerPosition, before: Hidden, after: Hidden, *, last: bool = False
    ) -> tuple[Hidden, HaltingProgress]:
        """The states that the next step starts from, and the progress after a step from `before` to `after`."""
        running, left = progress.running, 1 - progress.total
        over = progress.total + probability > self.threshold
        if last and self.force_remainder:
            over = torch.ones_like(over)
        halts, continues = running & over, running & ~over
        weight = torch.where(halts, left, probability * continues)
        share = weight[..., None].to(after.dtype)
        kept = progress.output if self.combine == "accumulate" else progress.output * (1 - share)
        state = after if self.halted == "evolve" else torch.where(running[..., None], after, before)
        return state, HaltingProgress(
            kept + share * after,
            continues,
            progress.total + weight,
            progress.updates + running,
            progress.remainder + left * halts,
        )

    def cost(self, progress: HaltingProgress, key_mask: KeyMask | None = None) -> Float[Tensor, ""]:
        """The ponder cost of a training pass: `ponder` times the mean of N + R over real positions."""
        time = progress.updates + progress.remainder
        if key_mask is None:
            return self.ponder * time.mean()
        return self.ponder * (time * key_mask).sum() / key_mask.sum().clamp_min(1)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold:g}, combine={self.combine!r}, halted={self.halted!r}"


__all__ = ["Combine", "Halted", "Halting", "HaltingProgress"]
