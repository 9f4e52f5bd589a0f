"""The stairs layout: one more key after every `stride` queries."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention.kernels.multi_source_softmax import KeySource, _plain, joint
from longspan.attention.layouts import Stairs
from longspan.audit.counting import LargestTensor, count_flops

BATCH, HEADS, WIDTH, SCALE = 2, 3, 4, 0.7
DOUBLE = torch.float64
CASES = [
    (Stairs(3, 0, 1), 1),
    (Stairs(3, 0, 1), 40),
    (Stairs(3, 1, 0), 3),
    (Stairs(3, 0, 0), 3),  # nothing is read by anyone
    (Stairs(3, 0, 0), 10),
    (Stairs(3, 17, 1), 1),  # a decoding step
    (Stairs(3, 17, 1), 20),
    (Stairs(2, 0, 1), 400),  # several strips
    (Stairs(7, 5, 0), 391),
    (Stairs(200, 0, 1), 450),  # a stride longer than a strip
    (Stairs(1, 0, 1), 200),
    (Stairs(500, 0, 1), 20),
]
NAMED = pytest.mark.parametrize(("layout", "queries"), CASES, ids=str)


def literal(layout: Stairs, queries: int, keys: int) -> Tensor:
    counts = [(i + layout.start) // layout.stride + layout.extra for i in range(queries)]
    return torch.tensor([[j < count for j in range(keys)] for count in counts], dtype=torch.bool).view(queries, keys)


def make(layout: Stairs, queries: int, more: int = 0) -> list[Tensor]:
    keys = (queries - 1 + layout.start) // layout.stride + layout.extra + more
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=DOUBLE) for length in (queries, keys, keys)]


@pytest.mark.parametrize("more", [0, 2])  # keys that nobody reads yet
@pytest.mark.parametrize("masked", [False, True])
@NAMED
def test_plain_and_fused_equal_the_literal_mask(dense, agree, layout: Stairs, queries: int, masked: bool, more: int):
    tensors = make(layout, queries, more)
    keys = tensors[1].shape[2]
    padding = torch.rand(BATCH, keys) < 0.6 if masked else None
    keep = literal(layout, queries, keys)[None, None]
    keep = keep if padding is None else keep & padding[:, None, None, :]
    truth = lambda q, k, v: dense(q, k, v, keep, SCALE)  # noqa: E731
    source = lambda k, v: [KeySource(layout, k, v, padding)]  # noqa: E731
    agree(truth, lambda q, k, v: joint(q, source(k, v), scale=SCALE), *tensors)
    agree(truth, lambda q, k, v: _plain(q, source(k, v), SCALE, 0.0), *tensors)
    assert layout.width(keys) == layout.scores(tensors[0], tensors[1], padding, None, SCALE).shape[-1]


@NAMED
def test_pairs_are_the_counted_products(layout: Stairs, queries: int):
    q, k, v = make(layout, queries)
    counted = count_flops(lambda: joint(q, [KeySource(layout, k, v)], scale=SCALE))
    assert counted == 4 * WIDTH * BATCH * layout.pairs(HEADS, queries, k.shape[2])


@given(st.integers(1, 300), st.integers(1, 70), st.integers(0, 200), st.integers(0, 2))
def test_any_sizes(queries: int, stride: int, start: int, extra: int):
    layout = Stairs(stride, start, extra)
    q, k, v = make(layout, queries)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * SCALE
    keep = literal(layout, queries, k.shape[2])
    weights = scores.masked_fill(~keep, float("-inf")).softmax(-1).nan_to_num(0.0)
    torch.testing.assert_close(joint(q, [KeySource(layout, k, v)], scale=SCALE), weights @ v, atol=1e-10, rtol=1e-10)


def test_inputs_may_be_any_view():
    layout = Stairs(3, 0, 1)
    tensors = make(layout, 400)
    expected = joint(tensors[0], [KeySource(layout, *tensors[1:])], scale=SCALE)
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors)
    torch.testing.assert_close(joint(q, [KeySource(layout, k, v)], scale=SCALE), expected)


def test_no_tensor_is_quadratic():
    n = 4096
    layout = Stairs(3, 0, 1)
    q = torch.randn(1, 1, n, 8, requires_grad=True)
    k = torch.randn(1, 1, (n - 1) // 3 + 1, 8, requires_grad=True)
    keep = torch.rand(1, k.shape[2]) < 0.9
    with LargestTensor() as seen:
        joint(q, [KeySource(layout, k, k, keep)], scale=SCALE).sum().backward()
    assert seen.elements < n * n // 8
