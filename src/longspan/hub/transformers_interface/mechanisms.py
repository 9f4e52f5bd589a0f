"""The mechanism of a layer: built from the implementation's name, or attached to the layer with weights of its own."""

from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.registry import build
from longspan.errors import InvalidOption, LongspanError, Unsupported
from longspan.hub.transformers_interface.global_projections import projected
from longspan.hub.transformers_interface.layers import layer_number, longest
from longspan.hub.transformers_interface.names import Implementation

ATTACHED = "longspan"  # the name of an attached mechanism within its layer
HIDDEN = "longspan_hidden"  # the hidden states of the current pass, for mechanisms that read them


@dataclass(frozen=True)
class Sizes:
    """A layer, as its mechanism must know it."""

    heads: int
    head_dim: int
    value_dim: int
    causal: bool
    max_length: int | None = None
    dropout: float = 0.0


def make(implementation: Implementation, sizes: Sizes, layer: int = 0) -> Attention:
    """The mechanism of a layer; what is drawn at random depends on nothing but the name and the layer's number."""
    causal = sizes.causal
    _refuse(implementation, causal)
    if implementation.max_length is not None:
        sizes = replace(sizes, max_length=implementation.max_length)
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False):  # it may be used in training later
        torch.manual_seed(layer)
        try:
            mechanism = build(implementation.mechanism, **asdict(sizes), **implementation.options)
        except InvalidOption as error:
            if "give max_length" not in str(error):
                raise
            name = Implementation(implementation.mechanism, implementation.options, max_length=512).name
            raise InvalidOption(
                f"{error}; this model's configuration has no max_position_embeddings: {name!r}"
            ) from None
    needed = [stream.name for stream in mechanism.streams if stream.required and stream.kind in ("mask", "ids")]
    if needed:
        raise Unsupported(
            f"{implementation.name} reads {', '.join(needed)}, which a model of transformers does not know; "
            "load the model with longspan.load and change its attention there"
        )
    if any(stream.kind == "queries" for stream in mechanism.streams):
        raise Unsupported(
            f"{implementation.name} rotates queries a second time, and a model of transformers hands them on rotated; "
            "leave out sink_positions, or load the model with longspan.load and change its attention there"
        )
    if causal and not mechanism.supports.streaming:
        raise Unsupported(
            f"{implementation.name} cannot be used in causal layers: what an earlier token reads changes with later "
            "ones in this form, so a cached step would differ from the whole text"
        )
    return mechanism


@lru_cache(maxsize=256)
def keeps_weights(implementation: Implementation) -> bool:
    """Whether the mechanism has weights or statistics that must be saved with a model."""
    kind = implementation.kind
    for causal in (True, False):
        try:
            with torch.device("meta"):
                mechanism = kind_at(implementation, causal)
        except LongspanError:
            continue
        projections = any(stream.required for stream in projected(mechanism)) or implementation.global_first
        return bool(projections or kind.running_statistics or next(mechanism.parameters(), None) is not None)
    return False


def kind_at(implementation: Implementation, causal: bool) -> Attention:
    """The mechanism at some small size, to ask what it supports."""
    per_head = [len(value) for value in implementation.options.values() if isinstance(value, (tuple, list))]
    return make(implementation, Sizes(max(per_head, default=2), 8, 8, causal, max_length=4096))


def _refuse(implementation: Implementation, causal: bool) -> None:
    kind = implementation.kind
    if causal and implementation.global_first:
        raise Unsupported(
            f"{implementation.name} cannot be used in causal layers: a global token would read the future"
        )
    if causal and not kind.supports.causal:
        able = "window, linear, performer, sparse, retention"
        raise Unsupported(
            f"{implementation.name} cannot be used in causal layers: {implementation.mechanism} has no causal form; "
            f"these have one: {able}"
        )
    if not causal and not kind.supports.bidirectional:
        raise Unsupported(
            f"{implementation.name} cannot be used in an encoder: {implementation.mechanism} is causal only"
        )


@lru_cache(maxsize=256)
def _built(
    implementation: Implementation, sizes: Sizes, layer: int, dtype: torch.dtype, device: torch.device
) -> Attention:
    mechanism = make(implementation, sizes, layer)
    if keeps_weights(implementation):
        raise Unsupported(needs_a_home(implementation))
    with torch.inference_mode(False):
        return mechanism.to(device=device, dtype=dtype).train(sizes.dropout > 0)


def needs_a_home(implementation: Implementation) -> str:
    """Why a mechanism with weights cannot be chosen by its name alone."""
    options = "".join(f", {key}={value!r}" for key, value in implementation.options.items())
    return (
        f"{implementation.name} has weights of its own, which a name cannot bring along: "
        f"model = longspan.hub.use_attention(model, {implementation.mechanism!r}{options})"
    )


def mechanism_of(
    implementation: Implementation,
    module: nn.Module,
    q: Tensor,
    causal: bool,
    dropout: float,
    value_dim: int,
) -> Attention:
    """The mechanism for a layer's heads."""
    attached: Any = getattr(module, ATTACHED, None)
    if isinstance(attached, Attention) and attached.name == implementation.mechanism:
        if attached.causal != causal:
            raise Unsupported(
                f"{implementation.name} was attached for {'causal' if attached.causal else 'bidirectional'} attention, "
                "and this pass is the other; their configuration must say so when the model is built"
            )
        attached.dropout = dropout
        return attached
    sizes = Sizes(q.shape[1], q.shape[3], value_dim, causal, longest(module), dropout)
    return _built(implementation, sizes, layer_number(module), q.dtype, q.device)


__all__ = ["ATTACHED", "HIDDEN", "Sizes", "keeps_weights", "kind_at", "make", "mechanism_of", "needs_a_home"]
