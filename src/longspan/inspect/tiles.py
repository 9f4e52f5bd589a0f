"""Cells of a map from its detail: the arithmetic that pages repeat in the browser."""

import numpy as np
from numpy.typing import NDArray

from longspan.inspect.records import Dense, Detail, Flags, Integers, ProductFactors, Rule, SoftmaxFactors


def allowed(rule: Rule, rows: Integers, columns: Integers) -> Flags:
    """Which of these queries may read which of these keys: (rows, columns)."""
    lag = rows[:, None].astype(np.int64) - columns[None, :].astype(np.int64)
    near: Flags = lag % rule.step == 0
    if rule.before is not None:
        near &= lag <= rule.before
    if rule.after is not None:
        near &= lag >= -rule.after
    if rule.everywhere is not None:
        near = near | rule.everywhere[rows][:, None] | rule.everywhere[columns][None, :]
    if rule.causal:
        near &= lag >= 0
    if rule.readable is not None:
        near = near & rule.readable[columns][None, :]
    return near


def tile(detail: Detail, rows: Integers, columns: Integers) -> NDArray[np.float32]:
    """The weights of these queries on these keys, (rows, columns)."""
    if isinstance(detail, Dense):
        dense: NDArray[np.float32] = detail.weights[np.ix_(rows, columns)].astype(np.float32)
        return dense
    if isinstance(detail, SoftmaxFactors):
        q, k = detail.q[rows].astype(np.float32), detail.k[columns].astype(np.float32)
        scores = detail.scale * (q @ k.T)
        if detail.bias is not None:
            middle = len(detail.bias) // 2
            scores += detail.bias[columns[None, :].astype(np.int64) - rows[:, None].astype(np.int64) + middle]
        keep = allowed(detail.rule, rows, columns)
        return np.exp(np.where(keep, scores - detail.lse[rows][:, None], -np.inf)).astype(np.float32)
    if isinstance(detail, ProductFactors):
        weights = detail.left[rows].astype(np.float32) @ detail.right[columns].astype(np.float32).T
        keep = allowed(detail.rule, rows, columns)
        if detail.row_sum is not None:
            weights /= detail.row_sum[rows][:, None]
        if detail.decay is not None:
            fade = detail.decay[rows][:, None] - detail.decay[columns][None, :]
            weights *= np.exp(np.where(keep, fade, 0.0))
        weights = np.where(keep, weights, 0.0)
        if detail.added is not None:
            lag = columns[None, :].astype(np.int64) - rows[:, None].astype(np.int64)
            middle = len(detail.added) // 2
            near = (np.abs(lag) <= middle) & allowed(detail.rule, rows, columns)
            weights += np.where(near, detail.added[np.clip(lag + middle, 0, 2 * middle)], 0.0)
        return weights.astype(np.float32)
    weights = np.zeros((len(rows), len(columns)), np.float32)
    for row, query in enumerate(rows):
        begin, end = int(detail.starts[query]), int(detail.starts[query + 1])
        keys = detail.keys[begin:end]
        place = np.searchsorted(keys, columns)
        inside = place < len(keys)
        hit = inside.copy()
        hit[inside] = keys[place[inside]] == columns[inside]
        weights[row, hit] = detail.weights[begin:end][place[hit]]
    return weights
