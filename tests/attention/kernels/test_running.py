"""Running maxima, ranks, sorts and shifts give in an exported program what they give eagerly."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from longspan.attention.kernels.running import rank_in_group, running_max, shift, stable_sort

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "maximum": lambda x: running_max(x, 1),
    "maximum of numbers with a fraction": lambda x: running_max(x.double() / 3, 1),
    "maximum of booleans": lambda x: running_max(x > 3, 1),
    "ranks": lambda x: rank_in_group(x.sort(-1).values, 6),
    "ranks of some": lambda x: rank_in_group(x.sort(-1).values, 6, (x > 2).long()),
    "sort": lambda x: torch.cat(stable_sort(x), -1),
    "the entry before": lambda x: shift(x, 1, -7),
    "the entry behind": lambda x: shift(x, -1, -7),
}


class Module(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.mark.parametrize("name", CASES)
def test_the_exported_form_is_the_same(name: str):
    length = torch.export.Dim("length", min=1, max=100)
    example = torch.randint(0, 6, (3, 17), generator=torch.Generator().manual_seed(0))
    program = torch.export.export(Module(CASES[name]), (example,), dynamic_shapes=({1: length},)).module()
    for size in (1, 2, 5, 16, 33):
        x = torch.randint(0, 6, (3, size), generator=torch.Generator().manual_seed(size))
        torch.testing.assert_close(program(x), CASES[name](x), rtol=0, atol=0)


def test_a_rank_counts_within_a_group():
    assert rank_in_group(torch.tensor([[0, 0, 2, 2, 2, 5]]), 6).tolist() == [[0, 1, 0, 1, 2, 0]]
    counted = torch.tensor([[1, 1, 0, 1, 1, 1]])
    assert rank_in_group(torch.tensor([[0, 0, 2, 2, 2, 5]]), 6, counted).tolist() == [[0, 1, 0, 0, 1, 0]]
