"""Tiles, rectangles and grid axes alone: the pairs they read, plain and fused results, and their cost."""

from collections.abc import Callable
from functools import cache
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import DEAD
from longspan.attention.kernels.multi_source_softmax import KeySource, _plain, joint
from longspan.attention.layouts import (
    GridAxis,
    Layout,
    Rectangles,
    Tiles,
    blocks_to_raster,
    rank_in_blocks,
    raster_to_blocks,
)
from longspan.attention.layouts import rectangles as rectangles_module
from longspan.attention.layouts import tiles as tiles_module
from longspan.audit.counting import LargestTensor, count_flops, count_kept

HEADS, WIDTH = 2, 4
SCALE = 0.7


# The definitions, as sets of pairs


def generation_order(height: int, width: int, block: tuple[int, int]) -> list[tuple[int, int]]:
    """The pixels of an image, block by block."""
    return [
        (row, column)
        for top in range(0, height, block[0])
        for left in range(0, width, block[1])
        for row in range(top, min(top + block[0], height))
        for column in range(left, min(left + block[1], width))
    ]


@cache
def pattern(layout: Layout, length: int) -> Tensor:
    """(length, length), word for word from the docstrings."""
    keep = torch.zeros(length, length, dtype=torch.bool)
    order = []
    if isinstance(layout, Rectangles):
        order = generation_order(layout.rows or length + layout.block[0], layout.columns, layout.block)[:length]
    for i, j in product(range(length), range(length)):
        if layout.causal and j > i:
            continue
        if isinstance(layout, Tiles):
            first = i // layout.block * layout.block
            keep[i, j] = first - layout.before <= j < first + layout.block + layout.after
        elif isinstance(layout, GridAxis):
            slab = length * layout.stride if layout.length is None else layout.length * layout.stride
            keep[i, j] = i // slab == j // slab and i % layout.stride == j % layout.stride
        else:
            (row, column), (other_row, other_column) = order[i], order[j]
            top, left = row // layout.block[0] * layout.block[0], column // layout.block[1] * layout.block[1]
            (tall, broad), (above, beside) = layout.block, layout.flange
            keep[i, j] = (
                top - above <= other_row < top + tall + above and left - beside <= other_column < left + broad + beside
            )
    return keep


def make(length: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(batch, HEADS, length, WIDTH, dtype=torch.float64) for _ in range(3))


def plain(layout: Layout, keep: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda q, k, v: _plain(q, [KeySource(layout, k, v, keep)], SCALE, 0.0)


def fused(layout: Layout, keep: Tensor | None = None) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert flash.fits(q, k, v)
        return joint(q, [KeySource(layout, k, v, keep)], scale=SCALE)

    return run


CASES: list[tuple[Layout, int]] = [
    (Tiles(4), 13),
    (Tiles(4, causal=True), 12),
    (Tiles(4, 6, causal=True), 31),
    (Tiles(4, 8, 5), 29),
    (Tiles(5, 3, 3), 30),
    (Tiles(3, 40, causal=True), 20),
    (Tiles(3, 40, 40), 20),
    (Tiles(300, 20, causal=True), 290),
    (Tiles(1, 2, 1), 9),
    (Tiles(7, 2, 2), 5),
    (Tiles(4, 4), 1),
    (Rectangles((2, 3), (1, 2), 9), 36),
    (Rectangles((2, 3), (1, 2), 9, causal=True), 36),
    (Rectangles((2, 3), (3, 1), 7, causal=True), 40),
    (Rectangles((2, 3), (1, 1), 7, 5), 35),
    (Rectangles((2, 3), (1, 1), 7, 5, causal=True), 35),
    (Rectangles((3, 2), (0, 0), 5, 4, causal=True), 20),
    (Rectangles((2, 2), (5, 9), 4), 17),
    (Rectangles((2, 8), (1, 1), 5, causal=True), 23),
    (Rectangles((4, 4), (2, 2), 8, causal=True), 1),
    (GridAxis(1, 4), 16),
    (GridAxis(1, 4), 13),
    (GridAxis(1, 4, causal=True), 13),
    (GridAxis(5), 30),
    (GridAxis(5), 33),
    (GridAxis(5, causal=True), 33),
    (GridAxis(5, causal=True), 3),
    (GridAxis(3, 4, causal=True), 24),
    (GridAxis(3, 4), 29),
    (GridAxis(1), 7),
]
NAMED = pytest.mark.parametrize(("layout", "length"), CASES, ids=str)


# (a) the set of pairs


@NAMED
@pytest.mark.parametrize("masked", [False, True])
def test_the_pairs_are_those_of_the_definition(layout: Layout, length: int, masked: bool):
    q, k, _ = make(length)
    keep = torch.rand(2, length) < 0.6 if masked else None
    scores = layout.scores(q, k, keep, None, SCALE)
    assert scores.shape[-1] == layout.width(length)
    identity = torch.eye(length, dtype=torch.float64).expand(2, HEADS, length, length)
    counted = layout.mix((scores > DEAD).double(), identity)
    allowed = pattern(layout, length)[None, None]
    allowed = allowed if keep is None else allowed & keep[:, None, None, :]
    assert torch.equal(counted, allowed.double().expand_as(counted))  # each pair once, and no other
    found = layout.mix(scores.masked_fill(scores < DEAD, 0.0), identity)
    expected = (torch.einsum("bhid,bhjd->bhij", q, k) * SCALE).masked_fill(~allowed, 0.0)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


# (b) values and gradients


@NAMED
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_plain_and_fused_equal_dense_masked_softmax(
    dense, agree, layout: Layout, length: int, batch: int, masked: bool
):
    tensors, allowed, keep = make(length, batch), pattern(layout, length)[None, None], None
    if masked:
        keep = torch.rand(batch, length) < 0.5
        keep[-1] = False  # the last sequence has nothing to read at all
        allowed = allowed & keep[:, None, None, :]
    dead = ~allowed.any(-1).expand(batch, HEADS, length)
    for run in (plain(layout, keep), fused(layout, keep)):
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), run, *tensors)
        q, k, v = (x.clone().requires_grad_() for x in tensors)
        out = run(q, k, v)
        assert bool((out[dead] == 0).all())
        assert bool((torch.autograd.grad(out.sum(), q)[0][dead] == 0).all())


@NAMED
def test_inputs_may_be_any_view(dense, agree, layout: Layout, length: int):
    """Heads as a projection gives them, rows of numbers apart, and a mixture."""
    allowed = pattern(layout, length)[None, None]
    q, k, v = make(length)
    projected = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    apart = [x.mT.contiguous().mT for x in (q, k, v)]
    for tensors in (projected, apart, [q, projected[1], apart[2]], [projected[0], k, v]):
        expected = dense(*tensors, allowed, SCALE)
        torch.testing.assert_close(fused(layout)(*tensors), expected, atol=1e-10, rtol=1e-10)
        leaves = [x.detach().requires_grad_() for x in tensors]  # the strides stay
        results = []
        for run in (lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(layout)):
            out = run(*leaves)
            results.append(torch.autograd.grad((out * torch.arange(WIDTH)).sum(), leaves))
        for found, wanted in zip(*results):
            torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("piece", [1, 2000])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "layout", [Tiles(16, 20, causal=True), Tiles(16, 20, 20), Rectangles((2, 3), (1, 2), 16, causal=True)], ids=str
)
def test_small_pieces_give_the_same_result(dense, agree, monkeypatch, layout, masked, batch: int, piece: int):
    """With pieces so small that heads, sequences and blocks are processed one by one."""
    monkeypatch.setattr(tiles_module, "PIECE", piece)
    monkeypatch.setattr(tiles_module, "ROWS", 5)
    monkeypatch.setattr(rectangles_module, "PIECE", piece)
    keep = torch.rand(batch, 77) < 0.6 if masked else None
    allowed = pattern(layout, 77)[None, None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(layout, keep), *make(77, batch))


# Any sizes

TILES = st.builds(Tiles, st.integers(1, 9), st.integers(0, 20), st.integers(0, 20), st.booleans())
AXES = st.builds(GridAxis, st.integers(1, 7), st.one_of(st.none(), st.integers(1, 7)), st.booleans())
PAIRS = st.tuples(st.integers(1, 4), st.integers(1, 4))
FLANGES = st.tuples(st.integers(0, 4), st.integers(0, 4))
RECTANGLES = st.builds(Rectangles, PAIRS, FLANGES, st.integers(1, 9), st.none(), st.booleans())


@st.composite
def images(draw) -> tuple[Layout, int]:
    """An image of a certain height, whole."""
    height, width = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    return Rectangles(draw(PAIRS), draw(FLANGES), width, height, draw(st.booleans())), height * width


ANY = st.one_of(st.tuples(st.one_of(TILES, AXES, RECTANGLES), st.integers(1, 60)), images())


@settings(max_examples=80)
@given(case=ANY, batch=st.integers(1, 2), masked=st.booleans(), salt=st.integers(0, 9))
def test_any_sizes(dense, agree, case, batch: int, masked: bool, salt: int):
    layout, length = case
    torch.manual_seed(salt)
    tensors = make(length, batch)
    keep = torch.rand(batch, length) < 0.5 if masked else None
    allowed = pattern(layout, length)[None, None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    for run in (plain(layout, keep), fused(layout, keep)):
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), run, *tensors)
    counted = count_flops(lambda: fused(layout)(*tensors))
    assert counted == 4 * batch * layout.pairs(HEADS, length, length) * WIDTH


# (c) cost


def test_pairs_by_hand():
    assert Tiles(4, 8).pairs(2, 16, 16) == 2 * 4 * (4 + 8 + 12 + 12)
    assert Tiles(4, 8, 2).pairs(1, 10, 10) == 4 * 6 + 4 * 10 + 2 * 10
    assert Tiles(256, 256, causal=True).pairs(1, 512, 512) == 128 * (128 + 256 + 384 + 512)
    assert Rectangles((2, 3), (1, 2), 6).pairs(1, 13, 13) == 2 * 2 * 6 * (4 * 7)
    assert Rectangles((2, 3), (1, 2), 6, causal=True).pairs(1, 12, 12) == 2 * 6 * (3 * 7)
    assert GridAxis(1, 8).pairs(3, 20, 20) == 3 * 3 * 64
    assert GridAxis(8).pairs(3, 20, 20) == 3 * 8 * 9


LONG = 2048


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", [plain, fused])
@pytest.mark.parametrize(
    "layout", [Tiles(16, 16, causal=True), Rectangles((4, 4), (2, 2), 32), GridAxis(1, 32), GridAxis(64)], ids=str
)
def test_no_tensor_grows_with_the_square(layout: Layout, way, masked: bool):
    keep = torch.arange(LONG)[None] < LONG - 5 if masked else None
    q, k, v = (torch.randn(1, 1, LONG, 8).requires_grad_() for _ in range(3))
    with LargestTensor() as seen:
        way(layout, keep)(q, k, v).sum().backward()
    assert 0 < seen.elements < LONG * LONG // 8, seen.maker


@pytest.mark.parametrize(
    "layout", [Tiles(16, 16, causal=True), Rectangles((4, 4), (2, 2), 8), GridAxis(1, 32), GridAxis(64)], ids=str
)
def test_the_fused_path_stores_its_output_and_one_number_per_row(layout: Layout):
    q, k, v = (torch.randn(1, HEADS, 128, 8).requires_grad_() for _ in range(3))
    assert count_kept(lambda: fused(layout)(q, k, v), (q, k, v)) == HEADS * 128 * (8 + 1)


@pytest.mark.parametrize("layout", [GridAxis(1, 32), GridAxis(16, causal=True)], ids=str)
def test_an_axis_copies_nothing(layout: Layout):
    """Neither for contiguous heads nor for those of a projection."""
    for heads in (torch.randn(2, 3, 128, 8), torch.randn(2, 128, 3, 8).transpose(1, 2)):
        with LargestTensor() as seen:
            out = fused(layout)(heads, heads, heads)
        assert seen.elements == heads.numel()
        assert out.stride() == heads.stride()


# Block-raster order


@given(height=st.integers(1, 11), width=st.integers(1, 11), block=PAIRS)
def test_block_raster_order_is_invertible(height: int, width: int, block: tuple[int, int]):
    order = generation_order(height, width, block)
    forth, back = raster_to_blocks(height, width, block), blocks_to_raster(height, width, block)
    assert forth.tolist() == [row * width + column for row, column in order]
    assert torch.equal(forth[back], torch.arange(height * width))
    image = torch.randn(2, height * width, 3)
    assert torch.equal(image[:, forth][:, back], image)


def test_without_a_height_the_number_of_rows_is_unlimited():
    row, column = torch.arange(8)[:, None], torch.arange(5)
    more = rank_in_blocks(row, column, None, 5, (3, 2))
    assert torch.equal(more, rank_in_blocks(row, column, 9, 5, (3, 2)))
    assert not torch.equal(more, rank_in_blocks(row, column, 8, 5, (3, 2)))
