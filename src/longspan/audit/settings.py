"""Small options for the sizes at which mechanisms are audited; a name that is not here is built with its defaults.

Each mechanism is audited once for every set of options in its line.
"""

from typing import Any

HEADS, HEAD_DIM, LENGTH = 2, 8, 40
MAX_LENGTH = 256  # for mechanisms with a table of fixed size

SMALL: dict[str, tuple[dict[str, Any], ...]] = {
    "softmax": tuple({"score": s} for s in ("scaled_dot", "dot", "general", "additive", "location", "cosine")),
    "window": ({"window": 5}, {"window": 3, "dilation": 2}, {"window": 2, "dilation": (1, 3)}),
    "linear": ({"features": "elu"}, {"features": "softplus"}),
    "performer": tuple({"features": 20, "kind": kind} for kind in ("positive", "hyperbolic", "relu")),
    "retention": ({}, {"decay": (1.0, 0.6)}),
    "gated_linear": ({"rank": 4},),
}


def small(name: str) -> tuple[dict[str, Any], ...]:
    """The sets of options with which the mechanism `name` is audited."""
    return SMALL.get(name, ({},))
