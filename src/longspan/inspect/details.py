"""What any single cell of a head's map can be computed from: all weights, factors, or the weights that are not 0."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longspan.attention.map_factors import PASSING, MapFactors, ProductMap, SoftmaxMap
from longspan.inspect.records import Dense, Detail, ProductFactors, Rows, Rule, SoftmaxFactors

MOST_DENSE = 512  # tokens up to which all weights may be kept
LARGE_SCORE = 8.0  # scores above it need float32 factors: float16 would be off by more than 3e-3
SPARSE = 0.25  # share of weights that are not 0 up to which they are listed


def size_of(detail: Detail | None) -> int:
    """Its bytes."""
    arrays = [] if detail is None else [value for value in vars(detail).values() if isinstance(value, np.ndarray)]
    return sum(array.nbytes for array in arrays)


def width_of(factors: MapFactors) -> int:
    """The numbers of a position in the factors."""
    return int(factors.q.shape[3]) if isinstance(factors, SoftmaxMap) else int(vars(factors)["left"].shape[3])


def from_factors(factors: MapFactors, head: int, *, half: bool) -> Detail:
    """The factors of one head; with `half`, in float16 where that is exact enough."""
    if isinstance(factors, SoftmaxMap):
        return _softmax(factors, head, half=half)
    assert isinstance(factors, ProductMap)
    left, right = factors.left[0, head], factors.right[0, head]
    decay = None
    if factors.log_decay is not None:
        decay = (factors.log_decay[head] * torch.arange(factors.shape[2])).numpy().astype(np.float32)
    return ProductFactors(
        left=_numbers(left),
        right=_numbers(right),
        rule=Rule(causal=factors.causal, readable=_mask(factors.key_mask)),
        row_sum=None if factors.row_sum is None else _numbers(factors.row_sum[0, head]),
        decay=decay,
        added=None if factors.added is None else _numbers(factors.added[head]),
    )


def _softmax(factors: SoftmaxMap, head: int, *, half: bool) -> SoftmaxFactors:
    one = slice(head, head + 1)

    def of_head(values: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if values is None else (values[head],)

    own = replace(
        factors,
        q=factors.q[:1, one].float(),
        k=factors.k[:1, one].float(),
        bias=None if factors.bias is None else factors.bias[one].float(),
        before=of_head(factors.before),
        after=of_head(factors.after),
        steps=of_head(factors.steps),
    )
    if half:
        rounded = replace(own, q=own.q.half().float(), k=own.k.half().float())
        half = _largest_score(rounded) <= LARGE_SCORE
        own = rounded if half else own
    kind = np.float16 if half else np.float32
    return SoftmaxFactors(
        q=_numbers(own.q[0, 0]).astype(kind),
        k=_numbers(own.k[0, 0]).astype(kind),
        scale=factors.scale,
        lse=_numbers(own.log_sums[0, 0]),  # from the rounded factors, so that rows sum to 1
        rule=Rule(
            causal=own.causal,
            before=None if own.before is None else own.before[0],
            after=None if own.after is None else own.after[0],
            step=1 if own.steps is None else own.steps[0],
            readable=_mask(own.key_mask),
        ),
        bias=None if own.bias is None else _numbers(own.bias[0]),
    )


def _largest_score(factors: SoftmaxMap) -> float:
    largest = torch.zeros(())
    keys = torch.arange(factors.shape[3])
    for part in torch.arange(factors.shape[2]).split(max(1, PASSING // factors.shape[3])):
        scores = factors.scores(part, keys)
        largest = torch.maximum(largest, scores.masked_fill(scores.isinf(), 0.0).abs().amax())
    return float(largest)


def dense(weights: Tensor, *, half: bool) -> Dense:
    """All weights of one head (queries, keys)."""
    return Dense(_numbers(weights).astype(np.float16 if half else np.float32))


class RowsBuilder:
    """Collects the weights that are not 0 from blocks of columns or rows; gives up on maps that are not sparse."""

    def __init__(self, heads: int, queries: int, keys: int) -> None:
        self.queries, self.keys = queries, keys
        self.most = int(SPARSE * queries * keys)
        self.parts: list[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in range(heads)]
        self.counts = [0] * heads

    def add(self, row: int, key: int, block: Tensor) -> None:
        for head, weights in enumerate(block):
            if self.counts[head] > self.most:
                continue
            rows, keys = (index.numpy() for index in weights.nonzero(as_tuple=True))
            self.counts[head] += len(rows)
            if self.counts[head] > self.most:
                self.parts[head] = []
            else:
                kind = np.uint16 if self.keys <= 1 << 16 else np.uint32
                values = weights[weights != 0].float().numpy()
                self.parts[head].append(((rows + row).astype(np.uint32), (keys + key).astype(kind), values))

    def rows(self, head: int, *, half: bool) -> Rows | None:
        """The weights of one head, row by row; None if too many are not 0."""
        if self.counts[head] > self.most or not self.parts[head]:
            return None
        rows, keys, weights = (np.concatenate(part) for part in zip(*self.parts[head]))
        order = np.lexsort((keys, rows))
        starts = np.searchsorted(rows[order], np.arange(self.queries + 1)).astype(np.uint32)
        return Rows(starts, keys[order], weights[order].astype(np.float16 if half else np.float32))


def _numbers(x: Tensor) -> np.ndarray:
    return x.detach().float().contiguous().numpy()


def _mask(key_mask: Tensor | None) -> np.ndarray | None:
    return None if key_mask is None or bool(key_mask[0].all()) else key_mask[0].numpy()


__all__ = ["MOST_DENSE", "RowsBuilder", "dense", "from_factors", "size_of", "width_of"]
