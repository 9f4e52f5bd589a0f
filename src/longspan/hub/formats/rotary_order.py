"""Two orders of rotary pairs: i with i + half (Hugging Face, longspan), or 2i with 2i + 1 (llama.cpp, llama2.c).

Reordering the outputs of the query and key layers turns a model of one order into the same model of the other.
"""

from torch import Tensor


def to_halves(rows: Tensor, heads: int) -> Tensor:
    """Reorders the rows of each head: from adjacent pairs to all first features, then all second ones."""
    return _reordered(rows, (heads, -1, 2))


def to_pairs(rows: Tensor, heads: int) -> Tensor:
    """The inverse of `to_halves`."""
    return _reordered(rows, (heads, 2, -1))


def _reordered(rows: Tensor, sizes: tuple[int, int, int]) -> Tensor:
    return rows.reshape(*sizes, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


__all__ = ["to_halves", "to_pairs"]
