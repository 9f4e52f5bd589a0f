"""Options with which mechanisms are audited, at small sizes; others are built with their defaults.

Each mechanism is audited once for every set of options in its line.
"""

from typing import Any

HEADS, HEAD_DIM, LENGTH = 2, 8, 40
LONG_LENGTH = 250  # of the longer samples: past every small block, and past the blocks of 64 and 128 inside mechanisms
MAX_LENGTH = 256  # for mechanisms with a table of fixed size

SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "softmax": (
        *({"score": s} for s in ("scaled_dot", "dot", "general", "additive", "location", "cosine")),
        {"learned_sink": True},
    ),
    "window": (
        {"window": 5},
        {"window": 3, "dilation": 2},
        {"window": 2, "dilation": (1, 3)},
        {"window": 4, "sinks": 3, "learned_sink": True},
        {"window": 4, "sinks": 3, "sink_positions": "cache"},
        {"window": 4, "scale": 0.4, "softcap": 2.0},
    ),
    "longformer": ({"window": 5, "capacity": 4}, {"window": 2, "dilation": (1, 3), "capacity": 4}),
    "etc": (
        {"global_tokens": 3, "radius": 5, "labels": 0},
        {"global_tokens": 4, "radius": 3, "labels": 2, "hard": "both"},
        {"global_tokens": 5, "radius": 4, "labels": 2, "shared": True},
    ),
    "bigbird": (
        {"block": 4, "random": 2},
        {"block": 3, "random": 1, "window": 5, "plan": "released"},
        {"form": "etc", "block": 4, "random": 1, "global_tokens": 3},
    ),
    "sparse": (
        {"stride": 5},
        {"pattern": "fixed", "stride": 7, "summary": 2},
        {"pattern": "fixed", "stride": 6, "summary": 4, "heads_pattern": "split"},
    ),
    "image_local": ({"query_block": 6, "memory": 5}, {"query_block": (2, 3), "memory": (1, 2), "width": 7}),
    "axial": ({"width": 6}, {"width": 6, "axis": 0}),
    "memory_compressed": (
        {"stride": 3},
        {"stride": 2, "inclusive": True, "first_slot": False},
        {"layer": "local", "block": 8},
    ),
    "inducing": ({"points": 4},),
    "reformer": (
        {"rounds": 3, "chunk": 4, "buckets": 6},
        {"rounds": 2, "chunk": 5, "buckets": (2, 4), "count_correction": False, "reads_self": "always"},
    ),
    "routing": (
        {"clusters": 4, "window": 6, "block": 8},
        {"clusters": 3, "window": 9, "block": 16, "local_heads": 1, "local_window": 5},
        {"clusters": 3, "window": 6, "block": 8, "relative": 3, "local_heads": 1, "local_window": 5},
    ),
    # Blocks so small that the mixing, which is of the declared order, outweighs the attention. Noise would hide what
    # the check of dropout looks for.
    "sinkhorn": (
        {"block": 5, "noise": 0.0},
        {"block": 5, "noise": 0.0, "combine": "sum", "network": "linear"},
        {"block": 6, "noise": 0.0, "combine": "sorted"},
    ),
    "synthesizer": (
        {"form": "dense"},
        {"form": ("dense", "factorised_random", "dot")},
        {"form": ("random", "factorised_dense", "dot")},
    ),
    "linformer": (
        {"rank": 8, "sharing": "none"},
        {"rank": 16, "projection": "convolution"},
        {"rank": 16, "projection": "max"},
    ),
    "nystrom": ({"landmarks": 8, "kernel": 5}, {"landmarks": 24, "kernel": 0}),
    "linear": ({"features": "elu"}, {"features": "softplus"}),
    "performer": tuple({"features": 20, "kind": kind} for kind in ("positive", "hyperbolic", "relu")),
    "retention": ({}, {"decay": (1.0, 0.6)}),
    "gated_linear": ({"rank": 4},),
    "hedgehog": ({}, {"features": 6, "joined": True}),
    "window_linear": ({"window": 5}, {"window": 3, "sinks": 2, "features": 6, "affine": True}),
}


def small(name: str) -> tuple[dict[str, Any], ...]:
    """The sets of options with which the mechanism `name` is audited."""
    return SMALL.get(name, ({},))
