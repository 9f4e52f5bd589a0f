"""Disagreement regularisation: a loss that keeps attention heads different (Li et al. 2018, section 3).

For heads i, j of H, with cosines and products taken at each position and averaged over positions:

    values      1/H² Σ_ij cos(v_i, v_j)        "subspace": what the heads read
    positions   1/H² Σ_ij Σ_k A_i[k] A_j[k]    where they look; A are their attention weights
    outputs     1/H² Σ_ij cos(o_i, o_j)        what they give

The paper maximises the negative of these; here they are a loss, so heads that agree cost more. `positions` needs the
n × n weights of the definition: it takes quadratic time and memory, whatever the mechanism.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from longspan.attention.base import Attention
from longspan.errors import InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

KINDS = ("values", "positions", "outputs")


def cosine_agreement(heads: Tensor, keep: Tensor | None = None) -> Tensor:
    """The mean cosine of all pairs of heads, (batch, heads, length, width), over the positions of `keep`."""
    total = normalize(heads, dim=-1).sum(1)  # Σ_ij cos = ‖Σ_i unit_i‖²
    return _mean(total.square().sum(-1) / heads.shape[1] ** 2, keep)


def position_agreement(weights: Tensor, keep: Tensor | None = None) -> Tensor:
    """The mean product of all pairs of maps, (batch, heads, queries, keys), over the queries of `keep`."""
    return _mean(weights.sum(1).square().sum(-1) / weights.shape[1] ** 2, keep)


def _mean(x: Tensor, keep: Tensor | None) -> Tensor:
    if keep is None:
        return x.mean()
    return torch.where(keep, x, 0.0).sum() / keep.sum().clamp_min(1)


class HeadDisagreement:
    """Adds the loss of each attention layer to its mechanism's `auxiliary_loss` in training passes.

    `weight` is divided by the number of layers, so that it means the same for any depth. Call `reset` before each
    pass: a layer that is applied several times adds up.

    >>> disagreement = HeadDisagreement(model, ["outputs"], weight=1.0)
    >>> disagreement.reset()
    >>> loss = task_loss(model(x)) + model.auxiliary_loss()
    """

    def __init__(self, model: nn.Module, kinds: Sequence[str], weight: float = 1.0) -> None:
        unknown = [kind for kind in kinds if kind not in KINDS]
        if unknown or not kinds:
            raise InvalidOption(f"disagreement must be of {', '.join(KINDS)}, not {', '.join(unknown) or 'nothing'}")
        layers = [module for module in model.modules() if isinstance(module, MultiHead)]
        if not layers:
            raise Unsupported(f"{type(model).__name__} has no MultiHead layer, whose heads could disagree")
        self.kinds, self.weight = tuple(kinds), weight / len(layers)
        self.mechanisms = [layer.mechanism for layer in layers]
        self._own = True  # whether the layer that runs reads its own sequence
        self._hooks = [layer.register_forward_pre_hook(self._enter, with_kwargs=True) for layer in layers]
        self._hooks += [x.register_forward_hook(self._add, with_kwargs=True) for x in dict.fromkeys(self.mechanisms)]

    def reset(self) -> None:
        for mechanism in self.mechanisms:
            mechanism.auxiliary_loss = None

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, layer: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
        self._own = (args[1] if len(args) > 1 else given.get("context")) is None

    def _add(self, mechanism: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Tensor) -> None:
        assert isinstance(mechanism, Attention)
        if not mechanism.training:
            return
        q, k, v = args
        key_mask = given.get("key_mask")
        rows = key_mask if self._own else None  # the padding of the queries, which only self-attention knows
        loss = out.new_zeros(())
        if "values" in self.kinds:
            loss = loss + cosine_agreement(v, key_mask)
        if "positions" in self.kinds:
            others = {name: given.get(name) for name in ("key_mask", "bias", "streams")}
            loss = loss + position_agreement(mechanism.oracle(q, k, v, **others), rows)
        if "outputs" in self.kinds:
            loss = loss + cosine_agreement(out, rows)
        loss, before = self.weight * loss, mechanism.auxiliary_loss
        mechanism.auxiliary_loss = loss if before is None else before + loss


__all__ = ["KINDS", "HeadDisagreement", "cosine_agreement", "position_agreement"]
