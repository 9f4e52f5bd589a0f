"""cosFormer against its quadratic formula, and M, which is fixed."""

import math

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.errors import InvalidInput, InvalidOption

BATCH, HEADS, WIDTH, LIMIT = 2, 3, 4, 160
DOUBLE = torch.float64


def make(limit: int = LIMIT, **options) -> Attention:
    return build("cosformer", heads=HEADS, head_dim=WIDTH, max_length=limit, **options)


def qkv(length: int, keys: int | None = None, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    lengths = (length, keys or length, keys or length)
    return [torch.randn(BATCH, HEADS, size, WIDTH, dtype=dtype) for size in lengths]


def formula(q: Tensor, k: Tensor, v: Tensor, causal: bool, limit: int = LIMIT) -> Tensor:
    """Pair by pair, as the paper writes it."""
    similarity = q.new_zeros(*q.shape[:3], k.shape[2])
    for i in range(q.shape[2]):
        for j in range(i + 1 if causal else k.shape[2]):
            product = (q[:, :, i].clamp(min=0) * k[:, :, j].clamp(min=0)).sum(-1)
            similarity[:, :, i, j] = product * math.cos(math.pi * (i - j) / (2 * limit))
    return similarity @ v / (similarity.sum(-1, keepdim=True) + 1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 7, 30])
def test_equals_the_formula(agree, length: int, causal: bool):
    agree(lambda *x: formula(*x, causal), make(causal=causal), *qkv(length))


def test_equals_the_formula_across_sequences(agree):
    agree(lambda *x: formula(*x, False), make(), *qkv(9, 20))


@pytest.mark.parametrize("causal", [False, True])
def test_no_weight_is_negative_up_to_the_greatest_length(causal: bool):
    q, k, _ = qkv(LIMIT)
    assert (make(causal=causal).weights(q, k) >= 0).all()


def test_nearer_keys_weigh_more():
    q, k, _ = qkv(50)
    k = k[:, :, :1].expand_as(k)  # all the same: only the distance differs
    q = q.abs()
    k = k.abs()
    weights = make(causal=True).weights(q, k)[:, :, -1]
    assert (weights.diff() > 0).all()


@pytest.mark.parametrize("causal", [False, True])
def test_padding_does_not_change_the_scale_of_distances(causal: bool):
    q, k, v = qkv(40)
    keep = torch.ones(BATCH, 40, dtype=torch.bool)
    keep[:, 25:] = False
    short = make(causal=causal)(*(x[:, :, :25] for x in (q, k, v)))
    torch.testing.assert_close(make(causal=causal)(q, k, v, key_mask=keep)[:, :, :25], short, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(make(limit=40, causal=causal)(q, k, v), make(causal=causal)(q, k, v))


def test_decoding_continues_the_positions_of_the_prompt():
    attention, tensors = make(causal=True), qkv(LIMIT)
    expected, state, outs, begin = attention(*tensors), attention.start(BATCH, dtype=DOUBLE), [], 0
    for count in (100, 1, 1, 57, 1):
        out, state = attention.extend(*(x[:, :, begin : begin + count] for x in tensors), state)
        outs.append(out)
        begin += count
        assert state.position == begin
    torch.testing.assert_close(torch.cat(outs, 2), expected, rtol=1e-10, atol=1e-10)
    with pytest.raises(InvalidInput, match="cosformer was built for max_length 160, and there are 161 positions"):
        attention.extend(*qkv(1), state)


@pytest.mark.parametrize("causal", [False, True])
def test_a_query_without_a_positive_number_reads_nothing(causal: bool):
    q, k, v = qkv(12)
    q[:, :, 5] = -q[:, :, 5].abs()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    out = make(causal=causal)(*leaves)
    assert (out[:, :, 5] == 0).all() and out.isfinite().all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_type(dtype: torch.dtype):
    for causal in (False, True):
        out = make(limit=3000, causal=causal)(*qkv(3000, dtype=dtype))
        assert out.dtype == dtype and out.isfinite().all()


def test_refusals():
    with pytest.raises(InvalidOption, match="give max_length"):
        build("cosformer", heads=HEADS, head_dim=WIDTH)
    for call in (make(), make().reference):
        with pytest.raises(InvalidInput, match="max_length 160, and there are 161 positions"):
            call(*qkv(161))
    with pytest.raises(InvalidInput, match="max_length 160, and there are 170 positions"):
        make()(*qkv(3, 170))
