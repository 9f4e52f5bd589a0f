"""Nyströmformer against its formula: landmarks of readable tokens, the pseudo-inverse, and the convolution."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from longspan.attention import Attention, build
from longspan.attention.kernels import flash
from longspan.attention.mechanisms.nystrom import Segments, _segment_matrix, carry
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64


def make(landmarks: int = 5, kernel: int = 0, **options) -> Attention:
    return build("nystrom", heads=HEADS, head_dim=WIDTH, landmarks=landmarks, kernel=kernel, **options).double()


def qkv(length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]


def some(length: int, batch: int = BATCH) -> dict[str, Tensor]:
    """Masks that leave more than 5 of the tokens, and different numbers of them."""
    place, count = torch.arange(length), torch.tensor([length - 3 * row - 1 for row in range(batch)])[:, None]
    holes = torch.rand(batch, length) < 0.7
    holes[:, :6] = True
    return {"behind": place < count, "before": place >= length - count, "holes": holes}


# The formula


def formula(q: Tensor, k: Tensor, v: Tensor, landmarks: int, inverse) -> Tensor:
    """Without masks: the three softmaxes, multiplied."""
    scale = q.shape[-1] ** -0.5
    q_means, k_means = (torch.stack([part.mean(2) for part in x.tensor_split(landmarks, dim=2)], dim=2) for x in (q, k))
    left, middle, right = (
        torch.softmax(a @ b.transpose(-1, -2) * scale, dim=-1)
        for a, b in ((q, k_means), (q_means, k_means), (q_means, k))
    )
    return left @ inverse(middle) @ (right @ v)


def iterate(a: Tensor, steps: int = 6) -> Tensor:
    identity = torch.eye(a.shape[-1], dtype=a.dtype)
    z = a.transpose(-1, -2) / (a.sum(-2).amax(-1) * a.sum(-1).amax(-1))[..., None, None]
    for _ in range(steps):
        z = 0.25 * z @ (13 * identity - a @ z @ (15 * identity - a @ z @ (7 * identity - a @ z)))
    return z


@pytest.mark.parametrize("length", [6, 7, 10, 33])
@pytest.mark.parametrize("landmarks", [1, 2, 5])
def test_equals_the_formula(agree, length: int, landmarks: int):
    agree(lambda q, k, v: formula(q, k, v, landmarks, iterate), make(landmarks), *qkv(length))


def test_many_steps_give_the_pseudo_inverse():
    tensors = qkv(33)
    expected = formula(*tensors, 5, torch.linalg.pinv)
    torch.testing.assert_close(make(iterations=40)(*tensors), expected, atol=1e-8, rtol=1e-8)


def test_the_iteration_inverts():
    """A Z A = A; read with Z applied to what A gave, the values come back."""
    q, k, values = qkv(6)
    a = torch.softmax(q @ k.mT * WIDTH**-0.5, dim=-1)
    z = carry(q, k, torch.eye(6, dtype=DOUBLE).expand(BATCH, HEADS, 6, 6), 40, WIDTH**-0.5)
    torch.testing.assert_close(a @ z @ a, a, atol=1e-8, rtol=0)
    torch.testing.assert_close(z @ a @ z, z, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(carry(q, k, a @ values, 40, WIDTH**-0.5), values, atol=1e-7, rtol=1e-7)
    coarse = carry(q, k, torch.eye(6, dtype=DOUBLE).expand(BATCH, HEADS, 6, 6), 6, WIDTH**-0.5)
    torch.testing.assert_close(coarse, iterate(a), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("length", [1, 2, 11, 12])
@pytest.mark.parametrize("masked", [False, True])
def test_as_many_landmarks_as_tokens_is_dense_attention(dense, agree, length: int, masked: bool):
    keep = torch.rand(BATCH, length) < 0.6 if masked else torch.ones(BATCH, length, dtype=torch.bool)
    attention = make(12)
    agree(
        lambda q, k, v: dense(q, k, v, keep[:, None, None, :], WIDTH**-0.5),
        lambda q, k, v: attention(q, k, v, key_mask=keep if masked else None),
        *qkv(length),
    )


# Landmarks


@given(count=st.integers(1, 60), landmarks=st.integers(1, 20))
def test_segments_are_those_of_tensor_split(count: int, landmarks: int):
    torch.manual_seed(count)
    keep = torch.zeros(1, 64, dtype=torch.bool)
    keep[0, torch.randperm(64)[:count]] = True
    x = torch.randn(1, 1, 64, 3, dtype=DOUBLE)
    tokens = x[:, :, keep[0]].tensor_split(landmarks, dim=2)
    expected = torch.stack([part.mean(2) if part.shape[2] else part.new_zeros(1, 1, 3) for part in tokens], dim=2)
    torch.testing.assert_close(_segment_matrix(keep, landmarks, DOUBLE) @ x[:, 0], expected[:, 0])
    if count > landmarks:
        segments = Segments.of(x, keep, landmarks)
        torch.testing.assert_close(segments.means(x), expected)
        g, back = torch.randn_like(expected), torch.zeros_like(x)
        segments.add_back(back, g)
        torch.testing.assert_close(back[:, 0], _segment_matrix(keep, landmarks, DOUBLE).mT @ g[:, 0])


@pytest.mark.parametrize("where", ["behind", "before", "holes"])
def test_masked_tokens_change_nothing(where: str):
    """Content, number and place of what is masked are inert: the readable tokens alone give the same."""
    attention, (q, k, v) = make(), qkv(23)
    keep = some(23)[where]
    out = attention(q, k, v, key_mask=keep)
    noisy = [torch.where(keep[:, None, :, None], x, 1e6 * torch.randn_like(x)) for x in (q, k, v)]
    noisy_out = attention(*noisy, key_mask=keep)
    for row, may in enumerate(keep):
        alone = attention(*(x[row : row + 1, :, may] for x in (q, k, v)))[0]
        torch.testing.assert_close(out[row, :, may], alone, atol=1e-12, rtol=1e-12)
        torch.testing.assert_close(noisy_out[row, :, may], alone, atol=1e-12, rtol=1e-12)


def test_short_and_long_examples_in_one_batch(agree):
    attention, tensors = make(6, kernel=3), qkv(14, batch=5)
    keep = torch.arange(14) < torch.tensor([14, 6, 0, 7, 1])[:, None]
    agree(lambda *x: attention.reference(*x, key_mask=keep), lambda *x: attention(*x, key_mask=keep), *tensors)
    whole = attention(*tensors, key_mask=keep)
    for row in range(5):
        alone = attention(*(x[row : row + 1] for x in tensors), key_mask=keep[row : row + 1])
        torch.testing.assert_close(whole[row : row + 1], alone, atol=1e-12, rtol=1e-12)
    assert bool((whole[2] == 0).all())


def test_a_neighbour_in_the_batch_changes_nothing():
    """The release starts its iteration from one maximum over the batch."""
    attention, tensors = make(iterations=2), qkv(20)
    alone = attention(*(x[:1] for x in tensors))
    for size in (0.0, 1e-3, 30.0):
        beside = attention(*(torch.cat([x[:1], size * x[1:]]) for x in tensors))
        torch.testing.assert_close(beside[:1], alone, atol=1e-14, rtol=1e-14)


# The convolution


@pytest.mark.parametrize("length", [1, 4, 30])
@pytest.mark.parametrize("kernel", [1, 5, 33])
def test_the_convolution_is_that_of_the_release(agree, length: int, kernel: int):
    attention, plain = make(kernel=kernel), make()
    module = nn.Conv2d(HEADS, HEADS, (kernel, 1), padding=(kernel // 2, 0), bias=False, groups=HEADS).double()
    with torch.no_grad():
        module.weight.copy_(attention.filters[:, None, :, None])
    agree(lambda q, k, v: plain(q, k, v) + module(v), attention, *qkv(length))
    assert sum(weight.numel() for weight in attention.parameters()) == HEADS * kernel
    assert not list(plain.parameters())


def test_the_convolution_reads_no_padding_and_has_a_map():
    attention, (q, k, v) = make(kernel=7), qkv(23)
    keep = some(23)["holes"]
    weights = attention.weights(q, k, key_mask=keep)
    assert bool((weights.mT[(~keep)[:, None].expand(-1, HEADS, -1)] == 0).all())
    torch.testing.assert_close(weights @ v, attention(q, k, v, key_mask=keep))


def test_the_defaults():
    options = build("nystrom", heads=2, head_dim=8).options
    assert (options.landmarks, options.iterations, options.kernel) == (64, 6, 33)


# The fast path


@pytest.mark.parametrize("kernel", [0, 3])
@pytest.mark.parametrize("where", ["none", "behind", "before", "holes", "short"])
def test_the_plain_path_gives_the_same_result(monkeypatch, where: str, kernel: int):
    attention, found = make(kernel=kernel), []
    masks = {"none": None, "short": torch.arange(23) < torch.tensor([[4], [9]]), **some(23)}
    for fused in (True, False):
        monkeypatch.setattr(flash, "_AVAILABLE", fused)
        torch.manual_seed(0)
        tensors = [x.requires_grad_() for x in qkv(23)]
        out = attention(*tensors, key_mask=masks[where])
        found.append([out, *torch.autograd.grad(out.square().sum(), [*tensors, *attention.parameters()])])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=1e-11)


def test_values_of_another_width(agree):
    attention = make(kernel=3)
    q, k, _ = qkv(19)
    agree(attention.reference, attention, q, k, torch.randn(BATCH, HEADS, 19, 7, dtype=DOUBLE))


@pytest.mark.parametrize("masked", [False, True])
def test_inputs_may_be_any_view(masked: bool):
    attention, tensors = make(kernel=3), qkv(20)
    keep = some(20)["holes"] if masked else None
    expected = attention(*tensors, key_mask=keep)
    for view in (
        [x.mT.contiguous().mT for x in tensors],
        [x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors],
    ):
        leaves = [x.requires_grad_() for x in view]
        out = attention(*leaves, key_mask=keep)
        torch.testing.assert_close(out, expected)
        straight = [x.detach().clone().requires_grad_() for x in tensors]
        wanted = torch.autograd.grad(attention(*straight, key_mask=keep).square().sum(), straight)
        for found, own in zip(torch.autograd.grad(out.square().sum(), leaves), wanted):
            torch.testing.assert_close(found, own)


@pytest.mark.parametrize("kernel", [0, 3])
@pytest.mark.parametrize("length", [4, 5, 6, 48])
def test_the_cost_is_exact(length: int, kernel: int):
    attention = make(kernel=kernel).float()
    tensors = [x.requires_grad_() for x in qkv(length, 1, torch.float32)]
    cost = attention.cost(length, length)
    assert count_flops(lambda: attention(*tensors)) == cost.flops
    assert count_kept(lambda: attention(*tensors), [*tensors, *attention.parameters()]) == cost.floats


def test_nothing_is_larger_than_the_input():
    attention = build("nystrom", heads=2, head_dim=16, landmarks=8)
    tensors = [torch.randn(1, 2, 1000, 16, requires_grad=True) for _ in range(3)]
    with LargestTensor() as seen:
        attention(*tensors).sum().backward()
    assert seen.elements <= 2 * 1032 * 16  # the values with the convolution's margin


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"landmarks": 0}, "option landmarks must be at least 1, not 0"),
        ({"landmarks": 8.0}, "option landmarks must be int, not 8.0 (float)"),
        ({"iterations": 0}, "option iterations must be at least 1, not 0"),
        ({"kernel": -1}, "option kernel must be at least 0, not -1"),
        ({"kernel": 32}, "option kernel must be odd, so that it has a middle, or 0, not 32"),
        ({"landmark": 8}, "nystrom has no option 'landmark': did you mean 'landmarks'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("nystrom", heads=HEADS, head_dim=WIDTH, **options)
    assert str(raised.value) == message


def test_unsupported_forms_are_refused():
    q, k, v = qkv(9)
    with pytest.raises(Unsupported, match=r"nystrom has no causal form; these can: .*softmax"):
        make(causal=True)
    with pytest.raises(Unsupported, match="nystrom needs as many queries as keys, not 4 and 9"):
        make()(q[:, :, :4], k, v)
    with pytest.raises(Unsupported, match="nystrom has no attention weights to drop"):
        make(dropout=0.1)
    with pytest.raises(Unsupported, match="nystrom cannot decode step by step"):
        make().start(1)
