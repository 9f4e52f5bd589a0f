"""Adaptive computation time: each position decides for itself after how many steps it is done.

Graves 2016, as Dehghani et al. 2018 (section 2.2, appendix C) apply it to every position of a text. At step t a running
position has the probability p of halting. While the probabilities sum up to no more than the threshold the step counts
with weight p; the step that takes them past it counts with what is left of 1, the remainder, and is the last one.

The paper says two things of two questions, and both answers are here:

- What comes out. The listing averages, y ← w·s + (1 - w)·y from y = 0 on, so that earlier steps fade and the weights do
  not sum up to 1: combine="listing". Graves sums, y ← y + w·s: combine="accumulate".
- What others read of a position that has halted. The text copies its state: halted="copy". The listing goes on changing
  it and only freezes y: halted="evolve".

A position that is still running at the last step has used up less than 1 in the listing; with `force_remainder` its
last step gets all that is left. Padding never runs: it keeps no loop alive, and is no part of the mean ponder time.
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
    """How far the positions of a text have come."""

    output: Hidden  # y
    running: Bool[Tensor, "batch length"]
    total: PerPosition  # c: the probabilities that were spent
    updates: PerPosition  # N: the steps that were taken
    remainder: PerPosition  # R: the weight of the last step of those that have halted

    @property
    def done(self) -> bool:
        """Whether no position has another step to take; a compiled program never asks.

        On an accelerator this waits for the device, which costs less than a step of the whole stack.
        """
        return not traced(self.running) and not bool(self.running.any())


class Halting(nn.Module):
    """The halting unit σ(w·x + b), and the accounts of the positions.

    >>> progress = halting.start(x, key_mask)
    >>> for step in range(steps):
    ...     x, progress = halting.step(progress, halting.probability(x), x, block(x), last=step == steps - 1)
    >>> y, cost = progress.output, halting.cost(progress, key_mask)

    The bias starts at 1, as released: positions then halt after two steps until they have learned better.
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
                raise UnknownName(f"no way of halting is called {name!r}; {suggest(name, known)}")
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
        """Of halting at this step; at least float32, as many of them are summed up and compared."""
        logits = self.unit(x)[..., 0]
        return logits.to(torch.promote_types(logits.dtype, torch.float32)).sigmoid()

    def start(self, x: Hidden, key_mask: KeyMask | None = None) -> HaltingProgress:
        """Before the first step: all that is real runs."""
        running = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if key_mask is None else key_mask
        nothing = torch.zeros(x.shape[:2], dtype=torch.promote_types(x.dtype, torch.float32), device=x.device)
        return HaltingProgress(torch.zeros_like(x), running, nothing, nothing, nothing)

    def step(
        self, progress: HaltingProgress, probability: PerPosition, before: Hidden, after: Hidden, *, last: bool = False
    ) -> tuple[Hidden, HaltingProgress]:
        """The states that the next step starts from, and the accounts, once `before` has become `after`."""
        running, left = progress.running, 1 - progress.total
        over = progress.total + probability > self.threshold
        if last and self.force_remainder:
            over = torch.ones_like(over)
        halts, goes_on = running & over, running & ~over
        weight = torch.where(halts, left, probability * goes_on)
        share = weight[..., None].to(after.dtype)
        kept = progress.output if self.combine == "accumulate" else progress.output * (1 - share)
        state = after if self.halted == "evolve" else torch.where(running[..., None], after, before)
        return state, HaltingProgress(
            kept + share * after,
            goes_on,
            progress.total + weight,
            progress.updates + running,
            progress.remainder + left * halts,
        )

    def cost(self, progress: HaltingProgress, key_mask: KeyMask | None = None) -> Float[Tensor, ""]:
        """What a training pass pays for its steps: `ponder` times the mean of N + R over what is real."""
        time = progress.updates + progress.remainder
        if key_mask is None:
            return self.ponder * time.mean()
        return self.ponder * (time * key_mask).sum() / key_mask.sum().clamp_min(1)

    def extra_repr(self) -> str:
        return f"threshold={self.threshold:g}, combine={self.combine!r}, halted={self.halted!r}"


__all__ = ["Combine", "Halted", "Halting", "HaltingProgress"]
