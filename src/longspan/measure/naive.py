"""Softmax attention without a fused kernel, with its n×n weights in memory: the baseline of efficient attention.

It is for speed only: its results equal those of `dense`, which uses a fused kernel.
"""

from torch import nn
from torch.nn.functional import dropout

from longspan.attention.base import Extras, masked_softmax, readable
from longspan.attention.mechanisms.softmax import SoftmaxAttention
from longspan.errors import Unsupported
from longspan.shapes import Keys, Output, Queries, Values


class Naive(SoftmaxAttention):
    """softmax(q kᵀ / √d) v in plain torch operations."""

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        if self.options.score != "scaled_dot" or not self.plain or extras.bias is not None or k.shape[1] != q.shape[1]:
            raise Unsupported(
                "the naive softmax has scaled products of as many key heads as query heads, and no bias, cap or sink"
            )
        scores = (q * self._scale) @ k.mT  # scaling q is cheaper than scaling the scores
        if self.causal or extras.key_mask is not None:
            weights = masked_softmax(scores, readable(q.shape[2], k.shape[2], self.causal, extras.key_mask, q.device))
        else:
            weights = scores.softmax(dim=-1)
        return dropout(weights, self.dropout, self.training) @ v


def materialise(model: nn.Module) -> int:
    """Makes every dense attention of a model naive, with what else it has left alone; how many there were."""
    dense = [
        (owner, name, child)
        for owner in model.modules()
        for name, child in owner.named_children()
        if type(child) is SoftmaxAttention
    ]
    for owner, name, child in dense:
        owner.register_module(name, Naive(child.shape, child.options, causal=child.causal, dropout=child.dropout))
    return len(dense)


__all__ = ["Naive", "materialise"]
