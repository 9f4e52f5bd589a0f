"""Each layout alone: the pairs it reads, plain and fused equality with a dense masked softmax, and its cost."""

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
    Band,
    BlockTable,
    ByHead,
    Dense,
    Layout,
    Residue,
    check_reach,
    fold_axis,
    fold_residues,
    offset_bias,
    relative_scores,
    skew,
    stream_queries,
    unfold_axis,
    unfold_residues,
)
from longspan.attention.layouts import band as band_module
from longspan.attention.layouts import blocks as blocks_module
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidInput

HEADS, WIDTH = 2, 4
SCALE = 0.7


# The definitions, as sets of pairs


def reads(layout: Layout, head: int, i: int, j: int, queries: int, keys: int) -> bool:
    """Whether query i of `head` reads key j, word for word from the docstrings."""
    if isinstance(layout, Dense):
        return not layout.causal or j <= i + keys - queries
    if isinstance(layout, Band):
        at = i + layout.past
        return at - layout.left <= j <= at + layout.right
    if isinstance(layout, ByHead):
        return any(reads(own, heads.index(head), i, j, queries, keys) for heads, own in layout.groups if head in heads)
    if isinstance(layout, Residue):
        stride = layout.stride
        within = reads(layout.inner, head, i // stride, j // stride, -(-queries // stride), -(-keys // stride))
        return i % stride == j % stride and within
    assert isinstance(layout, BlockTable)
    return j // layout.block in _rows(layout)[head % layout.table.shape[0]][i // layout.block]


@cache
def _rows(layout: BlockTable) -> list[list[list[int]]]:
    return layout.table.tolist()


@cache
def pattern(layout: Layout, queries: int, keys: int) -> Tensor:
    """(heads, queries, keys) by literal loops."""
    pairs = [
        [[reads(layout, head, i, j, queries, keys) for j in range(keys)] for i in range(queries)]
        for head in range(HEADS if isinstance(layout, (BlockTable, ByHead)) else 1)
    ]
    return torch.tensor(pairs).expand(HEADS, -1, -1)


def table_of(rows: list[list[int]], heads: int = 1) -> Tensor:
    """One table per head; the second head reads the rows of the first in reverse."""
    table = torch.tensor(rows)
    return torch.stack([table, table.flip(0)][:heads])


def make(queries: int, keys: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(torch.randn(batch, HEADS, length, WIDTH, dtype=torch.float64) for length in (queries, keys, keys))


def plain(layout: Layout, keep: Tensor | None = None, bias: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda q, k, v: _plain(q, [KeySource(layout, k, v, keep, bias)], SCALE, 0.0)


def fused(layout: Layout, keep: Tensor | None = None, bias: Tensor | None = None) -> Callable[..., Tensor]:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert flash.fits(q, k, v)
        return joint(q, [KeySource(layout, k, v, keep, bias)], scale=SCALE)

    return run


def bias_table(reach: int) -> Tensor:
    return torch.randn(HEADS, 2 * reach + 1, dtype=torch.float64)


def dense_bias(bias: Tensor, queries: int, keys: int, past: int) -> Tensor:
    """(heads, queries, keys) by literal loops; the first query is at key `past`; 0 beyond the table."""
    reach = bias.shape[1] // 2
    table = [dict(zip(range(-reach, reach + 1), line)) for line in bias.tolist()]
    rows = [[[line.get(j - (i + past), 0.0) for j in range(keys)] for i in range(queries)] for line in table]
    return torch.tensor(rows, dtype=torch.float64)


def kind(value: object) -> str:
    return "blocks" if isinstance(value, BlockTable) else str(value)


FOUR = table_of([[0, 1, -1], [0, 1, 2], [3, 1, 2], [3, -1, -1]], HEADS)
CASES: list[tuple[str, Layout, int, int]] = [
    ("dense", Dense(), 7, 7),
    ("dense wide", Dense(), 3, 8),
    ("dense tall", Dense(), 8, 3),
    ("dense causal", Dense(causal=True), 7, 7),
    ("dense causal with a past", Dense(causal=True), 3, 8),
    ("dense causal one query", Dense(causal=True), 1, 6),
    ("band", Band(2, 3), 75, 75),
    ("band one-sided", Band(3, 0), 67, 67),
    ("band to the right", Band(0, 2), 33, 33),
    ("band of itself", Band(0, 0), 35, 35),
    ("band wider than a block", Band(40, 30), 131, 131),
    ("band wider than the text", Band(50, 50), 9, 9),
    ("band one-sided, wider than the text", Band(50, 0), 9, 9),
    ("band nearly as wide as the text", Band(30, 20), 70, 70),
    ("band, blocks exactly", Band(5, 5), 96, 96),
    ("band with a past", Band(4, 0, past=6), 37, 43),
    ("band with a short past", Band(9, 0, past=4), 66, 70),
    ("band with a long past", Band(3, 0, past=50), 2, 52),
    ("band one step", Band(5, 0, past=5), 1, 6),
    ("band one query", Band(5, 5), 1, 1),
    ("residue of dense", Residue(3, Dense()), 11, 11),
    ("residue of causal dense", Residue(4, Dense(causal=True)), 13, 13),
    ("residue of a band", Residue(2, Band(2, 1)), 75, 75),
    ("residue longer than the text", Residue(9, Band(2, 2)), 5, 5),
    ("residue of one", Residue(1, Band(2, 0)), 35, 35),
    ("residue of a residue", Residue(2, Residue(3, Dense(causal=True))), 17, 17),
    ("blocks", BlockTable(FOUR[:1], 4), 16, 16),
    ("blocks per head", BlockTable(FOUR, 4), 15, 15),
    ("blocks with empty rows", BlockTable(table_of([[-1, -1], [0, -1]]), 3), 5, 5),
    ("by head", ByHead((((1,), Band(2, 1)), ((0,), Residue(2, Band(2, 1))))), 41, 41),
    ("by head, of other widths", ByHead((((1,), Band(2, 1)), ((0,), Dense(causal=True)))), 41, 41),
    ("by head, all in one group", ByHead((((1, 0), Band(2, 1)),)), 41, 41),
    ("blocks of other keys", BlockTable(table_of([[0, 2], [1, -1]]), 4), 7, 11),
]
NAMED = pytest.mark.parametrize(
    ("layout", "queries", "keys"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)


# (a) the set of pairs


@NAMED
def test_the_pairs_are_those_of_the_definition(layout: Layout, queries: int, keys: int):
    q, k, _ = make(queries, keys)
    scores = layout.scores(q, k, None, None, SCALE)
    identity = torch.eye(keys, dtype=torch.float64).expand(2, HEADS, keys, keys)
    counted = layout.mix((scores > DEAD).double(), identity)
    allowed = pattern(layout, queries, keys)
    assert torch.equal(counted, allowed.double().expand_as(counted))  # each pair once, and no other
    found = layout.mix(scores.masked_fill(scores < DEAD, 0.0), identity)
    expected = (torch.einsum("bhid,bhjd->bhij", q, k) * SCALE).masked_fill(~allowed, 0.0)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=0)


@NAMED
def test_a_mask_hides_its_keys_and_no_others(layout: Layout, queries: int, keys: int):
    q, k, _ = make(queries, keys)
    keep = torch.rand(2, keys) < 0.6
    scores = layout.scores(q, k, keep, None, SCALE)
    identity = torch.eye(keys, dtype=torch.float64).expand(2, HEADS, keys, keys)
    counted = layout.mix((scores > DEAD).double(), identity)
    allowed = pattern(layout, queries, keys)[None] & keep[:, None, None, :]
    assert torch.equal(counted, allowed.double())


def test_a_block_listed_twice_is_read_twice(agree):
    """The table decides that; the plain and fused paths must agree."""
    layout = BlockTable(torch.tensor([[[0, 0], [1, 0]]]), 3)
    q, k, v = make(6, 6)
    agree(plain(layout), fused(layout), q, k, v)
    assert layout.scores(q, k, None, None, SCALE).gt(DEAD).sum(-1).unique().tolist() == [6]


# (b) values and gradients


@NAMED
@pytest.mark.parametrize("batch", [1, 3])
def test_plain_and_fused_equal_dense_masked_softmax(dense, agree, layout: Layout, queries: int, keys: int, batch: int):
    tensors = make(queries, keys, batch)
    allowed = pattern(layout, queries, keys)[None]

    def truth(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, k, v, allowed, SCALE)

    agree(truth, plain(layout), *tensors)
    agree(truth, fused(layout), *tensors)


@NAMED
@pytest.mark.parametrize("batch", [1, 3])
def test_plain_and_fused_with_a_mask(dense, agree, layout: Layout, queries: int, keys: int, batch: int):
    tensors = make(queries, keys, batch)
    keep = torch.rand(batch, keys) < 0.5
    keep[-1] = False  # the last sequence has nothing to read at all
    allowed = pattern(layout, queries, keys)[None] & keep[:, None, None, :]

    def truth(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, k, v, allowed, SCALE)

    agree(truth, plain(layout, keep), *tensors)
    agree(truth, fused(layout, keep), *tensors)
    for run in (plain(layout, keep), fused(layout, keep)):
        q, k, v = (x.clone().requires_grad_() for x in tensors)
        out = run(q, k, v)
        dead = ~allowed.any(-1)
        assert bool((out[dead.expand(out.shape[:3])] == 0).all())
        gradients = torch.autograd.grad(out.sum(), (q, k, v))
        assert all(bool((x[-1] == 0).all()) for x in gradients)
        assert bool((gradients[0][dead.expand(out.shape[:3])] == 0).all())


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("layout", "queries", "keys", "past", "reach"),
    [
        (Dense(), 7, 7, 0, 6),
        (Dense(), 7, 7, 0, 9),
        (Dense(causal=True), 7, 7, 0, 6),
        (Dense(causal=True), 3, 8, 5, 7),
        (Band(3, 2), 75, 75, 0, 3),
        (Band(3, 2), 75, 75, 0, 80),
        (Band(40, 30), 131, 131, 0, 40),
        (Band(30, 20), 70, 70, 0, 30),
        (Band(4, 0, past=6), 37, 43, 6, 5),
        (Residue(2, Band(2, 1)), 75, 75, 0, 4),
        (Residue(3, Band(2, 2)), 20, 20, 0, 7),
        (Residue(3, Dense(causal=True)), 11, 11, 0, 12),
        (ByHead((((1,), Band(2, 1)), ((0,), Residue(2, Band(2, 1))))), 41, 41, 0, 4),
        (ByHead((((1,), Band(2, 1)), ((0,), Dense(causal=True)))), 41, 41, 0, 40),
    ],
    ids=str,
)
def test_plain_and_fused_with_a_bias(
    dense, agree, layout: Layout, queries: int, keys: int, past: int, reach: int, batch: int, masked: bool
):
    tensors = make(queries, keys, batch)
    keep = torch.rand(batch, keys) < 0.5 if masked else None
    allowed = pattern(layout, queries, keys)[None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    bias = bias_table(reach)
    full = dense_bias(bias, queries, keys, past)

    def truth(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, k, v, allowed, SCALE, full)

    assert layout.takes_bias
    agree(truth, plain(layout, keep, bias), *tensors)
    agree(truth, fused(layout, keep, bias), *tensors)


def test_a_bias_is_refused_by_layouts_without_offsets():
    layout = BlockTable(torch.tensor([[[0], [1]]]), 4)
    q, k, v = make(8, 8)
    assert not layout.takes_bias
    for run in (plain, fused):
        with pytest.raises(ValueError, match="bias"):
            run(layout, None, bias_table(7))(q, k, v)


@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize(
    "layout", [Dense(), Dense(causal=True), Band(3, 2), Residue(2, Band(1, 1)), BlockTable(FOUR, 4)], ids=kind
)
def test_any_strides(dense, agree, layout: Layout, which: int):
    """A transposed view of q, k or v is as good as its copy."""
    tensors = list(make(16, 16))
    tensors[which] = tensors[which].mT.contiguous().mT
    allowed = pattern(layout, 16, 16)[None]
    agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(layout), *tensors)


def test_heads_may_be_a_transposed_projection(dense, agree):
    """(batch, length, heads, width) transposed, as a projection gives them."""
    tensors = [torch.randn(2, 70, HEADS, WIDTH, dtype=torch.float64).transpose(1, 2) for _ in range(3)]
    allowed = pattern(Band(3, 2), 70, 70)[None]
    agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(Band(3, 2)), *tensors)


@pytest.mark.parametrize("dead", [False, True])
def test_the_incoming_gradient_may_be_transposed(agree, dead: bool):
    keep = torch.ones(2, 9, dtype=torch.bool)
    keep[0] = not dead
    weights = torch.randn(2, HEADS, WIDTH, 9, dtype=torch.float64)
    layout = Dense()
    agree(
        lambda q, k, v: plain(layout, keep)(q, k, v).mT * weights,
        lambda q, k, v: fused(layout, keep)(q, k, v).mT * weights,
        *make(9, 9),
    )


@pytest.mark.parametrize("piece", [1, 2000])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("layout", [Band(3, 2), BlockTable(FOUR, 35), Residue(2, Band(2, 1))], ids=kind)
def test_small_pieces_give_the_same_result(dense, agree, monkeypatch, layout, masked, batch: int, piece: int):
    """With pieces so small that heads, sequences and blocks are processed one by one."""
    monkeypatch.setattr(band_module, "PIECE", piece)
    monkeypatch.setattr(blocks_module, "PIECE", piece)
    tensors = make(135, 135, batch)
    keep = torch.rand(batch, 135) < 0.6 if masked else None
    allowed = pattern(layout, 135, 135)[None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(layout, keep), *tensors)
    if layout.takes_bias:
        bias = bias_table(5)
        full = dense_bias(bias, 135, 135, 0)
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE, full), fused(layout, keep, bias), *tensors)


@pytest.mark.parametrize(("queries", "keys"), [(19, 19), (11, 30), (8, 8)])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_dense_rows_in_pieces(dense, agree, monkeypatch, causal: bool, masked: bool, queries: int, keys: int):
    monkeypatch.setattr(Dense, "rows", 4)
    layout, bias = Dense(causal), bias_table(keys)
    tensors = make(queries, keys)
    keep = torch.rand(2, keys) < 0.6 if masked else None
    allowed = pattern(layout, queries, keys)[None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(layout, keep), *tensors)
    if causal or queries == keys:
        full = dense_bias(bias, queries, keys, keys - queries)
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE, full), fused(layout, keep, bias), *tensors)


def test_a_causal_dense_with_more_queries_than_keys(dense, agree):
    """The last query is at the last key, so the first ones have nothing to read."""
    layout = Dense(causal=True)
    allowed = pattern(layout, 6, 4)[None]
    assert allowed.any(-1).tolist() == [[[False, False, True, True, True, True]] * HEADS]
    for run in (plain(layout), fused(layout)):
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), run, *make(6, 4))


def test_a_causal_dense_whose_first_rows_all_have_nothing_to_read(dense, agree, monkeypatch):
    """The kernel crashes the process on a piece without keys, so it must never be handed one."""

    def guard(run: Callable[..., object], position: int) -> Callable[..., object]:
        def guarded(*tensors: Tensor, **options: object) -> object:
            assert tensors[position].shape[2] > 0
            return run(*tensors, **options)

        return guarded

    monkeypatch.setattr(flash, "forward", guard(flash.forward, 1))
    monkeypatch.setattr(flash, "backward", guard(flash.backward, 2))
    layout = Dense(causal=True)
    allowed = pattern(layout, 9, 3)[None]
    for rows in (1, 2, 4):
        monkeypatch.setattr(Dense, "rows", rows)
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), fused(layout), *make(9, 3))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("heads", [1, HEADS])
def test_blocks_with_a_table_for_each_sequence(dense, agree, heads: int, masked: bool):
    tables = torch.stack([FOUR[:heads], FOUR[:heads].flip(1).roll(1, -1), FOUR[:heads].where(FOUR[:heads] > 1, -1)])
    keep = torch.rand(3, 15) < 0.6 if masked else None
    allowed = torch.stack([pattern(BlockTable(table, 4), 15, 15) for table in tables])
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    for run in (plain(BlockTable(tables, 4), keep), fused(BlockTable(tables, 4), keep)):
        agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), run, *make(15, 15, 3))


# Any sizes


@st.composite
def bands(draw) -> tuple[Layout, int, int]:
    left, right = draw(st.integers(0, 70)), draw(st.integers(0, 70))
    past = draw(st.sampled_from([0, 0, 1, 7, 40, 100]))
    queries = draw(st.integers(1, 150))
    return Band(left, right, past), queries, queries + past


@st.composite
def residues(draw) -> tuple[Layout, int, int]:
    stride, length = draw(st.integers(1, 6)), draw(st.integers(1, 90))
    inner = draw(
        st.one_of(
            st.builds(Dense, st.booleans()),
            st.builds(Band, st.integers(0, 9), st.integers(0, 9)),
        )
    )
    return Residue(stride, inner), length, length


@st.composite
def blocks(draw) -> tuple[Layout, int, int]:
    block = draw(st.integers(1, 6))
    queries, keys = draw(st.integers(1, 30)), draw(st.integers(1, 30))
    query_blocks, key_blocks = -(-queries // block), -(-keys // block)
    slots = draw(st.integers(1, min(4, key_blocks)))
    row = st.lists(st.integers(0, key_blocks - 1), min_size=1, max_size=slots, unique=True)
    rows = st.lists(row, min_size=query_blocks, max_size=query_blocks)
    heads = draw(st.sampled_from([1, HEADS]))
    tables = [[line + [-1] * (slots - len(line)) for line in draw(rows)] for _ in range(heads)]
    return BlockTable(torch.tensor(tables), block), queries, keys


@settings(max_examples=80)
@given(
    case=st.one_of(bands(), residues(), blocks()), batch=st.integers(1, 2), masked=st.booleans(), salt=st.integers(0, 9)
)
def test_any_layout_equals_dense_masked_softmax(dense, agree, case, batch: int, masked: bool, salt: int):
    layout, queries, keys = case
    torch.manual_seed(salt)
    tensors = make(queries, keys, batch)
    keep = torch.rand(batch, keys) < 0.5 if masked else None
    allowed = pattern(layout, queries, keys)[None]
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]

    def truth(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(q, k, v, allowed, SCALE)

    agree(truth, plain(layout, keep), *tensors)
    agree(truth, fused(layout, keep), *tensors)


# (c) cost


@NAMED
@pytest.mark.parametrize("batch", [1, 3])
def test_pairs_are_the_counted_products(layout: Layout, queries: int, keys: int, batch: int):
    q, k, v = make(queries, keys, batch)
    counted = count_flops(lambda: fused(layout)(q, k, v))
    assert counted == 4 * batch * layout.pairs(HEADS, queries, keys) * WIDTH


@given(case=st.one_of(bands(), residues(), blocks()))
def test_pairs_of_any_size(case):
    layout, queries, keys = case
    q, k, v = make(queries, keys, 1)
    assert count_flops(lambda: fused(layout)(q, k, v)) == 4 * layout.pairs(HEADS, queries, keys) * WIDTH


def test_pairs_by_hand():
    assert Dense().pairs(2, 3, 8) == 2 * 24
    assert Band(16, 16).pairs(1, 100, 100) == 3 * 32 * (16 + 32 + 16) + 4 * (16 + 4 + 16)
    assert Band(255, 0).pairs(1, 1024, 1024) == 1024 * 288  # 287 would leave 15 over
    assert Band(25, 25).pairs(1, 1024, 1024) == 1024 * 82  # two are not worth 14 more
    assert Band(100, 28).pairs(3, 256, 256) == 3 * 8 * 32 * (100 + 32 + 28)
    assert Band(100, 28).pairs(3, 128, 128) == 3 * 128 * 128  # fewer than the spans hold
    assert Residue(3, Dense(True)).pairs(1, 10, 10) == 3 * 4 * 4
    assert BlockTable(FOUR, 4).pairs(2, 15, 15) == 2 * 16 * 3 * 4
    assert ByHead((((0, 2), Dense()), ((1,), Residue(3, Dense())))).pairs(3, 10, 10) == 2 * 100 + 3 * 4 * 4


# (d) size

LONG = 2048


def neighbours(count: int) -> Tensor:
    """Each block reads the one before it, itself and the one after it."""
    table = torch.arange(count)[:, None] + torch.tensor([-1, 0, 1])
    return table.masked_fill(table >= count, -1)[None]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", [plain, fused])
@pytest.mark.parametrize(
    "layout",
    [Band(16, 16), Band(32, 0), BlockTable(neighbours(LONG // 16), 16), Residue(4, Band(8, 8))],
    ids=["band", "band causal", "blocks", "residue of a band"],
)
def test_no_tensor_grows_with_the_square(layout: Layout, way, masked: bool):
    keep = torch.arange(LONG)[None] < LONG - 5 if masked else None
    q, k, v = (torch.randn(1, 1, LONG, 8).requires_grad_() for _ in range(3))
    with LargestTensor() as seen:
        way(layout, keep)(q, k, v).sum().backward()
    assert 0 < seen.elements < LONG * LONG // 8, seen.maker


@pytest.mark.parametrize("layout", [Band(16, 16), BlockTable(neighbours(8), 16), Residue(4, Band(8, 8))], ids=kind)
def test_the_fused_path_stores_its_output_and_one_number_per_row(layout: Layout):
    q, k, v = (torch.randn(1, HEADS, 128, 8).requires_grad_() for _ in range(3))
    assert count_kept(lambda: fused(layout)(q, k, v), (q, k, v)) == HEADS * 128 * (8 + 1)


def test_the_recorder_sees_a_square():
    """The check above can fail."""
    q, k, v = (torch.randn(1, 1, 64, 8).requires_grad_() for _ in range(3))
    with LargestTensor() as seen:
        plain(Dense())(q, k, v).sum().backward()
    assert seen.elements >= 64 * 64


# Residues and axes


@given(length=st.integers(1, 20), stride=st.integers(1, 7), batch=st.integers(1, 3))
def test_folding_by_residues_is_invertible(length: int, stride: int, batch: int):
    x = torch.randn(batch, 2, length, 3)
    folded = fold_residues(x, stride)
    rows = -(-length // stride)
    assert folded.shape == (batch * stride, 2, rows, 3)
    assert torch.equal(unfold_residues(folded, stride, length), x)
    for b, residue, row in product(range(batch), range(stride), range(rows)):
        position = row * stride + residue
        expected = x[b, :, position] if position < length else torch.zeros(2, 3)
        assert torch.equal(folded[b * stride + residue, :, row], expected)


@pytest.mark.parametrize(
    ("axes", "axis"),
    [((5,), 0), ((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2), ((1, 3), 0), ((3, 1), 0)],
)
def test_folding_an_axis_is_invertible(axes: tuple[int, ...], axis: int):
    length = torch.Size(axes).numel()
    x = torch.randn(2, 3, length, 5)
    folded = fold_axis(x, axes, axis)
    assert folded.shape == (2 * length // axes[axis], 3, axes[axis], 5)
    assert torch.equal(unfold_axis(folded, axes, axis), x)


@pytest.mark.parametrize(("axes", "axis"), [((3, 4), 0), ((3, 4), 1), ((2, 3, 4), 0), ((2, 3, 4), 1), ((2, 3, 4), 2)])
def test_attention_along_an_axis_equals_a_loop(agree, axes: tuple[int, ...], axis: int):
    places = list(product(*(range(size) for size in axes)))

    def loop(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Each position reads those that differ from it in one axis only."""
        rows = []
        for i, here in enumerate(places):
            line = [
                j
                for j, there in enumerate(places)
                if all(a == b for number, (a, b) in enumerate(zip(here, there)) if number != axis)
            ]
            assert len(line) == axes[axis]
            weights = (q[:, :, i : i + 1] @ k[:, :, line].mT * SCALE).softmax(-1)
            rows.append(weights @ v[:, :, line])
        return torch.cat(rows, 2)

    def folded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (fold_axis(x, axes, axis) for x in (q, k, v))
        return unfold_axis(fused(Dense())(q, k, v), axes, axis)

    agree(loop, folded, *make(len(places), len(places)))


# The relative term


@pytest.mark.parametrize(("rows", "keys"), list(product(range(1, 7), range(1, 7))))
def test_skew_and_the_relative_term_equal_double_loops(rows: int, keys: int):
    x = torch.randn(2, 3, rows, rows + keys - 1)
    skewed = skew(x, keys)
    q = torch.randn(2, 3, rows, 4, dtype=torch.float64)
    table = torch.randn(3, rows + keys - 1, 4, dtype=torch.float64)
    scores = relative_scores(q, table)
    assert skewed.shape == scores.shape == (2, 3, rows, keys)
    for a, c in product(range(rows), range(keys)):
        assert torch.equal(skewed[..., a, c], x[..., a, c - a + rows - 1])
        expected = (q[:, :, a] * table[:, c - a + rows - 1]).sum(-1)
        torch.testing.assert_close(scores[..., a, c], expected, atol=1e-12, rtol=0)


def test_the_relative_term_has_the_right_gradient():
    q = torch.randn(1, 3, 2, dtype=torch.float64, requires_grad=True)
    table = torch.randn(1, 7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(relative_scores, (q, table))


# Streaming


@pytest.mark.parametrize("rows", [1, 3, 10, 11, 50])
def test_streamed_queries_equal_the_direct_call(agree, rows: int):
    begun = []

    def whole(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keep = torch.ones(11, 11, dtype=torch.bool).tril()
        return (q @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v

    def streamed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        def attend(piece: Tensor, begin: int) -> Tensor:
            begun.append(begin)
            keep = torch.arange(11) <= torch.arange(begin, begin + piece.shape[2])[:, None]
            return (piece @ k.mT).masked_fill(~keep, float("-inf")).softmax(-1) @ v

        return stream_queries(attend, q, rows=rows)

    tensors = make(11, 11)
    agree(whole, streamed, *tensors)
    assert sorted(set(begun)) == list(range(0, 11, rows))
    with torch.no_grad():
        torch.testing.assert_close(streamed(*tensors), whole(*tensors))


def test_streamed_queries_store_no_scores():
    q, k, v = (torch.randn(1, 1, 96, 4).requires_grad_() for _ in range(3))

    def attend(piece: Tensor, begin: int) -> Tensor:
        return (piece @ k.mT).softmax(-1) @ v

    assert count_kept(lambda: attend(q, 0), (q, k, v)) >= 96 * 96
    assert count_kept(lambda: stream_queries(attend, q, rows=16), (q, k, v)) <= 96 * 4
    with LargestTensor() as seen:
        stream_queries(attend, q, rows=16).sum().backward()
    assert seen.elements <= 16 * 96


# Biases


def test_check_reach_refuses_a_table_that_is_too_short():
    check_reach(torch.zeros(2, 7), 3)
    check_reach(torch.zeros(2, 7), 2)
    with pytest.raises(InvalidInput, match="bias reaches 3 positions to each side, and 4 are read"):
        check_reach(torch.zeros(2, 7), 4)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (4, 4), (3, 5), (5, 3)])
def test_offset_bias_by_loops(queries: int, keys: int):
    table = torch.randn(2, 11)
    found = offset_bias(table, queries, keys)
    assert found.shape == (2, queries, keys)
    for i, j in product(range(queries), range(keys)):
        assert torch.equal(found[:, i, j], table[:, j - i + 5])


# (e) values per key in the layout of the scores


@pytest.mark.parametrize(
    ("layout", "queries", "keys"),
    [(Dense(), 3, 8), (Band(2, 3), 75, 75), (Band(40, 30), 131, 131), (Band(4, 0, past=6), 37, 43), (Band(5, 5), 1, 1)],
    ids=kind,
)
def test_each_score_finds_its_own_key(layout: Band | Dense, queries: int, keys: int):
    q, k, _ = make(queries, keys)
    scores = layout.scores(q, k, None, None, SCALE)
    index = layout.along(torch.arange(keys).expand(2, keys), queries).expand(2, queries, scores.shape[-1])
    found = torch.einsum("bhid,bhjd->bhij", q * SCALE, k).gather(-1, index[:, None].expand_as(scores))
    read = scores > DEAD
    torch.testing.assert_close(scores[read], found[read])
