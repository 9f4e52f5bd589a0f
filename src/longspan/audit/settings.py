"""Small options for the sizes at which mechanisms are audited; a name that is not here is built with its defaults.

Each mechanism is audited once for every set of options in its line.
"""

from typing import Any

HEADS, HEAD_DIM, LENGTH = 2, 8, 40
MAX_LENGTH = 256  # for mechanisms with a table of fixed size

SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "softmax": tuple({"score": s} for s in ("scaled_dot", "dot", "general", "additive", "location", "cosine")),
    "inducing": ({"points": 4},),
    "memory_compressed": (
        {"stride": 3},
        {"stride": 2, "inclusive": True, "first": False},
        {"layer": "local", "block": 8},
    ),
    "window": ({"window": 5}, {"window": 3, "dilation": 2}, {"window": 2, "dilation": (1, 3)}),
    "etc": (
        {"global_tokens": 3, "radius": 5, "labels": 0},
        {"global_tokens": 4, "radius": 3, "labels": 2, "hard": "both"},
        {"global_tokens": 5, "radius": 4, "labels": 2, "shared": True},
    ),
    "longformer": ({"window": 5, "capacity": 4}, {"window": 2, "dilation": (1, 3), "capacity": 4}),
    "linformer": (
        {"rank": 8, "sharing": "none"},
        {"rank": 16, "projection": "convolution"},
        {"rank": 16, "projection": "max"},
    ),
    "nystrom": ({"landmarks": 8, "kernel": 5}, {"landmarks": 24, "kernel": 0}),
    "image_local": ({"query_block": 6, "memory": 5}, {"query_block": (2, 3), "memory": (1, 2), "width": 7}),
    "axial": ({"width": 6}, {"width": 6, "axis": 0}),
}


def small(name: str) -> tuple[dict[str, Any], ...]:
    """The sets of options with which the mechanism `name` is audited."""
    return SMALL.get(name, ({},))
