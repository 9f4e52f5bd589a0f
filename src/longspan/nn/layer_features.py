"""Features from the layers of a model: the last one, several of them, or a learned mix of all (ELMo, BERT).

`FeatureHead` puts a task head on such features, with a small bidirectional LSTM in between if asked for. With the body
frozen, this is the feature-based approach of Peters et al. 2018 and of Devlin et al. 2018, section 5.3.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from longspan.errors import InvalidInput
from longspan.nn.dropout import Dropout
from longspan.nn.recurrent import Recurrent
from longspan.shapes import Hidden, KeyMask

FEATURES = ("last", "sum", "concat", "mix")
Layers = Float[Tensor, "batch layers length width"]


class LayerMix(nn.Module):
    """gamma · sum over j of softmax(w)_j · h_j (Peters et al. 2018, equation 1), with a penalty on w.

    The penalty keeps the weights near the plain mean. With `norm`, each layer is normalised first, token by token.
    (The authors' code takes mean and variance over the whole batch, so that other rows change a word's vector.)
    """

    def __init__(self, layers: int, *, norm: bool = False, penalty: float = 0.001, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm, self.penalty = norm, penalty
        self.weight = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))
        self.dropout = Dropout(dropout)

    @property
    def auxiliary_loss(self) -> Float[Tensor, ""]:
        """penalty · ‖w‖², for the task's loss."""
        return self.penalty * self.weight.square().sum()

    def forward(self, layers: Layers) -> Float[Tensor, "batch length width"]:
        if layers.shape[1] != len(self.weight):
            raise InvalidInput(f"this mixes {len(self.weight)} layers, and {layers.shape[1]} were given")
        if self.norm:
            layers = layer_norm(layers, layers.shape[-1:])
        mixed: Tensor = self.dropout(self.gamma * torch.einsum("j,bjld->bld", self.weight.softmax(0), layers))
        return mixed

    def extra_repr(self) -> str:
        return f"layers={len(self.weight)}, norm={self.norm}, penalty={self.penalty}"


class LayerFeatures(nn.Module):
    """One vector per token from the states of all layers, the embeddings first; `width` is its width."""

    def __init__(self, kind: str, depth: int, width: int, layers: int) -> None:
        super().__init__()
        if kind in ("sum", "concat") and depth > layers:
            raise InvalidInput(f"features of the last {depth} layers need as many; the model has {layers}")
        self.kind, self.depth = kind, depth
        self.width = width * depth if kind == "concat" else width
        self.mix = LayerMix(layers) if kind == "mix" else None

    def forward(self, layers: Sequence[Hidden]) -> Hidden:
        if self.mix is not None:
            mixed: Tensor = self.mix(torch.stack(list(layers), 1))
            return mixed
        if self.kind == "last":
            return layers[-1]
        last = list(layers[-self.depth :])
        return torch.cat(last, -1) if self.kind == "concat" else torch.stack(last).sum(0)


class FeatureHead(nn.Module):
    """A task head on features of the layers, after a bidirectional LSTM of width `recurrent` in each direction."""

    def __init__(self, features: LayerFeatures, recurrent: Recurrent | None, head: nn.Module) -> None:
        super().__init__()
        self.features, self.recurrent, self.head = features, recurrent, head

    @property
    def symmetric(self) -> bool:
        """Whether rows come in twos, the two orders of a pair."""
        return bool(getattr(self.head, "symmetric", False))

    def forward(self, layers: Sequence[Hidden], key_mask: KeyMask | None = None) -> Tensor:
        x: Tensor = self.features(layers)
        if self.recurrent is not None:
            x, _ = self.recurrent(x, key_mask=key_mask)
        out: Tensor = self.head(x, key_mask)
        return out


__all__ = ["FEATURES", "FeatureHead", "LayerFeatures", "LayerMix"]
