"""Positions that are applied inside attention: rotations and biases of the scores, the same in all layers or not."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.nn.biases import Alibi, RelativeBias
from longspan.nn.multihead import Position
from longspan.nn.rotary import Rotary
from longspan.nn.rotary_scaling import RotaryScaling

if TYPE_CHECKING:
    from longspan.models.body import BodyOptions


@dataclass(frozen=True, kw_only=True)
class RotaryLayer(config.Options):
    """How one layer rotates queries and keys, if not all layers do it alike."""

    rotate: bool = option(True, "whether it rotates at all (SmolLM3: three layers of four)")
    base: float | None = option(None, "base of the wavelengths; rotary_base unless given", low=1)
    scaling: RotaryScaling | None = option(None, "scaled frequencies, for longer texts")


def attention_positions(
    options: "BodyOptions", head_dim: int, causal: bool, layers: int, stack_name: str
) -> list[Position | None]:
    """The positions of each layer; layers that do the same share one module."""
    given = options.rotary_layers
    if given is None:
        return [attention_position(options, head_dim, causal)] * layers
    if options.position != "rotary":
        raise InvalidOption(f"{stack_name}: rotary_layers need position='rotary', not {options.position!r}")
    if len(given) > layers:
        raise InvalidOption(f"{stack_name} has {len(given)} rotary_layers for {layers} layers; give at most one each")
    built: list[tuple[RotaryLayer, Position | None]] = []
    for setting in given:
        known = [position for other, position in built if other == setting]
        built.append((setting, known[0] if known else _rotary(options, head_dim, setting)))
    return [built[layer % len(built)][1] for layer in range(layers)]


def attention_position(options: "BodyOptions", head_dim: int, causal: bool) -> Position | None:
    """The positions of every layer, or None if `position` is not of that kind."""
    if options.rotary_layers is not None:
        raise InvalidOption("all layers of this model are one block: give rotary_base instead of rotary_layers")
    if options.position in ("rotary", "rotary_grid"):
        if options.position == "rotary_grid" and options.axes is None:
            raise InvalidOption("rotary_grid positions need axes, the sides of the grid")
        axes = options.axes if options.position == "rotary_grid" else None
        return _rotary(options, head_dim, RotaryLayer(scaling=options.rotary_scaling), axes)
    if options.position == "alibi":
        return Alibi(options.heads)
    if options.position not in ("relative", "learned_relative"):
        return None
    sizes = options.relative_buckets, options.relative_distance
    return RelativeBias(options.heads, *sizes, bidirectional=not causal)


def _rotary(
    options: "BodyOptions", head_dim: int, setting: RotaryLayer, axes: Sequence[int] | None = None
) -> Rotary | None:
    if not setting.rotate:
        return None
    base = options.rotary_base if setting.base is None else setting.base
    return Rotary(head_dim, base=base, rotated=options.rotary_dim, scaling=setting.scaling, axes=axes)


__all__ = ["RotaryLayer", "attention_position", "attention_positions"]
