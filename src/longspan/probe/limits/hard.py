"""Hard attention: each head reads the one key with the highest score (Hahn 2020, section 4).

    out_i = v_j,  j = argmax_j q_i·k_j, the leftmost if several are highest

The choice has no gradient. In training the softmax's gradient replaces it (straight through; Bengio et al. 2013).
"""

from dataclasses import replace

from torch import Tensor
from torch.nn.functional import one_hot

from longspan.attention.base import Extras, share_heads
from longspan.attention.mechanisms.softmax import SoftmaxAttention
from longspan.shapes import Keys, Output, Queries, Values, Weights


class HardAttention(SoftmaxAttention):
    name = "hard"
    paper = "Hahn 2020"
    supports = replace(SoftmaxAttention.supports, streaming=False, dropout=False, persistent=False)

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        return straight_through(super().define(q, k, extras))

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        return self.define(q, share_heads(k, q.shape[1]), extras) @ share_heads(v, q.shape[1])


def straight_through(weights: Tensor) -> Tensor:
    """1 at the largest weight of each row and 0 elsewhere, with the gradient of `weights`; a row of zeros stays."""
    chosen = one_hot(weights.argmax(-1), weights.shape[-1]) * weights.any(-1, keepdim=True)
    return chosen + (weights - weights.detach())


__all__ = ["HardAttention", "straight_through"]
