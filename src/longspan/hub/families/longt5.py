"""LongT5 (Guo et al. 2022): T5 whose encoder has windows, and summaries of blocks if it is transient-global."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.attention.config import AttentionConfig
from longspan.errors import Unsupported
from longspan.hub.families import t5
from longspan.hub.families.base import Config, Family
from longspan.hub.tensor_names import Rule, rename

KINDS = {"local": "LocalSelfAttention", "transient-global": "TransientGlobalSelfAttention"}


def _is_global(options: Any) -> bool:
    return options.summary_block is not None


def _is_local(options: Any) -> bool:
    return options.summary_block is None


def _encoder(ours: str) -> tuple[Rule, ...]:
    """The rules of the encoder, whose attention is called by its kind."""
    rules: dict[tuple[Sequence[str], Sequence[str]], Rule] = {}
    for name, applies in ((KINDS["local"], _is_local), (KINDS["transient-global"], _is_global)):
        for rule in t5.stack(ours, "encoder", name=name):
            of_kind = any(name in theirs for theirs in rule.theirs)
            rules[rule.ours, rule.theirs] = replace(rule, when=applies) if of_kind else rule
    attention = f"encoder.block.*.layer.0.{KINDS['transient-global']}"
    return (
        *rules.values(),
        rename(f"{ours}.blocks.*.mixer.summary_norm", f"{attention}.global_input_layer_norm"),
        rename(
            f"{ours}.blocks.0.mixer.summary_position.weight",
            f"{attention.replace('*', '0')}.global_relative_attention_bias.weight",
        ),
    )


def _windows(options: dict[str, Any], given: Config, key: str) -> dict[str, Any]:
    kind = given.get("encoder_attention_type", "local")
    if kind not in KINDS:
        raise Unsupported(f"config.json: encoder_attention_type is {kind!r}; it can be {' or '.join(KINDS)}")
    window = AttentionConfig("window", window=int(given.get("local_radius", 127)), scale=1.0)
    block = int(given.get("global_block_size", 16)) if kind == "transient-global" else None
    return {**options, key: (window,), "summary_block": block}


def _written(record: dict[str, Any], settings: Sequence[AttentionConfig], block: int | None) -> dict[str, Any]:
    radii = {int(setting.options.get("window", 128)) for setting in settings if setting.name == "window"}
    if len(radii) != 1 or any(setting.name != "window" for setting in settings):
        raise Unsupported("a longt5 reads its source by one window in every layer")
    record = {**record, "local_radius": radii.pop()}
    record["encoder_attention_type"] = "local" if block is None else "transient-global"
    return record if block is None else {**record, "global_block_size": block}


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return _windows(t5.adjust(options, given), given, "encoder_attention")


def _adjust_encoder(options: dict[str, Any], given: Config) -> dict[str, Any]:
    return _windows(t5.adjust_encoder(options, given), given, "attention")


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return _written(t5.restore(record, options), options.encoder_attention, options.summary_block)


def _restore_encoder(record: dict[str, Any], options: Any) -> dict[str, Any]:
    return _written(t5.restore_encoder(record, options), options.attention, options.summary_block)


def _fixed(family: Family, key: str) -> Mapping[str, Any]:
    return {name: value for name, value in family.fixed.items() if name != key}


LONGT5_ENCODER = replace(
    t5.T5_ENCODER,
    name="longt5",
    base="",
    fixed=_fixed(t5.T5_ENCODER, "attention"),
    architectures={"LongT5EncoderModel": ()},
    body=(rename("embedding.weight", "shared.weight"), *_encoder("stack")),
    heads={},
    adjust=_adjust_encoder,
    restore=_restore_encoder,
)
LONGT5 = replace(
    t5.T5,
    name="longt5",
    bases={},
    fixed=_fixed(t5.T5, "encoder_attention"),
    architectures={"LongT5ForConditionalGeneration": (), "LongT5Model": ()},
    alone="LongT5Model",
    body=(
        rename("target.weight", "shared.weight"),
        *_encoder("encoder"),
        *t5.stack("decoder", "decoder", cross=True),
    ),
    heads={},
    speakers=("LongT5ForConditionalGeneration",),
    adjust=_adjust,
    restore=_restore,
    encoder=LONGT5_ENCODER,
)
