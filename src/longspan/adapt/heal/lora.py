"""Low-rank adapters (Hu et al. 2021) that vanish: they are merged into the weights at the end.

    y = W x + (alpha / rank) B A x,   A uniform as in torch's linear layers, B = 0

A forward hook adds the second term, so that no module is replaced and the product with B and A stays cheap.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.nn.multihead import MultiHead


class Adapter(nn.Module):
    """The factors of one linear layer's update."""

    def __init__(self, layer: nn.Linear, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        bound = 1 / math.sqrt(layer.in_features)
        drawn = torch.rand(rank, layer.in_features, generator=generator, dtype=torch.float64) * 2 * bound - bound
        self.a = nn.Parameter(drawn.to(layer.weight))
        self.b = nn.Parameter(layer.weight.new_zeros(layer.out_features, rank))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * functional.linear(functional.linear(x, self.a), self.b)


class Adapters:
    """Adapters of the queries, keys, values and outputs of attention layers."""

    def __init__(self, mixers: dict[str, MultiHead], *, rank: int, alpha: float, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layers: dict[str, nn.Linear] = {}
        for path, mixer in mixers.items():
            for name, layer in [*mixer.project.items(), ("out", mixer.out)]:
                if isinstance(layer, nn.Linear) and layer not in self.layers.values():
                    self.layers[f"{path}.{name}"] = layer
        self.adapters = {
            name: Adapter(layer, min(rank, *layer.weight.shape), alpha / rank, generator)
            for name, layer in self.layers.items()
        }
        self._hooks = [
            layer.register_forward_hook(lambda _, args, out, adapter=self.adapters[name]: out + adapter(args[0]))
            for name, layer in self.layers.items()
        ]

    def parameters(self) -> dict[str, nn.Parameter]:
        """The factors by name."""
        return {
            f"adapter.{name}.{factor}": parameter
            for name, adapter in self.adapters.items()
            for factor, parameter in adapter.named_parameters()
        }

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the products to the weights and takes the hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        for name, layer in self.layers.items():
            adapter = self.adapters[name]
            layer.weight += (adapter.scale * adapter.b.double() @ adapter.a.double()).to(layer.weight)


__all__ = ["Adapters"]
