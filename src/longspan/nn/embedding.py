"""Embeddings of tokens and of numeric vectors, and the output layer tied to the token embedding."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from longspan.attention.devices import host_may_read
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.dropout import Dropout
from longspan.nn.linear import Linear, linear
from longspan.nn.positions import AbsolutePositions
from longspan.nn.quantized import QuantizedLinear
from longspan.shapes import Hidden


class _Embedding(nn.Module):
    """The last steps of both kinds of embeddings.

    Positions, an optional norm (BERT, BART), dropout (Vaswani et al. 2017, section 5.4), and a projection if the tables
    are narrower than the model (ALBERT, ELECTRA). If tokens alone are `narrow` (OPT-350M), the projection comes first.
    """

    def __init__(
        self,
        position: AbsolutePositions | None,
        dropout: float,
        norm: nn.Module | None = None,
        project: nn.Module | None = None,
        narrow: bool = False,
    ) -> None:
        super().__init__()
        self.position, self.norm, self.project = position, norm, project
        self.dropout, self.narrow = Dropout(dropout), narrow

    def _finish(self, x: Hidden, start: int, positions: Int[Tensor, "batch length"] | None) -> Hidden:
        if self.narrow and self.project is not None:
            x = self.project(x)
        if self.position is not None:
            x = self.position(x, start=start, positions=positions)
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.project is None or self.narrow else self.project(x)


class TokenEmbedding(_Embedding):
    """A row per token, times √width if `scale`, plus positions, norm and dropout; `logits` uses the same rows.

    Rows start with standard deviation width^-½, so that scaled embeddings and the logits of normalised states
    have variance 1 (Vaswani et al. 2017, section 3.4). The row of `padding` is zero and gets no gradient
    from the embedding; a tied output layer still trains it, as every logit is part of the softmax.

    `segments` is the number of segment embeddings, such as first or second sentence (BERT). If `out_width` differs from
    `width`, a linear layer projects the embedding to it; `project` adds that layer even if both are equal (ALBERT).
    """

    def __init__(
        self,
        vocabulary: int,
        width: int,
        *,
        scale: bool = True,
        padding: int | None = None,
        position: AbsolutePositions | None = None,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
        segments: int = 0,
        out_width: int | None = None,
        project: bool = False,
        narrow: bool = False,
    ) -> None:
        wide = out_width or width
        layer = Linear(width, wide, bias=not narrow) if project or wide != width else None
        super().__init__(position, dropout, norm, layer, narrow)
        if padding is not None and not 0 <= padding < vocabulary:
            raise InvalidOption(f"padding must be a token id in 0..{vocabulary - 1}, got {padding}")
        self.vocabulary = vocabulary
        self.padding = padding
        self.scale = width**0.5 if scale else 1.0
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        self.segment = nn.Parameter(torch.empty(segments, width)) if segments else None
        self.output: QuantizedLinear | None = None  # a quantised copy of the rows, for `logits` alone
        if narrow and segments:
            raise InvalidOption("segments have the tokens' width: leave out narrow_tokens or segments")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        if self.segment is not None:
            nn.init.normal_(self.segment, std=self.weight.shape[1] ** -0.5)
        if self.padding is not None:
            with torch.no_grad():
                self.weight[self.padding] = 0

    def forward(
        self,
        ids: Int[Tensor, "batch length"],
        *,
        start: int = 0,
        positions: Int[Tensor, "batch length"] | None = None,
        segments: Int[Tensor, "batch length"] | None = None,
    ) -> Hidden:
        check_ids(ids, self.vocabulary)
        x = functional.embedding(ids, self.weight, padding_idx=self.padding)
        x = x * self.scale if self.scale != 1.0 else x
        return self._finish(self._add_segments(x, segments), start, positions)

    def _add_segments(self, x: Hidden, segments: Int[Tensor, "batch length"] | None) -> Hidden:
        """Adds the row of each token's segment, 0 unless given."""
        if self.segment is None:
            if segments is not None:
                raise InvalidInput("this model has no segment embeddings; leave out segments")
            return x
        if segments is None:
            return x + self.segment[0]
        if segments.shape != x.shape[:2]:
            raise InvalidInput(f"expected a segment for each token, {tuple(x.shape[:2])}, got {tuple(segments.shape)}")
        check_ids(segments, len(self.segment), "segments")
        return x + functional.embedding(segments, self.segment)

    def logits(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch vocabulary"]:
        """The output layer, tied to the embedding but not scaled."""
        if self.output is not None:
            out: Tensor = self.output(x)
            return out
        return linear(x, self.weight)

    def extra_repr(self) -> str:
        return f"vocabulary={self.vocabulary}, width={self.weight.shape[1]}, scale={self.scale:g}"


def check_ids(ids: Tensor, vocabulary: int, what: str = "token ids") -> None:
    """Refuses ids outside the vocabulary.

    On an accelerator the device checks the range, because reading it back would block the host.
    """
    if ids.ndim != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise InvalidInput(f"expected {what} (batch, length) of int64 or int32, got {tuple(ids.shape)} of {ids.dtype}")
    if ids.is_cuda and not torch.compiler.is_compiling():
        inside = ((ids >= 0) & (ids < vocabulary)).all()
        torch._assert_async(inside, f"{what} outside 0..{vocabulary - 1}: were they made with this model's tokenizer?")
    if not host_may_read(ids):
        return
    outside = (ids < 0) | (ids >= vocabulary)
    if outside.any():
        row, column = outside.nonzero()[0].tolist()
        raise InvalidInput(
            f"expected {what} in 0..{vocabulary - 1} (a vocabulary of {vocabulary}), "
            f"got {int(ids[row, column])} in sample {row} at position {column}; "
            "was it made with this model's tokenizer?"
        )


class FeatureEmbedding(_Embedding):
    """A linear layer for inputs that are vectors of numbers, such as sensors, pixels or patches."""

    def __init__(
        self,
        features: int,
        width: int,
        *,
        bias: bool = True,
        position: AbsolutePositions | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(position, dropout)
        self.linear = nn.Linear(features, width, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "batch length features"],
        *,
        start: int = 0,
        positions: Int[Tensor, "batch length"] | None = None,
    ) -> Hidden:
        if x.ndim != 3 or x.shape[2] != self.linear.in_features:
            raise InvalidInput(f"expected (batch, length, {self.linear.in_features} features), got {tuple(x.shape)}")
        return self._finish(self.linear(x), start, positions)


__all__ = ["FeatureEmbedding", "TokenEmbedding", "check_ids"]
