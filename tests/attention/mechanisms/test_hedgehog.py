"""Hedgehog's feature maps: golden values, limits, and weights that can be trained."""

import math

import pytest
import torch
from torch import Tensor

from longspan.attention import build
from longspan.attention.mechanisms.hedgehog import HedgehogAttention
from longspan.attention.parts.hedgehog_features import start_matrix
from longspan.errors import InvalidOption

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64


def make(**options) -> HedgehogAttention:
    return build("hedgehog", heads=HEADS, head_dim=WIDTH, **options).double()


def qkv(length: int, keys: int | None = None) -> list[Tensor]:
    lengths = (length, keys or length, keys or length)
    return [torch.randn(BATCH, HEADS, size, WIDTH, dtype=DOUBLE) for size in lengths]


def scramble(module: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()


def recurrence(attention: HedgehogAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Token by token, with the features written out."""

    def features(x: Tensor, matrix: Tensor) -> Tensor:
        y = torch.einsum("hfd,bhnd->bhnf", matrix, x)
        if attention.options.joined:
            return torch.cat([2 * y, -2 * y], -1).softmax(-1).clamp(min=1e-12)
        return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1).clamp(min=1e-12)

    queries, keys = features(q, attention.query_map), features(k, attention.key_map)
    sums, z, rows = 0, 0, []
    for i in range(q.shape[2]):
        sums = sums + keys[:, :, i, :, None] * v[:, :, i, None, :]
        z = z + keys[:, :, i]
        top = torch.einsum("bhm,bhmd->bhd", queries[:, :, i], sums)
        rows.append(top / (queries[:, :, i] * z).sum(-1, keepdim=True))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("length", [1, 7, 64, 131])
def test_causal_is_the_recurrence(agree, length: int, joined: bool):
    attention = make(causal=True, features=5, joined=joined)
    scramble(attention)
    agree(lambda q, k, v: recurrence(attention, q, k, v), attention, *qkv(length))


def test_w_is_the_identity_of_every_head_at_the_start():
    attention = make()
    for matrix in (attention.query_map, attention.key_map):
        assert torch.equal(matrix, torch.eye(WIDTH, dtype=DOUBLE).expand(HEADS, -1, -1))
    assert attention.query_map is not attention.key_map
    assert torch.equal(make(features=2).key_map[0], torch.eye(WIDTH, dtype=DOUBLE)[:2])


@pytest.mark.parametrize("joined", [False, True])
def test_with_w_of_zeros_it_is_the_uniform_average(joined: bool):
    attention = make(causal=True, joined=joined)
    torch.nn.init.zeros_(attention.query_map)
    q, k, v = qkv(70)
    expected = v.cumsum(2) / torch.arange(1, 71, dtype=DOUBLE)[:, None]
    torch.testing.assert_close(attention(q, k, v), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
def test_ones_come_out_as_ones(causal: bool):
    q, k, v = qkv(80)
    out = make(causal=causal)(q, k, torch.ones_like(v))
    torch.testing.assert_close(out, torch.ones_like(v), rtol=0, atol=1e-12)


def test_a_feature_is_at_least_1e_12():
    """A query and a key without a common feature still weigh something: a single key is read whole."""
    attention = build("hedgehog", heads=1, head_dim=2)
    q, k, v = (torch.tensor(x).view(1, 1, 1, 2) for x in ([400.0, -400.0], [-400.0, 400.0], [3.0, 5.0]))
    torch.testing.assert_close(attention(q, k, v), v)


def test_golden_weights():
    """One dimension, W = 1: φ(x) = [1; 1], so every key weighs the same; joined, φ(x) = [σ(4x); σ(−4x)]."""
    x = torch.tensor([0.0, 0.25 * math.log(3)], dtype=DOUBLE).view(1, 1, 2, 1)
    plain = build("hedgehog", heads=1, head_dim=1).double()
    assert plain.oracle(x, x)[0, 0].tolist() == [[0.5, 0.5], [0.5, 0.5]]
    joined = build("hedgehog", heads=1, head_dim=1, joined=True).double()
    expected = torch.tensor([[1 / 2, 1 / 2], [4 / 9, 5 / 9]], dtype=DOUBLE)  # 0.5 against 0.75² + 0.25²
    torch.testing.assert_close(joined.oracle(x, x)[0, 0], expected)


def test_the_maps_learn_the_weights_of_softmax_through_the_oracle():
    torch.manual_seed(0)
    attention = make(causal=True)
    q, k, _ = qkv(24)
    hidden = torch.ones(24, 24, dtype=torch.bool).triu(1)
    target = (q @ k.mT / 2).masked_fill(hidden, -math.inf).softmax(-1)
    optimiser, losses = torch.optim.Adam(attention.parameters(), 0.05), []
    for _ in range(40):
        log = attention.oracle(q, k).masked_fill(hidden, 1.0).log()
        losses.append(-(target * log).sum(-1).mean())
        optimiser.zero_grad()
        losses[-1].backward()
        optimiser.step()
    least = -(target * target.masked_fill(hidden, 1.0).log()).sum(-1).mean()
    assert losses[-1] - least < 0.6 * (losses[0] - least)


def test_parameters_and_state():
    attention = build("hedgehog", heads=8, head_dim=64, causal=True)
    assert sum(p.numel() for p in attention.parameters()) == 2 * 8 * 64 * 64
    assert attention.start(1).sums.shape == (1, 8, 128, 65)
    assert attention.to(torch.bfloat16).start(1).sums.dtype == torch.float32


def test_no_features_are_refused():
    with pytest.raises(InvalidOption, match="features must be at least 1"):
        make(features=0)


def test_further_rows_are_rotations_that_differ() -> None:
    matrix = start_matrix(2, 10, 4)[1].detach()
    assert torch.equal(matrix[:4], torch.eye(4))
    torch.testing.assert_close(matrix[4:8] @ matrix[4:8].mT, torch.eye(4), rtol=0, atol=1e-6)
    assert torch.cdist(matrix, matrix).fill_diagonal_(1.0).min() > 0.1
    assert torch.equal(start_matrix(2, 10, 4), start_matrix(2, 10, 4))
