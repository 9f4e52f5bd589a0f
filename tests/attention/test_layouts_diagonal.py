"""Block-diagonal attention: each block by itself."""

import pytest
import torch
from torch import Tensor

from longspan.attention.joint import Source, _plain, joint
from longspan.attention.layouts import Diagonal
from longspan.audit.counting import count_flops

HEADS, WIDTH, SCALE = 3, 4, 0.7
DOUBLE = torch.float64
CASES = [(1, 1), (1, 5), (4, 1), (4, 3), (4, 4), (4, 8), (4, 30), (7, 71), (100, 30)]  # block, length
NAMED = pytest.mark.parametrize(("block", "length"), CASES, ids=str)


def make(length: int, batch: int) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=DOUBLE) for _ in range(3)]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [1, 2, 5])  # fewer and more than there are heads
@NAMED
def test_both_ways_equal_the_literal_mask(dense, agree, block, length, batch, causal: bool, masked: bool):
    layout, tensors = Diagonal(block, causal), make(length, batch)
    rows = [[i // block == j // block and (j <= i or not causal) for j in range(length)] for i in range(length)]
    padding = torch.rand(batch, length) < 0.6 if masked else None
    keep = torch.tensor(rows)[None, None]
    keep = keep if padding is None else keep & padding[:, None, None, :]
    truth = lambda q, k, v: dense(q, k, v, keep, SCALE)  # noqa: E731
    agree(truth, lambda q, k, v: joint(q, [Source(layout, k, v, padding)], scale=SCALE), *tensors)
    agree(truth, lambda q, k, v: _plain(q, [Source(layout, k, v, padding)], SCALE, 0.0), *tensors)
    assert layout.width(length) == layout.scores(tensors[0], tensors[1], padding, None, SCALE).shape[-1]


@pytest.mark.parametrize("batch", [1, 5])
@NAMED
def test_pairs_are_the_counted_products(block: int, length: int, batch: int):
    q, k, v = make(length, batch)
    counted = count_flops(lambda: joint(q, [Source(Diagonal(block), k, v)], scale=SCALE))
    assert counted == 4 * WIDTH * batch * Diagonal(block).pairs(HEADS, length, length)


@pytest.mark.parametrize("batch", [2, 5])
def test_inputs_may_be_any_view(agree, batch: int):
    layout, tensors = Diagonal(7, True), make(30, batch)
    twisted = lambda x: x.transpose(1, 2).contiguous().transpose(1, 2)  # noqa: E731
    agree(
        lambda q, k, v: joint(q, [Source(layout, k, v)], scale=SCALE),
        lambda q, k, v: joint(twisted(q), [Source(layout, twisted(k), twisted(v))], scale=SCALE),
        *tensors,
    )
