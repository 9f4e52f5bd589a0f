"""Inducing points against two nested attentions."""

import math

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.audit.counting import count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

BATCH, HEADS, HEAD_DIM, POINTS = 2, 3, 4, 5
WIDTH = HEADS * HEAD_DIM
DOUBLE = torch.float64


def make(dtype: torch.dtype = DOUBLE, points: int = POINTS, **options) -> Attention:
    torch.manual_seed(3)
    return build("inducing", heads=HEADS, head_dim=HEAD_DIM, points=points, **options).to(dtype)


def qkv(queries: int, keys: int | None = None, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    keys = queries if keys is None else keys
    return [torch.randn(batch, HEADS, length, HEAD_DIM, dtype=dtype) for length in (queries, keys, keys)]


def literal(attention: Attention, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Head by head: the points read the set; the queries read what the points have read."""
    heads = [slice(h * HEAD_DIM, (h + 1) * HEAD_DIM) for h in range(HEADS)]
    read = [torch.softmax(attention.points[:, own] @ k[:, h].mT * scale, -1) @ v[:, h] for h, own in enumerate(heads)]
    summary = torch.cat(read, -1)
    keys, values = summary @ attention.summary_keys.T, summary @ attention.summary_values.T
    return torch.stack(
        [torch.softmax(q[:, h] @ keys[..., own].mT * scale, -1) @ values[..., own] for h, own in enumerate(heads)],
        1,
    )


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (7, 7), (300, 300), (3, 20), (20, 3)])
def test_equals_the_definition_head_by_head(agree, queries: int, keys: int):
    attention, tensors = make(), qkv(queries, keys)
    agree(lambda q, k, v: literal(attention, q, k, v, WIDTH**-0.5), attention, *tensors)
    agree(lambda q, k, v: literal(attention, q, k, v, WIDTH**-0.5), attention.reference, *tensors)


def test_the_scale_is_that_of_the_full_width():
    tensors = qkv(9)
    attention = make()
    assert attention.scale == pytest.approx(1 / math.sqrt(12))
    torch.testing.assert_close(make(scale=WIDTH**-0.5)(*tensors), attention(*tensors))
    narrow = make(scale=HEAD_DIM**-0.5)
    torch.testing.assert_close(narrow(*tensors), literal(narrow, *tensors, HEAD_DIM**-0.5))
    assert not torch.allclose(narrow(*tensors), attention(*tensors))


def test_equals_two_nested_multi_head_attentions():
    """Multihead(X, H, H) with H = Multihead(I, X, X): the attention of an ISAB. Its inner projection out, H W_o, is
    part of the matrices that make keys and values of H."""
    torch.manual_seed(0)
    softmax = {"heads": HEADS, "head_dim": HEAD_DIM, "scale": WIDTH**-0.5}
    inner = MultiHead(WIDTH, build("softmax", **softmax), bias=False).double()
    outer = MultiHead(WIDTH, build("softmax", **softmax), bias=False).double()
    ours = MultiHead(WIDTH, make(), bias=False).double()
    points, x = torch.randn(1, POINTS, WIDTH, dtype=DOUBLE), torch.randn(BATCH, 11, WIDTH, dtype=DOUBLE)
    with torch.no_grad():
        ours.project["q"].weight.copy_(outer.project["q"].weight)
        ours.out.weight.copy_(outer.out.weight)
        for name in "kv":
            ours.project[name].weight.copy_(inner.project[name].weight)
        ours.mechanism.points.copy_(inner.project["q"](points)[0])
        ours.mechanism.summary_keys.copy_(outer.project["k"].weight @ inner.out.weight)
        ours.mechanism.summary_values.copy_(outer.project["v"].weight @ inner.out.weight)
    keep = torch.arange(11) < torch.tensor([[11], [4]])
    expected = outer(x, inner(points.expand(BATCH, -1, -1), x, key_mask=keep))
    torch.testing.assert_close(ours(x, key_mask=keep), expected)


def test_keys_in_any_order_and_rows_that_follow_the_queries():
    attention, (q, k, v) = make(), qkv(30)
    expected, order, other = attention(q, k, v), torch.randperm(30), torch.randperm(30)
    permuted = attention(q[:, :, order], k[:, :, other], v[:, :, other])
    torch.testing.assert_close(permuted, expected[:, :, order], atol=1e-12, rtol=0)


def test_repeating_every_element_of_a_set_changes_nothing():
    attention, (q, k, v) = make(), qkv(13)
    twice = [torch.cat([x, x], 2) for x in (k, v)]
    torch.testing.assert_close(attention(q, *twice), attention(q, k, v), atol=1e-12, rtol=0)


def test_with_one_point_all_rows_are_equal():
    out = make(points=1)(*qkv(13))
    torch.testing.assert_close(out, out[:, :, :1].expand_as(out))


def test_sets_of_several_sizes():
    attention, (q, k, v) = make(), qkv(9)
    keep = torch.arange(9) < torch.tensor([[9], [4]])
    out = attention(q, k, v, key_mask=keep)
    torch.testing.assert_close(out[1:], attention(q[1:], k[1:, :, :4], v[1:, :, :4]), atol=1e-12, rtol=0)


def test_an_empty_set_is_0_with_gradient_0():
    attention = make()
    leaves = [x.requires_grad_() for x in qkv(9)]
    keep = torch.ones(BATCH, 9, dtype=torch.bool)
    keep[0] = False
    out = attention(*leaves, key_mask=keep)
    assert bool((out[0] == 0).all()) and bool((out[1] != 0).all())
    for gradient in torch.autograd.grad(out.square().sum() + out.sum(), leaves):
        assert bool((gradient[0] == 0).all()) and bool((gradient[1] != 0).any())


def test_the_weights_depend_on_the_values():
    attention, (q, k, v) = make(), qkv(9)
    weights = attention.oracle(q, k, v)
    assert weights.shape == (BATCH, HEADS, 9, POINTS)
    assert not torch.allclose(weights, attention.oracle(q, k, 2 * v))
    torch.testing.assert_close(attention.oracle(q, k), attention.oracle(q, k, k))
    with pytest.raises(Unsupported, match="inducing transforms its values"):
        attention.weights(q, k)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (50, 50), (3, 40), (40, 3)])
def test_the_declared_cost_equals_the_counted_one(queries: int, keys: int):
    attention = make(torch.float32)
    tensors = [x.requires_grad_() for x in qkv(queries, keys, 1, torch.float32)]
    run = lambda: attention(*tensors)  # noqa: E731
    assert (count_flops(run), count_kept(run, [*tensors, *attention.parameters()])) == attention.cost(queries, keys)


def test_parameters_are_points_and_two_matrices():
    assert sum(p.numel() for p in make().parameters()) == POINTS * WIDTH + 2 * WIDTH**2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"points": 0}, "option points must be at least 1, not 0"),
        ({"points": 2.5}, "option points must be int, not 2.5 (float)"),
        ({"scale": "1"}, "option scale must be float or none, not '1' (str)"),
        ({"point": 3}, "inducing has no option 'point': did you mean 'points'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("inducing", heads=HEADS, head_dim=HEAD_DIM, **options)
    assert str(raised.value) == message


def test_forms_that_sets_lack_are_refused():
    with pytest.raises(Unsupported, match="inducing has no causal form"):
        build("inducing", heads=HEADS, head_dim=HEAD_DIM, causal=True)
    with pytest.raises(Unsupported, match="inducing cannot decode"):
        make().start(2)
    with pytest.raises(Unsupported, match="inducing has no attention weights to drop"):
        build("inducing", heads=HEADS, head_dim=HEAD_DIM, dropout=0.1)
    q, k, v = qkv(6)
    with pytest.raises(InvalidInput, match="v must be as wide as head_dim 4 to be summarised, not 3"):
        make()(q, k, v[..., :3])
