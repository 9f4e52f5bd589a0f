"""What a model loses without a head (Michel et al. 2019): ablation, gates' gradients, and one head alone."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from longspan.inspect.head_masks import AttentionGroup, gated, masked_heads
from longspan.inspect.measures.findings import Finding, Grid, HeatMap
from longspan.inspect.measures.losses import RowLosses, row_losses
from longspan.inspect.measures.subject import Subject
from longspan.nn.recorder import recorded_states
from longspan.nn.stack import Stack
from longspan.tasks.metrics import spearman

SLICES = 2  # random slices of W_O for each layer, the control

Tell = Callable[[str], None]


def ablation(subject: Subject, group: AttentionGroup, losses: RowLosses, tell: Tell = lambda _: None) -> Tensor:
    """How much the loss rises without each head: (layers, heads)."""
    whole, rises = losses.mean(), []
    for layer, states in _resumable(group, losses):
        tell(f"without each head of {group.name} layer {layer}")
        with _resumed(group, layer, states):
            heads = range(group.layers[layer].mechanism.shape.heads)
            rises.append([_without(subject, group, losses, layer, head) - whole for head in heads])
    return torch.tensor(rises, dtype=torch.float64)


def _without(subject: Subject, group: AttentionGroup, losses: RowLosses, layer: int, head: int) -> float:
    with masked_heads(subject.model, {layer: [head]}, side=group.side, kind=group.kind):
        return losses.mean()


def random_slices(subject: Subject, group: AttentionGroup, losses: RowLosses) -> Tensor:
    """The control: the loss rise without as many random columns of W_O as a head has, (layers, draws)."""
    whole, generator, rises = losses.mean(), torch.Generator().manual_seed(subject.seed), []
    for layer, states in _resumable(group, losses):
        mixer, row = group.layers[layer], []
        for _ in range(SLICES):
            keep = torch.ones(mixer.mechanism.shape.heads * mixer.widths["v"], device=subject.model.device)
            keep[torch.randperm(len(keep), generator=generator)[: mixer.widths["v"]]] = 0

            def gate(at: int, x: Tensor, layer: int = layer, keep: Tensor = keep) -> Tensor:
                return x * keep.to(x.dtype) if at == layer else x

            with _resumed(group, layer, states), gated(group, gate):
                row.append(losses.mean() - whole)
        rises.append(row)
    return torch.tensor(rises, dtype=torch.float64)


def gate_gradients(group: AttentionGroup, losses: RowLosses) -> Tensor:
    """E|∂L/∂gate| of a gate of 1 on each head (section 4.1): (layers, heads); the mean over rows of the batch."""
    gates: dict[int, Tensor] = {}

    def gate(layer: int, x: Tensor) -> Tensor:
        mixer = group.layers[layer]
        shape = (x.shape[0], mixer.mechanism.shape.heads)
        gates[layer] = torch.ones(shape, dtype=x.dtype, device=x.device, requires_grad=True)
        return x * gates[layer].repeat_interleave(mixer.widths["v"], 1)[:, None]

    with torch.enable_grad(), gated(group, gate):
        total = losses.compute().sum()
        gradients = torch.autograd.grad(total, [gates[layer] for layer in sorted(gates)])
    return torch.stack([gradient.detach().abs().mean(0).double().cpu() for gradient in gradients])


def one_head_alone(
    subject: Subject, group: AttentionGroup, losses: RowLosses, importance: Tensor
) -> list[dict[str, float]]:
    """For each layer, the loss rise with its most important head alone, and with a random one alone (section 3.3)."""
    whole, generator, rows = losses.mean(), torch.Generator().manual_seed(subject.seed), []
    for layer, states in _resumable(group, losses):
        heads = group.layers[layer].mechanism.shape.heads
        best = int(importance[layer].argmax())
        other = int(torch.randint(heads, (1,), generator=generator))
        row: dict[str, float] = {"layer": layer, "head": best, "random_head": other}
        with _resumed(group, layer, states):
            for name, kept in (("best_alone", best), ("random_alone", other), ("none", None)):
                hidden = [head for head in range(heads) if head != kept]
                with masked_heads(subject.model, {layer: hidden}, side=group.side, kind=group.kind):
                    row[name] = losses.mean() - whole
        rows.append(row)
    return rows


def _resumable(group: AttentionGroup, losses: RowLosses) -> Iterator[tuple[int, list[Tensor] | None]]:
    """Each layer with the states of all layers, which do not change below it; None if layers share weights."""
    states = None
    body = group.body
    if isinstance(body, Stack) and len(set(body.order)) == len(body.order):
        with torch.no_grad():
            states = recorded_states(body, losses.compute)
    for layer in range(len(group.layers)):
        yield layer, states


@contextmanager
def _resumed(group: AttentionGroup, layer: int, states: list[Tensor] | None) -> Iterator[None]:
    """Lets a stack begin at `layer` with the recorded state: what is below need not be computed again."""
    body = group.body
    below = [] if states is None or not isinstance(body, Stack) else list(body.layers())[:layer]
    for index, block in enumerate(below):
        state = None if states is None else states[index + 1]
        block.forward = lambda x, inputs=None, state=state: state  # type: ignore[method-assign, misc]
    try:
        yield
    finally:
        for block in below:
            del block.forward


def measure_importance(subject: Subject, tell: Tell = lambda _: None) -> Finding:
    """Ablation and gradients of each head, their rank correlation, and one head alone in each layer."""
    losses = row_losses(subject)
    groups = subject.groups
    whole = losses.mean()
    figures: list[Any] = []
    values: dict[str, Any] = {
        "loss": whole,
        "loss_name": losses.name,
        "chance": losses.chance,
        "texts": len(subject.passages),
        "groups": {},
    }
    sentences = []
    for group in groups:
        gradients = gate_gradients(group, losses)
        rises = ablation(subject, group, losses, tell)
        slices = random_slices(subject, group, losses)
        alone = one_head_alone(subject, group, losses, gradients)
        agreement = spearman(rises.flatten().tolist(), gradients.flatten().tolist())
        values["groups"][group.name] = {
            "rise": rises.tolist(),
            "gradient": gradients.tolist(),
            "random_slices": slices.tolist(),
            "rank_correlation": agreement,
            "one_head": alone,
        }
        figures += _figures(group, rises, gradients, slices, alone)
        layer, head = divmod(int(rises.argmax()), rises.shape[1])
        harmless = int((rises < 0.01 * abs(whole)).sum())
        sentences.append(
            f"{group.name}: without layer {layer} head {head} the loss rises most, by {float(rises.max()):.3g} from "
            f"{whole:.3g}; {harmless} of {rises.numel()} heads cost less than 1 % of the loss each, and gradients "
            f"rank heads as ablation does by {agreement:.2f}"
        )
    if whole > 0.8 * losses.chance:
        sentences.append(
            f"The model hardly does this task on this text (a guess has {losses.chance:.3g}), so rankings mean little: "
            "give a text of the kind that it was trained for, or with more varied passages"
        )
    return Finding(
        "importance",
        "What is lost without a head",
        ". ".join(sentences) + ".",
        f"{SLICES} random slices of W_O of a head's size for each layer. The loss is the {losses.name}, {whole:.3g} on "
        f"{len(subject.passages)} passages (a guess: {losses.chance:.3g}). One head alone: all others of the layer "
        "are off; beside it a random head, and none.",
        figures,
        values,
    )


def _figures(
    group: AttentionGroup, rises: Tensor, gradients: Tensor, slices: Tensor, alone: list[dict[str, float]]
) -> list[Any]:
    rows = [str(layer) for layer in range(len(rises))]
    columns = [str(head) for head in range(rises.shape[1])]
    table = [
        [
            layer,
            float(rises[layer].mean()),
            float(rises[layer].max()),
            float(slices[layer].mean()),
            int(one["head"]),
            one["best_alone"],
            one["random_alone"],
            one["none"],
        ]
        for layer, one in enumerate(alone)
    ]
    head = (
        "layer",
        "head off, mean",
        "largest",
        "random slice off",
        "kept head",
        "it alone",
        "random alone",
        "no head",
    )
    return [
        HeatMap(f"{group.name}: loss rise without the head", rows, columns, rises.tolist(), diverging=True),
        HeatMap(f"{group.name}: mean |∂loss/∂gate|", rows, columns, gradients.tolist()),
        Grid(f"{group.name}: rise of the loss by layer", head, table),
    ]


__all__ = ["ablation", "gate_gradients", "measure_importance", "one_head_alone", "random_slices"]
