"""One block applied repeatedly: the body of the Universal Transformer (Dehghani et al. 2018, section 2).

    H^t = Block(H^{t-1} + P^t),  t = 1 … T

P^t encodes the token's position and the step; it is added before every step, and the residual connections carry it.
Either all tokens take T steps, or each halts on its own (`nn/halting.py`).

Decoding keeps one state per step. A token that halts early skips the remaining steps, but a later token that takes them
must read it there. So its hidden state *waits* before the first skipped step, and takes it together with the first
later token that does. A text costs as many steps as its slowest token so far, not T.
"""

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.devices import traced
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
    """P^t: the codes of position and step; either may be left out.

    The paper uses sinusoids for both, counted from 1; the released code learns a row for each step (std 1).
    """

    def __init__(
        self, width: int, steps: int, *, position: AbsolutePositions | None, step: StepCode = "sinusoidal"
    ) -> None:
        super().__init__()
        if step not in get_args(StepCode):
            raise UnknownName(f"no step code is called {step!r}; {suggest(step, get_args(StepCode))}")
        self.position = position
        self.step: AbsolutePositions | None = None
        if step != "none":
            self.step = SinusoidalPositions(width) if step == "sinusoidal" else LearnedPositions(steps, width, std=1.0)

    def position_code(self, x: Hidden, start: int, positions: Positions | None) -> Tensor | None:
        """The position codes of x, the same at every step."""
        if self.position is None:
            return None
        if isinstance(self.position, SinusoidalPositions):
            start, positions = (start + 1, None) if positions is None else (0, positions + 1)
        zeros = torch.zeros_like(x[:1] if positions is None else x)
        code: Tensor = self.position(zeros, start=start, positions=positions)
        return code

    def forward(self, x: Hidden, step: int, position_code: Tensor | None) -> Hidden:
        """x + P^t, where `step` is t: 1, 2, …"""
        x = x if position_code is None else x + position_code
        if self.step is None:
            return x
        return x + self.step.code(x[:, :1], step if isinstance(self.step, SinusoidalPositions) else step - 1, None)


@dataclass(frozen=True)
class PendingState(State):
    """Tokens that wait before a step: their hidden states, masks and positions."""

    x: Rows  # (batch, 1, tokens, width)
    key_mask: Rows | None
    positions: Rows


@dataclass(frozen=True)
class UniversalState(State):
    """For each step, the state of the block (without the shared context) and the tokens that wait before it."""

    steps: tuple[BlockState, ...]
    waiting: tuple[PendingState | None, ...]
    context: Context | None
    length: int
    align: bool = False  # whether to keep `alignment`
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
        # After a training pass: the ponder cost plus the mechanisms' losses of each step.
        self.auxiliary_loss: Tensor | None = None
        self.halting_steps: Tensor | None = None  # (batch, length): the steps of each position in the last pass

    def forward(self, x: Hidden, inputs: BlockInputs = NO_INPUTS) -> Hidden:
        check_streams([self.block.mixer.mechanism], inputs.streams)
        key_mask = inputs.key_mask
        block_inputs = replace(inputs, context=self.block.prepare(inputs), context_mask=None)
        code = self.signal.position_code(x, 0, inputs.positions)
        progress = None if self.halting is None else self.halting.start(x, key_mask)
        losses: list[Tensor] = []
        for step in range(1, self.steps + 1):
            if progress is not None and progress.done:
                break
            marked = self.signal(x, step, code)
            after = self.block(marked, block_inputs)
            x, progress = self._halt(progress, marked, x, after, step)
            losses += self._take_losses()
        if self.training:
            if self.halting is not None and progress is not None:
                losses.append(self.halting.cost(progress, key_mask))
            self.auxiliary_loss = torch.stack(losses).sum() if losses else None
        if progress is not None and not traced(progress.updates):
            self.halting_steps = progress.updates.detach()
        out: Tensor = self.norm(x if progress is None else progress.output)
        return out

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
            raise InvalidInput("earlier tokens were read without streams; give them from the first token on")
        new, flow = x.shape[1], _Flow(x, inputs.key_mask, inputs.positions)
        steps, waiting, alignments = list(state.steps), list(state.waiting), []
        code = self.signal.position_code(x, state.length, inputs.positions)
        progress = None if self.halting is None else self.halting.start(x, inputs.key_mask)
        for index in range(self.steps):
            pending = waiting[index]
            if progress is not None and progress.done and not streams:
                waiting[index] = _wait(pending, flow, state.length)
                break
            if pending is not None:
                waiting[index], flow = None, _wake(pending, flow, state.length)
                code = self.signal.position_code(flow.x, 0, flow.positions)
            marked = self.signal(flow.x, index + 1, code)
            block_inputs = BlockInputs(
                key_mask=flow.key_mask, streams=streams, positions=flow.positions, align=state.align
            )
            out, after = self.block.extend(marked, replace(steps[index], context=state.context), block_inputs)
            steps[index] = replace(after, context=None, alignment=None)
            if after.alignment is not None:
                alignments.append(after.alignment[:, -new:])
            new_x, progress = self._halt(progress, marked[:, -new:], flow.x[:, -new:], out[:, -new:], index + 1)
            # Tokens that waited have halted already.
            earlier = flow.x if self.halting is not None and self.halting.halted == "copy" else out
            flow = replace(flow, x=torch.cat([earlier[:, :-new], new_x], 1) if earlier.shape[1] > new else new_x)
        last = _at_last_step(alignments, progress)
        y = flow.x[:, -new:] if progress is None else progress.output
        length = state.length + new
        return self.norm(y), UniversalState(tuple(steps), tuple(waiting), state.context, length, state.align, last)

    def _halt(
        self, progress: HaltingProgress | None, marked: Tensor, before: Tensor, after: Tensor, step: int
    ) -> tuple[Tensor, HaltingProgress | None]:
        """The states after step `step`, and the progress of halting."""
        if self.halting is None or progress is None:
            return after, None
        probability = self.halting.probability(marked)
        return self.halting.step(progress, probability, before, after, last=step == self.steps)

    def _take_losses(self) -> list[Tensor]:
        """The auxiliary losses of the block's mechanisms at this step; the next step would overwrite them."""
        losses = []
        for module in self.block.modules() if self.training else ():
            if isinstance(module, Attention) and module.auxiliary_loss is not None:
                losses.append(module.auxiliary_loss)
                module.auxiliary_loss = None
        return losses


def _wait(pending: PendingState | None, flow: _Flow, start: int) -> PendingState:
    batch, x = flow.x.shape[0], flow.x[:, None]
    if pending is None:
        pending = PendingState(Rows.empty(batch), None, Rows.empty(batch))
    key_mask = append_mask(pending.key_mask, len(pending.x), flow.key_mask, x)
    positions = _positions(flow, start)[:, None, :, None]
    return PendingState(pending.x.append(x), key_mask, pending.positions.append(positions))


def _wake(pending: PendingState, flow: _Flow, start: int) -> _Flow:
    """The pending tokens followed by the new ones."""
    merged = _wait(pending, flow, start)
    mask = merged.key_mask
    return _Flow(
        merged.x.value[:, 0],
        None if mask is None else mask.value[:, 0, :, 0],
        merged.positions.value[:, 0, :, 0],
    )


def _positions(flow: _Flow, start: int) -> Tensor:
    batch, count = flow.x.shape[:2]
    if flow.positions is not None:
        return flow.positions
    return torch.arange(start, start + count, device=flow.x.device).expand(batch, -1)


def _at_last_step(alignments: list[Tensor], progress: HaltingProgress | None) -> Tensor | None:
    """The alignment of each token at its last step."""
    if not alignments or progress is None:
        return alignments[-1] if alignments else None
    last = (progress.updates.long() - 1).clamp_min(0)[None, ..., None]
    stacked = torch.stack(alignments)
    return stacked.gather(0, last.expand(1, *stacked.shape[1:]))[0]


__all__ = ["StepCode", "StepSignal", "UniversalStack", "UniversalState"]
