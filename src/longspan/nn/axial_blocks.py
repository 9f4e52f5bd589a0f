"""Transformer blocks on a grid, each of which reads along one axis (Ho et al. 2019)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.nn.block import Block, BlockState

Grid = Float[Tensor, "batch height width features"]


@dataclass(frozen=True)
class AxialBlocksState(State):
    """The state of each block along columns."""

    columns: tuple[BlockState, ...]


class AxialBlocks(nn.Module):
    """A block along each row, then a block along each column, and so on; the other axis joins the batch.

    If the blocks along columns are causal, a row depends on itself and the rows above it: `extend` reads the next rows.
    """

    def __init__(self, rows: Sequence[Block], columns: Sequence[Block]) -> None:
        super().__init__()
        self.rows, self.columns = nn.ModuleList(rows), nn.ModuleList(columns)

    def forward(self, x: Grid) -> Grid:
        for row, column in self.pairs():
            x = column(_turned(row(x)))
            x = _turned(x)
        return x

    def start(self, batch: int, width: int, *, dtype: torch.dtype, device: torch.device) -> AxialBlocksState:
        """The state before the first row of `width` columns."""
        columns = (column.start(batch * width, dtype=dtype, device=device) for _, column in self.pairs())
        return AxialBlocksState(tuple(columns))

    def extend(
        self, x: Float[Tensor, "batch rows width features"], state: AxialBlocksState
    ) -> tuple[Float[Tensor, "batch rows width features"], AxialBlocksState]:
        """The next rows, any number of them, and the state after them."""
        after = []
        for (row, column), before in zip(self.pairs(), state.columns):
            x, past = column.extend(_turned(row(x)), before)
            x = _turned(x)
            after.append(past)
        return x, AxialBlocksState(tuple(after))

    def pairs(self) -> Iterator[tuple[Block, Block]]:
        """A block along rows and the block along columns that follows it, bottom up."""
        for row, column in zip(self.rows, self.columns):
            assert isinstance(row, Block) and isinstance(column, Block)
            yield row, column


def _turned(x: Grid) -> Grid:
    """Rows and columns exchanged, so that attention reads along contiguous positions."""
    return x.transpose(1, 2).contiguous()


__all__ = ["AxialBlocks", "AxialBlocksState"]
