"""The table [distill] of a recipe: a frozen teacher that the model learns from, besides the task's own loss."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.adapt.distill.layers import body_of, compared, start_from
from longspan.adapt.distill.losses import cosine_loss, hard_loss, soft_loss, state_loss
from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.load_checkpoint import load
from longspan.hub.locate import PACKAGE, locate
from longspan.models.base import Model
from longspan.nn.recorder import Recording, recording
from longspan.tasks.base import Metrics, Objective, Prepared, TaskLoss
from longspan.train.extensions import Extension
from longspan.train.options import TrainOptions

KINDS = ("soft", "hard", "triple")
TOKENS = ("all", "counted")


class DistillObjective(Objective):
    """A task's loss with what the student lacks compared with its teacher. Metrics are the task's own."""

    def __init__(self, inner: Objective, teacher: Model, options: "Distill.Options") -> None:
        self.inner, self.teacher, self.options = inner, teacher.requires_grad_(False).eval(), options
        self.unit, self.results = inner.unit, inner.results  # type: ignore[misc]  # of the task, not of the class
        inner.compared = options.tokens

    def count(self, batch: Batch) -> int:
        return self.inner.count(batch)

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        options = self.options
        if not options.uses_teacher:
            return self.inner.loss(model, batch, carried)
        teacher = self.teacher.to(batch["ids"].device).eval()
        with _states(model, options.reads_states) as mine:
            loss = self.inner.loss(model, batch, carried)
        with torch.no_grad(), _states(teacher, options.reads_states) as theirs:
            target = self.inner.loss(teacher, batch)
        if loss.outputs is None or target.outputs is None:
            raise Unsupported(f"{type(self.inner).__name__} gives no outputs that a teacher's can be compared with")
        # The loop divides by the count of the task; over all real tokens the mean would be too large by this factor.
        scale = self.count(batch) / max(1, len(loss.outputs))
        if options.kind == "hard":
            teach = hard_loss(loss.outputs, target.outputs) * scale
        else:
            teach = soft_loss(loss.outputs, target.outputs, options.temperature) * scale
        first, second = options.shares
        parts = {**loss.parts, "task": loss.total.detach(), "teacher": teach.detach()}
        total = second * loss.total + first * teach
        for name, weight, value in self._state_losses(mine, theirs, batch):
            total, parts[name] = total + weight * value, value.detach()
        return replace(loss, total=total, parts=parts, outputs=None)

    def _state_losses(
        self, mine: Recording | None, theirs: Recording | None, batch: Batch
    ) -> Iterator[tuple[str, float, Tensor]]:
        if mine is None or theirs is None:
            return
        if "documents" in batch:
            raise Unsupported("hidden states are not compared with separate = true; leave out cosine and hidden")
        options, count = self.options, self.count(batch)
        real = batch.get("mask", batch.get("real"))
        width, other = mine.states[-1].shape[-1], theirs.states[-1].shape[-1]
        if width != other:
            raise Unsupported(f"hidden states are compared at one width; the teacher has {other}, the student {width}")

        def rows(states: Tensor) -> Tensor:
            return states.flatten(0, -2) if real is None else states[real.flatten(0, -2)]

        if options.cosine:
            value = rows(mine.states[-1])
            yield "cosine", options.cosine, cosine_loss(value, rows(theirs.states[-1])) * (count / len(value))
        if options.hidden:
            layers = compared(len(mine.states) - 1, len(theirs.states) - 1)
            losses = [
                state_loss(rows(state), rows(theirs.states[layer])) for state, layer in zip(mine.states[1:], layers)
            ]
            items = len(rows(mine.states[-1]))
            yield "hidden", options.hidden, torch.stack(losses).mean() * (count / items)

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        return self.inner.measure(model, batch, carried)

    def final(self, model: Model, data: Data, batches: Sequence[Sequence[int]]) -> Metrics | None:
        return self.inner.final(model, data, batches)


@contextmanager
def _states(model: Model, wanted: bool) -> Iterator[Recording | None]:
    with ExitStack() as held:
        yield held.enter_context(recording(body_of(model), maps=False)) if wanted else None


class Distill(Extension):
    """A teacher: its outputs (soft, hard), DistilBERT's triple loss, its hidden states, and its first weights."""

    name = "distill"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        teacher: str = option("", "the trained model: a folder, a run, or package:NAME")
        kind: str = option(
            "soft",
            "soft: the teacher's probabilities; hard: its likeliest class; triple: DistilBERT's weights, 5 soft + "
            "2 task + 1 cosine of hidden states",
            choices=KINDS,
        )
        weight: float = option(0.5, "soft, hard: weight of the teacher; the task's loss has the rest", low=0, high=1)
        temperature: float = option(2.0, "divides the logits of both", above=0)
        weights: tuple[float, ...] | None = option(None, "triple: the three weights (default: 5, 2, 1)")
        cosine: float = option(0.0, "weight of 1 - cosine of the last hidden states", low=0)
        hidden: float = option(0.0, "weight of the squared difference of hidden states, layer by layer", low=0)
        tokens: str = option(
            "all", "masked models: compare all real tokens, or those that count in the loss only", choices=TOKENS
        )
        initialise: bool = option(True, "start from the teacher's embeddings, heads and layers, where they fit")
        layers: tuple[int, ...] | None = option(
            None, "the teacher's layer that each layer starts from, from 0 (default: evenly spaced, first and last)"
        )

        def __post_init__(self) -> None:
            super().__post_init__()
            if not self.teacher:
                raise InvalidOption("name the teacher: a folder, a run, or package:NAME")
            if self.weights is not None and (self.kind != "triple" or len(self.weights) != 3 or min(self.weights) < 0):
                raise InvalidOption('weights are three numbers of at least 0, for kind = "triple"')
            if self.kind == "triple":
                object.__setattr__(self, "cosine", (self.weights or (5.0, 2.0, 1.0))[2])

        @property
        def shares(self) -> tuple[float, float]:
            """The weights of the teacher's outputs and of the task's loss."""
            if self.kind == "triple":
                return (self.weights or (5.0, 2.0, 1.0))[:2]  # type: ignore[return-value]  # three were checked
            return self.weight, 1 - self.weight

        @property
        def reads_states(self) -> bool:
            return bool(self.cosine or self.hidden)

        @property
        def uses_teacher(self) -> bool:
            return bool(self.shares[0] or self.reads_states) or self.kind == "triple"

    options: Options

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self._teacher: Model | None = None

    def located(self) -> Mapping[str, Any]:
        teacher = self.options.teacher
        if not teacher.startswith(PACKAGE):
            teacher = os.path.abspath(teacher if Path(teacher).exists() else locate(teacher))  # noqa: PTH100
        return {**config.plain(self.options), "teacher": teacher}

    def tokenizer(self) -> Tokenizer | None:
        return load(self.options.teacher).tokenizer

    @property
    def teacher(self) -> Model:
        if self._teacher is None:
            self._teacher = load(self.options.teacher, dtype=torch.float32).model
        return self._teacher

    def adapt_model(self, model: Model, table: Mapping[str, Any], options: TrainOptions) -> None:
        if model.token_rows != self.teacher.token_rows:
            raise InvalidInput(
                f"the teacher {self.options.teacher} has {self.teacher.token_rows} tokens and the student "
                f"{model.token_rows}; they need one tokenizer: leave out [model] from, or train the teacher with it"
            )
        if self.options.initialise and "from" not in table:
            start_from(model, self.teacher, self.options.layers)
        elif self.options.layers is not None:
            raise InvalidOption("layers says where the student starts; leave it out without initialise, or with from")

    def adapt_objective(self, objective: Objective, model: Model, prepared: Prepared) -> Objective:
        own = load(self.options.teacher).tokenizer
        if own is not None and prepared.tokenizer is not None and not _same_tokens(own, prepared.tokenizer):
            raise InvalidInput(f"the teacher {self.options.teacher} has another vocabulary than the student")
        names = {head.task: head.names for head in getattr(self.teacher.options, "tasks", None) or ()}
        for head in getattr(model.options, "tasks", None) or ():
            theirs = names.get(head.task)
            if head.names and theirs and tuple(theirs) != tuple(head.names):
                raise InvalidInput(f"the teacher knows the labels {', '.join(theirs)}, not {', '.join(head.names)}")
        if objective.compared:
            raise InvalidInput("the objective has a teacher already")
        return DistillObjective(objective, self.teacher, self.options)


def _same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    return one.size == other.size and one.inner.get_vocab() == other.inner.get_vocab()


__all__ = ["Distill", "DistillObjective"]
