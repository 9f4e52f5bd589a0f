"""Small options for the sizes at which mechanisms are audited; a name that is not here is built with its defaults.

Each mechanism is audited once for every set of options in its line.
"""

from typing import Any

HEADS, HEAD_DIM, LENGTH = 2, 8, 40
MAX_LENGTH = 256  # for mechanisms with a table of fixed size

SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "softmax": tuple({"score": s} for s in ("scaled_dot", "dot", "general", "additive", "location", "cosine")),
    "window": ({"window": 5}, {"window": 3, "dilation": 2}, {"window": 2, "dilation": (1, 3)}),
    "reformer": (
        {"rounds": 3, "chunk": 4, "buckets": 6},
        {"rounds": 2, "chunk": 5, "buckets": (2, 4), "count_correction": False, "reads_self": "always"},
    ),
    "routing": (
        {"clusters": 4, "window": 6, "block": 8},
        {"clusters": 3, "window": 9, "block": 16, "local_heads": 1, "local_window": 5},
    ),
    "linformer": (
        {"rank": 8, "sharing": "none"},
        {"rank": 16, "projection": "convolution"},
        {"rank": 16, "projection": "max"},
    ),
    "nystrom": ({"landmarks": 8, "kernel": 5}, {"landmarks": 24, "kernel": 0}),
}


def small(name: str) -> tuple[dict[str, Any], ...]:
    """The sets of options with which the mechanism `name` is audited."""
    return SMALL.get(name, ({},))
