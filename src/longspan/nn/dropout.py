"""Fast dropout on CPUs: torch draws on one thread and keeps a mask for the backward pass."""

from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.parts.dropout_masks import DropoutMasks

LEAST = 1 << 18  # elements; below this torch is as fast
PIECE = 1 << 20  # elements at a time: fewer start threads too often, more do not fit the cache


class Dropout(nn.Dropout):
    """torch's dropout; on CPUs the mask is a hash of a seed, computed again in the backward pass: about twice as fast.

    The rate is rounded to 1/65,536.
    """

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or not 0 < self.p < 1:
            return super().forward(x)
        if x.device.type != "cpu" or x.numel() < LEAST or not x.is_floating_point() or torch.compiler.is_compiling():
            return super().forward(x)
        seed = int(torch.randint(1 << 62, ()))  # from the user's generator
        out: Tensor = _SeededDropout.apply(x, self.p, seed)  # type: ignore[no-untyped-call, unused-ignore]
        return out


class _SeededDropout(torch.autograd.Function):
    """Keeps only the seed for the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rate: float, seed: int) -> Tensor:
        ctx.rate, ctx.seed = rate, seed
        masks, zero = DropoutMasks(rate, seed), x.new_zeros(())
        out = torch.empty(x.shape, dtype=x.dtype)
        for source, target in zip(x.reshape(-1).split(PIECE), out.view(-1).split(PIECE), strict=True):
            torch.addcmul(zero, source, masks.kept(source.shape, source.dtype), value=masks.scale, out=target)
        return out

    @staticmethod
    def backward(ctx: Any, *towards: Tensor) -> tuple[Tensor, None, None]:
        gradient = _SeededDropout.apply(towards[0], ctx.rate, ctx.seed)  # type: ignore[no-untyped-call, unused-ignore]
        return gradient, None, None


__all__ = ["Dropout"]
