"""The layouts of the Sparse Transformer: plain and fused results equal a dense masked softmax."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention.kernels.flash import DEAD
from longspan.attention.kernels.multi_source_softmax import KeySource, _plain, joint
from longspan.attention.layouts import Dense, Layout, OwnBlock, Strided, Summaries
from longspan.audit.counting import LargestTensor, count_flops, count_kept

HEADS, WIDTH, SCALE = 3, 4, 0.7


def reads(layout: Layout, head: int, i: int, j: int) -> bool:
    """Whether the query at position i reads key j, word for word from the docstrings."""
    if isinstance(layout, Strided):
        return j <= i and (i - j) % layout.stride == 0 and (i - j) // layout.stride >= layout.skip
    if isinstance(layout, OwnBlock):
        return j <= i and i // layout.block == j // layout.block
    assert isinstance(layout, Summaries)
    column = j % layout.stride
    if not layout.columns[head] <= column < layout.columns[head] + layout.count:
        return False
    return j // layout.stride < i // layout.stride or (
        layout.with_block and i // layout.stride == j // layout.stride and j <= i
    )


def pattern(layout: Layout, queries: int, keys: int) -> Tensor:
    past = keys - queries
    return torch.tensor(
        [[[reads(layout, h, i + past, j) for j in range(keys)] for i in range(queries)] for h in range(HEADS)]
    )


def make(queries: int, keys: int, batch: int) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=torch.float64) for length in (queries, keys, keys)]


def ways(layout: Layout, keep: Tensor | None) -> list[Callable[..., Tensor]]:
    return [
        lambda q, k, v: _plain(q, [KeySource(layout, k, v, keep)], SCALE, 0.0),
        lambda q, k, v: joint(q, [KeySource(layout, k, v, keep)], scale=SCALE),
    ]


SUMMARIES = Summaries(6, 2, (4, 2, 0))
OWN = Summaries(6, 2, (4, 2, 0), with_block=True)
CASES: list[tuple[Layout, int, int]] = [
    *(
        (Strided(stride, skip), length, length)
        for stride, skip in ((4, 0), (4, 1), (3, 2), (1, 1))
        for length in (1, 12, 23)
    ),
    *(
        (Strided(4, skip), queries, queries + past)
        for skip in (0, 1, 2)
        for queries, past in ((1, 3), (9, 4), (10, 9), (2, 30))
    ),
    *((OwnBlock(5), length, length) for length in (1, 4, 10, 23)),
    *((layout, length, length) for layout in (SUMMARIES, OWN) for length in (1, 5, 6, 7, 24, 31)),
    *(
        (layout, queries, queries + past)
        for layout in (SUMMARIES, OWN)
        for queries, past in ((1, 2), (1, 17), (9, 6), (13, 8))
    ),
]
NAMED = pytest.mark.parametrize(("layout", "queries", "keys"), CASES, ids=str)


@NAMED
@pytest.mark.parametrize("masked", [False, True])
def test_plain_and_fused_equal_dense_masked_softmax(
    dense, agree, layout: Layout, queries: int, keys: int, masked: bool
):
    for batch in (1, 2):
        keep = torch.rand(batch, keys) < 0.6 if masked else None
        allowed = pattern(layout, queries, keys)[None]
        if keep is not None:
            allowed = allowed & keep[:, None, None, :]
        for run in ways(layout, keep):
            agree(lambda q, k, v, keep=allowed: dense(q, k, v, keep, SCALE), run, *make(queries, keys, batch))


@NAMED
def test_each_pair_once_and_no_other(layout: Layout, queries: int, keys: int):
    q, k, _ = make(queries, keys, 2)
    scores = layout.scores(q, k, None, None, SCALE)
    assert scores.shape[-1] == layout.width(keys)
    identity = torch.eye(keys, dtype=torch.float64).expand(2, HEADS, keys, keys)
    counted = layout.mix((scores > DEAD).double(), identity)
    assert torch.equal(counted, pattern(layout, queries, keys).double().expand_as(counted))


@settings(max_examples=60)
@given(
    layout=st.one_of(
        st.builds(Strided, st.integers(1, 7), st.integers(0, 3)),
        st.builds(OwnBlock, st.integers(1, 9)),
        st.sampled_from([SUMMARIES, OWN, Summaries(1, 1, (0, 0, 0)), Summaries(5, 5, (0, 0, 0), with_block=True)]),
    ),
    queries=st.integers(1, 40),
    past=st.integers(0, 30),
    masked=st.booleans(),
)
def test_any_sizes(dense, agree, layout: Layout, queries: int, past: int, masked: bool):
    past = 0 if isinstance(layout, OwnBlock) else past
    torch.manual_seed(queries)
    keep = torch.rand(2, queries + past) < 0.6 if masked else None
    allowed = pattern(layout, queries, queries + past)[None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    tensors = make(queries, queries + past, 2)
    for run in ways(layout, keep):
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), run, *tensors)
    counted = count_flops(lambda: ways(layout, None)[1](*tensors))
    assert counted == 2 * 4 * WIDTH * layout.pairs(HEADS, queries, queries + past)


@pytest.mark.parametrize("layout", [Strided(4, 1), SUMMARIES, OWN], ids=str)
@pytest.mark.parametrize("masked", [False, True])
def test_rows_in_pieces(dense, agree, monkeypatch, layout: Layout, masked: bool):
    """Pieces so short that there are many of them, with and without keys of the past."""
    monkeypatch.setattr(type(layout), "rows", 2)
    for queries, keys in ((37, 37), (30, 41)):
        keep = torch.rand(2, keys) < 0.6 if masked else None
        allowed = pattern(layout, queries, keys)[None]
        if keep is not None:
            allowed = allowed & keep[:, None, None, :]
        run = ways(layout, keep)[1]
        agree(lambda q, k, v, keep=allowed: dense(q, k, v, keep, SCALE), run, *make(queries, keys, 2))


@pytest.mark.parametrize("layout", [Strided(4, 1), OwnBlock(5), SUMMARIES], ids=str)
def test_any_strides(agree, layout: Layout):
    """Heads that come as a transposed projection, or with their width first, are as good as their copy."""
    plain, fused = ways(layout, None)
    for axes in ((1, 2), (2, 3)):
        tensors = [x.transpose(*axes).contiguous().transpose(*axes) for x in make(24, 24, 2)]
        agree(plain, fused, *tensors)


@pytest.mark.parametrize("layout", [Strided(64, 1), OwnBlock(64), Summaries(64, 4, (60, 56, 52))], ids=str)
def test_no_tensor_of_n_by_n(layout: Layout):
    length = 2048
    tensors = [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]
    with LargestTensor() as seen:
        torch.autograd.grad(ways(layout, None)[1](*tensors).sum(), tensors)
    assert seen.elements < length**2 // 8
    kept = count_kept(lambda: ways(layout, None)[1](*tensors), tensors)
    assert kept == HEADS * length * (WIDTH + 1)


@pytest.mark.parametrize("causal", [False, True])
def test_dense_takes_a_mask_per_head(dense, agree, causal: bool):
    keep = torch.rand(2, HEADS, 9) < 0.6
    allowed = keep[:, :, None] & (torch.ones(4, 9, dtype=torch.bool).tril(5) if causal else True)
    for run in ways(Dense(causal), keep):
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), run, *make(4, 9, 2))
