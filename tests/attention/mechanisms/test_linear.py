"""Linear attention against its recurrence, and what is particular to it: ε, its maps, its state."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import elu, softplus

from longspan.attention import Shape, build
from longspan.attention.mechanisms.linear import LinearAttention
from longspan.audit.counting import count_kept
from longspan.errors import InvalidInput, InvalidOption

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64
SHAPE = Shape(heads=HEADS, head_dim=WIDTH)


def make(**options) -> LinearAttention:
    return build("linear", heads=HEADS, head_dim=WIDTH, **options)


def qkv(length: int, keys: int | None = None, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    lengths = (length, keys or length, keys or length)
    return [torch.randn(batch, HEADS, size, WIDTH, dtype=dtype) for size in lengths]


def recurrence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Katharopoulos et al. 2020, equations 18 to 20, token by token."""
    sums, z = q.new_zeros(*q.shape[:2], WIDTH, WIDTH), q.new_zeros(*q.shape[:2], WIDTH)
    rows = []
    for i in range(q.shape[2]):
        query, key = elu(q[:, :, i]) + 1, elu(k[:, :, i]) + 1
        sums = sums + key[..., :, None] * v[:, :, i, None, :]
        z = z + key
        rows.append(torch.einsum("bhm,bhmd->bhd", query, sums) / ((query * z).sum(-1, keepdim=True) + 1e-6))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("length", [1, 7, 64, 131])
def test_causal_is_the_recurrence(agree, length: int):
    agree(recurrence, make(causal=True), *qkv(length))


@pytest.mark.parametrize(("length", "keys"), [(9, 9), (1, 30), (30, 1), (70, 131)])
def test_full_is_the_quotient_of_two_sums(agree, length: int, keys: int):
    def quotient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        query, key = elu(q) + 1, elu(k) + 1
        return query @ (key.mT @ v) / (query @ key.sum(2)[..., None] + 1e-6)

    agree(quotient, make(), *qkv(length, keys))


def test_the_last_causal_row_is_the_full_one():
    tensors = qkv(80)
    torch.testing.assert_close(make(causal=True)(*tensors)[:, :, -1], make()(*tensors)[:, :, -1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_ones_come_out_as_one_less_epsilon(causal: bool):
    q, k, v = qkv(20)
    similarity = (elu(q) + 1) @ (elu(k) + 1).mT
    total = (similarity.tril() if causal else similarity).sum(-1, keepdim=True)
    expected = (1 / (1 + 1e-6 / total)).expand_as(v)
    torch.testing.assert_close(make(causal=causal)(q, k, torch.ones_like(v)), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_gradcheck(causal: bool):
    leaves = [x.requires_grad_() for x in qkv(7, batch=1)]
    assert torch.autograd.gradcheck(make(causal=causal), leaves)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_is_not_a_key_of_zeros(causal: bool):
    """φ(0) = 1, so zeroing masked keys instead of their features would let them count."""
    q, k, v = qkv(12)
    keep = torch.ones(BATCH, 12, dtype=torch.bool)
    keep[:, 8:] = False
    zeroed = k.masked_fill(~keep[:, None, :, None], 0.0), v.masked_fill(~keep[:, None, :, None], 0.0)
    attention = make(causal=causal)
    out = attention(q, k, v, key_mask=keep)
    torch.testing.assert_close(out[:, :, :8], attention(*(x[:, :, :8] for x in (q, k, v))), rtol=1e-12, atol=1e-14)
    assert not torch.allclose(out[:, :, 8:], attention(q, *zeroed)[:, :, 8:])


# Maps


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["elu", "relu", "softplus"])
def test_every_named_map_is_its_definition(agree, name: str, causal: bool):
    attention = make(features=name, causal=causal)
    agree(attention.reference, attention, *qkv(37))


@pytest.mark.parametrize("causal", [False, True])
def test_a_function_may_be_the_map(agree, causal: bool):
    given, named = (
        LinearAttention(SHAPE, causal=causal, feature_map=softplus),
        LinearAttention(SHAPE, LinearAttention.Options(features="softplus"), causal=causal),
    )
    agree(named, given, *qkv(21))


@pytest.mark.parametrize("causal", [False, True])
def test_a_module_may_be_the_map_and_learns(agree, causal: bool):
    attention = LinearAttention(
        SHAPE, causal=causal, feature_map=nn.Sequential(nn.Linear(WIDTH, 6), nn.Softplus())
    ).double()
    tensors = qkv(21)
    weights = list(attention.parameters())
    assert len(weights) == 2
    agree(attention.reference, attention, *tensors)
    fast, defined = (
        torch.autograd.grad(call(*tensors).square().sum(), weights) for call in (attention, attention.reference)
    )
    for found, expected in zip(fast, defined):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_module_as_map_decodes():
    attention = LinearAttention(
        SHAPE, causal=True, feature_map=nn.Sequential(nn.Linear(WIDTH, 6), nn.Softplus())
    ).double()
    tensors = qkv(5)
    state = attention.start(BATCH, dtype=DOUBLE)
    with torch.no_grad():
        for i in range(5):
            out, state = attention.extend(*(x[:, :, i : i + 1] for x in tensors), state)
            torch.testing.assert_close(out, attention(*tensors)[:, :, i : i + 1], rtol=1e-10, atol=1e-10)


# Decoding and memory


def test_the_state_has_one_size():
    attention = make(causal=True)
    state = attention.start(BATCH, dtype=DOUBLE)
    _, later = attention.extend(*qkv(500), state)
    assert state.bytes == later.bytes == BATCH * HEADS * 8 * (WIDTH * (WIDTH + 1) + 1)
    assert attention.start(BATCH, dtype=torch.float16).sums.dtype == torch.float32
    assert sum(x.untyped_storage().nbytes() for x in (later.sums, later.offset)) == later.bytes


@pytest.mark.parametrize("causal", [False, True])
def test_stored_memory_is_linear_without_a_sum_per_position(causal: bool):
    attention, kept = make(causal=causal), []
    for length in (1024, 4096):
        leaves = [x.requires_grad_() for x in qkv(length, batch=1, dtype=torch.float32)]
        kept.append(count_kept(lambda leaves=leaves: attention(*leaves), leaves))
        assert kept[-1] == attention.cost(length, length).floats < length * HEADS * WIDTH * WIDTH
    assert kept[1] <= 4 * kept[0]


def test_large_numbers_in_half_precision_stay_finite():
    leaves = [(30 * x).requires_grad_() for x in qkv(3000, dtype=torch.float16)]
    for causal in (False, True):
        out = make(causal=causal)(*leaves)
        assert out.isfinite().all()
        assert all(x.isfinite().all() for x in torch.autograd.grad(out.float().sum(), leaves))


# Refusals


def test_refusals():
    with pytest.raises(InvalidOption, match="option features must be one of elu, relu, softplus, not 'exp'"):
        make(features="exp")
    with pytest.raises(InvalidInput, match="may only change the last dimension"):
        LinearAttention(SHAPE, feature_map=lambda x: x.sum(1))(*qkv(3))
    state = make(causal=True).start(BATCH, dtype=DOUBLE)
    with pytest.raises(InvalidInput, match="the state does not belong to this attention"):
        make(causal=True).extend(*(x[:1] for x in qkv(1)), state)
