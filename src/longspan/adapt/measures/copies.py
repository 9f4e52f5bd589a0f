"""Tokens that a model could copy from beyond its window: pairs of tokens last seen there.

Small models fail questions of recall even with full attention. But where a pair of tokens returns, such as the second
half of a name, a model that still reads its first occurrence predicts it better.
"""

import torch
from torch import Tensor


def copied_from_beyond(rows: Tensor, window: int) -> Tensor:
    """Which of the tokens 1, 2, … of each row end a pair that occurred before, last more than `window` tokens ago.

    Returns a mask (texts, tokens − 1) that fits `loss_by_position`.
    """
    mask = torch.zeros(rows.shape[0], rows.shape[1] - 1, dtype=torch.bool)
    for row, ids in enumerate(rows.tolist()):
        last: dict[tuple[int, int], int] = {}
        for at in range(1, len(ids)):
            pair = (ids[at - 1], ids[at])
            before = last.get(pair)
            mask[row, at - 1] = before is not None and at - before > window
            last[pair] = at
    return mask


__all__ = ["copied_from_beyond"]
