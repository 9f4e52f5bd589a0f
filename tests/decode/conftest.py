"""A model that is a table, so that a test can say what it predicts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.models import CausalModel


@dataclass(frozen=True)
class Last(State):
    tokens: Tensor  # (batch, 2): the last two


class Table(CausalModel):
    """The logits after the tokens (a, b) are `table[a, b]`; before the first token stands 0."""

    name, paper = "table", "none"

    def __init__(self, table: Tensor, max_length: int | None = None) -> None:
        super().__init__(None)
        self.table = nn.Parameter(table)
        self.vocabulary, self.max_length = table.shape[-1], max_length
        self.read: list[tuple[int, ...]] = []  # the shapes of what it was given

    def start(self, batch: int, **_: Any) -> Last:
        return Last(torch.zeros(batch, 2, dtype=torch.long))

    def extend(self, ids: Tensor, state: Last, *, last: bool = False, **_: Any) -> tuple[Tensor, Last]:
        self.read.append(tuple(ids.shape))
        text = torch.cat([state.tokens, ids], 1)
        logits = self.table[text[:, 1:-1], text[:, 2:]]
        return logits[:, -1:] if last else logits, Last(text[:, -2:])


@pytest.fixture(scope="session")
def table() -> Callable[..., Table]:
    """`table(logits)`, the same everywhere or by the last tokens; or drawn: `table(vocabulary=4, seed=1)`."""

    def make(logits: Tensor | None = None, *, vocabulary: int = 4, seed: int = 0, **options: Any) -> Table:
        if logits is None:
            generator = torch.Generator().manual_seed(seed)
            logits = 2 * torch.randn(vocabulary, vocabulary, vocabulary, generator=generator, dtype=torch.float64)
        width = logits.shape[-1]
        return Table(logits.expand(width, width, width).clone(), **options)

    return make
