"""Models without allocated weights, and their parameter counts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan.attention.base import Attention
from longspan.nn.biases import DistanceBias
from longspan.nn.embedding import TokenEmbedding
from longspan.nn.experts import ExpertLayer
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.norm import LayerNorm, RMSNorm
from longspan.nn.positions import AbsolutePositions


class _NoNumbers(TorchFunctionMode):
    """Skips initialisation on the meta device, for which torch would load its compiler to find shapes."""

    # Functions of tensors, torch.nn.init and torch.nn.functional that change values and no shape.
    CHANGES = ("normal_", "uniform_", "xavier_uniform_", "kaiming_uniform_", "orthogonal_", "layer_norm")
    SCALES = (Tensor.mul, Tensor.mul_)
    MAKES = (torch.rand, torch.randn)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in self.CHANGES:
            return args[0] if args else kwargs["tensor"]
        if func in self.MAKES:
            return torch.empty(*args, **{name: value for name, value in kwargs.items() if name != "generator"})
        if func in self.SCALES and isinstance(args[1], (int, float)):
            return args[0]
        return func(*args, **kwargs)


@contextmanager
def blank() -> Iterator[None]:
    """Models built inside have shapes but no values, so that the largest takes a second and no memory.

    >>> with blank():
    ...     model = build("gpt3-175b")
    """
    with torch.device("meta"), _NoNumbers():
        yield


def count(model: nn.Module) -> dict[str, int]:
    """Parameters by part, each storage once and under the first of its names; their sum is the model's size."""
    kinds = dict(model.named_modules())
    seen: set[int] = set()
    parts: dict[str, int] = {}
    for name, parameter in model.named_parameters():
        if id(parameter) not in seen:
            seen.add(id(parameter))
            part = _part(name.split("."), kinds)
            parts[part] = parts.get(part, 0) + parameter.numel()
    return parts


# Names of parts, innermost first: a parameter belongs to the first of these modules that contains it.
_NAMES: tuple[tuple[type, str], ...] = (
    (Attention, "mechanism"),
    (AbsolutePositions, "positions"),
    (DistanceBias, "positions"),
    (LayerNorm, "norms"),
    (RMSNorm, "norms"),
    (FeedForward, "feed-forward"),
    (ExpertLayer, "feed-forward"),
    (TokenEmbedding, "tokens"),
)


def _part(path: list[str], kinds: Mapping[str, nn.Module]) -> str:
    first = path[0]
    for depth in range(len(path) - 1, 0, -1):
        module, name_in_parent = kinds[".".join(path[:depth])], path[depth - 1]
        if isinstance(module, MultiHead):
            return f"{first}: cross-attention" if name_in_parent == "cross" else f"{first}: attention"
        for kind, name in _NAMES:
            if isinstance(module, kind):
                return f"{first}: {name}"
    words = [word for word in path[:-1] if not word.isdigit() and word != "blocks"]
    return ": ".join(words[:2]) or first


__all__ = ["blank", "count"]
