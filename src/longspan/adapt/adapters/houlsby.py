"""Bottleneck adapters: y = x + up(gelu(down x)) after attention and after the feed-forward layer (Houlsby et al. 2019).

Both stand before the residual connection. `up` starts at 0, so that the first output is the base's, bit for bit; the
released code starts both matrices at N(0, 1e-3²), which is `init`.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from longspan import config
from longspan.config import option
from longspan.errors import Unsupported
from longspan.models.adapters import Adapter
from longspan.models.base import Model
from longspan.nn.block import Block
from longspan.nn.convolution import SeparableConvolution
from longspan.nn.linear import Linear
from longspan.nn.norm import LayerNorm, RMSNorm

INSIDE = "bottlenecks"


class Bottleneck(nn.Module):
    """x + up(gelu(down x))."""

    def __init__(self, width: int, inner: int, init: float) -> None:
        super().__init__()
        self.down, self.up = Linear(width, inner), Linear(inner, width)
        nn.init.zeros_(self.down.bias)
        nn.init.zeros_(self.up.bias)
        if init:
            nn.init.normal_(self.down.weight, std=init)
            nn.init.normal_(self.up.weight, std=init)
        else:
            nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.up(gelu(self.down(x)))
        return out


class Behind:
    """A hook that sends a module's output through a bottleneck. An object, so that copies of a model use theirs."""

    def __init__(self, bottleneck: Bottleneck) -> None:
        self.bottleneck = bottleneck

    def __call__(self, module: nn.Module, args: tuple[Any, ...], out: Tensor) -> Tensor:
        changed: Tensor = self.bottleneck(out)
        return changed


class Houlsby(Adapter):
    """Two bottlenecks in each block; norms are trained too. Layers that share a block share them."""

    name = "houlsby"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        inner: int = option(64, "width of the bottleneck", low=1)
        init: float = option(0.0, "deviation of the first weights; 0: start exactly at the base", low=0)
        norms: bool = option(True, "train the norms of the blocks too, as the paper does")

    options: Options

    def check(self, model: Model) -> None:
        blocks = _blocks(model)
        if not blocks:
            raise Unsupported(f"bottlenecks stand in blocks, and this {model.name} has none")
        if any(isinstance(block.feedforward, SeparableConvolution) for block in blocks):
            raise Unsupported("bottlenecks stand after feed-forward layers, not after convolutions")

    def insert(self, model: Model) -> None:
        options = self.options
        for block in _blocks(model):
            width = block.mixer.width
            places: dict[str, nn.Module] = {"mixer": block.mixer.out}
            if block.feedforward is not None:
                places["feedforward"] = block.feedforward
            own = nn.ModuleDict({name: Bottleneck(width, options.inner, options.init) for name in places})
            block.add_module(INSIDE, own)
            for name, module in places.items():
                bottleneck = own[name]
                assert isinstance(bottleneck, Bottleneck)
                module.register_forward_hook(Behind(bottleneck))

    def remove(self, model: Model) -> None:
        for block in _blocks(model):
            delattr(block, INSIDE)
            for module in (block.mixer.out, block.feedforward):
                hooks = {} if module is None else module._forward_hooks
                for key in [key for key, hook in hooks.items() if isinstance(hook, Behind)]:
                    del hooks[key]

    def owns(self, name: str) -> bool:
        return INSIDE in name.split(".")

    @torch.no_grad()
    def trained_base(self, model: nn.Module) -> list[str]:
        if not self.options.norms:
            return []
        norms = {
            id(parameter)
            for block in _blocks(model)
            for module in block.modules()
            if isinstance(module, (LayerNorm, RMSNorm))
            for parameter in module.parameters()
        }
        return [name for name, parameter in model.named_parameters() if id(parameter) in norms]


def _blocks(model: nn.Module) -> list[Block]:
    return [module for module in model.modules() if isinstance(module, Block)]


__all__ = ["Bottleneck", "Houlsby"]
