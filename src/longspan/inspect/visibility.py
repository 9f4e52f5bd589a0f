"""Which positions a representation can have read, layer by layer: BERT, GPT and ELMo, measured by gradients.

Small models with random weights are enough: what a state can depend on follows from the architecture. A cell is True
if the gradient of a layer's state at one position with respect to the embedding at another is not 0.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.models import build

POSITIONS, LAYERS = 12, 3
SIZES: dict[str, Any] = {"vocabulary": 16, "layers": LAYERS, "width": 8, "heads": 2, "hidden": 16, "max_length": 32}


@dataclass(frozen=True)
class Sight:
    """What the states of one model can have read."""

    name: str
    sentence: str
    layers: tuple[tuple[str, Tensor], ...]  # title of a layer, (positions, positions) boolean: state by input


def visibility() -> list[Sight]:
    """BERT, GPT and ELMo side by side, and a window, whose reach grows with depth."""
    tiny = {"cells": 8, "projection": 4, "filters": (2, 2), "character_width": 3, "characters": 6, "highways": 0}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        bert = build("encoder", **SIZES).eval()
        gpt = build("decoder", **SIZES).eval()
        local = build("decoder", **SIZES, attention={"name": "window", "window": 2}).eval()
        elmo = build("elmo", layers=LAYERS, **tiny).eval()
    ids = torch.arange(POSITIONS)[None] % 16
    characters = (ids[..., None] + torch.arange(6)) % 250 + 1

    def of_stack(model: Any) -> list[Tensor]:
        return _gradients(model.embedding, lambda: model.layer_states(ids)[1:])

    def of_elmo() -> list[Tensor]:
        forward, backward = elmo(characters)[0, 1:].chunk(2, dim=-1)
        return [*forward[:, None], *backward[:, None]]

    tokens = elmo.tokens
    assert isinstance(tokens, torch.nn.Module)
    halves = _gradients(tokens, of_elmo)
    forward, backward = halves[:LAYERS], halves[LAYERS:]
    titles = [f"layer {layer}" for layer in range(LAYERS)]
    return [
        Sight(
            "BERT",
            "Every state reads both sides, in every layer. To predict a word, that word must be hidden.",
            tuple(zip(titles, of_stack(bert))),
        ),
        Sight(
            "GPT",
            "A state reads itself and what stands before it. So every position can learn to predict the next.",
            tuple(zip(titles, of_stack(gpt))),
        ),
        Sight(
            "ELMo",
            "Two halves that never meet below the task: one has read what stands before, one what stands after.",
            (*((f"forward, {title}", seen) for title, seen in zip(titles, forward)),
             *((f"backward, {title}", seen) for title, seen in zip(titles, backward))),
        ),
        Sight(
            "GPT with a window of 2",
            "Each layer reads two positions back. Stacked layers reach further: layers times window.",
            tuple(zip(titles, of_stack(local))),
        ),
    ]  # fmt: skip


def _gradients(embedding: torch.nn.Module, states: Callable[[], Sequence[Tensor]]) -> list[Tensor]:
    """For each state, (1, positions, width): which embedded inputs each of its positions depends on."""
    embedded: list[Tensor] = []

    def keep(_: torch.nn.Module, args: Any, out: Tensor) -> Tensor:
        embedded.append(out.detach().requires_grad_())
        return embedded[0]

    hook = embedding.register_forward_hook(keep)
    try:
        with torch.enable_grad():
            outs = states()
    finally:
        hook.remove()
    direction = torch.randn(outs[0].shape[-1], generator=torch.Generator().manual_seed(1))  # sums would cancel in norms
    seen = []
    for out in outs:
        rows = []
        for position in range(out.shape[1]):
            (gradient,) = torch.autograd.grad((out[0, position] * direction).sum(), embedded[0], retain_graph=True)
            rows.append(gradient[0].abs().sum(-1) > 0)
        seen.append(torch.stack(rows))
    return seen


__all__ = ["LAYERS", "POSITIONS", "Sight", "visibility"]
