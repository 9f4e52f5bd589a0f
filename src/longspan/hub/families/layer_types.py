"""Layers with a sliding window and layers without, in Hugging Face's configurations.

Their window counts the query itself: 4 means the query and the 3 tokens before it. Ours does not.
"""

from collections.abc import Sequence
from typing import Any

from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.families.base import Config
from longspan.models.body import spread

FULL, SLIDING = "full_attention", "sliding_attention"


def read_types(given: Config, layers: int) -> list[str] | None:
    """The kinds of layers that a configuration lists; None if it lists none."""
    types = given.get("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) < layers:
        raise InvalidInput(f"config.json: layer_types must list the kinds of {layers} layers, not {types!r:.60}")
    for kind in types[:layers]:
        if kind not in (FULL, SLIDING):
            raise Unsupported(f"config.json: layer_types has {kind!r}; a layer can be {FULL} or {SLIDING}")
    return [str(kind) for kind in types[:layers]]


def read_attention(types: Sequence[str], window: Any, **options: Any) -> tuple[AttentionConfig, ...]:
    """The attention of each layer; `window` as theirs counts it, `options` for all layers."""
    if SLIDING in types:
        if not isinstance(window, int) or isinstance(window, bool):
            raise InvalidInput(f"config.json: sliding_window must be a number of tokens, not {window!r}")
        if window < 2:
            raise Unsupported(f"config.json: sliding_window is {window}; it can be 2 or more, the query included")
    plain, near = AttentionConfig("softmax", **options), None
    if SLIDING in types:
        near = AttentionConfig("window", window=window - 1, **options)
    settings = tuple(near if kind == SLIDING and near is not None else plain for kind in types)
    return settings[:1] if all(setting == settings[0] for setting in settings) else settings


def write_types(options: Any, family: str) -> tuple[list[str], int | None]:
    """The kind of each layer, and their window: one for all layers that have one."""
    settings = spread(options.attention, options.layers, family)
    types, windows = [], set()
    for setting in settings:
        if setting.name not in ("softmax", "window"):
            raise Unsupported(f"a {family}'s layers have the attention softmax or window, not {setting.name}")
        types.append(SLIDING if setting.name == "window" else FULL)
        if setting.name == "window":
            windows.add(setting.all_options.window + 1)
    if len(windows) > 1:
        raise Unsupported(f"a {family} has one window for all layers, and this model has {sorted(windows)}")
    return types, windows.pop() if windows else None


__all__ = ["FULL", "SLIDING", "read_attention", "read_types", "write_types"]
