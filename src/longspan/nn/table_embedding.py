"""Columns of a table as tokens (Gorishniy et al. 2021, section 3.3)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import embedding

from longspan.errors import InvalidInput, InvalidOption
from longspan.shapes import Hidden

Numbers = Float[Tensor, "batch numbers"]  # NaN: missing
Categories = Int[Tensor, "batch categories"]  # 0: missing or unknown


class TableEmbedding(nn.Module):
    """A token for each column, after a learned token that stands for the whole row.

    A number x of column j is w_j·x + b_j, a category the row of its column's table, plus b_j. A missing number is a
    learned vector in place of w_j·x; row 0 of each table is for missing and unknown categories, and starts at 0.
    """

    offsets: Tensor

    def __init__(self, numbers: int, categories: Sequence[int], width: int) -> None:
        super().__init__()
        if not numbers and not categories:
            raise InvalidOption("a table needs at least one column")
        self.numbers, self.categories = numbers, tuple(categories)
        self.token = nn.Parameter(torch.empty(width))
        self.weight = nn.Parameter(torch.empty(numbers, width))
        self.missing = nn.Parameter(torch.zeros(numbers, width))
        self.bias = nn.Parameter(torch.empty(numbers + len(self.categories), width))
        sizes = [size + 1 for size in self.categories]
        self.table = nn.Parameter(torch.empty(sum(sizes), width))
        first = torch.tensor([sum(sizes[:column]) for column in range(len(sizes))], dtype=torch.long)
        self.register_buffer("offsets", first, persistent=False)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Uniform from -1/√width to 1/√width, as released."""
        reach = self.token.shape[0] ** -0.5
        for tensor in (self.token, self.weight, self.bias, self.table):
            nn.init.uniform_(tensor, -reach, reach)
        nn.init.zeros_(self.missing)
        self.table[self.offsets] = 0

    @property
    def tokens(self) -> int:
        """The number of tokens of a row."""
        return 1 + self.numbers + len(self.categories)

    def forward(self, numbers: Numbers, categories: Categories) -> Hidden:
        self._check(numbers, categories)
        absent = numbers.isnan()[..., None]
        scaled = numbers.nan_to_num(0.0).to(self.weight.dtype)[..., None] * self.weight
        tokens = [self.token.expand(len(numbers), 1, -1), torch.where(absent, self.missing, scaled)]
        if self.categories:
            tokens.append(embedding(categories + self.offsets, self.table))
        first, *columns = tokens
        return torch.cat([first, torch.cat(columns, 1) + self.bias], 1)

    def _check(self, numbers: Tensor, categories: Tensor) -> None:
        wanted = (self.numbers, len(self.categories))
        if 0 in (len(numbers), numbers.numel() + categories.numel()):
            raise InvalidInput(f"expected at least one row and one column, got {tuple(numbers.shape)} numbers")
        if numbers.ndim != 2 or categories.ndim != 2 or (numbers.shape[1], categories.shape[1]) != wanted:
            raise InvalidInput(
                f"expected (batch, {wanted[0]}) numbers and (batch, {wanted[1]}) categories, "
                f"got {tuple(numbers.shape)} and {tuple(categories.shape)}"
            )
        if len(numbers) != len(categories):
            raise InvalidInput(f"expected as many rows of both, got {len(numbers)} and {len(categories)}")
        if not self.categories or categories.is_meta:
            return
        if bool(((categories < 0) | (categories > torch.tensor(self.categories, device=categories.device))).any()):
            raise InvalidInput(
                f"expected categories from 0 to {self.categories}, got up to {categories.amax(0).tolist()}"
            )


__all__ = ["Categories", "Numbers", "TableEmbedding"]
