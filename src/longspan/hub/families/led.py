"""LED (Beltagy et al. 2020): BART whose encoder has Longformer's attention.

The stream `global_mask` marks the global source tokens of each text; by default it is the first token, as the authors'
code for summaries has it.
"""

from typing import Any

from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families import bart
from longspan.hub.families.base import Config, Family, Field
from longspan.hub.tensor_names import rename

FIELDS = (
    *bart.SIZES,
    Field("source_length", "max_encoder_position_embeddings", 16384),
    Field("max_length", "max_decoder_position_embeddings", 1024),
)
FIXED: Config = {**bart.BLOCKS, "position_offset": 0, "scale": False, "source_global": "first"}
_MIXER, _ATTENTION = "encoder.blocks.*.mixer", "encoder.layers.*.self_attn"
BODY = (
    *bart.COMMON,
    *(
        rename(f"{_MIXER}.{ours}", f"{_ATTENTION}.longformer_self_attn.{theirs}")
        for name, theirs in (("q", "query"), ("k", "key"), ("v", "value"))
        for ours, theirs in ((f"project.{name}", theirs), (f"extra.global_{name}", f"{theirs}_global"))
    ),
    rename(f"{_MIXER}.out", f"{_ATTENTION}.output"),
)


def _adjust(options: dict[str, Any], given: Config) -> dict[str, Any]:
    """Their window counts the neighbours on both sides, ours on each side."""
    windows = given.get("attention_window", 512)
    layers = options["layers"]
    widths = windows if isinstance(windows, list) else [windows] * layers
    if len(widths) != layers:
        raise InvalidInput(f"config.json: attention_window has {len(widths)} numbers for {layers} encoder layers")
    for width in widths:
        if not isinstance(width, int) or width < 2 or width % 2:
            raise InvalidInput(f"config.json: attention_window must be even numbers from 2 on, not {width!r}")
    options["encoder_attention"] = tuple(AttentionConfig("longformer", window=width // 2) for width in widths)
    return bart.adjust(options, given)


def _restore(record: dict[str, Any], options: Any) -> dict[str, Any]:
    settings = options.encoder_attention
    for setting in settings:
        if setting.name != "longformer" or set(setting.options) - {"window", "capacity"}:
            raise Unsupported(f"an led reads its source by longformer with a window, and this by {setting!r}")
    windows = [2 * int(setting.options.get("window", 256)) for setting in settings]
    record["attention_window"] = [windows[layer % len(windows)] for layer in range(options.layers)]
    return bart.restore(record, options)


LED = Family(
    name="led",
    model="transformer",
    base="led.",
    fields=FIELDS,
    fixed=FIXED,
    only=bart.ONLY,
    architectures={"LEDModel": (), "LEDForConditionalGeneration": (), "LEDForQuestionAnswering": ("span",)},
    head=bart.head,
    body=BODY,
    heads={"span": bart.HEADS["span"]},
    output=bart.OUTPUT,
    ties=bart.TIES,
    tokens=bart.TOKENS,
    headed=bart.BART.headed,
    adjust=_adjust,
    restore=_restore,
)
