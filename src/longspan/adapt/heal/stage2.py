"""Stage 2, distillation: the whole student learns the teacher's predictions, by adapters or with all its weights.

    causal models   KL(teacher ‖ student) at temperature 1 + 0.1 · loss of the next token
    encoders        MSE of the last states + 0.1 · loss of masked tokens, where there is a head for them

The features, gates and mixes of the swapped mechanisms are trained on, at a tenth of their rate.
"""

from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.adapt.heal.lora import Adapters
from longspan.adapt.heal.options import HealOptions
from longspan.adapt.heal.pair import Pair
from longspan.adapt.heal.parts import has_window, window_of, with_window
from longspan.adapt.heal.schedule import draw_width
from longspan.models.base import CausalModel, TextHeads

FEW = 2**23  # logits in memory at once: a large vocabulary is worked through in pieces of a text
MASKED = 0.15


class Distillation:
    """Stage 2 of a pair."""

    name = "2"

    def __init__(self, pair: Pair, options: HealOptions) -> None:
        self.pair, self.options = pair, options
        self.adapters: Adapters | None = None
        if not options.full:
            mixers = {f"layer{layer}": pair.mixers(pair.student)[layer] for layer in pair.layers}
            self.adapters = Adapters(mixers, rank=options.rank, alpha=options.alpha, seed=options.seed)
        own = pair.own_parameters()
        if options.full:
            rest = {name: p for name, p in pair.student.named_parameters() if name not in own}
        else:
            assert self.adapters is not None
            rest = self.adapters.parameters()
        self._own, self._rest = own, rest

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        return {**self._own, **self._rest}

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups with their highest rates."""
        groups = [{"params": list(self._rest.values()), "top": self.options.rate_stage2}]
        if self._own:
            top = self.options.rate1 * self.options.feature_rate
            groups.append({"params": list(self._own.values()), "top": top})
        return groups

    def prepare(self, ids: Tensor) -> None:
        """Nothing to do before the first step."""

    def step(self, ids: Tensor, step: int, steps: int) -> float:
        """Adds the gradients of a batch; returns its loss."""
        with ExitStack() as held:
            self._drop_windows(held, step)
            if not self.pair.causal:
                loss = self._encoder_loss(ids, step)
                loss.backward()
                return float(loss.detach())
            with torch.no_grad():
                theirs = self.pair.teacher.text_states(ids)  # type: ignore[operator]
            ours = self.pair.student.text_states(ids)  # type: ignore[operator]
            # The output layer is worked through in pieces: logits of a large vocabulary would fill the memory.
            leaf = ours.detach().requires_grad_()
            total = self._pieces(leaf, theirs, ids)
            ours.backward(leaf.grad)
            return total

    def _drop_windows(self, held: ExitStack, step: int) -> None:
        if not self.options.window_dropout2:
            return
        for layer in self.pair.layers:
            mechanism = self.pair.mixers(self.pair.student)[layer].mechanism
            if has_window(mechanism):
                off = self.options.window_dropout2
                width = draw_width(window_of(mechanism), off, step=step, layer=layer, seed=self.options.seed + 1)
                held.enter_context(with_window(mechanism, 0 if width == 0 else None))

    def _pieces(self, ours: Tensor, theirs: Tensor, ids: Tensor) -> float:
        """The loss of a batch; adds its gradients to the student's states and output layer."""
        student, teacher = self.pair.student, self.pair.teacher
        assert isinstance(student, CausalModel) and isinstance(teacher, CausalModel)
        count, total = ids.shape[0] * (ids.shape[1] - 1), 0.0
        size = max(1, FEW // (student.options.vocabulary * ids.shape[0]))
        for start in range(0, ids.shape[1] - 1, size):
            stop = min(start + size, ids.shape[1] - 1)
            logits = student.logits(ours[:, start:stop]).flatten(0, 1)
            with torch.no_grad():
                target = teacher.logits(theirs[:, start:stop]).flatten(0, 1)
                following = ids[:, start + 1 : stop + 1].flatten()
                loss, gradient = _distil(logits.detach(), target, following, self.options.next_token)
            logits.backward(gradient.div_(count))
            total += float(loss) / count
        return total

    def _encoder_loss(self, ids: Tensor, step: int) -> Tensor:
        student, mask = self.pair.student, self.pair.tokenizer.mask
        with torch.no_grad():
            theirs = self.pair.teacher.text_states(ids)  # type: ignore[operator]
        loss = functional.mse_loss(student.text_states(ids), theirs)  # type: ignore[operator]
        if self.options.next_token and mask is not None and _fills_masks(student):
            assert isinstance(student, TextHeads)
            drawn = torch.Generator().manual_seed(self.options.seed * 1_000_003 + step)
            chosen = torch.rand(ids.shape, generator=drawn) < MASKED
            chosen[:, 0] = True  # at least one
            logits = student.outputs(ids.masked_fill(chosen, mask), chosen=chosen)["masked"]
            loss = loss + self.options.next_token * functional.cross_entropy(logits, ids[chosen])
        return loss

    @torch.no_grad()
    def measure(self, texts: Tensor) -> float:
        """The held-out loss: of the next token, or the MSE of an encoder's states."""
        total = sum(held_out_loss(self.pair, row) * len(row) for row in texts.split(self.options.batch))
        return total / len(texts)

    def finish(self) -> None:
        """Merges the adapters into the weights."""
        if self.adapters is not None:
            self.adapters.merge()


def _distil(ours: Tensor, theirs: Tensor, following: Tensor, next_token: float) -> tuple[Tensor, Tensor]:
    """Σ KL(theirs ‖ ours) + next_token · (−log p of the following token), and its gradient by our logits.

    (1 + next_token) · softmax(ours) − softmax(theirs) − next_token · [the following token]: written out, as autograd
    passes several more times over tensors of the size of the vocabulary.
    """
    guess, target = ours.log_softmax(-1), theirs.log_softmax(-1)
    right = guess.gather(1, following[:, None])
    gradient = target.exp()
    divergence = torch.linalg.vecdot(gradient, target.sub_(guess)).sum()
    gradient.neg_().add_(guess.exp_(), alpha=1 + next_token)
    gradient.scatter_add_(1, following[:, None], torch.full_like(right, -next_token))
    return divergence - next_token * right.sum(), gradient


def _fills_masks(model: nn.Module) -> bool:
    return isinstance(model, TextHeads) and "masked" in model.heads


@torch.no_grad()
def held_out_loss(pair: Pair, ids: Tensor, model: nn.Module | None = None) -> float:
    """The student's loss of the next token (or the MSE of its states to the teacher's), or another model's."""
    student: Any = pair.student if model is None else model
    if not pair.causal:
        return float(functional.mse_loss(student.text_states(ids), pair.teacher.text_states(ids)))  # type: ignore[operator]
    states = student.text_states(ids)
    size = max(1, FEW // (student.options.vocabulary * ids.shape[0]))
    total = 0.0
    for start in range(0, ids.shape[1] - 1, size):
        stop = min(start + size, ids.shape[1] - 1)
        logits = student.logits(states[:, start:stop]).flatten(0, 1)
        total += float(functional.cross_entropy(logits, ids[:, start + 1 : stop + 1].flatten(), reduction="sum"))
    return total / (ids.shape[0] * (ids.shape[1] - 1))


__all__ = ["Distillation", "held_out_loss"]
