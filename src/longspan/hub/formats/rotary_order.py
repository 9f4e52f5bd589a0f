"""Rotary pairs in two orders: feature i with i + half (Hugging Face, here), or 2i with 2i + 1 (llama.cpp, llama2.c).

A model in one order is the same model in the other when the outputs of its query and key layers change places.
"""

from torch import Tensor


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """From pairs side by side to their first features, then their second ones, in each head."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def to_pairs(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `to_halves`."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


__all__ = ["to_halves", "to_pairs"]
