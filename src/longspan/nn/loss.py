"""Token cross-entropy: in chunks, which saves the memory of the logits, and with label smoothing."""

import math
from typing import Any

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
    """The mean cross-entropy of x weightᵀ + bias over the targets that count, `chunk` tokens at a time.

    Value and gradients equal those of the whole (Kitaev et al. 2020, section 3): each chunk of the logits is discarded
    and computed again in the backward pass.
    """
    if chunk < 1:
        raise InvalidOption(f"chunk must be at least 1 token, not {chunk}")
    if x.shape[:-1] != targets.shape:
        raise InvalidInput(f"targets must be (batch, length) {tuple(x.shape[:-1])}, not {tuple(targets.shape)}")
    rows, target_ids = x.flatten(0, 1), targets.flatten()
    total = rows.new_zeros((), dtype=torch.promote_types(x.dtype, torch.float32))
    for chunk_rows, chunk_targets in zip(rows.split(chunk), target_ids.split(chunk)):
        total = total + checkpoint(_sum, chunk_rows, weight, bias, chunk_targets, use_reentrant=False)
    return total / (target_ids != IGNORED).sum().clamp_min(1)


def _sum(rows: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = linear(rows, weight, bias)
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(wide, targets, ignore_index=IGNORED, reduction="sum")


CONVENTIONS = ("uniform", "others", "others_nopad")


def smoothed_cross_entropy(
    logits: Float[Tensor, "*places vocabulary"],
    targets: Int[Tensor, "*places"],
    *,
    smoothing: float = 0.0,
    convention: str = "uniform",
    padding: int | None = None,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy with smoothed and with plain targets, both as sums over the targets that count.

    Of the mass `smoothing`, every token gets 1/V (`uniform`: Szegedy et al. 2016, and PyTorch); every token but the
    target 1/(V-1) (`others`: tensor2tensor); or every token but the target and `padding` 1/(V-2) (`others_nopad`: the
    Annotated Transformer). The Kullback–Leibler divergence, which some programs report, is smaller by a
    constant, `smoothed_entropy` per target, and has the same gradients.
    """
    share = _share(logits.shape[-1], smoothing, convention, padding)
    rows = logits.flatten(0, -2).to(torch.promote_types(logits.dtype, torch.float32))
    target_ids = targets.flatten()
    if not smoothing:
        plain = cross_entropy(rows, target_ids, ignore_index=IGNORED, reduction="sum")
        return plain, plain
    real = target_ids != IGNORED
    skipped = padding if convention == "others_nopad" else None
    target_weight = 1 - smoothing + (share if convention == "uniform" else 0.0)
    arguments = (rows, target_ids.masked_fill(~real, 0), real, target_weight, share, skipped)
    smoothed, plain, _ = _Smoothed.apply(*arguments)  # type: ignore[no-untyped-call, unused-ignore]
    return smoothed, plain


class _Smoothed(torch.autograd.Function):
    """Both sums, with one matrix for the gradient, softmax minus target.

    Autograd alone would need five such matrices, which costs as much as a layer at a vocabulary of some thousands.
    """

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        target_ids: Tensor,
        real: Tensor,
        target_weight: float,
        share: float,
        skipped: int | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        logs = rows.log_softmax(-1)
        chosen = logs.gather(-1, target_ids[:, None])[:, 0]
        spread = logs.sum(-1) - chosen
        if skipped is not None:
            spread = spread - logs[:, skipped]
        # The logarithms are an output so that second derivatives can flow through them.
        ctx.save_for_backward(logs, target_ids, real)
        ctx.set_materialize_grads(False)
        ctx.target_weight, ctx.share, ctx.skipped = target_weight, share, skipped
        zero = chosen.new_zeros(())
        plain = -torch.where(real, chosen, zero).sum()
        return target_weight * plain - share * torch.where(real, spread, zero).sum(), plain, logs

    @staticmethod
    def backward(
        ctx: Any, smoothed: Tensor | None, plain: Tensor | None, further: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        logs, target_ids, real = ctx.saved_tensors
        nothing = logs.new_zeros(())
        smoothed, plain = nothing if smoothed is None else smoothed, nothing if plain is None else plain
        if torch.is_grad_enabled() or further is not None:
            return _slope(ctx, logs, target_ids, real, smoothed, plain, further), None, None, None, None, None
        grad = logs.exp().mul_(smoothed + plain).sub_(ctx.share * smoothed)
        if ctx.skipped is not None:
            grad[:, ctx.skipped] += ctx.share * smoothed
        target = (ctx.target_weight - ctx.share) * smoothed + plain
        grad.scatter_add_(1, target_ids[:, None], -target.expand(len(target_ids), 1))
        grad[~real] = 0.0
        return grad, None, None, None, None, None


def _slope(
    ctx: Any, logs: Tensor, target_ids: Tensor, real: Tensor, smoothed: Tensor, plain: Tensor, further: Tensor | None
) -> Tensor:
    """The same as differentiable operations; `further` is the gradient on the logarithms."""
    target = torch.zeros_like(logs).scatter(1, target_ids[:, None], 1.0)
    spread = torch.ones_like(logs)
    if ctx.skipped is not None:
        spread[:, ctx.skipped] = 0.0
    share = spread * (ctx.share * smoothed) + target * ((ctx.target_weight - ctx.share) * smoothed + plain)
    slope = torch.where(real[:, None], logs.exp() * (smoothed + plain) - share, 0.0)
    return slope if further is None else slope + further - logs.exp() * further.sum(-1, keepdim=True)


def smoothed_entropy(vocabulary: int, *, smoothing: float, convention: str = "uniform") -> float:
    """The entropy of a smoothed target: a lower bound of the cross-entropy."""
    share = _share(vocabulary, smoothing, convention, 0)
    target_weight = 1 - smoothing + (share if convention == "uniform" else 0.0)
    others = vocabulary - (2 if convention == "others_nopad" else 1)
    return -sum(count * p * math.log(p) for count, p in ((1, target_weight), (others, share)) if p > 0)


def _share(vocabulary: int, smoothing: float, convention: str, padding: int | None) -> float:
    """The share of one token in the smoothing mass."""
    if convention not in CONVENTIONS:
        raise InvalidOption(f"the convention of label smoothing must be {' or '.join(CONVENTIONS)}, not {convention!r}")
    if not 0 <= smoothing < 1:
        raise InvalidOption(f"label smoothing must be 0 to below 1, not {smoothing!r}")
    if convention == "others_nopad" and padding is None:
        raise InvalidOption("others_nopad leaves out the padding token: give its id as padding")
    over = vocabulary - CONVENTIONS.index(convention)
    if over < 1:
        raise InvalidOption(f"a vocabulary of {vocabulary} has no other tokens for the smoothing mass")
    return smoothing / over
