"""Task heads on a body: logits of tokens, of labels per text, or of labels per token.

Three classes cover the tasks of BERT-like models. `Masked` gives the logits of the token at each position, `PerText`
pools a text into one vector and classifies it, `PerToken` classifies every token.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan import config
from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.dropout import Dropout
from longspan.nn.feedforward import PLAIN, Activation, FeedForward
from longspan.nn.global_tokens import MARKS
from longspan.nn.layer_features import FEATURES, FeatureHead, LayerFeatures
from longspan.nn.linear import Linear, linear
from longspan.nn.norm import build_norm
from longspan.nn.recurrent import Recurrent
from longspan.nn.residual import Residual
from longspan.shapes import Hidden, KeyMask

TEXT_TASKS = {
    "pool": "one vector for the text",
    "pair": "whether the second sentence follows the first (labels: 0 it does, 1 it does not)",
    "classify": "a label for the text",
    "regress": "a number for the text",
    "choose": "a score for each of several texts, of which one is right",
}
TOKEN_TASKS = {
    "tag": "a label for each token",
    "span": "where an answer starts and ends",
    "detect": "whether each token was replaced",
}
SYMMETRIC = ("classify", "regress")
TASKS = ("masked", *TEXT_TASKS, *TOKEN_TASKS)
POOLS = ("first", "last", "mean", "max")
ACTIVATIONS: dict[str, Activation] = {**PLAIN, "tanh": torch.tanh}


@dataclass(frozen=True, kw_only=True)
class Head(config.Options):
    """A task and the layers of its head; in a configuration file `"masked"` or `{task = "classify", labels = 3}`."""

    task: str = option("classify", "what is asked of the model", choices=TASKS)
    labels: int = option(2, "number of labels, or of numbers to regress", low=1)
    names: tuple[str, ...] | None = option(None, "what the labels are called, in order")
    pool: str = option("first", "the token that represents a text, or the mean or maximum of all", choices=POOLS)
    activation: str | None = option(None, "after a layer in between; none: no such layer", choices=tuple(ACTIVATIONS))
    inner: int | None = option(None, "width of that layer; as wide as the states unless given", low=1)
    dropout: float = option(0.1, "before the last layer", low=0, high=0.999)
    dense_bias: bool = option(True, "whether the layer in between has a bias; not in ModernBERT")
    dense_norm: bool = option(False, "whether a norm follows the layer in between, for texts and tokens (ModernBERT)")
    drop_input: bool = option(False, "whether it drops before the layer in between as well (RoBERTa)")
    bias: bool = option(True, "whether the last layer has a bias")
    tied: bool = option(True, "masked: whether the last layer is the embedding")
    global_tokens: str | None = option(None, "tokens that are global where none are given (Longformer)", choices=MARKS)
    hidden: int | None = option(
        None, "for each token: inner width of a feed-forward layer before the last (Big Bird)", low=1
    )
    question: bool = option(
        False,
        "span: whether a text starts with a question: its tokens are segment 0, the others 1, and no answer lies in it",
    )
    symmetric: bool = option(
        False,
        "for each text: whether rows come in twos, the two orders of a pair, whose vectors are added (GPT)",
    )
    features: str = option(
        "last",
        "the layers it reads: the last; the sum or concatenation of the last `depth`; a learned mix of all (ELMo)",
        choices=FEATURES,
    )
    depth: int = option(4, "number of layers for the features sum and concat", low=1)
    recurrent: int | None = option(None, "width of a bidirectional LSTM over the features; none: no LSTM", low=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.question and self.task != "span":
            raise InvalidOption(f"question is an option of the task 'span', not of {self.task!r}")
        if self.symmetric and self.task not in SYMMETRIC:
            raise InvalidOption(f"symmetric is an option of {' and '.join(SYMMETRIC)}, not of {self.task!r}")
        if self.names is not None and len(self.names) != self.labels:
            raise InvalidOption(f"expected {self.labels} names, one per label, got {len(self.names)}")
        if self.hidden is not None and self.task not in TOKEN_TASKS:
            raise InvalidOption(f"hidden is an option of token tasks ({', '.join(TOKEN_TASKS)}), not of {self.task!r}")
        if self.task == "masked" and self.on_features:
            raise InvalidOption("the head 'masked' reads the last layer: leave out features and recurrent")

    @property
    def on_features(self) -> bool:
        """Whether it reads more than the states of the last layer."""
        return self.features != "last" or self.recurrent is not None

    @classmethod
    def read(cls, value: Any) -> "Head":
        """From the name of a task, or from a table; a head stays as it is."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return config.make(cls, {"task": value}, "head")
        if isinstance(value, Mapping):
            return config.make(cls, value, "head")
        raise InvalidOption(f"a head is the name of a task or a table with one, not {value!r}")


class _Head(nn.Module):
    """The optional first layers of all heads: dropout, a linear layer and its activation."""

    def __init__(
        self, head: Head, width: int, inner: int | None = None, *, norm: str = "layer", eps: float = 1e-5
    ) -> None:
        super().__init__()
        if head.inner is not None and head.activation is None:
            raise InvalidOption("inner needs an activation; give one, or leave out inner")
        self.width = width if head.activation is None else head.inner or inner or width  # the last layer's input
        self.dense = None if head.activation is None else Linear(width, self.width, bias=head.dense_bias)
        normed = head.dense_norm and self.dense is not None
        self.dense_norm = build_norm(norm, self.width, eps) if normed else nn.Identity()
        self._activate = ACTIVATIONS[head.activation or "relu"]
        self.before = Dropout(head.dropout if head.drop_input else 0.0)

    def _between(self, x: Tensor) -> Tensor:
        if self.dense is None:
            return x
        out: Tensor = self.dense_norm(self._activate(self.dense(self.before(x))))
        return out


class Masked(_Head):
    """The logits of the token at each position: a layer, its norm, and the embedding (or its own table) with a bias.

    Without an activation it is the embedding alone. The states may have any shape, so that training can pass only the
    masked positions.
    """

    def __init__(self, head: Head, width: int, *, vocabulary: int, table_width: int, norm: str, eps: float) -> None:
        if head.dense_norm:
            raise InvalidOption("the head 'masked' has a norm after its layer in between; leave out dense_norm")
        if head.inner is not None:
            raise InvalidOption("the inner layer of the task 'masked' is as wide as the embedding; leave out inner")
        super().__init__(head, width, table_width)
        if self.dense is None and head.tied and width != table_width:
            raise InvalidOption(f"an embedding of {table_width} cannot read states of {width}; give an activation")
        self.norm = build_norm("none" if self.dense is None else norm, table_width, eps)
        self.weight = None if head.tied else nn.Parameter(torch.empty(vocabulary, table_width if self.dense else width))
        self.bias = nn.Parameter(torch.zeros(vocabulary)) if head.bias else None
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.02)

    def forward(
        self, x: Float[Tensor, "*places width"], table: Float[Tensor, "vocabulary inner"]
    ) -> Float[Tensor, "*places vocabulary"]:
        return linear(self.norm(self._between(x)), table if self.weight is None else self.weight, self.bias)


class PerText(_Head):
    """One vector for each text and, unless the task is `pool`, the logits of its labels."""

    def __init__(self, head: Head, width: int, *, norm: str = "layer", eps: float = 1e-5) -> None:
        super().__init__(head, width, norm=norm, eps=eps)
        self.pool = head.pool
        self.single, self.symmetric = head.task == "choose", head.symmetric
        labels = {"pair": 2, "choose": 1}.get(head.task, head.labels)
        self.dropout = Dropout(head.dropout)
        self.out = None if head.task == "pool" else Linear(self.width, labels, bias=head.bias)

    def vector(self, x: Hidden, key_mask: KeyMask | None = None) -> Float[Tensor, "texts width"]:
        """The vector before the labels; with `symmetric`, one for every two rows."""
        vector = self._between(pool(x, key_mask, self.pool))
        if not self.symmetric:
            return vector
        if len(vector) % 2:
            raise InvalidInput(f"a symmetric head reads both orders of each pair, and got {len(vector)} rows")
        both: Tensor = vector.unflatten(0, (-1, 2)).sum(1)
        return both

    def forward(self, x: Hidden, key_mask: KeyMask | None = None) -> Tensor:
        vector = self.vector(x, key_mask)
        if self.out is None:
            return vector
        logits: Tensor = self.out(self.dropout(vector))
        return logits.squeeze(-1) if self.single else logits


class PerToken(_Head):
    """The logits of the labels at every token: (batch, length, labels), or (batch, length) to detect tokens.

    With `hidden` there is a feed-forward layer before it, with residual and norm.
    """

    def __init__(self, head: Head, width: int, *, norm: str, eps: float) -> None:
        super().__init__(head if head.hidden is None else replace(head, activation=None), width, norm=norm, eps=eps)
        self.single = head.task == "detect"
        self.feedforward = self.around = None
        if head.hidden is not None:
            self.feedforward = FeedForward(width, head.hidden, head.activation or "relu")
            self.around = Residual(width, norm=norm, norm_position="post", dropout=head.dropout, eps=eps)
        self.dropout = Dropout(head.dropout if head.hidden is None else 0.0)
        labels = {"span": 2, "detect": 1}.get(head.task, head.labels)
        self.out = Linear(self.width, labels, bias=head.bias)

    def forward(self, x: Hidden, key_mask: KeyMask | None = None) -> Tensor:
        logits: Tensor = self.out(self.dropout(self._between(x)))
        return logits.squeeze(-1) if self.single else logits

    def _between(self, x: Tensor) -> Tensor:
        if self.feedforward is None or self.around is None:
            return super()._between(x)
        layer = self.feedforward
        out: Tensor = self.around(x, lambda y: layer(self.before(y)))
        return out


def pool(x: Hidden, key_mask: KeyMask | None, how: str) -> Float[Tensor, "batch width"]:
    """The state of the first or last real token of each text, or the mean or maximum over its real tokens."""
    if how not in POOLS:
        raise InvalidOption(f"pool must be one of {', '.join(POOLS)}, not {how!r}")
    if key_mask is None:
        if how == "max":
            return x.amax(1)
        return x.mean(1) if how == "mean" else x[:, 0 if how == "first" else -1]
    if key_mask.shape != x.shape[:2]:
        raise InvalidInput(f"expected key_mask {tuple(x.shape[:2])}, got {tuple(key_mask.shape)}")
    if how == "mean":
        real = key_mask[..., None].to(x.dtype)
        return (x * real).sum(1) / real.sum(1).clamp(min=1)
    if how == "max":
        return x.masked_fill(~key_mask[..., None], -torch.inf).amax(1)
    index = torch.arange(x.shape[1], device=x.device)
    chosen = (index * key_mask).argmax(1) if how == "last" else key_mask.int().argmax(1)
    return x[torch.arange(len(x), device=x.device), chosen]


def build_head(
    head: Head, width: int, *, vocabulary: int | None, table_width: int, norm: str, eps: float, layers: int = 1
) -> Masked | PerText | PerToken | FeatureHead:
    """The module of a head on states of `width`; the model has `layers` of them, counting the embeddings."""
    if head.task == "masked":
        if vocabulary is None:
            raise InvalidOption("the head 'masked' needs a model with a vocabulary; leave it out")
        return Masked(head, width, vocabulary=vocabulary, table_width=table_width, norm=norm, eps=eps)
    if not head.on_features:
        return (PerText if head.task in TEXT_TASKS else PerToken)(head, width, norm=norm, eps=eps)
    features, recurrent = LayerFeatures(head.features, head.depth, width, layers), None
    width = features.width
    if head.recurrent is not None:
        recurrent = Recurrent(width, head.recurrent, bidirectional=True, dropout=head.dropout, forget_bias=1.0)
        width = recurrent.out_width
    inner = (PerText if head.task in TEXT_TASKS else PerToken)(head, width, norm=norm, eps=eps)
    return FeatureHead(features, recurrent, inner)


__all__ = ["ACTIVATIONS", "POOLS", "TASKS", "Head", "Masked", "PerText", "PerToken", "build_head", "pool"]
