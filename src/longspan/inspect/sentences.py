"""One sentence for each mechanism: what its map is, or why it has none and what is shown instead."""

from longspan.attention.base import Attention
from longspan.inspect.records import Standing

DENSE = {"softmax", "relative"}
IMPLIED = {
    "linear": "It sums keys and values once for all queries and never computes weights",
    "performer": "It estimates exp(q·k) by random features and never computes weights",
    "cosformer": "It sums keys and values once for all queries and never computes weights",
    "retention": "It keeps a decaying sum of keys and values; weights may be negative, and rows do not sum to 1",
    "gated_linear": "It keeps a sum that gates forget; weights may be negative, and rows do not sum to 1",
    "hedgehog": "It sums keys and values once for all queries and never computes weights",
    "window_linear": "It computes weights in its window, and reads older keys through a sum of keys and values",
    "linformer": "It reads projections of all keys; projecting back gives each key's share, which may be negative",
    "nystrom": "It reads landmarks and adds a convolution of the values; weights may be negative",
    "sinkhorn": "It reads its own block and a mixture of other blocks; the mixture is traced back to single keys",
}
NONE = {
    "memory_compressed": "a convolution shortens keys and values and mixes their channels, so no single weight belongs "
    "to a key; shown instead: which slots of the compressed memory could be read",
    "inducing": "queries are compared with summaries that depend on the values, so no single matrix turns values into "
    "outputs; shown instead: which summaries could be read",
    "linformer": "with projection max, the value of a window comes from another key in each channel, so no single "
    "matrix describes it; shown instead: the windows that could be read",
    "routing": "with relative positions, outputs have terms besides the values, so no single matrix describes them; "
    "shown instead: the clusters that could be read",
}


def describe(mechanism: Attention) -> tuple[Standing, str]:
    """Where its map comes from, and the sentence for the page."""
    name = mechanism.name
    if not mechanism.supports.map:
        why = NONE.get(name, "it transforms its values, so no single (queries, keys) matrix describes it")
        return "none", f"No map: {why}."
    if name in IMPLIED:
        return "implied", f"Implied map. {IMPLIED[name]}: this is the matrix that turns its values into its outputs."
    if name == "synthesizer":
        return (
            "map",
            "The weights it computes, from single tokens or from learned tables: no query is compared with a key.",
        )
    if name in DENSE:
        return "map", "The softmax weights over all keys that may be read."
    if name in ("reformer", "routing"):
        return "map", "The softmax weights over the keys that share a bucket with the query; all others are 0."
    if mechanism.survey_class:
        return "map", "The softmax weights over the keys of its pattern; all others are 0."
    return "map", "The weights that its fast path applies to the values, measured."


__all__ = ["describe"]
