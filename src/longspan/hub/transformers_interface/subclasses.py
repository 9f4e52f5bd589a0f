"""Models of transformers that carry mechanisms with weights of their own.

For a class of a family, say LlamaForCausalLM, there is a subclass LongspanLlamaForCausalLM with a configuration of type
"longspan_llama". Its key `longspan` holds the name of the implementation, and each layer has its mechanism as
`layer.longspan`, so that `save_pretrained` and `from_pretrained` treat it like any other weight.

The written configuration also names the implementation where transformers looks for one. A process that does not know
longspan therefore stops with an error, even if the plain class is asked to read the folder.
"""

import importlib
from functools import cache
from typing import Any

from torch import nn

from longspan.attention.base import Attention
from longspan.errors import InvalidOption, Unsupported
from longspan.hub.transformers_interface.global_projections import PROJECTIONS, copies, projected
from longspan.hub.transformers_interface.layers import (
    attention_layers,
    is_cross,
    layer_number,
    longest,
    number_layers,
    sizes,
)
from longspan.hub.transformers_interface.mechanisms import ATTACHED, HIDDEN, Sizes, keeps_weights, make
from longspan.hub.transformers_interface.names import Implementation
from longspan.hub.transformers_interface.packing import watch_positions
from longspan.hub.transformers_interface.registration import add, check

PREFIX = "longspan_"  # of model types
CLASS_PREFIX = "Longspan"
# Families that use the interface and whose configuration belongs to one stack of text, images or both sides of
# translation. Each costs the import of its small configuration module.
FAMILIES = (
    "albert",
    "bart",
    "bert",
    "camembert",
    "deit",
    "dinov2",
    "distilbert",
    "electra",
    "gemma2",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "llama",
    "mbart",
    "mistral",
    "modernbert",
    "olmo2",
    "opt",
    "phi3",
    "qwen2",
    "qwen3",
    "roberta",
    "smollm3",
    "t5",
    "vit",
    "xlm-roberta",
)


@cache
def register_families() -> None:
    """Lets transformers know the configurations, so that `from_pretrained` reads what `save_pretrained` wrote."""
    from transformers import AutoConfig

    for family in FAMILIES:
        AutoConfig.register(PREFIX + family, config_class(family))


@cache
def config_class(family: str) -> Any:
    """The configuration of a family with a key for the mechanism."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    base = CONFIG_MAPPING[family]

    def __init__(self: Any, longspan: str | None = None, **given: Any) -> None:
        base.__init__(self, **given)
        self.longspan = longspan

    def to_dict(self: Any) -> dict[str, Any]:
        return {**base.to_dict(self), "attn_implementation": self.longspan}

    @classmethod  # type: ignore[misc]
    def from_dict(cls: Any, values: dict[str, Any], **given: Any) -> Any:
        register_models(family)
        return super(kind, cls).from_dict(values, **given)  # type: ignore[arg-type]

    kind = type(
        CLASS_PREFIX + base.__name__,
        (base,),
        {
            "__init__": __init__,
            "to_dict": to_dict,
            "from_dict": from_dict,
            "longspan": None,
            "model_type": PREFIX + family,
            "__module__": __name__,
            "__doc__": f"{base.__name__} of a model with a mechanism of longspan.",
        },
    )
    return kind


@cache
def register_models(family: str) -> None:
    """Registers the subclass of every class of a family with the Auto class that builds it."""
    import transformers.models.auto.modeling_auto as auto
    from transformers import PreTrainedModel

    for automatic in vars(auto).values():
        mapping = getattr(automatic, "_model_mapping", None) if isinstance(automatic, type) else None
        name = None if mapping is None else mapping._model_mapping.get(family)
        for kind in [name] if isinstance(name, str) else name or ():
            base = getattr(importlib.import_module("transformers"), kind, None)
            if isinstance(base, type) and issubclass(base, PreTrainedModel):
                automatic.register(config_class(family), model_class(base, family), exist_ok=True)


@cache
def model_class(base: Any, family: str) -> Any:
    """A class of transformers whose layers have mechanisms of their own."""

    def __init__(self: Any, config: Any, *args: Any, **given: Any) -> None:
        implementation = Implementation.read(config.longspan)
        asked = config._attn_implementation
        if asked not in (None, implementation.name):
            raise InvalidOption(
                f"{kind.__name__} has the attention {implementation.name}, with its weights; it cannot be built with "
                f"attn_implementation={asked!r}"
            )
        add(implementation)
        config._attn_implementation = implementation.name
        base.__init__(self, config, *args, **given)
        attach(self, implementation)
        self.post_init()

    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **given: Any) -> None:
        if attn_implementation != self.config.longspan:
            raise Unsupported(
                f"{kind.__name__} has the attention {self.config.longspan}, with its weights; "
                f"{attn_implementation!r} would leave them unused"
            )

    kind = type(
        CLASS_PREFIX + base.__name__,
        (base,),
        {
            "__init__": __init__,
            "set_attn_implementation": set_attn_implementation,
            "config_class": config_class(family),
            "_can_set_attn_implementation_cached_value": base._can_set_attn_implementation(),
            "__module__": __name__,
            "__doc__": f"{base.__name__} with a mechanism of longspan in its layers.",
        },
    )
    return kind


def attach(model: nn.Module, implementation: Implementation) -> None:
    """Gives every layer that the mechanism computes a mechanism of its own."""
    for layer, mechanism, projections in mechanisms_for(model, implementation):
        layer.add_module(ATTACHED, mechanism)
        if projections is not None:
            layer.add_module(PROJECTIONS, projections)
        if projections is not None or any(stream.kind == "hidden" for stream in mechanism.streams):
            layer.register_forward_pre_hook(_keep_hidden, with_kwargs=True)
            layer.register_forward_hook(_drop_hidden, always_call=True)


def mechanisms_for(
    model: nn.Module, implementation: Implementation
) -> list[tuple[nn.Module, Attention, nn.ModuleDict | None]]:
    """The layers that the mechanism computes, each with its own, and with projections for global tokens."""
    number_layers(model)
    kind, built = implementation.kind, []
    for _, layer in attention_layers(model):
        cross, number = is_cross(layer), layer_number(layer)
        if not implementation.covers(number) or (cross and not (kind.supports.cross and kind.supports.cross_rows)):
            continue
        heads, width = sizes(layer)
        causal = not cross and bool(getattr(layer, "is_causal", False))
        mechanism = make(implementation, Sizes(heads, width, width, causal, longest(layer)), number)
        like = next(layer.parameters())
        mechanism.to(device=like.device, dtype=like.dtype)
        for part in (*mechanism.modules(), *mechanism.parameters()):
            part.__dict__["_is_hf_initialized"] = True  # their initialisation leaves it alone
        required = implementation.global_first or any(stream.required for stream in projected(mechanism))
        built.append((layer, mechanism, copies(layer, mechanism, implementation.name) if required else None))
    if not built:
        raise InvalidOption(f"{implementation.name} fits no layer of {type(model).__name__}")
    return built


def _keep_hidden(layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    object.__setattr__(layer, HIDDEN, args[0] if args else given["hidden_states"])


def _drop_hidden(layer: nn.Module, args: Any, output: Any) -> None:
    object.__setattr__(layer, HIDDEN, None)


def use_attention(model: Any, mechanism: str, options: dict[str, Any]) -> Any:
    """`model` with another attention; if the mechanism has weights, its class becomes the subclass."""
    from transformers import PreTrainedModel
    from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

    if not isinstance(model, PreTrainedModel):
        raise InvalidOption(f"use_attention changes a model of transformers, not {type(model).__name__}")
    implementation = Implementation.of(mechanism, options)
    check(model, implementation)
    if not keeps_weights(implementation):
        model.set_attn_implementation(add(implementation))
        return model
    family = model.config.model_type
    if family not in FAMILIES:
        told = f"{family.removeprefix(PREFIX)} already has one" if family.startswith(PREFIX) else f"not to {family}"
        raise Unsupported(
            f"{implementation.name} has weights of its own, which can be attached to {', '.join(FAMILIES)}; {told}"
        )
    mechanisms_for(model, implementation)  # refuses before anything is changed
    config, kind = model.config, model_class(model.__class__, family)
    config.__class__ = config_class(family)  # the layers share it with the model
    config.longspan = config._attn_implementation = add(implementation)
    _CAN_RECORD_REGISTRY[str(kind)] = model._can_record_outputs  # by which `output_attentions` finds the layers
    model.__class__ = kind
    attach(model, implementation)
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            watch_positions(part)
    return model.train(model.training)


__all__ = ["FAMILIES", "register_families", "use_attention"]
