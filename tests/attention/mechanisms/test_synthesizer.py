"""Synthesizer: what the paper says of each form, mixtures, the streamed tiles, decoding and refusals."""

import itertools
from functools import partial

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.attention.kernels.tiled_softmax import Terms, tiled
from longspan.audit.checks import applicable
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.audit.subjects import MechanismSubject
from longspan.errors import InvalidInput, InvalidOption
from longspan.nn.multihead import MultiHead

BATCH, HEADS, WIDTH, MOST = 2, 3, 4, 24
HIDDEN = HEADS * WIDTH
DOUBLE = torch.float64
PURE = ("dense", "random", "factorised_dense", "factorised_random")
MIXED = [
    ("random", "dot"),
    ("factorised_random", "dot"),
    ("dense", "factorised_dense"),
    ("dot", "dense", "random"),
    ("random", "factorised_random"),
    (*PURE, "dot"),
]


def make(form, *, most: int = MOST, spread: float = 0.5, **options) -> Attention:
    attention = build("synthesizer", heads=HEADS, head_dim=WIDTH, max_length=most, form=form, **options).double()
    with torch.no_grad():  # biases and α that start even would hide their place
        for parameter in attention.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return attention


def inputs(length: int, batch: int = BATCH) -> tuple[list[Tensor], Tensor]:
    heads = [torch.randn(batch, HEADS, length, WIDTH, dtype=DOUBLE) for _ in range(3)]
    return heads, torch.randn(batch, length, HIDDEN, dtype=DOUBLE)


def streams(attention: Attention, x: Tensor) -> dict[str, Tensor] | None:
    return {"hidden": x} if attention.streams else None


def count(attention: Attention) -> int:
    return sum(parameter.numel() for parameter in attention.parameters())


# The forms


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("form", [*PURE, "dot", *MIXED], ids=str)
def test_equals_the_definition(agree, form, masked: bool, causal: bool):
    attention = make(form, causal=causal)
    for length in (1, 7, MOST):
        heads, x = inputs(length)
        keep = torch.rand(BATCH, length) < 0.6 if masked else None
        given = [*heads, x] if attention.streams else heads

        def run(call, q, k, v, *x, keep=keep):
            return call(q, k, v, key_mask=keep, streams={"hidden": x[0]} if x else None)

        agree(partial(run, attention.reference), partial(run, attention), *given)


@pytest.mark.parametrize("form", [("random", "factorised_random"), "random", "factorised_random"], ids=str)
def test_random_weights_do_not_depend_on_the_input(form):
    attention = make(form)
    (q, k, v), _ = inputs(11)
    order = torch.randperm(11)
    expected = attention.weights(q, k)
    assert torch.equal(attention.weights(q[:, :, order], k[:, :, order]), expected)
    torch.testing.assert_close(attention(q, k, v[:, :, order]), expected @ v[:, :, order], atol=1e-12, rtol=0)
    torch.testing.assert_close(expected[0], expected[1], atol=0, rtol=0)  # nor of the sequence in the batch


@pytest.mark.parametrize("form", ["dense", "factorised_dense"])
def test_dense_rows_depend_on_their_own_token_only(form: str):
    attention = make(form)
    (q, k, _), x = inputs(9, batch=1)
    jacobian = torch.autograd.functional.jacobian(lambda x: attention.oracle(q, k, streams={"hidden": x}), x)
    reached = jacobian[0].abs().amax(dim=(0, 2, 3, 5))  # rows, tokens
    assert torch.equal(reached > 0, torch.eye(9, dtype=torch.bool))


@pytest.mark.parametrize("factor", [None, 3, 5, 24, 1])
def test_factors_reach_every_position_once(factor: int | None):
    """Unit vectors in the two factors light exactly one column, and every column has its pair."""
    attention = make("factorised_dense", factor=factor)
    a, c = attention.repeated.shape[1], attention.whole.shape[1]
    assert a * c >= MOST > a * (c - 1)
    assert (a, c) == (4, 6) or factor is not None
    lit = []
    for i, j in itertools.product(range(a), range(c)):
        with torch.no_grad():
            attention.repeated.zero_()[:, i, 0] = 1.0
            attention.whole.zero_()[:, j, 0] = 100.0
        x = torch.zeros(1, MOST, HIDDEN, dtype=DOUBLE)
        x[..., 0] = 1.0
        (q, k, _), _ = inputs(MOST, batch=1)
        weights = attention.weights(q, k, streams={"hidden": x})
        columns = (weights[0, 0, 0] > 0.5).nonzero().flatten().tolist()
        assert len(columns) == (i * c + j < MOST)
        lit += columns
    assert sorted(lit) == list(range(MOST))


def test_parameter_counts():
    assert count(make("random")) == HEADS * MOST**2
    assert count(make("factorised_random", rank=5)) == HEADS * 2 * MOST * 5
    assert count(make("factorised_dense")) == HEADS * HIDDEN * (4 + 6)
    hidden = 7
    assert count(make("dense", hidden=hidden)) == HEADS * (HIDDEN * hidden + hidden + hidden * MOST + MOST)
    assert count(make("dense")) == HEADS * (HIDDEN * WIDTH + WIDTH + WIDTH * MOST + MOST)
    assert count(make("random", fixed=True)) == count(make("factorised_random", fixed=True)) == 0


def test_fixed_tables_are_saved_and_not_trained():
    one, other = make("random", fixed=True), make("random", fixed=True)
    (q, k, v), _ = inputs(10)
    assert not torch.equal(one(q, k, v), other(q, k, v))
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(q, k, v), other(q, k, v))
    v.requires_grad_()
    one(q, k, v).sum().backward()  # nothing else to reach
    assert v.grad is not None and one.random.grad is None


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("only", [*PURE, "dot"])
def test_a_mixture_on_one_form_is_that_form(only: str, causal: bool):
    forms = (*PURE, "dot")
    mixed, pure = make(forms, causal=causal), make(only, causal=causal)
    pure.load_state_dict(mixed.state_dict(), strict=False)
    with torch.no_grad():
        mixed.mixture.fill_(-1e4)[forms.index(only)] = 1e4
    heads, x = inputs(13)
    found = mixed(*heads, streams={"hidden": x})
    torch.testing.assert_close(found, pure(*heads, streams=streams(pure, x)), atol=1e-10, rtol=0)
    if only == "dot":
        vanilla = build("softmax", heads=HEADS, head_dim=WIDTH, causal=causal)
        torch.testing.assert_close(found, vanilla(*heads), atol=1e-10, rtol=0)


def test_scores_are_mixed_inside_the_softmax():
    attention = make(("random", "dot"))
    (q, k, _), _ = inputs(9)
    alpha = attention.mixture.softmax(0)
    scores = alpha[0] * attention.random[:, :9, :9] + alpha[1] * q @ k.mT / WIDTH**0.5
    torch.testing.assert_close(attention.weights(q, k), scores.softmax(-1), atol=1e-12, rtol=0)


@pytest.mark.parametrize("form", [*PURE, *MIXED], ids=str)
def test_rows_sum_to_one(form):
    attention = make(form)
    (q, k, v), x = inputs(17)
    out = attention(q, k, torch.ones_like(v), streams=streams(attention, x))
    torch.testing.assert_close(out, torch.ones_like(out), atol=1e-12, rtol=0)


# The contract for the forms that the suite does not see by themselves


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", ["random", "factorised_dense", "factorised_random"])
def test_the_contract(form: str, causal: bool):
    attention = build("synthesizer", heads=2, head_dim=8, max_length=256, causal=causal, form=form)
    subject = MechanismSubject(attention)
    for check in applicable(subject):
        if form != "random" and check.name == "exponent":
            continue  # at lengths where the projections, of order n, still weigh
        finding = check(subject)
        assert finding.passed, f"{finding.check}: {finding.measured} over {finding.limit}; {finding.detail}"


@pytest.mark.parametrize("form", [*PURE, *MIXED], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_cost_is_exact(form, causal: bool):
    attention = make(form, causal=causal)
    heads, x = inputs(MOST, batch=1)
    leaves = [part.requires_grad_() for part in (*heads, x)]
    run = lambda: attention(*leaves[:3], streams=streams(attention, x))  # noqa: E731
    cost = attention.cost(MOST, MOST)
    assert count_flops(run) == cost.flops
    assert count_kept(run, [*leaves, *attention.parameters()]) == cost.floats


# The tiles


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 50, 67])
def test_many_tiles_are_one(monkeypatch, agree, length: int, causal: bool):
    """Tiles of four rows, rows that follow a past, several sequences: against all scores at once."""
    monkeypatch.setattr("longspan.attention.kernels.tiled_softmax.TILE", 4 * length)
    rows = max(1, length - 9) if causal else length
    shapes = [(BATCH, HEADS, rows, 5), (BATCH, HEADS, length, 5), (HEADS, 70, 70), (), (BATCH, HEADS, rows, 7)]
    parts = [torch.randn(shape, dtype=DOUBLE) for shape in (*shapes, (BATCH, HEADS, rows, 10))]
    v = torch.randn(BATCH, HEADS, length, WIDTH, dtype=DOUBLE)
    keep = torch.rand(BATCH, length) < 0.5
    keep[1] = False
    for mask in (None, keep):
        agree(
            lambda v, *parts, mask=mask: tiled(Terms(*parts), v, mask, rows=rows, causal=causal, whole=True),
            lambda v, *parts, mask=mask: tiled(Terms(*parts), v, mask, rows=rows, causal=causal),
            v,
            *parts,
        )


@pytest.mark.parametrize(
    "form", ["dense", "factorised_dense", "factorised_random", ("factorised_random", "dot")], ids=str
)
def test_no_square_tensor(form):
    length = 4096
    attention = build("synthesizer", heads=1, head_dim=8, max_length=length, form=form)
    q, k, v = (torch.randn(1, 1, length, 8, requires_grad=True) for _ in range(3))
    x = torch.randn(1, length, 8, requires_grad=True)
    with LargestTensor() as seen:
        attention(q, k, v, streams=streams(attention, x)).sum().backward()
    assert seen.elements < length**2 // 8
    assert not attention.quadratic_memory


def test_each_sequence_has_its_own_dropout_mask():
    attention = make("random", dropout=0.5).train()
    (q, k, v), _ = inputs(20)
    v = v[:1].expand_as(v)
    out = attention(q, k, v)
    assert not torch.equal(out[0], out[1])
    out = attention.eval()(q, k, v)
    assert torch.equal(out[0], out[1])


# Decoding


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("chunks", [[1] * 19, [19], [5, 1, 10, 3]], ids=["one by one", "at once", "chunks"])
@pytest.mark.parametrize("form", [*PURE, *MIXED], ids=str)
@pytest.mark.parametrize("tile", [1, 1 << 19], ids=["tiles", "at once"])
def test_decoding_equals_the_parallel_pass(monkeypatch, form, chunks: list[int], masked: bool, tile: int):
    attention = make(form, causal=True)
    heads, x = inputs(19)
    keep = torch.rand(BATCH, 19) < 0.6 if masked else None
    expected = attention(*heads, key_mask=keep, streams=streams(attention, x))
    monkeypatch.setattr("longspan.attention.kernels.tiled_softmax.TILE", tile)
    state, outs, begin = attention.start(BATCH), [], 0
    for size in chunks:
        here = slice(begin, begin + size)
        own = None if keep is None else keep[:, here]
        given = (part[:, :, here] for part in heads)
        out, state = attention.extend(*given, state, key_mask=own, streams=streams(attention, x[:, here]))
        outs.append(out)
        begin += size
    torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=0)


def test_only_values_are_cached_without_dot():
    for form, tensors in (("random", 1), ("dense", 1), (("dense", "dot"), 2)):
        attention = make(form, causal=True)
        heads, x = inputs(11)
        _, state = attention.extend(*heads, attention.start(BATCH), streams=streams(attention, x))
        assert state.bytes == tensors * BATCH * HEADS * 11 * WIDTH * 8


# In a layer


@pytest.mark.parametrize(
    ("form", "projections"), [("random", {"v"}), ("dense", {"v"}), (("dense", "dot"), {"q", "k", "v"})]
)
def test_multihead_projects_what_each_form_reads(form, projections: set[str]):
    layer = MultiHead(HIDDEN, make(form, causal=True)).double()
    assert set(layer.project) == projections
    x = torch.randn(BATCH, 15, HIDDEN, dtype=DOUBLE)
    expected, state, outs = layer(x), layer.start(BATCH), []
    for token in x.split(1, dim=1):
        out, state = layer.extend(token, state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), expected, atol=1e-10, rtol=0)


def test_another_width_of_hidden_states():
    layer = MultiHead(20, make("dense", width=20)).double()
    assert layer(torch.randn(BATCH, 9, 20, dtype=DOUBLE)).shape == (BATCH, 9, 20)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"form": "sparse"},
            "option form must be of dense, random, factorised_dense, factorised_random, dot, not 'sparse'",
        ),
        ({"form": ("dense", "dense")}, "option form must name each form once, not ('dense', 'dense')"),
        ({"form": ()}, "option form must be str or a tuple of str, not () (tuple)"),
        ({"form": "dense", "fixed": True}, "option fixed goes with form random or factorised_random, not 'dense'"),
        ({"form": "factorised_random", "rank": 0}, "option rank must be at least 1, not 0"),
        ({"hidden": 0}, "option hidden must be at least 1, not 0"),
        ({"form": "factorised_dense", "factor": 25}, "option factor must be at most max_length 24, not 25"),
        ({"max_length": None}, "synthesizer has scores for every position of its tables: give max_length"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("synthesizer", **{"heads": HEADS, "head_dim": WIDTH, "max_length": MOST, **options})
    assert str(raised.value) == message


@pytest.mark.parametrize("form", [*PURE, ("dense", "dot")], ids=str)
def test_texts_longer_than_the_table_are_refused(form):
    attention = make(form, causal=True)
    heads, x = inputs(MOST + 1)
    message = "synthesizer was built for max_length 24, and there are 25 positions"
    for call in (attention, attention.reference):
        with pytest.raises(InvalidInput, match=message):
            call(*heads, streams=streams(attention, x))
    first = [part[:, :, :MOST] for part in heads]
    _, state = attention.extend(*first, attention.start(BATCH), streams=streams(attention, x[:, :MOST]))
    with pytest.raises(InvalidInput, match=message):
        attention.extend(*(part[:, :, MOST:] for part in heads), state, streams=streams(attention, x[:, MOST:]))


def test_hidden_states_of_a_wrong_shape_are_refused():
    heads, x = inputs(9)
    for wrong in (x[:, 1:], x[..., 1:]):
        with pytest.raises(InvalidInput, match=r"hidden must be \(batch, length 9, width 12\), not"):
            make("dense")(*heads, streams={"hidden": wrong})
    with pytest.raises(InvalidInput, match="synthesizer needs the stream 'hidden'"):
        make("dense")(*heads)
    with pytest.raises(InvalidInput, match="synthesizer reads no stream 'hidden'; it reads: none"):
        make("random")(*heads, streams={"hidden": x})
