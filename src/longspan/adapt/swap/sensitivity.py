"""How much each layer loses: swap one layer at a time and measure on real text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy

from longspan.adapt.swap.apply import read_states
from longspan.adapt.swap.plan import Plan, stack_of
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import CausalModel, EncoderDecoder, Model
from longspan.nn.stack import Stack

LEAST = 4096  # tokens
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Sensitivity:
    """The rise of the loss when one layer is swapped, for each layer that is."""

    measure: str
    tokens: int
    exact: float
    rises: dict[int, float]
    together: float  # the rise with all of them swapped at once
    kept: list[int]  # the worst layers, which stay exact

    def record(self) -> dict[str, object]:
        return {
            "measure": self.measure,
            "tokens": self.tokens,
            "exact": self.exact,
            "rises": {str(layer): rise for layer, rise in self.rises.items()},
            "sum_of_rises": sum(self.rises.values()),
            "all_at_once": self.together,
            "kept": self.kept,
        }


def read_share(share: float | str) -> float:
    """A share from 0.25 or `25%`."""
    text = str(share).strip()
    try:
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = -1.0
    if not 0 < number < 1:
        raise InvalidOption(f"the share of layers to keep must be between 0 and 1, such as 25%, not {share!r}")
    return number


def check_rows(rows: Tensor | None) -> Tensor:
    """Refuses to rank layers by too little text."""
    if rows is None:
        raise InvalidInput("the sensitivity of layers is measured on text: give a text")
    if rows.numel() < LEAST:
        raise InvalidInput(f"the sensitivity of layers needs at least {LEAST:,} tokens of text, not {rows.numel():,}")
    return rows


@torch.no_grad()
def measure_sensitivity(
    model: Model, swapped: Model, plan: Plan, rows: Tensor, share: float, progress: Progress | None = None
) -> Sensitivity:
    """Swaps one layer of `model` at a time, measures, and puts it back; the worst `share` of them is to be kept."""
    stack, other = stack_of(model, plan.stack_name), stack_of(swapped, plan.stack_name)
    assert isinstance(stack, Stack) and isinstance(other, Stack)
    if len(set(stack.order)) < len(stack.order):
        raise Unsupported("the layers of this model share weights, so no single one can keep its attention")
    loss = _Loss(model, rows)
    say = progress or (lambda text: None)
    exact, rises = loss(model), {}
    for layer in plan.swapped:
        block, new = stack.blocks[layer], other.blocks[layer]
        before = block.mixer
        try:
            block.mixer = new.mixer
            rises[layer] = loss(model) - exact
        finally:
            block.mixer = before
        say(f"layer {layer} alone: {rises[layer]:+.4f} {loss.measure}")
    together = loss(swapped) - exact
    count = max(1, round(share * len(rises)))
    worst = sorted(rises, key=lambda layer: rises[layer], reverse=True)[:count]
    return Sensitivity(loss.measure, rows.numel(), exact, rises, together, sorted(worst))


class _Loss:
    """Next-token loss of a decoder; else how far the last states turned from the original model's."""

    def __init__(self, model: Model, rows: Tensor) -> None:
        self.rows = rows
        self.causal = isinstance(model, CausalModel) and not isinstance(model, EncoderDecoder)
        self.measure = "nats per token" if self.causal else "1 − cosine of the last states"
        self.states = None if self.causal else [read_states(model, row[None]) for row in rows]

    def __call__(self, model: Model) -> float:
        total = sum(self._row(model, index, row[None]) for index, row in enumerate(self.rows))
        return total / len(self.rows)

    def _row(self, model: Model, index: int, row: Tensor) -> float:
        if self.states is None:
            logits = model(row)[0, :-1].float()
            return float(cross_entropy(logits, row[0, 1:]))
        return float(1 - cosine_similarity(read_states(model, row).float(), self.states[index].float(), dim=-1).mean())


def sentence(found: Sensitivity) -> str:
    """The line about layers that are not additive."""
    kept: Sequence[str] = [str(layer) for layer in found.kept]
    return (
        f"rises add up to {sum(found.rises.values()):.4f} {found.measure}, all swapped at once {found.together:.4f}; "
        f"kept exact: {', '.join(kept)}"
    )


__all__ = ["Sensitivity", "check_rows", "measure_sensitivity", "read_share", "sentence"]
