"""Sliding-window attention against its literal mask."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Attention, build
from longspan.audit.counting import count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64


def make(window: int, dilation: int | tuple[int, ...] = 1, **options) -> Attention:
    return build("window", heads=HEADS, head_dim=WIDTH, window=window, dilation=dilation, **options)


def qkv(length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]


def literal(length: int, window: int, dilation: int | tuple[int, ...], causal: bool) -> Tensor:
    """(heads, length, length): keys i + dilation · step with |step| <= window, of the past only if causal."""
    dilations = dilation if isinstance(dilation, tuple) else (dilation,) * HEADS
    keep = torch.zeros(HEADS, length, length, dtype=torch.bool)
    for head in range(HEADS):
        for i in range(length):
            for step in range(-window, 1 if causal else window + 1):
                j = i + dilations[head] * step
                if 0 <= j < length:
                    keep[head, i, j] = True
    return keep


DILATIONS = [1, 2, 5, (1, 2, 3), (2, 1, 2), (4, 4, 1)]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", DILATIONS, ids=str)
@pytest.mark.parametrize(("length", "window"), [(1, 2), (7, 2), (13, 20), (45, 3), (71, 40)])
def test_equals_the_literal_mask(dense, agree, length: int, window: int, dilation, causal: bool):
    attention = make(window, dilation, causal=causal)
    keep = literal(length, window, dilation, causal)
    tensors = qkv(length)
    agree(lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5), attention, *tensors)
    weights = attention.oracle(*tensors[:2])
    assert torch.equal(weights > 0, keep.expand_as(weights))
    torch.testing.assert_close(attention.weights(*tensors[:2]), weights, atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", DILATIONS, ids=str)
def test_with_padding_and_bias(dense, agree, dilation, causal: bool):
    attention = make(4, dilation, causal=causal)
    bias = torch.randn(HEADS, 2 * 25 + 1, dtype=DOUBLE)
    offsets = torch.tensor([[j - i + 25 for j in range(23)] for i in range(23)])
    allowed = literal(23, 4, dilation, causal)
    padding = torch.rand(BATCH, 23) < 0.7
    padding[1, :9] = False
    for side in ({"key_mask": padding}, {"bias": bias}, {"key_mask": padding, "bias": bias}):
        keep = allowed[None] & side.get("key_mask", torch.ones(BATCH, 23, dtype=torch.bool))[:, None, None, :]
        full = bias[:, offsets] if "bias" in side else None
        agree(
            lambda q, k, v, keep=keep, full=full: dense(q, k, v, keep, WIDTH**-0.5, full),
            lambda q, k, v, side=side: attention(q, k, v, **side),
            *qkv(23),
        )


@pytest.mark.parametrize("dilation", [1, 2, (1, 2, 3)], ids=str)
def test_a_learned_bias_gets_its_gradient(agree, dilation):
    attention = make(3, dilation, causal=True)
    q, k, v = qkv(17)
    bias = torch.randn(HEADS, 2 * 9 + 1, dtype=DOUBLE)
    agree(lambda b: attention.reference(q, k, v, bias=b), lambda b: attention(q, k, v, bias=b), bias)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [12, 13, 100])
def test_a_window_over_everything_is_full_attention(agree, window: int, causal: bool):
    full = build("softmax", heads=HEADS, head_dim=WIDTH, causal=causal)
    agree(full, make(window, causal=causal), *qkv(13))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dilation", [1, 2, (1, 2, 3)], ids=str)
def test_the_jacobian_is_0_where_forbidden_and_not_where_allowed(dilation, causal: bool):
    attention = make(2, dilation, causal=causal)
    (x,) = qkv(13, batch=1)[:1]
    jacobian = torch.autograd.functional.jacobian(lambda x: attention(x, x, x), x)
    support = (jacobian[0][:, :, :, 0] != 0).any(dim=5).any(dim=2)  # heads rows heads positions
    keep = literal(13, 2, dilation, causal)
    for out in range(HEADS):
        for source in range(HEADS):
            expected = keep[out] if out == source else torch.zeros_like(keep[out])
            assert torch.equal(support[out, :, source], expected)


@given(
    length=st.integers(1, 80),
    window=st.integers(1, 30),
    dilation=st.one_of(st.integers(1, 5), st.tuples(*[st.integers(1, 4)] * HEADS)),
    causal=st.booleans(),
)
def test_any_sizes(length: int, window: int, dilation, causal: bool):
    torch.manual_seed(length)
    attention = make(window, dilation, causal=causal)
    tensors = qkv(length)
    torch.testing.assert_close(attention(*tensors), attention.reference(*tensors), atol=1e-10, rtol=1e-10)
    expected = 4 * WIDTH * 2 * attention._layout().pairs(HEADS, length, length)
    assert count_flops(lambda: attention(*tensors)) == expected == 2 * attention.cost(length, length).flops


@pytest.mark.parametrize("dilation", [1, 3, (1, 2, 3)], ids=str)
def test_stored_memory_equals_the_declared_cost(dilation):
    attention = make(4, dilation)
    tensors = [x.requires_grad_() for x in qkv(48, batch=1)]
    assert count_kept(lambda: attention(*tensors), tensors) == attention.cost(48, 48).floats


# Rows with nothing to read


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE])
@pytest.mark.parametrize("dilation", [1, 2, (1, 2, 3)], ids=str)
def test_rows_whose_window_is_all_padding_are_0(dilation, dtype: torch.dtype):
    attention = make(2, dilation, causal=True)
    keep = torch.ones(BATCH, 40, dtype=torch.bool)
    keep[0, 5:30] = False
    keep[1] = False
    allowed = literal(40, 2, dilation, True)[None] & keep[:, None, None, :]
    leaves = [x.requires_grad_() for x in qkv(40, dtype=dtype)]
    out = attention(*leaves, key_mask=keep)
    dead = ~allowed.any(-1)
    assert bool((out[dead] == 0).all()) and bool((out[~dead] != 0).any(-1).all()) and bool(out.isfinite().all())
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert bool((gradients[0][dead] == 0).all())
    for gradient in gradients:
        assert bool((gradient[1] == 0).all()) and bool(gradient.isfinite().all())


def test_the_content_of_padding_changes_nothing():
    attention = make(3, causal=True)
    q, k, v = qkv(20)
    keep = torch.rand(BATCH, 20) < 0.6
    before = attention(q, k, v, key_mask=keep)
    k, v = (torch.where(keep[:, None, :, None], x, torch.full_like(x, 1e4)) for x in (k, v))
    assert torch.equal(attention(q, k, v, key_mask=keep), before)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dilation", [1, 2, (1, 2, 3)], ids=str)
def test_inputs_may_be_any_view(dilation, masked: bool):
    attention = make(3, dilation)
    keep = torch.rand(BATCH, 40) < 0.6 if masked else None
    tensors = qkv(40)
    expected = attention(*tensors, key_mask=keep)
    for view in (
        [x.mT.contiguous().mT for x in tensors],
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors],
    ):
        torch.testing.assert_close(attention(*view, key_mask=keep), expected, atol=1e-10, rtol=1e-10)


def test_dropout_in_training_only():
    attention = make(3, (1, 2, 2), dropout=0.5)
    tensors = qkv(20)
    trained = attention.train()(*tensors)
    evaluated = attention.eval()(*tensors)
    torch.testing.assert_close(evaluated, attention.reference(*tensors), atol=1e-12, rtol=0)
    assert not torch.allclose(trained, evaluated)


# Decoding


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dilation", DILATIONS, ids=str)
@pytest.mark.parametrize("chunks", [[1] * 17, [17], [5, 1, 8, 3]], ids=["one by one", "at once", "chunks"])
def test_decoding_equals_the_parallel_pass(chunks: list[int], dilation, biased: bool, masked: bool):
    attention = make(2, dilation, causal=True)
    tensors = qkv(17)
    bias = torch.randn(HEADS, 33, dtype=DOUBLE) if biased else None
    keep = torch.rand(BATCH, 17) < 0.6 if masked else None
    expected = attention(*tensors, key_mask=keep, bias=bias)
    state, outs, begin = attention.start(BATCH), [], 0
    for count in chunks:
        here = slice(begin, begin + count)
        own = None if keep is None else keep[:, here]
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, key_mask=own, bias=bias)
        outs.append(out)
        begin += count
    torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=1e-10)


def test_a_mask_given_only_at_a_later_step():
    attention = make(3, 2, causal=True)
    tensors = qkv(20)
    keep = torch.ones(BATCH, 20, dtype=torch.bool)
    keep[:, 12:15] = torch.tensor([[True, False, False], [False, False, False]])
    state, outs = attention.start(BATCH), []
    for begin, end, mask in ((0, 12, None), (12, 15, keep[:, 12:15]), (15, 20, None)):
        out, state = attention.extend(*(x[:, :, begin:end] for x in tensors), state, key_mask=mask)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), attention(*tensors, key_mask=keep), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("dilation", "reach"), [(1, 5), (2, 10), ((1, 3, 2), 15)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
@pytest.mark.parametrize("masked", [False, True])
def test_the_state_stops_growing(dilation, reach: int, dtype: torch.dtype, masked: bool):
    attention = make(5, dilation, causal=True)
    state = attention.start(BATCH)
    assert state.bytes == 0
    for seen in range(1, 60):
        keep = torch.ones(BATCH, 1, dtype=torch.bool) if masked else None
        _, state = attention.extend(*qkv(1, dtype=dtype), state, key_mask=keep)
        rows = min(seen, reach)
        assert state.bytes == 2 * BATCH * HEADS * rows * WIDTH * dtype.itemsize + masked * BATCH * rows
        room = state.k.value.untyped_storage().nbytes() // (BATCH * HEADS * WIDTH * dtype.itemsize)
        assert room <= max(32, 2 * (reach + 1))


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, "option window must be at least 1, not 0"),
        ({"window": -3}, "option window must be at least 1, not -3"),
        ({"window": 2.5}, "option window must be int, not 2.5 (float)"),
        ({"window": True}, "option window must be int, not True (bool)"),
        ({"dilation": 0}, "option dilation must be at least 1, not 0"),
        ({"dilation": (1, 0, 2)}, "option dilation must be at least 1, not (1, 0, 2)"),
        ({"dilation": ()}, "option dilation must be int or a tuple of int, not () (tuple)"),
        ({"dilation": "2"}, "option dilation must be int or a tuple of int, not '2' (str)"),
        ({"dilation": (1, 2)}, "option dilation must have one number for each of 3 heads, not (1, 2)"),
        ({"dilation": (1, 2, 3, 4)}, "option dilation must have one number for each of 3 heads, not (1, 2, 3, 4)"),
        ({"windw": 3}, "window has no option 'windw': did you mean 'window'?"),
        ({"dilatation": 3}, "window has no option 'dilatation': did you mean 'dilation'?"),
        (
            {"score": "dot"},
            "window has no option 'score': known: dilation, learned_sink, scale, sink_positions, sinks, softcap, "
            "window",
        ),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("window", heads=HEADS, head_dim=WIDTH, **options)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("length", "dilation", "reach", "wanted"),
    [(20, 1, 3, 4), (20, 2, 7, 8), (20, (1, 3, 1), 11, 12), (3, 1, 1, 2)],
    ids=str,
)
def test_a_bias_table_that_is_too_short_is_refused(length: int, dilation, reach: int, wanted: int):
    """The window reaches window · dilation positions, or as far as there are keys."""
    attention = make(4, dilation, causal=True)
    tensors = qkv(length)
    short = torch.zeros(HEADS, 2 * reach + 1, dtype=DOUBLE)
    message = f"bias reaches {reach} positions to each side, and {wanted} are read"
    with pytest.raises(InvalidInput, match=message):
        attention(*tensors, bias=short)
    attention(*tensors, bias=torch.zeros(HEADS, 2 * wanted + 1, dtype=DOUBLE))
    _, state = attention.extend(*tensors, attention.start(BATCH))
    with pytest.raises(InvalidInput, match="bias reaches"):
        attention.extend(*qkv(1), state, bias=short)


def test_other_keys_than_queries_are_refused():
    q, k, v = qkv(5)
    with pytest.raises(Unsupported, match="window needs as many queries as keys, not 4 and 5"):
        make(2)(q[:, :, :4], k, v)


def test_key_heads_that_do_not_divide_the_query_heads_are_refused():
    q, k, v = qkv(5)
    with pytest.raises(InvalidInput, match="k has 2 heads, which do not divide the 3 heads of q"):
        make(2)(q, k[:, :2], v[:, :2])


def test_a_form_that_reads_the_future_does_not_decode():
    with pytest.raises(Unsupported, match="window was built with causal=False"):
        make(2).start(BATCH)
