"""Optimizers, with parameter groups for weight decay and for learning rates by layer."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.nn.norm import LayerNorm, RMSNorm
from longspan.train.adagrad import Adagrad

KINDS = ("adamw", "adafactor", "adagrad", "sgd")


@dataclass(frozen=True, kw_only=True)
class Optimizer(config.Options):
    """AdamW (Loshchilov & Hutter 2019) and others; no weight decay for norms, biases and other vectors.

    `adafactor` (Shazeer & Stern 2018) keeps the rows' and columns' mean squares of a matrix, not one for each weight;
    its steps are relative to the weights. `adagrad` (Duchi et al. 2011) and `sgd` with momentum have no running mean
    of squares.
    """

    kind: str = option("adamw", "adamw, adafactor (little memory), adagrad or sgd", choices=KINDS)
    momentum: float = option(0.0, "sgd: decay of the running sum of gradients", low=0, below=1)
    nesterov: bool = option(False, "sgd: whether momentum looks one step ahead")
    beta1: float = option(0.9, "adamw: decay of the gradient's running mean", low=0, below=1)
    beta2: float = option(0.999, "adamw: decay of the running mean of its square", low=0, below=1)
    eps: float = option(1e-8, "adamw: added to the denominator", above=0)
    decay: float = option(0.01, "weight decay of matrices; decoupled in adamw and adafactor", low=0)
    layer_decay: float = option(1.0, "rate of each layer as a fraction of the one above (ELECTRA: 0.8)", low=0, high=1)
    embedding_rate: float = option(
        1.0, "factor on the rate of embeddings; if a norm follows them, long vectors change slowly", low=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kind != "sgd" and (self.momentum or self.nesterov):
            raise InvalidOption(f"momentum and nesterov are for sgd, not for {self.kind}")
        if self.nesterov and not self.momentum:
            raise InvalidOption("nesterov needs momentum; give momentum above 0")

    def build(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of the trainable parameters; each group has a `scale`, a factor on the schedule's rate."""
        groups = [
            {"params": [parameter for _, parameter in named], "weight_decay": decay, "scale": scale, "name": name}
            for name, (named, decay, scale) in self.groups(model).items()
        ]
        if not groups:
            raise InvalidOption("the model has nothing to train: all its parameters are frozen")
        if getattr(model, "sparse_gradients", False):
            return self._for_sparse_gradients(groups)
        if self.kind == "adafactor":
            return torch.optim.Adafactor(groups, lr=0.0)
        if self.kind == "adagrad":
            return torch.optim.Adagrad(groups, lr=0.0)
        if self.kind == "sgd":
            return torch.optim.SGD(groups, lr=0.0, momentum=self.momentum, nesterov=self.nesterov)
        # Fused, a group is one call; otherwise each parameter takes a dozen, which is slow for small models.
        return torch.optim.AdamW(groups, lr=0.0, betas=(self.beta1, self.beta2), eps=self.eps, fused=True)

    def _for_sparse_gradients(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """An optimizer that changes only the rows that a batch touched."""
        if self.kind not in ("adagrad", "sgd"):
            raise InvalidOption(
                f'{self.kind} takes no sparse gradients; give optimizer = {{ kind = "adagrad", decay = 0 }}'
            )
        if self.decay or self.momentum:
            raise InvalidOption("sparse gradients allow no weight decay and no momentum; give decay = 0")
        return Adagrad(groups, eps=self.eps) if self.kind == "adagrad" else torch.optim.SGD(groups)

    def groups(self, model: nn.Module) -> Mapping[str, tuple[list[tuple[str, nn.Parameter]], float, float]]:
        """Parameter groups by name: (name, parameter) pairs, weight decay, scale of the rate.

        Every trainable parameter is in exactly one group.
        """
        norms = {
            id(parameter)
            for module in model.modules()
            if isinstance(module, (LayerNorm, RMSNorm))
            for parameter in module.parameters()
        }
        top = 2 + max((_depth(name, 0) for name, _ in model.named_parameters()), default=0)
        groups: dict[str, tuple[list[tuple[str, nn.Parameter]], float, float]] = {}
        for name, parameter in model.named_parameters():
            if not parameter.requires_grad:
                continue
            decays = parameter.dim() >= 2 and id(parameter) not in norms
            depth = _depth(name, top)
            scale = self.layer_decay ** (top - depth) * (1.0 if depth else self.embedding_rate)
            group = "decay" if decays else "no decay"
            if self.layer_decay < 1 or (self.embedding_rate != 1 and not depth):
                group += f", depth {depth}"
            members, _, _ = groups.setdefault(group, ([], self.decay if decays else 0.0, scale))
            members.append((name, parameter))
        return groups


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], largest: float) -> Tensor:
    """The norm of all gradients, which are scaled down to `largest` if it is above; they may be sparse."""
    parameters = [parameter for parameter in parameters if parameter.grad is not None]
    if not any(parameter.grad is not None and parameter.grad.is_sparse for parameter in parameters):
        return nn.utils.clip_grad_norm_(parameters, largest)
    values = []
    for parameter in parameters:
        assert parameter.grad is not None
        parameter.grad = parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad
        values.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm: Tensor = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in values]))
    if math.isfinite(largest):
        for value in values:
            value.mul_((largest / (norm + 1e-6)).clamp_max(1))
    return norm


def frozen_parameters(model: nn.Module, opened: int) -> list[nn.Parameter]:
    """Parameters that gradual unfreezing (Howard & Ruder 2018) does not train yet: below the `opened` top blocks.

    Heads are trained from the start, embeddings after the lowest block.
    """
    depths = {name: _depth(name, -1) for name, _ in model.named_parameters()}
    lowest = max(depths.values(), default=0) - opened
    return [parameter for name, parameter in model.named_parameters() if 0 <= depths[name] <= lowest]


def _depth(name: str, top: int) -> int:
    """0 for embeddings, i + 1 for block i, `top` for everything above (as in ELECTRA's code, Clark et al. 2020)."""
    block = re.search(r"\bblocks\.(\d+)\.", name)
    if block is not None:
        return int(block[1]) + 1
    return 0 if name.startswith(("embedding", "source", "target")) else top


__all__ = ["Optimizer", "clip_gradients", "frozen_parameters"]
