"""One block applied again and again: the body of the Universal Transformer (Dehghani et al. 2018, section 2).

    H^t = Block(H^{t-1} + P^t),  t = 1 … T

P^t tells where a token stands and which step it is at; it is added before every step, and the block's residual
connections carry it on. Either all tokens take T steps, or each halts by itself (`nn/halting.py`).

Decoding keeps one state for each step. A token that halts early leaves the steps above it untaken, but a later token
that comes so far reads it there. So a token's state then *waits* below the first step that it has not taken, and takes
it together with the first later token that does: a text costs as many steps as its slowest token so far, not T.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.state import Rows, State, append_mask
from longspan.errors import InvalidInput, UnknownName, suggest
from longspan.nn.block import Block, BlockState
from longspan.nn.halting import Halting, HaltingProgress
from longspan.nn.inputs import NO_INPUTS, BlockInputs
from longspan.nn.multihead import Context
from longspan.nn.positions import AbsolutePositions, LearnedPositions, Positions, SinusoidalPositions
from longspan.nn.stack import Body, check_streams
from longspan.shapes import Hidden

StepCode = Literal["sinusoidal", "learned", "none"]


class StepSignal(nn.Module):
    """P^t: the code of the place and the code of the step, either of which may be left out.

    The paper has sinusoids of both, counted from 1; the released code learns a row for each step (deviation 1).
    """

    def __init__(
        self, width: int, steps: int, *, position: AbsolutePositions | None, step: StepCode = "sinusoidal"
    ) -> None:
        super().__init__()
        if step not in get_args(StepCode):
            raise UnknownName(f"no code of steps is called {step!r}; {suggest(step, get_args(StepCode))}")
        self.position = position
        self.step: AbsolutePositions | None = None
        if step != "none":
            self.step = SinusoidalPositions(width) if step == "sinusoidal" else LearnedPositions(steps, width, std=1.0)

    def places(self, x: Hidden, start: int, positions: Positions | None) -> Tensor | None:
        """The codes of the places of x, the same at every step."""
        if self.position is None:
            return None
        if isinstance(self.position, SinusoidalPositions):
            start, positions = (start + 1, None) if positions is None else (0, positions + 1)
        return self.position(torch.zeros_like(x[:1] if positions is None else x), start=start, positions=positions)

    def forward(self, x: Hidden, step: int, places: Tensor | None) -> Hidden:
        """x + P^t, where `step` is t: 1, 2, …"""
        x = x if places is None else x + places
        if self.step is None:
            return x
        return x + self.step.code(x[:, :1], step if isinstance(self.step, SinusoidalPositions) else step - 1, None)


@dataclass(frozen=True)
class PendingState(State):
    """Tokens before a step that no token has taken since they came: their states, masks and positions."""

    x: Rows  # (batch, 1, tokens, width)
    key_mask: Rows | None
    positions: Rows


@dataclass(frozen=True)
class UniversalState(State):
    """For each step, the state of the block (without the context, which all share) and who waits before it."""

    steps: tuple[BlockState, ...]
    waiting: tuple[PendingState | None, ...]
    context: Context | None
    length: int
    align: bool = False  # whether `alignment` is wanted
    alignment: Tensor | None = None  # (batch, new tokens, source): at the last step of each token, mean over heads


@dataclass(frozen=True)
class _Flow:
    """The tokens that take a step together."""

    x: Tensor
    key_mask: Tensor | None
    positions: Tensor | None


class UniversalStack(Body):
    """`block` applied `steps` times, or until every token has halted; then `norm`."""

    def __init__(
        self, block: Block, norm: nn.Module, *, width: int, steps: int, signal: StepSignal, halting: Halting | None
    ) -> None:
        super().__init__(width)
        self.block, self.norm, self.steps, self.signal, self.halting = block, norm, steps, signal, halting
        # Of a training pass: ponder time, and what the mechanisms add at each step.
        self.auxiliary_loss: Tensor | None = None

    def forward(self, x: Hidden, inputs: BlockInputs = NO_INPUTS) -> Hidden:
        check_streams([self.block.mixer.mechanism], inputs.streams)
        key_mask = inputs.key_mask
        block_inputs = replace(inputs, context=self.block.prepare(inputs), context_mask=None)
        places = self.signal.places(x, 0, inputs.positions)
        progress = None if self.halting is None else self.halting.start(x, key_mask)
        losses: list[Tensor] = []
        for step in range(1, self.steps + 1):
            if progress is not None and progress.done:
                break
            marked = self.signal(x, step, places)
            after = self.block(marked, block_inputs)
            x, progress = self._halt(progress, marked, x, after, step)
            losses += self._take_losses()
        if self.training:
            if self.halting is not None and progress is not None:
                losses.append(self.halting.cost(progress, key_mask))
            self.auxiliary_loss = torch.stack(losses).sum() if losses else None
        return self.norm(x if progress is None else progress.output)

    def start(
        self,
        batch: int,
        inputs: BlockInputs = NO_INPUTS,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> UniversalState:
        """The state before the first token; with `align`, each token keeps the alignment of its last step."""
        self._check_align(inputs)
        first = self.block.start(batch, inputs, dtype=dtype, device=device)
        steps = (replace(first, context=None),) * self.steps
        return UniversalState(steps, (None,) * self.steps, first.context, 0, inputs.align)

    def extend(
        self, x: Hidden, state: UniversalState, inputs: BlockInputs = NO_INPUTS
    ) -> tuple[Hidden, UniversalState]:
        """The next tokens, any number of them, and the state after them."""
        streams = inputs.streams
        check_streams([self.block.mixer.mechanism], streams)
        if streams and any(state.waiting):
            raise InvalidInput("tokens wait without the streams that are given now; give them from the first token on")
        new, flow = x.shape[1], _Flow(x, inputs.key_mask, inputs.positions)
        steps, waiting, alignments = list(state.steps), list(state.waiting), []
        places = self.signal.places(x, state.length, inputs.positions)
        progress = None if self.halting is None else self.halting.start(x, inputs.key_mask)
        for index in range(self.steps):
            asleep = waiting[index]
            if progress is not None and progress.done and not streams:
                waiting[index] = _wait(asleep, flow, state.length)
                break
            if asleep is not None:
                waiting[index], flow = None, _wake(asleep, flow, state.length)
                places = self.signal.places(flow.x, 0, flow.positions)
            marked = self.signal(flow.x, index + 1, places)
            block_inputs = BlockInputs(
                key_mask=flow.key_mask, streams=streams, positions=flow.positions, align=state.align
            )
            out, after = self.block.extend(marked, replace(steps[index], context=state.context), block_inputs)
            steps[index] = replace(after, context=None, alignment=None)
            if after.alignment is not None:
                alignments.append(after.alignment[:, -new:])
            own, progress = self._halt(progress, marked[:, -new:], flow.x[:, -new:], out[:, -new:], index + 1)
            # Those that were woken have halted long ago.
            woken = flow.x if self.halting is not None and self.halting.halted == "copy" else out
            flow = replace(flow, x=torch.cat([woken[:, :-new], own], 1) if woken.shape[1] > new else own)
        last = _at_last_step(alignments, progress)
        y = flow.x[:, -new:] if progress is None else progress.output
        length = state.length + new
        return self.norm(y), UniversalState(tuple(steps), tuple(waiting), state.context, length, state.align, last)

    def _halt(
        self, progress: HaltingProgress | None, marked: Tensor, before: Tensor, after: Tensor, step: int
    ) -> tuple[Tensor, HaltingProgress | None]:
        """The states after step `step`, and the accounts where there is halting."""
        if self.halting is None or progress is None:
            return after, None
        probability = self.halting.probability(marked)
        return self.halting.step(progress, probability, before, after, last=step == self.steps)

    def _take_losses(self) -> list[Tensor]:
        """What the block's mechanisms add to the loss at this step, which the next step would overwrite."""
        found = []
        for module in self.block.modules() if self.training else ():
            if isinstance(module, Attention) and module.auxiliary_loss is not None:
                found.append(module.auxiliary_loss)
                module.auxiliary_loss = None
        return found


def _wait(asleep: PendingState | None, flow: _Flow, start: int) -> PendingState:
    batch, x = flow.x.shape[0], flow.x[:, None]
    if asleep is None:
        asleep = PendingState(Rows.empty(batch), None, Rows.empty(batch))
    key_mask = append_mask(asleep.key_mask, len(asleep.x), flow.key_mask, x)
    positions = _positions(flow, start)[:, None, :, None]
    return PendingState(asleep.x.append(x), key_mask, asleep.positions.append(positions))


def _wake(asleep: PendingState, flow: _Flow, start: int) -> _Flow:
    """Those that wait, in front of those that come."""
    all_of_them = _wait(asleep, flow, start)
    mask = all_of_them.key_mask
    return _Flow(
        all_of_them.x.value[:, 0],
        None if mask is None else mask.value[:, 0, :, 0],
        all_of_them.positions.value[:, 0, :, 0],
    )


def _positions(flow: _Flow, start: int) -> Tensor:
    batch, count = flow.x.shape[:2]
    if flow.positions is not None:
        return flow.positions
    return torch.arange(start, start + count, device=flow.x.device).expand(batch, -1)


def _at_last_step(alignments: list[Tensor], progress: HaltingProgress | None) -> Tensor | None:
    """Of each token, the alignment at the last step that it took."""
    if not alignments or progress is None:
        return alignments[-1] if alignments else None
    last = (progress.updates.long() - 1).clamp_min(0)[None, ..., None]
    each = torch.stack(alignments)
    return each.gather(0, last.expand(1, *each.shape[1:]))[0]


__all__ = ["StepCode", "StepSignal", "UniversalStack", "UniversalState"]
