"""Models with quantised layers: which layers can be, replacing them, and their record in `config.json`."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.quantized import QuantizedLinear, check_scheme, unfit

OUTPUT = "output"  # the name, in a `TokenEmbedding`, of the copy of its rows that a tied output layer reads


def candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers whose weights are read by a product alone, by name: projections, feed-forward and output layers.

    A tied output layer is the embedding itself: its name ends in `output`. A shared layer comes once.
    """
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, layer in _layers_of(module):
            if id(layer) not in seen and isinstance(layer, nn.Linear | QuantizedLinear):
                seen.add(id(layer))
                yield f"{prefix}.{name}".removeprefix("."), layer
    head = getattr(model, "head", None)
    if isinstance(head, nn.Linear | QuantizedLinear):
        yield "head", head
    embedding = getattr(model, "embedding", None)
    tied = bool(getattr(model.options, "tied", False)) if hasattr(model, "options") else False
    if head is None and hasattr(model, "head") and tied and isinstance(embedding, TokenEmbedding):
        yield f"embedding.{OUTPUT}", embedding


def _layers_of(module: nn.Module) -> list[tuple[str, nn.Module]]:
    if isinstance(module, MultiHead):
        projections = [(f"project.{name}", layer) for name, layer in module.project.items()]
        extra = [(f"extra.{name}", layer) for name, layer in module.extra.items()]
        return [*projections, *extra, ("out", module.out)]
    if isinstance(module, FeedForward):
        return [("inner", module.inner), ("outer", module.outer)]
    return []


def other_layers(model: nn.Module) -> dict[str, str]:
    """The linear layers that are no candidates, with the reason."""
    known = {id(layer) for _, layer in candidates(model)}
    return {
        name: "neither a projection of attention, a feed-forward layer nor an output layer"
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and id(layer) not in known
    }


def replace_layers(
    model: nn.Module, names: Mapping[str, nn.Module], build: Callable[[Tensor, Tensor | None], QuantizedLinear]
) -> None:
    """Puts quantised layers in the place of the named ones, wherever the model has them; parameters are then frozen."""
    for name, layer in names.items():
        if isinstance(layer, TokenEmbedding):
            layer.output = build(layer.weight, None)
            layer.output.fine = True
            continue
        assert isinstance(layer, nn.Linear)
        quantised = build(layer.weight, layer.bias)
        # Rounded inputs of these cost most of the quality (docs/quantize.md): 0.07 nats become 0.004 in SmolLM2.
        quantised.fine = name == "head" or ".project." in name
        for parent in [*model.modules()]:
            for child, module in [*parent._modules.items()]:
                if module is layer:
                    parent._modules[child] = quantised
    model.requires_grad_(False)


def quantization(model: nn.Module) -> dict[str, Any] | None:
    """The record of a quantised model: scheme and layers. None for any other model."""
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, QuantizedLinear)}
    if not layers:
        return None
    first = next(iter(layers.values()))
    return {"bits": first.bits, "group": first.group, "layers": list(layers)}


def quantize_layers(model: nn.Module, record: Any) -> list[str]:
    """Replaces the layers that a record names, to be filled from the folder's weights; returns their names."""
    if record is None:
        return []
    try:
        bits, group, names = str(record["bits"]), int(record["group"]), [str(name) for name in record["layers"]]
    except (TypeError, KeyError, ValueError):
        raise InvalidInput("quantization must have bits, group and layers; was config.json changed?") from None
    check_scheme(bits, group)
    known = dict(candidates(model))
    for name in names:
        if name not in known:
            raise InvalidInput(f"quantization names a layer {name!r} that this model does not have")
        reason = unfit(*_shape(known[name]), bits, group)
        if reason is not None:
            raise InvalidInput(f"quantization: {name}: {reason}")

    def blank(weight: Tensor, bias: Tensor | None) -> QuantizedLinear:
        outputs, inputs = weight.shape
        return QuantizedLinear(inputs, outputs, bits, group=group, bias=bias is not None)

    with torch.no_grad():
        replace_layers(model, {name: known[name] for name in names}, blank)
    return names


def _shape(layer: nn.Module) -> tuple[int, int]:
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.shape[0], weight.shape[1]


__all__ = ["candidates", "other_layers", "quantization", "quantize_layers", "replace_layers"]
