"""Adaptive embedding and softmax: rare tokens of a large vocabulary cost less (Grave et al. 2017; Baevski & Auli 2019).

Token ids must be sorted by frequency. `cutoffs` divide them into a head and bands; band b is `divisor`^b times
narrower. The head predicts its own tokens and, with one logit each, the bands. The probability of a token in a band is
that of the band times that of the token within it.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from longspan.errors import InvalidOption
from longspan.nn.dropout import Dropout
from longspan.nn.embedding import check_ids
from longspan.nn.loss import IGNORED
from longspan.shapes import Hidden


def bands(vocabulary: int, cutoffs: Sequence[int]) -> list[tuple[int, int]]:
    """(first id, past the last id) of the head and of each band."""
    edges = [0, *cutoffs, vocabulary]
    if any(low >= high for low, high in pairwise(edges)):
        raise InvalidOption(f"cutoffs must rise from 1 to below the vocabulary {vocabulary}, not be {tuple(cutoffs)}")
    return list(pairwise(edges))


def _narrow(width: int, band: int, divisor: int) -> int:
    narrow: int = width // divisor**band
    if narrow < 1:
        raise InvalidOption(f"band {band} of width {width} / {divisor}^{band} has no column left; give fewer cutoffs")
    return narrow


class AdaptiveEmbedding(nn.Module):
    """A table per band and, if divisor > 1, a projection of each to the full width; the output is times √width."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        cutoffs: Sequence[int],
        divisor: int = 1,
        *,
        scale: bool = True,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocabulary, self.width, self.bands = vocabulary, width, bands(vocabulary, cutoffs)
        self.scale = width**0.5 if scale else 1.0
        widths = [_narrow(width, band, divisor) for band in range(len(self.bands))]
        self.tables = nn.ParameterList(torch.empty(high - low, size) for (low, high), size in zip(self.bands, widths))
        # As in the released code: with a divisor the head has a (square) projection too, otherwise no band has one.
        self.projections = nn.ParameterList(torch.empty(width, size) for size in widths if divisor > 1)
        self.dropout = Dropout(dropout)
        for weight in self.parameters():
            nn.init.normal_(weight, std=width**-0.5)

    def forward(self, ids: Int[Tensor, "batch length"]) -> Hidden:
        check_ids(ids, self.vocabulary)
        flat = ids.flatten()
        x = self.tables[0].new_zeros(len(flat), self.width)
        for band, (low, high) in enumerate(self.bands):
            chosen = ((flat >= low) & (flat < high)).nonzero()[:, 0]
            rows = functional.embedding(flat[chosen] - low, self.tables[band])
            if len(self.projections):
                rows = functional.linear(rows, self.projections[band])
            x = x.index_copy(0, chosen, rows)
        out: Tensor = self.dropout(x.unflatten(0, ids.shape) * self.scale)
        return out


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities of all tokens, or only the loss of the targets.

    If tied to an embedding, it shares the tables and the projections of the bands; the projection of the head is not
    shared, as in the released code.
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        cutoffs: Sequence[int],
        divisor: int = 1,
        *,
        tied: AdaptiveEmbedding | None = None,
    ) -> None:
        super().__init__()
        self.bands = bands(vocabulary, cutoffs)
        widths = [_narrow(width, band, divisor) for band in range(len(self.bands))]
        embedding = AdaptiveEmbedding(vocabulary, width, cutoffs, divisor) if tied is None else tied
        self.tables = embedding.tables
        head = [nn.Parameter(torch.empty(width, widths[0]))] if divisor > 1 else []
        self.projections = nn.ParameterList([*head, *list(embedding.projections)[1:]])
        self.biases = nn.ParameterList(torch.zeros(high - low) for low, high in self.bands)
        self.choice = nn.Linear(widths[0], len(self.bands) - 1)
        for weight in (*head, self.choice.weight):
            nn.init.normal_(weight, std=width**-0.5)
        nn.init.zeros_(self.choice.bias)

    def log_probabilities(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """Of every token: the probabilities sum to 1, so decoding can use these as logits."""
        head = self._head(x).log_softmax(-1)
        first = self.bands[0][1]
        pieces = [head[..., :first]]
        for band in range(1, len(self.bands)):
            pieces.append(self._band(x, band).log_softmax(-1) + head[..., first + band - 1, None])
        return torch.cat(pieces, -1)

    def loss(self, x: Hidden, targets: Int[Tensor, "batch length"]) -> Float[Tensor, ""]:
        """The mean cross-entropy over the targets that count; a band is computed only for targets in it."""
        rows, wanted = x.flatten(0, 1), targets.flatten()
        counted = (wanted != IGNORED).nonzero()[:, 0]
        rows, wanted = rows[counted], wanted[counted]
        first = self.bands[0][1]
        in_head = wanted
        total = x.new_zeros(())
        for band, (low, high) in enumerate(self.bands[1:], start=1):
            chosen = ((wanted >= low) & (wanted < high)).nonzero()[:, 0]
            in_head = in_head.index_fill(0, chosen, first + band - 1)
            if len(chosen):
                logits = self._band(rows[chosen], band)
                total = total + functional.cross_entropy(logits, wanted[chosen] - low, reduction="sum")
        total = total + functional.cross_entropy(self._head(rows), in_head, reduction="sum")
        return total / max(1, len(counted))

    def _head(self, x: Tensor) -> Tensor:
        x = x @ self.projections[0] if len(self.projections) else x
        return torch.cat([functional.linear(x, self.tables[0], self.biases[0]), self.choice(x)], -1)

    def _band(self, x: Tensor, band: int) -> Tensor:
        x = x @ self.projections[band] if len(self.projections) else x
        return functional.linear(x, self.tables[band], self.biases[band])


__all__ = ["AdaptiveEmbedding", "AdaptiveSoftmax", "bands"]
