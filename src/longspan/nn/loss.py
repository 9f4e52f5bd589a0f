"""Token cross-entropy in pieces, so that the logits of a long text and a large vocabulary never stand together."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy, linear
from torch.utils.checkpoint import checkpoint

from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Hidden

IGNORED = -100  # a target that does not count


def chunked_cross_entropy(
    x: Hidden,
    weight: Float[Tensor, "vocabulary width"],
    targets: Int[Tensor, "batch length"],
    bias: Float[Tensor, " vocabulary"] | None = None,
    *,
    chunk: int = 1024,
) -> Float[Tensor, ""]:
    """The mean over the targets that count of the cross-entropy of x weightᵀ + bias; `chunk` tokens at a time.

    The value and the gradients are those of the whole (Kitaev et al. 2020, section 3): each piece of the logits is
    computed again in the backward pass and thrown away.
    """
    if chunk < 1:
        raise InvalidOption(f"chunk must be at least 1 token, not {chunk}")
    if x.shape[:-1] != targets.shape:
        raise InvalidInput(f"targets must be (batch, length) {tuple(x.shape[:-1])}, not {tuple(targets.shape)}")
    rows, wanted = x.flatten(0, 1), targets.flatten()
    total = rows.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
    for part, own in zip(rows.split(chunk), wanted.split(chunk)):
        total = total + checkpoint(_sum, part, weight, bias, own, use_reentrant=False)
    return total / (wanted != IGNORED).sum().clamp_min(1)


def _sum(rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = linear(rows, weight, bias)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")
