"""Options of the gallery's pictures: small sizes that show each pattern at 64 positions, and the values of its dials.

A mechanism that is not listed, such as a plugin, gets its default options and dials from what its options declare.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from longspan import config
from longspan.attention.registry import find

MARKED = "marked tokens"  # a dial that is no option: how many positions a stream of the kind "mask" marks
MOST_SETTINGS = 40  # of one mechanism and form
MOST_VALUES = 6
LARGEST = 16  # whole number with which a mechanism that is not listed starts


@dataclass(frozen=True)
class Setup:
    """Options at 64 positions, and the values of each dial."""

    options: Mapping[str, Any]
    dials: Mapping[str, tuple[Any, ...]]


SETUPS: dict[str, Setup] = {
    "softmax": Setup(
        {},
        {
            "scale": (None, 0.03, 0.06, 0.125, 0.5, 1.0),
            "score": ("scaled_dot", "dot", "general", "additive", "location", "cosine"),
        },
    ),
    "window": Setup({"window": 6}, {"window": (2, 4, 6, 12, 24), "dilation": (1, 2, 3, 4)}),
    "longformer": Setup(
        {"window": 4, "capacity": 8}, {"window": (2, 4, 8, 16), "dilation": (1, 2, 3), MARKED: (0, 1, 2, 4)}
    ),
    "etc": Setup(
        {"global_tokens": 4, "radius": 5, "labels": 0},
        {"global_tokens": (1, 2, 4, 8, 16), "radius": (2, 5, 10, 20)},
    ),
    "bigbird": Setup(
        {"block": 4, "random": 1, "window": 3, "global_tokens": 4},
        {"block": (2, 4, 8), "random": (0, 1, 2, 3), "window": (1, 3, 5)},
    ),
    "sparse": Setup(
        {"stride": 8, "summary": 1, "pattern": "strided"},
        {"pattern": ("strided", "fixed"), "stride": (4, 8, 16), "heads_pattern": ("merged", "local", "distant")},
    ),
    "image_local": Setup(
        {"query_block": 8, "memory": 8}, {"query_block": (4, 8, 16), "memory": (0, 4, 8, 16), "ring": (False, True)}
    ),
    "axial": Setup({"width": 8}, {"width": (4, 8, 16), "axis": (-1, 0)}),
    "memory_compressed": Setup({"stride": 3}, {"stride": (2, 3, 4, 8), "inclusive": (False, True)}),
    "inducing": Setup({"points": 8}, {"points": (1, 2, 4, 8, 16, 32)}),
    "reformer": Setup(
        {"rounds": 1, "chunk": 8, "buckets": 8},
        {"rounds": (1, 2, 4), "chunk": (4, 8, 16), "buckets": (4, 8, 16)},
    ),
    "routing": Setup({"clusters": 4, "window": 16, "block": 16}, {"clusters": (2, 4, 8), "window": (4, 8, 16, 32)}),
    "sinkhorn": Setup({"block": 8, "combine": "concat"}, {"block": (4, 8, 16), "combine": ("concat", "sum", "sorted")}),
    "synthesizer": Setup({"form": "dense"}, {"form": ("dense", "random", "factorised_dense", "factorised_random")}),
    "linformer": Setup(
        {"rank": 8}, {"rank": (2, 4, 8, 16, 32), "projection": ("linear", "convolution", "mean", "max")}
    ),
    "nystrom": Setup({"landmarks": 8, "kernel": 0}, {"landmarks": (2, 4, 8, 16, 32), "kernel": (0, 9, 33)}),
    "linear": Setup({}, {"features": ("elu", "relu", "softplus")}),
    "performer": Setup({"features": 64}, {"features": (8, 16, 64, 256), "kind": ("positive", "hyperbolic", "relu")}),
    "retention": Setup({"decay": (0.9,)}, {"decay": ((0.5,), (0.8,), (0.9,), (0.97,), (1.0,))}),
    "gated_linear": Setup({"rank": 8}, {"temperature": (1.0, 4.0, 16.0, 64.0)}),
    "hedgehog": Setup({}, {"joined": (False, True)}),
    "window_linear": Setup({"window": 7, "sinks": 0}, {"window": (0, 3, 7, 15), "sinks": (0, 1, 4)}),
}


def setup(name: str) -> Setup:
    """The options and dials of a mechanism; derived from its declared options if it is not listed."""
    return SETUPS[name] if name in SETUPS else _derived(name)


def _derived(name: str) -> Setup:
    """Default options, and a dial for each option that has choices or is a switch or a whole number.

    Whole numbers above 16 become 16: a block of 128 would show nothing at 64 positions.
    """
    dials: dict[str, tuple[Any, ...]] = {}
    options: dict[str, Any] = {}
    for item in config.describe(find(name).Options):
        values = _values(item)
        if len(values) > 1 and prod(map(len, dials.values())) * len(values) <= MOST_SETTINGS:
            dials[item["name"]] = values
            options[item["name"]] = item["default"] if item["default"] in values else values[len(values) // 2]
    return Setup(options, dials)


def _values(item: Mapping[str, Any]) -> tuple[Any, ...]:
    """The values that a dial of an option offers, its default among them."""
    default = item["default"]
    if isinstance(default, bool):
        return (False, True)
    if item["choices"] and isinstance(default, str):
        return tuple(item["choices"])[:MOST_VALUES]
    if isinstance(default, int):
        middle = min(default, LARGEST)
        near = {middle, *(middle * 2**power // 4 for power in range(5))}
        return tuple(value for value in sorted(near) if value >= 1 and _within(value, item))
    return (default,)


def _within(value: int, item: Mapping[str, Any]) -> bool:
    low, high = item["low"], item["high"]
    return (low is None or value >= low) and (high is None or value <= high)


def settings(dials: Mapping[str, tuple[Any, ...]]) -> list[tuple[int, ...]]:
    """Every combination of the dials, as the indices of their values."""
    return list(product(*(range(len(values)) for values in dials.values())))


__all__ = ["MARKED", "SETUPS", "Setup", "settings", "setup"]
