"""One softmax over several sources equals one dense softmax over all of their keys."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longspan.attention import build
from longspan.attention.kernels import flash
from longspan.attention.kernels.multi_source_softmax import KeySource, WholeRows, _plain, _plain_whole, joint
from longspan.attention.layouts import Band, BlockTable, Dense, Layout, Residue

BATCH, HEADS, LENGTH, WIDTH = 2, 2, 37, 4
SCALE = 0.5

TABLE = torch.tensor([[[0, -1], [4, 0], [1, -1], [2, 3], [-1, -1]]])  # blocks of 8; the last block reads nothing here
Pattern = Callable[[int, int], bool]

# Each source: its layout, how many keys it has, and the pairs it reaches, by definition.
BAND = (Band(3, 2), LENGTH, lambda i, j: -3 <= j - i <= 2)
CAUSAL = (Band(4, 0), LENGTH, lambda i, j: -4 <= j - i <= 0)
GLOBAL = (Dense(), 3, lambda i, j: True)
MEMORY = (Dense(), 5, lambda i, j: True)
PAST = (Dense(causal=True), LENGTH + 4, lambda i, j: j <= i + 4)
STRIDED = (Residue(5, Dense(causal=True)), LENGTH, lambda i, j: j <= i and i % 5 == j % 5)
RANDOM = (BlockTable(TABLE, 8), LENGTH, lambda i, j: j // 8 in TABLE[0, i // 8].tolist())

UNIONS: dict[str, list[tuple[Layout, int, Pattern]]] = {
    "band and global keys": [BAND, GLOBAL],
    "global keys and band": [GLOBAL, BAND],
    "blocks and band": [RANDOM, BAND],
    "dense and dense": [GLOBAL, MEMORY],
    "a past and a memory": [PAST, MEMORY],
    "strided and local": [STRIDED, CAUSAL],
    "blocks, band, global keys, memory": [RANDOM, BAND, GLOBAL, MEMORY],
    "blocks alone": [RANDOM],
}
NAMED = pytest.mark.parametrize("union", list(UNIONS.values()), ids=list(UNIONS))


def allowed_pairs(union, keeps: list[Tensor | None]) -> Tensor:
    """(batch, 1, queries, all keys) by literal loops."""
    parts = []
    for (_, keys, pattern), keep in zip(union, keeps):
        pairs = torch.tensor([[pattern(i, j) for j in range(keys)] for i in range(LENGTH)])
        part = pairs.expand(BATCH, 1, LENGTH, keys)
        parts.append(part if keep is None else part & keep[:, None, None, :])
    return torch.cat(parts, -1)


def tensors(union) -> list[Tensor]:
    """q, then k and v of each source"""
    lengths = [LENGTH] + [keys for _, keys, _ in union for _ in range(2)]
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64) for length in lengths]


def sources(union, keeps, pairs) -> list[KeySource]:
    layouts = [layout for layout, _, _ in union]
    return [KeySource(*parts) for parts in zip(layouts, pairs[::2], pairs[1::2], keeps)]


def compare(dense, agree, union, keeps: list[Tensor | None]) -> None:
    allowed = allowed_pairs(union, keeps)

    def truth(q: Tensor, *pairs: Tensor) -> Tensor:
        return dense(q, torch.cat(pairs[::2], 2), torch.cat(pairs[1::2], 2), allowed, SCALE)

    def fused(q: Tensor, *pairs: Tensor) -> Tensor:
        assert flash.fits(q, pairs[0], pairs[1])
        return joint(q, sources(union, keeps, pairs), scale=SCALE)

    def plain(q: Tensor, *pairs: Tensor) -> Tensor:
        return _plain(q, sources(union, keeps, pairs), SCALE, 0.0)

    given = tensors(union)
    agree(truth, fused, *given)
    agree(truth, plain, *given)


@NAMED
def test_a_union_equals_one_dense_softmax(dense, agree, union):
    compare(dense, agree, union, [None] * len(union))


@NAMED
def test_a_union_with_masks(dense, agree, union):
    compare(dense, agree, union, [torch.rand(BATCH, keys) < 0.6 for _, keys, _ in union])


@NAMED
def test_a_mask_on_the_first_source_only(dense, agree, union):
    keeps = [torch.rand(BATCH, union[0][1]) < 0.6, *([None] * (len(union) - 1))]
    compare(dense, agree, union, keeps)


@NAMED
def test_a_mask_that_hides_nothing(dense, agree, union):
    compare(dense, agree, union, [torch.ones(BATCH, keys, dtype=torch.bool) for _, keys, _ in union])


@NAMED
def test_one_source_fully_masked(dense, agree, union):
    for hidden in range(len(union)):
        keeps = [
            torch.zeros(BATCH, keys, dtype=torch.bool) if number == hidden else None
            for number, (_, keys, _) in enumerate(union)
        ]
        compare(dense, agree, union, keeps)


@NAMED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_all_sources_masked_for_one_sequence(dense, agree, union, dtype: torch.dtype):
    keeps = [torch.ones(BATCH, keys, dtype=torch.bool) for _, keys, _ in union]
    for keep in keeps:
        keep[1] = False
    if dtype == torch.float64:
        compare(dense, agree, union, keeps)
    given = [x.to(dtype).requires_grad_() for x in tensors(union)]
    for out in (
        joint(given[0], sources(union, keeps, given[1:]), scale=SCALE),
        _plain(given[0], sources(union, keeps, given[1:]), SCALE, 0.0),
    ):
        assert bool((out[1] == 0).all()) and bool(out.isfinite().all())
        for gradient in torch.autograd.grad(out.sum(), given):
            assert bool((gradient[1] == 0).all()) and bool(gradient.isfinite().all())


def test_the_split_does_not_matter():
    """Keys in one source or cut into several: the same numbers."""
    q, k, v = (torch.randn(BATCH, HEADS, 9, WIDTH, dtype=torch.float64) for _ in range(3))
    whole = joint(q, [KeySource(Dense(), k, v)], scale=SCALE)
    cut = [KeySource(Dense(), *parts) for parts in zip(k.split((1, 3, 5), 2), v.split((1, 3, 5), 2))]
    torch.testing.assert_close(joint(q, cut, scale=SCALE), whole, atol=1e-12, rtol=0)
    torch.testing.assert_close(joint(q, cut[::-1], scale=SCALE), whole, atol=1e-12, rtol=0)


def test_scores_far_apart_do_not_overflow(dense, agree):
    """One source 1600 above the other: the merge must not take exp of either."""
    q = torch.ones(1, 1, 2, WIDTH, dtype=torch.float64)
    low, high, v = (torch.randn(1, 1, 3, WIDTH, dtype=torch.float64) + shift for shift in (-400.0, 400.0, 0.0))
    keep = torch.ones(1, 1, 2, 6, dtype=torch.bool)

    def truth(q: Tensor, a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return dense(q, torch.cat([a, b], 2), torch.cat([v, v], 2), keep, SCALE)

    def merged(q: Tensor, a: Tensor, b: Tensor, v: Tensor) -> Tensor:
        return joint(q, [KeySource(Dense(), a, v), KeySource(Dense(), b, v)], scale=SCALE)

    agree(truth, merged, q, low, high, v, tolerance=1e-9)
    agree(truth, merged, q, high, low, v, tolerance=1e-9)


def test_gradcheck():
    small = [
        (Band(1, 1), 5, None),
        (Dense(), 2, None),
        (BlockTable(torch.tensor([[[1], [0], [-1]]]), 2), 5, None),
        (Residue(2, Dense(causal=True)), 5, None),
    ]
    keeps = [torch.tensor([[True, False, True, True, True]]), None, None, None]
    lengths = [5] + [keys for _, keys, _ in small for _ in range(2)]
    given = [torch.randn(1, 2, length, 2, dtype=torch.float64, requires_grad=True) for length in lengths]
    assert torch.autograd.gradcheck(lambda q, *pairs: joint(q, sources(small, keeps, pairs), scale=SCALE), given)
    assert torch.autograd.gradcheck(lambda q, *pairs: _plain(q, sources(small, keeps, pairs), SCALE, 0.0), given)


def test_gradients_are_computed_only_for_inputs_that_require_them():
    q, k, v = (torch.randn(BATCH, HEADS, 6, WIDTH, dtype=torch.float64) for _ in range(3))
    full = [x.clone().requires_grad_() for x in (q, k, v)]
    joint(full[0], [KeySource(Dense(), full[1], full[2])], scale=SCALE).sum().backward()
    v.requires_grad_()
    joint(q, [KeySource(Dense(), k, v)], scale=SCALE).sum().backward()
    torch.testing.assert_close(v.grad, full[2].grad)
    assert q.grad is None and k.grad is None


# Biases


@pytest.mark.parametrize("learned", [False, True])
def test_a_bias_on_one_of_two_sources(dense, agree, learned: bool):
    """One that needs a gradient takes the plain way and gets it."""
    q, k, v, global_k, global_v = (
        torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64) for length in (LENGTH, LENGTH, LENGTH, 3, 3)
    )
    bias = torch.randn(HEADS, 9, dtype=torch.float64)
    allowed = allowed_pairs([BAND, GLOBAL], [None, None])
    offsets = [[min(max(j - i, -4), 4) + 4 for j in range(LENGTH)] for i in range(LENGTH)]

    def truth(bias, q, k, v, global_k, global_v):
        full = torch.cat([bias[:, torch.tensor(offsets)], torch.zeros(HEADS, LENGTH, 3, dtype=bias.dtype)], -1)
        return dense(q, torch.cat([k, global_k], 2), torch.cat([v, global_v], 2), allowed, SCALE, full)

    def found(bias, q, k, v, global_k, global_v):
        parts = [KeySource(Band(3, 2), k, v, None, bias), KeySource(Dense(), global_k, global_v)]
        return joint(q, parts, scale=SCALE)

    rest = (q, k, v, global_k, global_v)
    if learned:
        agree(truth, found, bias, *rest)
    else:
        agree(lambda *x: truth(bias, *x), lambda *x: found(bias, *x), *rest)


@pytest.mark.parametrize(
    ("layout", "pattern"),
    [(Dense(), lambda i, j: True), (Dense(causal=True), lambda i, j: j <= i), (Band(3, 2), BAND[2])],
    ids=["dense", "causal", "band"],
)
def test_a_learned_bias_gets_its_gradient(dense, agree, layout: Layout, pattern: Pattern):
    q, k, v = (torch.randn(BATCH, HEADS, 12, WIDTH, dtype=torch.float64) for _ in range(3))
    keep = torch.rand(BATCH, 12) < 0.7
    pairs = torch.tensor([[pattern(i, j) for j in range(12)] for i in range(12)])
    offsets = torch.tensor([[j - i + 11 for j in range(12)] for i in range(12)])
    bias = torch.randn(HEADS, 23, dtype=torch.float64)
    agree(
        lambda b, q, k, v: dense(q, k, v, pairs & keep[:, None, None, :], SCALE, b[:, offsets]),
        lambda b, q, k, v: joint(q, [KeySource(layout, k, v, keep, b)], scale=SCALE),
        bias,
        q,
        k,
        v,
    )


# Dropout


def drop_sources(q: Tensor, *pairs: Tensor) -> Tensor:
    return joint(q, sources([BAND, GLOBAL], [None, None], pairs), scale=SCALE, dropout=0.4)


def test_dropout_keeps_the_expectation():
    given = [torch.randn(1, 1, x.shape[2], 2, dtype=torch.float64) for x in tensors([BAND, GLOBAL])]
    undropped = joint(given[0], sources([BAND, GLOBAL], [None, None], given[1:]), scale=SCALE)
    many = [x.expand(3000, -1, -1, -1) for x in given]
    out = drop_sources(*many)
    error = (out.mean(0) - undropped[0]).abs()
    deviation = out.std(0) / 3000**0.5
    assert bool((error < 5 * deviation + 1e-12).all())
    assert bool((out.std(0) > 0.01).all())  # something was dropped


def test_dropped_weights_are_zero_and_the_others_are_scaled():
    q, k = (torch.randn(1, 1, 8, 8, dtype=torch.float64) for _ in range(2))
    identity = torch.eye(8, dtype=torch.float64)[None, None]
    undropped = joint(q, [KeySource(Dense(), k, identity)], scale=SCALE)
    dropped = joint(q, [KeySource(Dense(), k, identity)], scale=SCALE, dropout=0.25)
    kept = dropped != 0
    assert 0 < int((~kept).sum()) < 64
    torch.testing.assert_close(dropped[kept], undropped[kept] / 0.75)


def test_dropout_depends_on_the_seed_alone():
    given = tensors([BAND, GLOBAL])
    torch.manual_seed(5)
    first = drop_sources(*given)
    assert not torch.equal(drop_sources(*given), first)
    torch.manual_seed(5)
    assert torch.equal(drop_sources(*given), first)


def test_gradients_under_dropout_with_a_fixed_seed():
    lengths = (4, 4, 4, 2, 2)
    given = [torch.randn(1, 1, length, 2, dtype=torch.float64, requires_grad=True) for length in lengths]

    def run(*x: Tensor) -> Tensor:
        torch.manual_seed(3)
        parts = [KeySource(Band(1, 1), x[1], x[2]), KeySource(Dense(), x[3], x[4])]
        return joint(x[0], parts, scale=SCALE, dropout=0.4)

    assert torch.autograd.gradcheck(run, given)


# Half precision


@NAMED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_is_finite_and_close(dense, union, dtype: torch.dtype, masked: bool):
    keeps = [torch.rand(BATCH, keys) < 0.6 if masked else None for _, keys, _ in union]
    given = [x.to(dtype).requires_grad_() for x in tensors(union)]
    wide = [x.detach().double() for x in given]
    truth = dense(wide[0], torch.cat(wide[1::2], 2), torch.cat(wide[2::2], 2), allowed_pairs(union, keeps), SCALE)
    tolerance = 1e-2 if dtype == torch.float16 else 6e-2
    for out in (
        joint(given[0], sources(union, keeps, given[1:]), scale=SCALE),
        _plain(given[0], sources(union, keeps, given[1:]), SCALE, 0.0),
    ):
        assert out.dtype == dtype
        torch.testing.assert_close(out.double(), truth, atol=tolerance, rtol=tolerance)
        for gradient in torch.autograd.grad(out.sum(), given):
            assert gradient.dtype == dtype and bool(gradient.isfinite().all())


def test_half_precision_with_large_scores():
    """Scores far outside the range of float16 give the largest key, not NaN."""
    q = torch.full((1, 1, 2, 4), 200.0, dtype=torch.float16)
    k = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float16).mT.expand(1, 1, 3, 4) * 40
    v = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float16).mT.expand(1, 1, 3, 4).contiguous()
    out = joint(q, [KeySource(Dense(), k.contiguous(), v)], scale=SCALE)
    torch.testing.assert_close(out, torch.full_like(out, 3.0))


# Terms of pairs


def test_an_extra_term_of_one_source_of_two(dense, agree):
    """It has the layout of the scores, gets its gradient, and may block a pair."""
    q, k, v, more_k, more_v = (torch.randn(BATCH, HEADS, n, WIDTH, dtype=torch.float64) for n in (9, 9, 9, 3, 3))
    extra = torch.randn(BATCH, HEADS, 9, 3, dtype=torch.float64)
    may = torch.ones(9, 12, dtype=torch.bool)
    may[2, 9:], may[5, 10] = False, False
    blocked = torch.zeros(9, 3, dtype=torch.float64).masked_fill(~may[:, 9:], flash.BLOCKED)

    def truth(q, k, v, more_k, more_v, extra):
        whole = torch.cat([torch.zeros(BATCH, HEADS, 9, 9, dtype=torch.float64), extra], -1)
        return dense(q, torch.cat([k, more_k], 2), torch.cat([v, more_v], 2), may, SCALE, whole)

    def found(q, k, v, more_k, more_v, extra):
        parts = [KeySource(Dense(), k, v), KeySource(Dense(), more_k, more_v, extra=extra + blocked)]
        return joint(q, parts, scale=SCALE)

    agree(truth, found, q, k, v, more_k, more_v, extra)


# Rows that read everything


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layout", [Band(3, 2), BlockTable(TABLE, 8)], ids=["band", "blocks"])
def test_whole_rows_read_every_key(dense, agree, layout: Layout, shared: bool, masked: bool):
    rows = torch.tensor([[0, 36, 5, 99], [7, 7, 20, 1]])
    real = torch.tensor([[True, True, True, False], [True, False, True, True]])  # a place past the end, and one twice
    rows, real = (rows[:1], real[:1]) if shared else (rows, real)
    keep = torch.rand(BATCH, LENGTH) < 0.6 if masked else None
    pattern = BAND[2] if isinstance(layout, Band) else RANDOM[2]
    allowed = torch.tensor([[pattern(i, j) for j in range(LENGTH)] for i in range(LENGTH)]).repeat(BATCH, 1, 1, 1)
    for sequence in range(BATCH):
        allowed[sequence, 0, rows[sequence % len(rows)][real[sequence % len(rows)]]] = True
    if keep is not None:
        allowed = allowed & keep[:, None, None, :]
    whole = WholeRows(rows, real)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = [KeySource(layout, k, v, keep)]
        return _plain_whole(_plain(q, own, SCALE, 0.0), q, own[0], whole, SCALE, 0.0)

    tensors = [torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64) for _ in range(3)]
    agree(lambda q, k, v: dense(q, k, v, allowed, SCALE), plain, *tensors)
    agree(
        lambda q, k, v: dense(q, k, v, allowed, SCALE),
        lambda q, k, v: joint(q, [KeySource(layout, k, v, keep)], scale=SCALE, whole=whole),
        *tensors,
    )


@pytest.mark.parametrize("dropout", [0.0, 0.25])
@pytest.mark.parametrize("masked", [False, True])
@NAMED
def test_large_scores_merge_exactly(dense, union, masked: bool, dropout: float):
    """Scores of 10⁶ that are whole numbers, so that float32 has them exactly: the output and gradients are exact too.

    The log-sum-exp of such a row is not: float32 has steps of 1/16 there.
    """
    small = [torch.randint(-2, 3, x.shape).double() for x in tensors(union)]
    for x in [small[0], *small[1::2]]:
        x[..., 0] = 1500  # times 1500 times SCALE: 1,125,000
    keeps = [torch.rand(BATCH, keys) < 0.6 if masked else None for _, keys, _ in union]
    allowed = allowed_pairs(union, keeps)
    towards = torch.randn(BATCH, HEADS, LENGTH, WIDTH, dtype=torch.float64)
    results = []
    for dtype in (torch.float32, torch.float64):
        given = [x.to(dtype).requires_grad_() for x in small]
        torch.manual_seed(1)  # the same weights are dropped
        out = joint(given[0], sources(union, keeps, given[1:]), scale=SCALE, dropout=dropout)
        results.append([out, *torch.autograd.grad(out, given, towards.to(dtype))])
    if not dropout:
        q, *pairs = small
        truth = dense(q, torch.cat(pairs[::2], 2), torch.cat(pairs[1::2], 2), allowed, SCALE)
        torch.testing.assert_close(results[1][0], truth, rtol=0, atol=1e-9)
    torch.testing.assert_close(results[0][0].double(), results[1][0], rtol=0, atol=1e-5)
    for single, double in zip(*results):
        torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6 * 1500)  # gradients are sums of keys


@pytest.mark.parametrize(
    ("name", "causal", "options"),
    [
        ("sparse", True, {"stride": 8}),
        ("sparse", True, {"stride": 8, "pattern": "fixed", "summary": 2}),
        ("longformer", False, {"window": 4}),
        ("sinkhorn", True, {"block": 8}),
    ],
)
def test_mechanisms_that_merge_at_scores_of_a_million(name: str, causal: bool, options: dict):
    mechanism = build(name, heads=2, head_dim=16, max_length=64, causal=causal, **options)
    given = {part: torch.randint(-2, 3, (2, 2, 64, 16)).double() for part in ("q", "k", "v")}
    streams = {stream.name: given[stream.like] for stream in mechanism.streams if stream.kind == "heads"}
    if name == "longformer":
        streams["global_mask"] = (torch.arange(64) % 20 == 0).expand(2, -1)
    given["q"][..., 0] = given["k"][..., 0] = 2000  # scores around 2000 · 2000 / 4
    results = []
    for way, dtype in ((mechanism, torch.float32), (mechanism.reference, torch.float64)):
        mechanism.to(dtype)
        cast = {part: x.to(dtype) for part, x in given.items()}
        beside = {part: x.to(dtype) if x.is_floating_point() else x for part, x in streams.items()}
        results.append(way(**cast, streams=beside).double())
    torch.testing.assert_close(*results, rtol=0, atol=1e-5)
