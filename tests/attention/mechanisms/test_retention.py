"""Retention against its decay matrix and its recurrence."""

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.errors import InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64
GAMMA = [1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128]


def make(**options) -> Attention:
    return build("retention", heads=HEADS, head_dim=WIDTH, causal=True, **options)


def qkv(length: int, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]


def recurrence(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Sun et al. 2023, equation 6: S_n = γ S_(n−1) + k_nᵀ v_n, o_n = q_n S_n."""
    gamma = torch.tensor(GAMMA, dtype=DOUBLE).view(-1, 1, 1)
    sums, rows = q.new_zeros(BATCH, HEADS, WIDTH, WIDTH), []
    for i in range(q.shape[2]):
        sums = gamma * sums + k[:, :, i, :, None] * v[:, :, i, None, :]
        rows.append((q[:, :, i, None] @ sums)[:, :, 0])
    return torch.stack(rows, 2)


@pytest.mark.parametrize("length", [1, 7, 64, 131])
def test_parallel_is_the_recurrence(agree, length: int):
    agree(recurrence, make(), *qkv(length))


def test_the_factors_are_those_of_the_paper():
    assert make().decays == pytest.approx(GAMMA, rel=1e-15)


def test_weights_are_products_times_the_decay_matrix():
    q, k, _ = qkv(20)
    steps = torch.arange(20)[:, None] - torch.arange(20)
    decay = torch.stack([(gamma ** steps.double()).tril() for gamma in GAMMA])
    for weights in (make().oracle(q, k), make().weights(q, k)):
        torch.testing.assert_close(weights, q @ k.mT * decay, rtol=1e-10, atol=1e-12)


def test_without_decay_it_is_the_plain_sum(agree):
    agree(lambda q, k, v: (q @ k.mT).tril() @ v, make(decay=(1.0, 1.0, 1.0)), *qkv(70))


@pytest.mark.parametrize("chunks", [[1] * 20, [7, 1, 12], [20]], ids=str)
def test_chunks_are_the_recurrence(chunks: list[int]):
    attention, tensors = make(), qkv(20)
    state, outs, begin = attention.start(BATCH, dtype=DOUBLE), [], 0
    for count in chunks:
        out, state = attention.extend(*(x[:, :, begin : begin + count] for x in tensors), state)
        outs.append(out)
        begin += count
    torch.testing.assert_close(torch.cat(outs, 2), recurrence(*tensors), rtol=1e-10, atol=1e-10)
    assert state.bytes == BATCH * HEADS * 8 * (WIDTH * WIDTH + 1)


def test_masked_positions_only_advance_the_decay():
    """A masked position is not a key, but earlier keys still decay over it."""
    q, k, v = qkv(10)
    keep = torch.ones(BATCH, 10, dtype=torch.bool)
    keep[:, 4:7] = False
    expected = make()(q, k, v.masked_fill(~keep[:, None, :, None], 0.0))
    torch.testing.assert_close(make()(q, k, v, key_mask=keep), expected, rtol=1e-12, atol=1e-12)


def test_a_strong_decay_over_a_long_text_stays_finite():
    leaves = [x.requires_grad_() for x in qkv(5000, torch.float32)]
    out = make(decay=(1e-3, 0.5, 1.0))(*leaves)
    assert out.isfinite().all()
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum(), leaves))
    near = (leaves[0] * leaves[1]).sum(-1, keepdim=True) * leaves[2]  # what is left of head 0
    before = (leaves[0][:, :, 1:] * leaves[1][:, :, :-1]).sum(-1, keepdim=True) * leaves[2][:, :, :-1]
    expected = near[:, 0, 1:] + 1e-3 * before[:, 0]
    torch.testing.assert_close(out[:, 0, 1:], expected, rtol=1e-3, atol=1e-3)


def test_half_precision_does_not_round_the_factors():
    attention = build("retention", heads=8, head_dim=WIDTH, causal=True).half()
    assert (attention.decay(torch.device("cpu")) < 1).all()


@pytest.mark.parametrize("decay", [(0.5, 0.5), (0.5, 0.0, 0.5)])
def test_invalid_decays_are_refused(decay: tuple[float, ...]):
    with pytest.raises(InvalidOption, match="option decay must have one number above 0 for each of 3 heads"):
        make(decay=decay)
    with pytest.raises(InvalidOption, match="option decay must be 0 to 1"):
        make(decay=(0.5, 0.5, 1.5))


def test_it_is_causal_only():
    with pytest.raises(Unsupported, match="retention is causal only"):
        build("retention", heads=HEADS, head_dim=WIDTH)
