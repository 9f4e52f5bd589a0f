"""Build the model with the new attention and fill it: what both have is copied, the rest is started."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longspan import config
from longspan.adapt.swap.plan import Plan, mixers
from longspan.adapt.swap.positions import LongerPositions
from longspan.adapt.swap.start import LayerStart, expected, start_centroids, start_layer
from longspan.errors import InvalidOption, Unsupported
from longspan.hub.changed_options import resize_positions
from longspan.models.base import Model, TextStates
from longspan.models.encoder import Encoder
from longspan.models.folder import unique
from longspan.models.transformer import Transformer

SEED = 0  # of drawn weights, so that a swap can be repeated


@torch.no_grad()
def apply_plan(
    model: Model,
    plan: Plan,
    positions: LongerPositions,
    *,
    global_tokens: str | None = "first",
    rows: Tensor | None = None,
) -> tuple[Model, list[LayerStart]]:
    """A model of the same class with the plan's attention and the weights of `model`; and how each layer started.

    `rows` are token ids (rows, length) by which centroids are found.
    """
    changed: dict[str, Any] = {**positions.changed, **(plan.options() if plan.swapped else {})}
    changed |= _global_tokens(model, plan, global_tokens)
    options = config.make(type(model).Options, {**config.plain(model.options), **changed}, model.name)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(SEED)
        swapped = type(model)(options).to(model.dtype)
    left = _copy(model, swapped, plan, changed)
    starts = []
    pairs = zip(mixers(model, plan.stack_name), mixers(swapped, plan.stack_name))
    for layer, (old, new) in enumerate(pairs):
        before, after = plan.before[layer].plain(), plan.after[layer].plain()
        report = LayerStart(layer, before, after, expected(plan.after[layer].name))
        if layer in plan.swapped:
            start_layer(new, old, report)
            report.left_out = [name for name, _ in old.named_parameters() if f"{layer}:{name}" in left]
        starts.append(report)
    swapped.eval()
    if rows is not None:
        _centroids(model, swapped, plan, rows, starts)
    return swapped, starts


def _global_tokens(model: Model, plan: Plan, chosen: str | None) -> dict[str, str | None]:
    """Which tokens are global in an encoder that gets a Longformer: the first, unless nothing is wanted."""
    if chosen not in (None, "first"):
        raise InvalidOption(f"global tokens are first or none, not {chosen!r}")
    if plan.causal or not any(plan.after[layer].name == "longformer" for layer in plan.swapped):
        return {}
    if isinstance(model, Transformer):
        return {"source_global": chosen}
    # Global rows have projections of their own, which are not rotated.
    rotary = isinstance(model, Encoder) and model.options.position == "rotary"
    return {"global_tokens": None if rotary else chosen} if isinstance(model, Encoder) else {}


def _copy(source: Model, target: Model, plan: Plan, changed: Mapping[str, Any]) -> set[str]:
    """Copies what both have; returns the parameters of swapped layers that the target has not, as `layer:name`."""
    tensors, filled = source.state_dict(), set()
    inside = _attention_names(target, plan)
    for name, tensor in unique(target).items():
        if name not in tensors:
            if name not in inside:
                raise Unsupported(f"the swapped model has {name}, and the original has nothing for it")
            continue
        value = resize_positions(target, name, tensors[name], changed)
        if value.shape == tensor.shape:
            tensor.copy_(value)
            filled.add(name)
        elif name not in inside:
            raise Unsupported(f"{name} is {tuple(value.shape)}, and {tuple(tensor.shape)} in the swapped model")
    kept, left = target.state_dict(), set()
    places = _attention_names(source, plan)
    for name, _ in source.named_parameters():
        if name in kept:
            continue
        if name not in places:
            raise Unsupported(f"the original has {name}, and the swapped model has no place for it")
        left.add(places[name])
    return left


def _attention_names(model: nn.Module, plan: Plan) -> dict[str, str]:
    """The names of all tensors in swapped layers, with layer and name in it."""
    wanted = {id(mixer): layer for layer, mixer in enumerate(mixers(model, plan.stack_name)) if layer in plan.swapped}
    names: dict[str, str] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        if id(module) in wanted:
            names |= {f"{path}.{name}": f"{wanted[id(module)]}:{name}" for name in module.state_dict()}
    return names


def _centroids(model: Model, swapped: Model, plan: Plan, rows: Tensor, starts: list[LayerStart]) -> None:
    """Finds centroids by the states that the original model hands to its layers."""
    if not any(plan.after[layer].name == "routing" for layer in plan.swapped):
        return
    states: dict[int, Tensor] = {}
    hooks = []
    for layer, mixer in enumerate(mixers(model, plan.stack_name)):

        def keep(_: nn.Module, inputs: tuple[Tensor, ...], layer: int = layer) -> None:
            states[layer] = inputs[0].detach()

        hooks.append(mixer.register_forward_pre_hook(keep))
    try:
        read_states(model, rows)
    finally:
        for hook in hooks:
            hook.remove()
    for layer, mixer in enumerate(mixers(swapped, plan.stack_name)):
        if layer in plan.swapped and start_centroids(mixer, states[layer]):
            starts[layer].started["mechanism.centroids"] = "k-means of queries and keys of the text"


@torch.no_grad()
def read_states(model: Model, rows: Tensor) -> Tensor:
    """The last hidden states of token rows."""
    states: Tensor = model.text_states(rows) if isinstance(model, TextStates) else model(rows)
    return states


__all__ = ["apply_plan", "read_states"]
