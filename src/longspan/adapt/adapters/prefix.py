"""Prefix tuning: p learned keys and values in each layer that every token reads (Li & Liang 2021).

They have no position, no mask hides them, and real tokens keep theirs. One softmax covers them and the sequence, so in
decoding they are as keys that were read before the first token. Linear attention keeps no single keys: there the
initial state is learned, S0 and z0. Other mechanisms are refused.

In training, keys and values are the output of a small network (section 4.3: direct optimisation is unstable), which the
stored adapter does not need.
"""

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import Attention
from longspan.attention.parts.kernel_attention import KernelAttention
from longspan.attention.parts.persistent_memory import PersistentMemory
from longspan.attention.spec import Shape
from longspan.config import option
from longspan.errors import Unsupported
from longspan.models.adapters import HEADS, Adapter
from longspan.models.base import Model
from longspan.nn.block import Block

KEYS, STATE = "persistent", "initial"


class PrefixMemory(PersistentMemory):
    """Keys and values as they are, or as the output of a network: Linear(tanh(Linear(table)))."""

    def __init__(self, shape: Shape, count: int, inner: int) -> None:
        super().__init__(shape, count)
        self.sizes = (shape.heads, shape.head_dim, shape.value_dim)
        self.network: nn.Sequential | None = None
        if not inner:
            nn.init.normal_(self.keys, std=0.02)
            nn.init.normal_(self.values, std=0.02)
            return
        del self.keys, self.values
        width = shape.heads * shape.head_dim
        self.table = nn.Parameter(torch.randn(count, width))
        out = nn.Linear(inner, shape.heads * (shape.head_dim + shape.value_dim))
        self.network = nn.Sequential(nn.Linear(width, inner), nn.Tanh(), out)

    def vectors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        if self.network is None:
            return self.keys.to(like.dtype), self.values.to(like.dtype)
        heads, width, values = self.sizes
        both = self.network(self.table).unflatten(-1, (heads, width + values)).transpose(0, 1)
        keys, rest = both.split([width, values], -1)
        return keys.to(like.dtype), rest.to(like.dtype)


class Prefix(Adapter):
    """`tokens` learned keys and values per layer, or a learned initial state where attention is linear."""

    name = "prefix"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        tokens: int = option(10, "learned keys and values per layer", low=1)
        inner: int = option(512, "width of the network they come from in training; 0: learn them directly", low=0)

    options: Options

    def check(self, model: Model) -> None:
        found = _mechanisms(model)
        if not found:
            raise Unsupported(f"a prefix stands before the keys of blocks, and this {model.name} has none")
        for mechanism in found:
            if isinstance(mechanism, KernelAttention):
                mechanism.add_initial_state()  # raises if it has none
                mechanism.initial = None
            elif not mechanism.supports.persistent:
                raise Unsupported(
                    f"{mechanism.name} keeps neither single keys under one softmax nor a state that can be learned, so "
                    "it takes no prefix; use lora or houlsby"
                )
            elif mechanism.persistent is not None:
                raise Unsupported(f"{mechanism.name} has persistent vectors already, which a prefix would replace")

    def insert(self, model: Model) -> None:
        for mechanism in _mechanisms(model):
            if isinstance(mechanism, KernelAttention):
                mechanism.add_initial_state()
            else:
                mechanism.persistent = PrefixMemory(mechanism.shape, self.options.tokens, self.options.inner)

    def remove(self, model: Model) -> None:
        for mechanism in _mechanisms(model):
            if isinstance(mechanism, KernelAttention):
                mechanism.initial = None
            else:
                mechanism.persistent = None

    def owns(self, name: str) -> bool:
        return ".mechanism.persistent." in name or ".mechanism.initial." in name

    @torch.no_grad()
    def small(self, model: Model) -> tuple[Self, dict[str, Tensor]]:
        """Keys and values alone, without the network that gave them."""
        tensors = {name: tensor for name, tensor in model.state_dict().items() if name.startswith(HEADS)}
        for name, module in model.named_modules():
            if isinstance(module, PrefixMemory):
                plain = module.network is None
                pair = (module.keys.data, module.values.data) if plain else module.vectors(module.table)
                tensors |= {f"{name}.keys": pair[0], f"{name}.values": pair[1]}
            elif isinstance(module, KernelAttention) and module.initial is not None:
                tensors[f"{name}.{STATE}.sums"] = module.initial.sums.data
        return type(self)(replace(self.options, inner=0)), tensors


def _mechanisms(model: nn.Module) -> list[Attention]:
    """The self-attention of each block, each once."""
    found = [module.mixer.mechanism for module in model.modules() if isinstance(module, Block)]
    return list(dict.fromkeys(found))


__all__ = ["Prefix", "PrefixMemory"]
