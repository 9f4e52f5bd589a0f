"""Huffman trees over words: the hierarchical softmax of word2vec (Morin & Bengio 2005; Mikolov et al. 2013)."""

import heapq
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from longspan.errors import InvalidInput


def paths(
    counts: Sequence[int],
) -> tuple[Int[Tensor, "words depth"], Bool[Tensor, "words depth"], Bool[Tensor, "words depth"]]:
    """The inner nodes from the root to each word, the branch taken at each (True: right), and which are on the path.

    Inner nodes are numbered 0 to words - 2. Frequent words have short paths: no code has fewer bits on average.

    >>> nodes, codes, inside = paths([4, 2, 1])
    >>> inside.sum(1).tolist()
    [1, 2, 2]
    """
    count = len(counts)
    if count < 2:
        raise InvalidInput(f"a hierarchical softmax needs at least 2 words, got {count}")
    heap = [(times, number) for number, times in enumerate(counts)]
    heapq.heapify(heap)
    parent, right = [0] * (2 * count - 1), [False] * (2 * count - 1)
    for node in range(count, 2 * count - 1):
        (first, left), (second, other) = heapq.heappop(heap), heapq.heappop(heap)
        parent[left] = parent[other] = node
        right[other] = True
        heapq.heappush(heap, (first + second, node))
    root, rows = 2 * count - 2, []
    for word in range(count):
        path, node = list[tuple[int, bool]](), word
        while node != root:
            path.append((parent[node] - count, right[node]))
            node = parent[node]
        rows.append(path[::-1])
    depth = max(map(len, rows))
    nodes = torch.zeros(count, depth, dtype=torch.long)
    codes, inside = (torch.zeros(count, depth, dtype=torch.bool) for _ in range(2))
    for word, path in enumerate(rows):
        nodes[word, : len(path)] = torch.tensor([node for node, _ in path])
        codes[word, : len(path)] = torch.tensor([branch for _, branch in path])
        inside[word, : len(path)] = True
    return nodes, codes, inside


__all__ = ["paths"]
