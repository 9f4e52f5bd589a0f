"""Making the names known to transformers: `register`.

After it, `attn_implementation="longspan:window?window=256"` works wherever transformers takes an implementation. Two of
its methods are wrapped, for names that begin with "longspan:" only: transformers would accept a name for a model that
never calls the interface and run that model's own attention without a word.
"""

from functools import cache, wraps
from typing import Any

from longspan.attention.registry import names as mechanism_names
from longspan.errors import LongspanError, Unsupported
from longspan.hub.transformers_interface.attend import attention_function
from longspan.hub.transformers_interface.masks import mask_function
from longspan.hub.transformers_interface.mechanisms import keeps_weights, needs_a_home
from longspan.hub.transformers_interface.names import PREFIX, Implementation
from longspan.hub.transformers_interface.packing import watch_positions


def register(mechanism: str | None = None, **options: Any) -> str | list[str]:
    """Registers one mechanism with its options, or all with their defaults; the names that transformers takes."""
    _wrap_once()
    if mechanism is None:
        return [add(Implementation(name)) for name in mechanism_names() if PREFIX not in name]
    if options or "?" not in mechanism:
        return add(Implementation.of(mechanism.removeprefix(PREFIX), options))
    return add(Implementation.read(mechanism))


def add(implementation: Implementation) -> str:
    """Registers an implementation's attention function and mask function under its name."""
    from transformers import AttentionInterface, AttentionMaskInterface

    name = implementation.name
    if name not in AttentionInterface._global_mapping:
        AttentionInterface.register(name, attention_function(implementation))
        AttentionMaskInterface.register(name, mask_function(implementation))
    return name


def check(model: Any, implementation: Implementation) -> None:
    """Refuses what a model's class and configuration show to be impossible, before anything runs."""
    kind, config = type(model), model.config
    if not kind._can_set_attn_implementation():
        raise Unsupported(
            f"{kind.__name__} does not call transformers' AttentionInterface, so {implementation.name} would change "
            "nothing in it; longspan.load reads some of these families (docs/pretrained.md)"
        )
    if implementation.mechanism == "softmax":
        return
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise Unsupported(
            f"{implementation.name} cannot be used in {kind.__name__}, whose scores are capped (attn_logit_softcapping "
            f'{config.attn_logit_softcapping:g}); use "longspan:softmax"'
        )
    if implementation.mechanism != "window" and all_layers_slide(config):
        raise Unsupported(
            f"{implementation.name} would replace nothing in {kind.__name__}: every layer has a sliding window of "
            f'{config.sliding_window}, which stays; use "longspan:window?window=N", or set sliding_window to None'
        )


def all_layers_slide(config: Any) -> bool:
    if getattr(config, "sliding_window", None) is None or getattr(config, "use_sliding_window", True) is False:
        return False
    kinds = getattr(config, "layer_types", None)
    return kinds is None or all(kind == "sliding_attention" for kind in kinds)


@cache
def _wrap_once() -> None:
    from transformers import PreTrainedModel

    correct, choose = PreTrainedModel.get_correct_attn_implementation, PreTrainedModel.set_attn_implementation

    @wraps(correct)
    def get_correct_attn_implementation(self: Any, requested_attention: str | None, *args: Any, **given: Any) -> Any:
        if is_ours(requested_attention):
            _prepare(self, str(requested_attention))
        return correct(self, requested_attention, *args, **given)

    @wraps(choose)
    def set_attn_implementation(self: Any, attn_implementation: Any, *args: Any, **given: Any) -> Any:
        asked = attn_implementation.values() if isinstance(attn_implementation, dict) else [attn_implementation]
        for name in filter(is_ours, asked):
            _prepare(self, name)
        return choose(self, attn_implementation, *args, **given)

    PreTrainedModel.get_correct_attn_implementation = get_correct_attn_implementation
    PreTrainedModel.set_attn_implementation = set_attn_implementation


def is_ours(name: Any) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def _prepare(model: Any, name: str) -> None:
    implementation = Implementation.read(name)
    check(model, implementation)
    if keeps_weights(implementation) and not type(model.config).model_type.startswith("longspan_"):
        raise Unsupported(needs_a_home(implementation))
    add(implementation)
    if implementation.name != name:
        raise LongspanError(f"write {implementation.name!r} for {name!r}: equal settings have one name")
    watch_positions(model)


__all__ = ["add", "all_layers_slide", "check", "register"]
