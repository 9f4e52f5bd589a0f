"""The model of the arena: one encoder for every mechanism, a vector for the text, and a head of two or three layers.

Where the released code is at fault, this is what the paper says (spec, section 6): padding is masked everywhere, and
what is averaged are real positions; images have no padding; two texts are compared by [a, b, a∘b, a−b]. `zero_is_pad`
brings back the released policy (id 0 is masked whatever it means, and means are over all positions).
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

POOLS = ("cls", "mean", "max", "first")
INPUTS = ("tokens", "values")
CELLS = ("lstm", "gru")


class ArenaEncoder(Model):
    """Logits of the classes of a text, or of two texts that one encoder reads one by one."""

    name = "arena"
    paper = "Tay et al. 2021"

    @dataclass(frozen=True, kw_only=True)
    class Options(TextOptions):
        classes: int = option(2, "number of labels", low=2)
        texts: int = option(1, "texts of a label: 2 are compared", low=1, high=2)
        pool: str = option(
            "cls", "the text's vector: of one more position in front, the mean, maximum, or first", choices=POOLS
        )
        interaction: bool = option(True, "two texts: whether their product and difference are read beside them")
        zero_is_pad: bool = option(
            False, "whether id 0 is masked whatever it means, as released; for reproduction only"
        )
        spare: int = option(0, "further ids, such as the mask of self pre-training", low=0)
        inputs: str = option(
            "tokens", "tokens: a vector for each id; values: ids are intensities, on a line", choices=INPUTS
        )
        embedding_std: float = option(1.0, "deviation of the first vectors of ids", low=0)
        tied_streams: bool = option(True, "whether projections that a mechanism adds are its ordinary ones")
        recurrent: str | None = option(None, "a recurrent cell in place of attention", choices=CELLS)

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        if options.max_length is None:
            raise InvalidOption("the arena's model has a longest text: give max_length")
        self.cls = options.pool == "cls"
        if self.cls and options.position == "rotary_grid":
            raise InvalidOption("a position in front moves each row of the grid by one; pool by mean, max or first")
        ids = options.vocabulary + self.cls + options.spare
        self.embedding: nn.Module = (
            _Rows(ids, options.width, options.embedding_std)
            if options.inputs == "tokens"
            else _Values(options.vocabulary, ids - options.vocabulary, options.width)
        )
        self.position = absolute_position(options)
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
        self.marks = {stream.name for each in mechanisms(self) for stream in each.streams} & {"global_mask"}

    @property
    def cls_id(self) -> int:
        """The id of the position in front, which starts at zero."""
        return int(self.options.vocabulary)

    @property
    def mask_id(self) -> int:
        """The first of the spare ids."""
        if not self.options.spare:
            raise InvalidInput("this model has no id for what is masked; give spare=1")
        return int(self.options.vocabulary) + self.cls

    def forward(
        self,
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        other_ids: Ids | None = None,
        other_mask: Mask | None = None,
    ) -> Float[Tensor, "batch classes"]:
        if (other_ids is None) != (self.options.texts == 1):
            raise InvalidInput(f"texts is {self.options.texts}: other_ids are given for 2 texts, and only then")
        x = self.vector(ids, key_mask)
        if other_ids is not None:
            x = self.compared(x, self.vector(other_ids, other_mask))
        for layer in self.head[:-1]:
            x = functional.relu(layer(x))
        return self.head[-1](x)

    def compared(self, one: Float[Tensor, "batch width"], other: Float[Tensor, "batch width"]) -> Tensor:
        """What the head reads of two texts."""
        parts = [one, other, one * other, one - other] if self.options.interaction else [one, other]
        return torch.cat(parts, -1)

    def vector(self, ids: Ids, key_mask: Mask | None = None) -> Float[Tensor, "batch width"]:
        """What stands for a text."""
        states, mask = self.states(ids, key_mask)
        if self.options.pool in ("mean", "max"):
            return pool(states, None if self.options.zero_is_pad else mask, self.options.pool)
        return states[:, 0]

    def states(self, ids: Ids, key_mask: Mask | None = None) -> tuple[Hidden, Mask | None]:
        """All states, that of the position in front among them, and which are real."""
        check_ids(ids, self.options.vocabulary + self.cls + self.options.spare)
        if self.options.zero_is_pad:
            key_mask = ids > 0
        if self.cls:
            ids = functional.pad(ids, (1, 0), value=self.cls_id)
            if key_mask is not None:
                # As released, the position in front is real if the first token is.
                front = key_mask[:, :1] if self.options.zero_is_pad else torch.ones_like(key_mask[:, :1])
                key_mask = torch.cat([front, key_mask], 1)
        x = self.embedding(ids)
        x = self.dropout(x if self.position is None else self.position(x))
        return self.stack(x, BlockInputs(key_mask=key_mask, streams=self._streams(ids))), key_mask

    def _streams(self, ids: Ids) -> Streams | None:
        """The first position, which is that in front where there is one, is global where a mechanism knows such."""
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
    """Ids are intensities: a linear layer reads them as numbers from −1 to 1; those behind them have vectors."""

    def __init__(self, intensities: int, others: int, width: int) -> None:
        super().__init__()
        self.intensities = intensities
        self.weight = nn.Parameter(torch.randn(2, width))  # slope and height
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


class _RecurrentStack(nn.Module):
    """Blocks whose mixer reads the sequence both ways step by step, with no more parameters than attention has."""

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(_RecurrentBlock(options) for _ in range(options.layers))
        self.norm = last_norm(options)

    def forward(self, x: Hidden, inputs: BlockInputs) -> Hidden:
        for block in self.blocks:
            x = block(x, inputs.key_mask)
        return self.norm(x)


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
        return self.around_feedforward(x, self.feedforward)


def recurrent_width(cell: str, width: int, parameters: int) -> int:
    """The widest cell that, read both ways and with its way out, has no more parameters than these."""
    gates = {"lstm": 4, "gru": 3}[cell]
    inner = 1
    while 2 * gates * (inner + 1) * (width + inner + 1 + 2) + 2 * (inner + 1) * width <= parameters:
        inner += 1
    return inner


__all__ = ["CELLS", "INPUTS", "POOLS", "ArenaEncoder", "recurrent_width"]
