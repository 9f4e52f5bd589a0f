"""Axial attention against its literal lines, alone, as a layer, and two layers together."""

import math
from itertools import pairwise, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Attention, build
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64


def make(causal: bool = False, heads: int = HEADS, **options) -> Attention:
    return build("axial", heads=heads, head_dim=WIDTH, causal=causal, **options)


def qkv(length: int, batch: int = BATCH, heads: int = HEADS, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, heads, length, WIDTH, dtype=dtype) for _ in range(3)]


def literal(length: int, options: dict, causal: bool) -> Tensor:
    """Positions that differ in one axis only, and if causal are not later on it."""
    width = options.get("width", 64)
    axes = options.get("axes", (math.ceil(length / width), width))
    axis = options.get("axis", -1) % len(axes)
    keep = torch.zeros(length, length, dtype=torch.bool)
    places = list(product(*(range(size) for size in axes)))[:length]
    for i, here in enumerate(places):
        for j, there in enumerate(places):
            others = all(a == b for number, (a, b) in enumerate(zip(here, there)) if number != axis)
            keep[i, j] = others and (there[axis] <= here[axis] or not causal)
    return keep


SETTINGS = [
    (12, {"axes": (3, 4), "axis": 0}),
    (12, {"axes": (3, 4), "axis": 1}),
    (24, {"axes": (2, 3, 4), "axis": 0}),
    (24, {"axes": (2, 3, 4), "axis": 1}),
    (24, {"axes": (2, 3, 4), "axis": -1}),
    (36, {"axes": (2, 3, 2, 3), "axis": -2}),
    (5, {"axes": (5,), "axis": 0}),
    (7, {"axes": (1, 7), "axis": 0}),
    (1, {"width": 5}),
    (3, {"width": 5, "axis": 0}),
    (15, {"width": 5}),
    (17, {"width": 5}),
    (17, {"width": 5, "axis": 0}),
    (15, {"width": 5, "axis": -2}),
    (70, {}),
    (6, {"width": 1}),
]
GIVEN = pytest.mark.parametrize(("length", "options"), SETTINGS, ids=str)


@GIVEN
@pytest.mark.parametrize("causal", [False, True])
def test_equals_the_literal_lines(dense, agree, length: int, options: dict, causal: bool):
    attention = make(causal, **options)
    keep = literal(length, options, causal)
    tensors = qkv(length)
    agree(lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5), attention, *tensors)
    weights = attention.oracle(*tensors[:2])
    assert torch.equal(weights > 0, keep.expand_as(weights))
    torch.testing.assert_close(attention.weights(*tensors[:2]), weights, atol=1e-12, rtol=0)


@GIVEN
@pytest.mark.parametrize("causal", [False, True])
def test_padding(dense, agree, length: int, options: dict, causal: bool):
    attention = make(causal, **options)
    padding = torch.rand(BATCH, length) < 0.6
    padding[1] = False
    keep = literal(length, options, causal) & padding[:, None, None, :]
    agree(
        lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5),
        lambda q, k, v: attention(q, k, v, key_mask=padding),
        *qkv(length),
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_layer_equals_the_dense_masked_one(dense, agree, axis: int, causal: bool, batch: int):
    """With projections: heads are views of their outputs."""
    layer = MultiHead(HEADS * WIDTH, make(causal, width=5, axis=axis)).double()
    keep = literal(23, {"width": 5, "axis": axis}, causal)

    def truth(x: Tensor) -> Tensor:
        heads = [layer.project[name](x).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for name in "qkv"]
        return layer.out(dense(*heads, keep, WIDTH**-0.5).transpose(1, 2).flatten(2))

    agree(truth, layer, torch.randn(batch, 23, HEADS * WIDTH, dtype=DOUBLE))


def reach(run, x: Tensor) -> Tensor:
    """(positions, positions): whether an output depends on an input."""
    jacobian = torch.autograd.functional.jacobian(run, x)
    return (jacobian[0, 0, :, :, 0, 0] != 0).any(dim=3).any(dim=1)


def test_two_layers_reach_everything():
    rows, columns = (make(heads=1, axes=(4, 5), axis=axis) for axis in (1, 0))
    (x,) = qkv(20, batch=1, heads=1)[:1]
    support = reach(lambda x: columns(*[rows(x, x, x)] * 3), x)
    assert bool(support.all())
    assert torch.equal(reach(lambda x: rows(x, x, x), x), literal(20, {"axes": (4, 5), "axis": 1}, False))


def test_three_layers_reach_everything_in_three_axes():
    layers = [make(heads=1, axes=(2, 3, 2), axis=axis) for axis in range(3)]

    def stack(x: Tensor) -> Tensor:
        for layer in layers:
            x = layer(x, x, x)
        return x

    assert bool(reach(stack, qkv(12, batch=1, heads=1)[0]).all())


@pytest.mark.parametrize(("height", "width"), [(4, 5), (5, 3)])
def test_the_joint_receptive_field_is_all_of_the_past(height: int, width: int):
    """Section 3: unmasked rows, masked columns, all moved one row down, and masked rows of the input moved right by
    one, together read exactly what comes before in raster order."""
    axes = (height, width)
    outer_row, outer_column = make(heads=1, axes=axes, axis=1), make(True, heads=1, axes=axes, axis=0)
    inner_row = make(True, heads=1, axes=axes, axis=1)

    def model(x: Tensor) -> Tensor:
        u = x + outer_row(x, x, x)
        u = u + outer_column(u, u, u)
        grid = u.unflatten(2, axes)
        u = torch.cat([torch.zeros_like(grid[:, :, :1]), grid[:, :, :-1]], dim=2).flatten(2, 3)
        shifted = x.unflatten(2, axes)
        shifted = torch.cat([torch.zeros_like(shifted[:, :, :, :1]), shifted[:, :, :, :-1]], dim=3).flatten(2, 3)
        y = shifted + u
        return y + inner_row(y, y, y)

    length = height * width
    support = reach(model, qkv(length, batch=1, heads=1)[0])
    assert torch.equal(support, torch.ones(length, length, dtype=torch.bool).tril(-1))


@given(
    length=st.integers(1, 80),
    width=st.integers(1, 12),
    axis=st.integers(-2, 1),
    causal=st.booleans(),
)
def test_any_sizes(length: int, width: int, axis: int, causal: bool):
    torch.manual_seed(length)
    attention = make(causal, width=width, axis=axis)
    tensors = qkv(length)
    torch.testing.assert_close(attention(*tensors), attention.reference(*tensors), atol=1e-10, rtol=1e-10)
    assert count_flops(lambda: attention(*tensors)) == 2 * attention.cost(length, length).flops
    leaves = [x[:1].clone().requires_grad_() for x in tensors]
    assert count_kept(lambda: attention(*leaves), leaves) == attention.cost(length, length).floats


@pytest.mark.parametrize("axis", [0, 1])
def test_the_cost_of_a_square_grows_with_the_power_of_one_and_a_half(axis: int):
    """n·√n at a width of √n, counted and declared."""
    sizes, flops = (1024, 4096, 16384), []
    for size in sizes:
        attention = build("axial", heads=1, head_dim=8, width=math.isqrt(size), axis=axis)
        leaves = [torch.randn(1, 1, size, 8).requires_grad_() for _ in range(3)]
        with LargestTensor() as seen:
            flops.append(count_flops(lambda: attention(*leaves).sum().backward()))  # noqa: B023
        assert seen.elements < size * size // 8, seen.maker
        assert attention.cost(size, size).flops == 4 * 8 * size * math.isqrt(size)
    for few, many in pairwise(flops):
        assert math.log(many / few, 4) == pytest.approx(1.5, abs=0.01)


def test_the_cost_by_hand():
    assert make(width=8).cost(20, 20).flops == 4 * WIDTH * HEADS * 3 * 64
    assert make(width=8, axis=0).cost(20, 20).flops == 4 * WIDTH * HEADS * 8 * 9
    assert make(axes=(2, 3, 4), axis=1).cost(24, 24).flops == 4 * WIDTH * HEADS * 8 * 9
    assert make(width=8).exponent == 1.0 and make(width=8, axis=0).exponent == 2.0


def test_dropout_in_training_only():
    for axis in (0, 1):
        attention = make(dropout=0.5, width=6, axis=axis)
        tensors = qkv(20)
        trained, evaluated = attention.train()(*tensors), attention.eval()(*tensors)
        torch.testing.assert_close(evaluated, attention.reference(*tensors), atol=1e-12, rtol=0)
        assert not torch.allclose(trained, evaluated)


# Decoding

DECODED = [
    (38, {"width": 5}),
    (38, {"width": 5, "axis": 0}),
    (24, {"axes": (2, 3, 4), "axis": 0}),
    (24, {"axes": (2, 3, 4), "axis": 1}),
    (24, {"axes": (2, 3, 4), "axis": 2}),
]


def stream(attention: Attention, tensors: list[Tensor], sizes: list[int], keep: Tensor | None = None):
    state, outs, begin = attention.start(tensors[0].shape[0]), [], 0
    for size in sizes:
        here = slice(begin, begin + size)
        mask = None if keep is None else keep[:, here]
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, key_mask=mask)
        outs.append(out)
        begin += size
    return torch.cat(outs, 2), state


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("length", "options"), DECODED, ids=str)
def test_decoding_equals_the_parallel_pass(length: int, options: dict, masked: bool):
    attention, tensors = make(True, **options), qkv(length)
    keep = torch.rand(BATCH, length) < 0.6 if masked else None
    expected = attention(*tensors, key_mask=keep)
    for sizes in ([1] * length, [length], [5, 1, 14, length - 20], [length - 1, 1], [9, length - 9], [10, length - 10]):
        out, _ = stream(attention, tensors, sizes, keep)
        torch.testing.assert_close(out, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("length", "options"), DECODED, ids=str)
def test_gradients_through_decoding(agree, length: int, options: dict):
    attention = make(True, **options)
    agree(attention, lambda *tensors: stream(attention, list(tensors), [4, 13, 1, length - 18])[0], *qkv(length))


def test_the_state_of_a_row_is_the_row():
    attention = make(True, width=6)
    state = attention.start(BATCH)
    for seen in range(1, 40):
        _, state = attention.extend(*qkv(1), state)
        assert state.bytes == 2 * BATCH * HEADS * (seen % 6) * WIDTH * DOUBLE.itemsize


def test_the_state_of_columns_is_all_of_them_and_of_a_middle_axis_its_slab():
    columns, middle = make(True, width=6, axis=0), make(True, axes=(4, 3, 2), axis=1)
    states = [columns.start(BATCH), middle.start(BATCH)]
    for seen in range(1, 25):
        states = [m.extend(*qkv(1), s)[1] for m, s in zip((columns, middle), states)]
        kept = [s.bytes // (2 * BATCH * HEADS * WIDTH * DOUBLE.itemsize) for s in states]
        assert kept == [seen, seen % 6]


def test_a_mask_given_only_at_a_later_step():
    for axis in (0, 1):
        attention, tensors = make(True, width=6, axis=axis), qkv(40)
        keep = torch.ones(BATCH, 40, dtype=torch.bool)
        keep[:, 18:21] = False
        state, outs = attention.start(BATCH), []
        for begin, end, mask in ((0, 18, None), (18, 21, keep[:, 18:21]), (21, 40, None)):
            out, state = attention.extend(*(x[:, :, begin:end] for x in tensors), state, key_mask=mask)
            outs.append(out)
        torch.testing.assert_close(torch.cat(outs, 2), attention(*tensors, key_mask=keep), atol=1e-10, rtol=1e-10)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "option width must be at least 1, not 0"),
        ({"axes": (3, 0)}, "option axes must be at least 1, not (3, 0)"),
        ({"axes": ()}, "option axes must be a tuple of int or none, not () (tuple)"),
        ({"axes": 12}, "option axes must be a tuple of int or none, not 12 (int)"),
        ({"axes": (3, 4), "width": 4}, "options axes (3, 4) and width 4 both set the length of a row; give one"),
        ({"axis": 2}, "option axis must be -2 to 1 for 2 axes, not 2"),
        ({"axes": (2, 3, 4), "axis": -4}, "option axis must be -3 to 2 for 3 axes, not -4"),
        ({"axs": (2, 3)}, "axial has no option 'axs': did you mean 'axis'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        make(**options)
    assert str(raised.value) == message


def test_axes_whose_product_is_not_the_length_are_refused():
    attention = make(True, axes=(3, 4))
    message = "axial was built for axes 3 × 4, which is 12 positions, not 13"
    for call in (attention, attention.reference):
        with pytest.raises(InvalidInput, match=message):
            call(*qkv(13))
    _, state = attention.extend(*qkv(12), attention.start(BATCH))
    with pytest.raises(InvalidInput, match="axial was built for axes 3 × 4, and these tokens reach to 13"):
        attention.extend(*qkv(1), state)


def test_a_form_that_reads_the_future_does_not_decode():
    with pytest.raises(Unsupported, match="axial was built with causal=False"):
        make().start(BATCH)
