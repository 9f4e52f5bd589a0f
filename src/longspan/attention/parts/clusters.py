"""Clusters of tokens: their rows by index and back, and their best tokens block after block (Routing Transformer)."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.layouts import ceil_div


def take_rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows of x (batch, heads, length, width) at index (batch, heads, …); past the last one, the last one."""
    flat = _flat(index.clamp_max(x.shape[2] - 1), x.shape[2])
    rows: Tensor = x.flatten(0, 2).index_select(0, flat).unflatten(0, index.shape)
    return rows


def average_rows(parts: Tensor, index: Tensor, length: int) -> Tensor:
    """The mean of the rows `parts` (batch, heads, clusters, window, width) that belong to each position; 0 if none."""
    flat, rows = _flat(index, length + 1), index.shape[0] * index.shape[1] * (length + 1)
    counts = parts.new_zeros(rows).scatter_add(0, flat, parts.new_ones(flat.shape))
    total = parts.new_zeros(rows, parts.shape[-1]).index_add(0, flat, parts.flatten(0, 3))
    mean: Tensor = (total / counts.clamp_min(1)[:, None]).unflatten(0, (*index.shape[:2], length + 1))
    return mean[:, :, :-1]


def extend_lists(
    index: Tensor, best: Tensor, score: Tensor, first: int, block: int, window: int
) -> list[tuple[Tensor, Tensor]]:
    """The best tokens of each cluster, and their scores, after each whole block of `score`.

    `index` and `best` are those before it, (batch, heads, clusters, window); `score` is of positions from `first` on.
    """
    lists = []
    for begin in range(0, score.shape[-1] - block + 1, block):
        position = torch.arange(first + begin, first + begin + block, device=score.device)
        position = position.expand(*score.shape[:3], block)
        chosen = torch.cat([best, score[..., begin : begin + block]], dim=-1).topk(window, dim=-1, sorted=False)
        index = torch.cat([index, position], dim=-1).gather(-1, chosen.indices)
        index, best = index.masked_fill(chosen.values == float("-inf"), -1), chosen.values
        lists.append((index, best))
    return lists


def lists_at_once(score: Tensor, block: int, window: int) -> Tensor:
    """The tokens of `extend_lists` for all blocks without a loop, for what is compiled or exported."""
    length = score.shape[-1]
    begins = torch.arange(ceil_div(length, block) + 1, device=score.device) * block  # one to spare
    earlier = torch.arange(length, device=score.device) < begins[:, None]
    score = score[:, :, None].masked_fill(~earlier[:, None], float("-inf"))  # batch heads blocks clusters length
    best = pad(score, (0, window), value=float("-inf")).topk(window, dim=-1, sorted=False)
    return best.indices.masked_fill(best.values == float("-inf"), -1)


def _flat(index: Tensor, length: int) -> Tensor:
    """The index into rows of all heads concatenated: torch gathers along one axis far faster."""
    batch, heads = index.shape[:2]
    starts = torch.arange(batch * heads, device=index.device).view(batch, heads) * length
    return (index.flatten(2) + starts[..., None]).flatten()


__all__ = ["average_rows", "extend_lists", "lists_at_once", "take_rows"]
