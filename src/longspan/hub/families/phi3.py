"""Phi-3 (Abdin et al. 2024): a Llama with fused projections, partial rotation and `longrope`."""

from typing import Any

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import Config, Field
from longspan.hub.families.layer_types import FULL, SLIDING, read_attention, write_types
from longspan.hub.families.llama_like import EMBEDDING, LAST_NORM, OUT, PRE_NORMS, fields, llama_like
from longspan.hub.families.rope import both_spellings, read_rope, write_rope
from longspan.hub.tensor_names import rename
from longspan.nn.rotary_scaling import RotaryScaling

_ORIGINAL = 4096
_QKV = rename(tuple(f"stack.blocks.*.mixer.project.{part}" for part in "qkv"), "layers.*.self_attn.qkv_proj")
_GATED = (
    rename("stack.blocks.*.feedforward.inner", "layers.*.mlp.gate_up_proj"),
    rename("stack.blocks.*.feedforward.outer", "layers.*.mlp.down_proj"),
)


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    rope = read_rope({"original_max_position_embeddings": _ORIGINAL, **given})
    window, layers = given.get("sliding_window"), options["layers"]
    head_dim = options["head_dim"] or options["width"] // max(options["heads"], 1)
    share = rope.get("partial_rotary_factor", given.get("partial_rotary_factor"))
    rotated = head_dim if share is None else int(head_dim * share)
    padding = options["padding"]
    return {
        **options,
        "padding": padding if padding is not None and padding >= 0 else None,
        "attention": read_attention([FULL if window is None else SLIDING] * layers, window),
        "rotary_base": float(rope["rope_theta"]),
        "rotary_dim": None if rotated == head_dim else rotated,
        "rotary_scaling": _scaling(rope, options["max_length"]),
    }


def _scaling(rope: Config, longest: int) -> RotaryScaling | None:
    kind = rope["rope_type"]
    if kind == "default":
        return None
    if kind not in ("longrope", "su", "yarn"):  # two older names of the same
        raise Unsupported(f"config.json: rope_type is {kind!r}; for phi3 it can be default or longrope")
    for key in ("short_factor", "long_factor"):
        divisors = rope.get(key)
        if not isinstance(divisors, list) or not all(isinstance(number, int | float) for number in divisors):
            raise InvalidInput(
                f"config.json: {key} must list a divisor for each pair of features, not {divisors!r:.60}"
            )
    original = int(rope["original_max_position_embeddings"])
    factor, amplitude = rope.get("factor"), rope.get("attention_factor")
    return RotaryScaling(
        kind="longrope",
        factor=max(1.0, float(longest / original if factor is None else factor)),
        original_length=original,
        amplitude=None if amplitude is None else float(amplitude),
        short=tuple(float(number) for number in rope["short_factor"]),
        long=tuple(float(number) for number in rope["long_factor"]),
    )


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    types, window = write_types(options, "phi3")
    if len(set(types)) > 1:
        raise Unsupported("all layers of a phi3 have a window or none has, and this model has both kinds")
    scaling: RotaryScaling | None = options.rotary_scaling
    rope = write_rope(options.rotary_base, None)
    if scaling is not None:
        if scaling.kind != "longrope" or scaling.short is None or scaling.long is None:
            raise Unsupported(f"a phi3 has the rotary scaling longrope or none, and this model has {scaling.kind}")
        rope.update(rope_type="longrope", short_factor=list(scaling.short), long_factor=list(scaling.long))
        rope.update(factor=scaling.factor, original_max_position_embeddings=scaling.original_length)
        if scaling.amplitude is not None:
            rope["attention_factor"] = scaling.amplitude
        record = {**record, "original_max_position_embeddings": scaling.original_length}
    head_dim = options.head_dim or options.width // options.heads
    rotated = options.rotary_dim or head_dim
    # Their product is rounded down; half a feature more keeps it from falling below.
    share = 1.0 if rotated == head_dim else (rotated + 0.5) / head_dim
    share = rotated / head_dim if int(head_dim * (rotated / head_dim)) == rotated else share
    record = {key: value for key, value in record.items() if key != "head_dim" or value is not None}
    return {
        **record,
        **both_spellings({**rope, "partial_rotary_factor": share}),
        "partial_rotary_factor": share,
        "sliding_window": window,
    }


PHI3 = llama_like(
    "phi3",
    "Phi3",
    classes=("SequenceClassification", "TokenClassification"),
    fields=(
        *fields(
            ("mlp_bias", "attention_bias"),
            vocab_size=32064,
            hidden_size=3072,
            intermediate_size=8192,
            max_position_embeddings=4096,
            rms_norm_eps=1e-5,
            pad_token_id=32000,
        ),
        Field("dropout", "resid_pdrop", 0.0),
        Field("embedding_dropout", "embd_pdrop", 0.0),
    ),
    fixed={"bias": False},
    only={"attention_bias": (False,), "mlp_bias": (False,)},
    partial=True,
    body=(EMBEDDING, _QKV, OUT, *_GATED, *PRE_NORMS, LAST_NORM),
    adjust=_adjust,
    restore=_restore,
)
