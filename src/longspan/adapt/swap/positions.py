"""Longer texts: learned tables are repeated in blocks, rotary positions are scaled, windows need neither."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from longspan import config
from longspan.adapt.swap.plan import Plan
from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidOption, Unsupported
from longspan.models.attention_positions import RotaryLayer
from longspan.models.base import Model
from longspan.models.transformer import Transformer
from longspan.nn.rotary_scaling import RotaryScaling

ROPES = ("linear", "ntk", "yarn", "llama3", "none")
NEAR = 4.0  # up to this factor yarn, above it ntk
LOCAL = ("window",)  # no query reads farther than its window, and the first tokens


@dataclass(frozen=True)
class LongerPositions:
    """What a longer text changes: the model's options, and what is said about it."""

    kind: str  # the model's kind of positions
    length: int | None  # the longest text after; None: any
    before: int | None
    method: str  # "none", "repeated", or the rotary method
    factor: float = 1.0
    note: str = ""
    changed: Mapping[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, object]:
        return {
            "kind": self.kind,
            "before": self.before,
            "length": self.length,
            "factor": self.factor,
            "method": self.method,
            "note": self.note,
        }


def extend_positions(model: Model, plan: Plan, length: int | None, rope: str | None) -> LongerPositions:
    """The positions of texts of `length` tokens; refuses a length that the model's kind cannot reach."""
    options = model.options
    kind = getattr(options, "position", "none")
    if rope is not None and rope not in ROPES:
        raise InvalidOption(f"rope must be one of {', '.join(ROPES)}, not {rope!r}")
    if rope not in (None, "none") and (kind != "rotary" or length is None):
        why = "without a length nothing is scaled" if kind == "rotary" else f"the model's positions are {kind}"
        raise InvalidOption(f"rope {rope} scales rotary positions for longer texts, and {why}; leave it out")
    name = "source_length" if isinstance(model, Transformer) and plan.stack_name == "encoder" else "max_length"
    before = getattr(options, name, None) or getattr(options, "max_length", None)
    if length is None:
        return LongerPositions(kind, before, before, "none")
    if length < 1:
        raise InvalidOption(f"length must be at least 1, not {length}")
    if not hasattr(options, "max_length") or kind in ("axial", "axial_sum", "rotary_grid"):
        raise Unsupported(
            f"the positions of this model ({kind if kind != 'none' else model.name}) are those of a grid of fixed "
            f"size and cannot reach {length} tokens; leave out the length"
        )
    if isinstance(model, Transformer) and name == "source_length" and options.source_length is None:
        name = "max_length"  # one table serves both sides
    if length == before:
        return LongerPositions(kind, length, before, "none")
    changed: dict[str, Any] = {name: length}
    factor = length / before if before else 1.0
    if kind in ("learned", "learned_relative"):
        method = "repeated" if factor > 1 else "cut"
        note = f"rows from {before} on repeat the table from its first position" if factor > 1 else ""
        return LongerPositions(kind, length, before, method, factor, note, changed)
    if kind != "rotary" or before is None or factor <= 1:
        notes = {"relative": "distances beyond the last bucket share it", "none": "the model has no positions"}
        return LongerPositions(kind, length, before, "none", factor, notes.get(kind, ""), changed)
    return _rotary(model, plan, length, before, rope, changed)


def _rotary(
    model: Model, plan: Plan, length: int, before: int, rope: str | None, changed: dict[str, Any]
) -> LongerPositions:
    """Scaled frequencies in layers that read far; those of a window see no larger distances than before."""
    options, factor = model.options, length / before
    layers = len(plan.after)
    given = options.rotary_layers or (RotaryLayer(scaling=options.rotary_scaling),)
    settings = [given[layer % len(given)] for layer in range(layers)]
    local = [setting.name in LOCAL for setting in plan.after]
    method = rope or ("yarn" if factor <= NEAR else "ntk")
    scaled = [layer for layer in range(layers) if settings[layer].rotate and not (local[layer] and rope is None)]
    if method == "none" or not scaled:
        note = "windows read no farther than before, so rotary positions stay as they are" if not scaled else ""
        if any(getattr(setting.all_options, "sinks", 0) and not _near_sinks(setting) for setting in plan.after):
            note = f"queries read the first tokens from up to {length:,} tokens away, and were trained up to {before:,}"
        return LongerPositions("rotary", length, before, "none", factor, note, changed)
    if isinstance(model, Transformer):
        raise Unsupported("rotary positions of an encoder–decoder are not scaled here; leave out the length")
    for layer in scaled:
        scaling = settings[layer].scaling
        if scaling is not None:
            raise Unsupported(
                f"{plan.stack_name} layer {layer}: its rotary positions are scaled already ({scaling.kind}, by "
                f"{scaling.factor:g}); give rope none to leave them, or window attention, which needs no more"
            )
        settings[layer] = _scale(settings[layer], options, method, factor, before)
    note = ""
    if len(scaled) < layers:
        note = f"scaled only in layers {', '.join(map(str, scaled))}: windows read no farther than before"
    changed["rotary_layers"] = [config.plain(setting) for setting in settings]
    changed["rotary_scaling"] = None
    return LongerPositions("rotary", length, before, method, factor, note, changed)


def _near_sinks(setting: AttentionConfig) -> bool:
    return getattr(setting.all_options, "sink_positions", "original") == "cache"


def _scale(setting: RotaryLayer, options: Any, method: str, factor: float, before: int) -> RotaryLayer:
    if method == "ntk":
        width = options.rotary_dim or options.key_dim or options.head_dim or options.width // options.heads
        base = options.rotary_base if setting.base is None else setting.base
        if width <= 2:
            raise Unsupported(f"ntk needs more than one pair of rotated features, and this model has {width // 2}")
        return replace(setting, base=base * factor ** (width / (width - 2)))
    if method == "linear":
        return replace(setting, scaling=RotaryScaling(kind="linear", factor=factor))
    high = 32.0 if method == "yarn" else 4.0
    scaling = RotaryScaling(kind=method, factor=factor, original_length=before, low=1.0, high=high)
    return replace(setting, scaling=scaling)


__all__ = ["ROPES", "LongerPositions", "extend_positions"]
