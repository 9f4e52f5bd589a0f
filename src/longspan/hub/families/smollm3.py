"""SmolLM3 (Bakouch et al. 2025): a Llama in which every fourth layer does not rotate queries and keys."""

from typing import Any

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import Config
from longspan.hub.families.layer_types import FULL, SLIDING, read_attention, read_types, write_types
from longspan.hub.families.llama_like import fields, llama_like, plain_rope, same_biases, write_biases
from longspan.hub.families.rope import both_spellings, write_rope
from longspan.models.attention_positions import RotaryLayer

_THETA = 2e6
_adjust_rope, _restore_rope = plain_rope(_THETA)


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    layers, every = options["layers"], given.get("no_rope_layer_interval", 4)
    rotate = given.get("no_rope_layers")
    if rotate is None:
        if not isinstance(every, int) or every < 1:
            raise InvalidInput(f"config.json: no_rope_layer_interval must be a number of layers, not {every!r}")
        rotate = [int((layer + 1) % every != 0) for layer in range(layers)]
    if not isinstance(rotate, list) or len(rotate) < layers or any(each not in (0, 1) for each in rotate):
        raise InvalidInput(f"config.json: no_rope_layers must have 1 or 0 for {layers} layers, not {rotate!r:.60}")
    window = given.get("sliding_window") if given.get("use_sliding_window", False) else None
    types = read_types(given, layers)
    if types is None:
        types = [SLIDING if window is not None and not turned else FULL for turned in rotate[:layers]]
    options = same_biases(_adjust_rope(options, given))
    turns = RotaryLayer(scaling=options["rotary_scaling"])
    mixed = None if all(rotate[:layers]) else tuple(turns if each else _STILL for each in rotate[:layers])
    return {**options, "attention": read_attention(types, window), "rotary_layers": mixed}


_STILL = RotaryLayer(rotate=False)


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    types, window = write_types(options, "smollm3")
    given = options.rotary_layers or (RotaryLayer(scaling=options.rotary_scaling),)
    turns = [given[layer % len(given)] for layer in range(options.layers)]
    ropes = [write_rope(layer.base or options.rotary_base, layer.scaling) for layer in turns if layer.rotate]
    if any(rope != ropes[0] for rope in ropes):
        raise Unsupported("all layers of a smollm3 that rotate do so alike, and this model's do not")
    rope = ropes[0] if ropes else write_rope(options.rotary_base, options.rotary_scaling)
    return {
        **write_biases(_restore_rope(record, options), options, "smollm3"),
        **both_spellings(rope),
        "layer_types": types,
        "use_sliding_window": window is not None,
        "sliding_window": window,
        "no_rope_layers": [int(layer.rotate) for layer in turns],
    }


SMOLLM3 = llama_like(
    "smollm3",
    "SmolLM3",
    bases={"SmolLM3ForQuestionAnswering": "transformer."},
    fields=fields(
        vocab_size=128256,
        hidden_size=2048,
        num_hidden_layers=36,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=32768,
        pad_token_id=128004,
        tie_word_embeddings=True,
    ),
    tied=True,
    adjust=_adjust,
    restore=_restore,
)
