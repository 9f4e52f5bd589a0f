"""The arena's model: one encoder for every mechanism, one vector per text, and a head of two or three layers.

For tasks with a label at every token the head reads the state of each token instead (pool `each`).

It follows the paper (Tay et al. 2020) where the released code has bugs: padding is masked everywhere, means are over
real positions, images have no padding, and two texts are compared by [a, b, a∘b, a−b]. `zero_is_pad` restores the
released behaviour (id 0 is always masked, and means are over all positions).
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from longspan.config import option
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Ids, Mask, Model, Streams
from longspan.models.body import absolute_position, build_stack, initialise, last_norm, mechanisms
from longspan.models.text import TextOptions
from longspan.nn.dropout import Dropout
from longspan.nn.embedding import check_ids
from longspan.nn.feedforward import FeedForward
from longspan.nn.heads import pool
from longspan.nn.inputs import BlockInputs
from longspan.nn.linear import Linear
from longspan.nn.multihead import MultiHead
from longspan.nn.recurrent import Recurrent
from longspan.nn.residual import Residual
from longspan.shapes import Hidden

POOLS = ("cls", "mean", "max", "first", "each")
INPUTS = ("tokens", "values")
CELLS = ("lstm", "gru")


class ArenaEncoder(Model):
    """Class logits of a text, or of two texts that one encoder reads one after the other."""

    name = "arena"
    paper = "Tay et al. 2021"

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        classes: int = option(2, "number of labels", low=2)
        texts: int = option(1, "texts per label: 2 are compared", low=1, high=2)
        pool: str = option(
            "cls",
            "the text's vector: an extra first position (cls), mean, max, or first; each: logits at every token",
            choices=POOLS,
        )
        convolution: int = option(
            0, "tokens that a convolution of the embeddings joins, each with those before it; 0: no convolution", low=0
        )
        interaction: bool = option(True, "two texts: whether the head also reads their product and difference")
        zero_is_pad: bool = option(False, "mask id 0 always, as the released code does; for reproduction only")
        spare: int = option(0, "further ids, such as the mask of self pre-training", low=0)
        inputs: str = option(
            "tokens", "tokens: a vector for each id; values: ids are numbers (intensities)", choices=INPUTS
        )
        embedding_std: float = option(1.0, "standard deviation of the initial embeddings", low=0)
        tied_streams: bool = option(True, "share the ordinary projections with those that a mechanism adds")
        recurrent: str | None = option(None, "a recurrent cell in place of attention", choices=CELLS)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.max_length is None:
            raise InvalidOption("the arena's model needs max_length, the length of the longest text")
        self.cls = options.pool == "cls"
        if self.cls and options.position == "rotary_grid":
            raise InvalidOption(
                "an extra first position shifts every row of the grid by one; pool by mean, max or first"
            )
        ids = options.vocabulary + self.cls + options.spare
        self.embedding: nn.Module = (
            _Rows(ids, options.width, options.embedding_std)
            if options.inputs == "tokens"
            else _Values(options.vocabulary, ids - options.vocabulary, options.width)
        )
        self.position = absolute_position(options)
        self.convolution = _ShortConvolution(options.width, options.convolution) if options.convolution else None
        if options.pool == "each" and options.texts != 1:
            raise InvalidOption("labels at every token are of one text; pool by cls, mean, max or first")
        self.dropout = Dropout(options.dropout)
        self.stack: nn.Module = (
            build_stack(options, options.attention, stack_name="encoder", causal=False)
            if options.recurrent is None
            else _RecurrentStack(options)
        )
        wide = options.width * (1 if options.texts == 1 else 4 if options.interaction else 2)
        between = [options.hidden] if options.texts == 1 else [options.hidden, max(1, options.hidden // 2)]
        sizes = [wide, *between, options.classes]
        self.head = nn.ModuleList(Linear(one, other) for one, other in pairwise(sizes))
        initialise(self, options)
        with torch.no_grad():
            if self.cls:
                self.embedding.row(self.cls_id).zero_()
            for layer in self.head.modules():
                if isinstance(layer, nn.Linear):
                    nn.init.xavier_uniform_(layer.weight)
                    nn.init.zeros_(layer.bias)
        if options.tied_streams:
            for module in self.modules():
                if isinstance(module, MultiHead):
                    module.tie()
        self.marks = {stream.name for mechanism in mechanisms(self) for stream in mechanism.streams} & {"global_mask"}

    @property
    def cls_id(self) -> int:
        """The id of the extra first position, whose embedding starts at zero."""
        return int(self.options.vocabulary)

    @property
    def mask_id(self) -> int:
        """The first of the spare ids."""
        if not self.options.spare:
            raise InvalidInput("this model has no mask id; give spare=1")
        return int(self.options.vocabulary) + self.cls

    def forward(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        other_ids: Ids | None = None,
        other_mask: Mask | None = None,
    ) -> Float[Tensor, "batch classes"] | Float[Tensor, "batch length classes"]:
        if (other_ids is None) != (self.options.texts == 1):
            raise InvalidInput(f"texts is {self.options.texts}: give other_ids for 2 texts, and only then")
        x = self.states(ids, key_mask)[0] if self.options.pool == "each" else self.vector(ids, key_mask)
        if other_ids is not None:
            x = self.compared(x, self.vector(other_ids, other_mask))
        for layer in self.head[:-1]:
            x = functional.relu(layer(x))
        logits: Tensor = self.head[-1](x)
        return logits

    def compared(self, one: Float[Tensor, "batch width"], other: Float[Tensor, "batch width"]) -> Tensor:
        """What the head reads for two texts."""
        vectors = [one, other, one * other, one - other] if self.options.interaction else [one, other]
        return torch.cat(vectors, -1)

    def vector(self, ids: Ids, key_mask: Mask | None = None) -> Float[Tensor, "batch width"]:
        """One vector per text."""
        states, mask = self.states(ids, key_mask)
        if self.options.pool in ("mean", "max"):
            return pool(states, None if self.options.zero_is_pad else mask, self.options.pool)
        return states[:, 0]

    def states(self, ids: Ids, key_mask: Mask | None = None) -> tuple[Hidden, Mask | None]:
        """All states, including the extra first position, and the mask of real positions."""
        check_ids(ids, self.options.vocabulary + self.cls + self.options.spare)
        if self.options.zero_is_pad:
            key_mask = ids > 0
        if self.cls:
            ids = functional.pad(ids, (1, 0), value=self.cls_id)
            if key_mask is not None:
                # As in the released code, the extra position is real if the first token is.
                front = key_mask[:, :1] if self.options.zero_is_pad else torch.ones_like(key_mask[:, :1])
                key_mask = torch.cat([front, key_mask], 1)
        x = self.embedding(ids)
        if self.convolution is not None:
            x = self.convolution(x, key_mask)
        x = self.dropout(x if self.position is None else self.position(x))
        return self.stack(x, BlockInputs(key_mask=key_mask, streams=self._streams(ids))), key_mask

    def _streams(self, ids: Ids) -> Streams | None:
        """Marks the first position as global for mechanisms that have global tokens."""
        if not self.marks:
            return None
        mark = torch.zeros_like(ids, dtype=torch.bool)
        mark[:, 0] = True
        return {"global_mask": mark}


class _Rows(nn.Module):
    """A vector for each id."""

    def __init__(self, ids: int, width: int, std: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ids, width) * std)

    def row(self, number: int) -> Tensor:
        return self.weight[number]

    def forward(self, ids: Int[Tensor, "batch length"]) -> Hidden:
        return functional.embedding(ids, self.weight)


class _Values(nn.Module):
    """Ids are intensities: a linear layer reads them as numbers from −1 to 1; further ids have vectors."""

    def __init__(self, intensities: int, others: int, width: int) -> None:
        super().__init__()
        self.intensities = intensities
        self.weight = nn.Parameter(torch.randn(2, width))  # slope and offset
        self.others = nn.Parameter(torch.randn(others, width)) if others else None

    def row(self, number: int) -> Tensor:
        assert self.others is not None
        return self.others[number - self.intensities]

    def forward(self, ids: Int[Tensor, "batch length"]) -> Hidden:
        values = ids.to(self.weight.dtype) * (2 / (self.intensities - 1)) - 1
        x = torch.addcmul(self.weight[1], values[..., None], self.weight[0])
        if self.others is None:
            return x
        above = (ids - self.intensities)[..., None]
        return torch.where(above < 0, x, functional.embedding(above[..., 0].clamp_min(0), self.others))


class _ShortConvolution(nn.Module):
    """Adds to each token a linear map of it and the `kernel` − 1 tokens before it, so that neighbours are bound.

    Recall needs it: without it, mechanisms that cannot look at "the token before" learn nothing, and the others spend
    a layer on it (Arora et al. 2023, whose models have it in every layer; here it is once, before the first).
    """

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.kernel = kernel
        self.maps = Linear(kernel * width, width, bias=False)

    def forward(self, x: Hidden, key_mask: Mask | None = None) -> Hidden:
        read = x if key_mask is None else x.masked_fill(~key_mask[..., None], 0.0)
        before = functional.pad(read, (0, 0, self.kernel - 1, 0))
        length = x.shape[1]
        out: Hidden = x + self.maps(torch.cat([before[:, n : n + length] for n in range(self.kernel)], -1))
        return out


class _RecurrentStack(nn.Module):
    """Blocks with a bidirectional recurrent mixer, with no more parameters than attention has."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_RecurrentBlock(options) for _ in range(options.layers))
        self.norm = last_norm(options)

    def forward(self, x: Hidden, inputs: BlockInputs) -> Hidden:
        for block in self.blocks:
            x = block(x, inputs.key_mask)
        normed: Hidden = self.norm(x)
        return normed


class _RecurrentBlock(nn.Module):
    def __init__(self, options: Any) -> None:
        super().__init__()
        width = options.width
        attention = 4 * width * (options.head_dim or width // options.heads) * options.heads
        inner = recurrent_width(options.recurrent, width, attention)
        forget = 1.0 if options.recurrent == "lstm" else None
        self.layers = Recurrent(width, inner, cell=options.recurrent, bidirectional=True, forget_bias=forget)
        self.out = Linear(2 * inner, width, bias=False)
        self.feedforward = FeedForward(width, options.hidden, options.activation, dropout=options.hidden_dropout)
        self.around_mixer, self.around_feedforward = (
            Residual(width, norm=options.norm, norm_position="pre", dropout=options.dropout, eps=options.eps)
            for _ in range(2)
        )
        nn.init.xavier_uniform_(self.out.weight)

    def forward(self, x: Hidden, key_mask: Bool[Tensor, "batch length"] | None = None) -> Hidden:
        x = self.around_mixer(x, lambda y: self.out(self.layers(y, key_mask=key_mask)[0]))
        out: Hidden = self.around_feedforward(x, self.feedforward)
        return out


def recurrent_width(cell: str, width: int, parameters: int) -> int:
    """The widest bidirectional cell that, with its output projection, has no more than `parameters`."""
    gates = {"lstm": 4, "gru": 3}[cell]
    inner = 1
    while 2 * gates * (inner + 1) * (width + inner + 1 + 2) + 2 * (inner + 1) * width <= parameters:
        inner += 1
    return inner


__all__ = ["CELLS", "INPUTS", "POOLS", "ArenaEncoder", "recurrent_width"]
