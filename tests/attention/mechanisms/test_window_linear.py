"""The LoLCATs hybrid: golden values, its limits, its switches, and decoding with a constant state."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from longspan.attention import build
from longspan.attention.kernels import window_linear as kernel
from longspan.attention.mechanisms.window_linear import WindowLinearAttention
from longspan.errors import InvalidInput, InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 2, 4
DOUBLE = torch.float64


def make(**options: Any) -> WindowLinearAttention:
    made: WindowLinearAttention = build("window_linear", heads=HEADS, head_dim=WIDTH, causal=True, **options).double()
    return made


def trained(**options: Any) -> WindowLinearAttention:
    attention = make(**options)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    return attention


def qkv(length: int) -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=DOUBLE) for _ in range(3)]


def close(got: Tensor, expected: Tensor, atol: float = 1e-12) -> None:
    torch.testing.assert_close(got, expected, rtol=0, atol=atol)


def by_hand(attention: WindowLinearAttention, q: Tensor, k: Tensor, v: Tensor, window: int, sinks: int) -> Tensor:
    """Row by row, as the paper writes it."""

    def phi(x: Tensor, matrix: Tensor) -> Tensor:
        y = torch.einsum("hfd,bhnd->bhnf", matrix, x)
        return torch.cat([y.softmax(-1), (-y).softmax(-1)], -1)

    gamma = torch.sigmoid(attention.mix)[:, None]
    other = 1 - gamma if attention.options.affine else 1.0
    rows = []
    for i in range(q.shape[2]):
        near = torch.tensor([j >= i - window or j < sinks for j in range(i + 1)])
        scores = torch.einsum("bhd,bhjd->bhj", q[:, :, i], k[:, :, : i + 1]) / WIDTH**0.5
        largest = scores[:, :, near].amax(-1, keepdim=True)
        features = phi(q[:, :, i : i + 1], attention.query_map) @ phi(k[:, :, : i + 1], attention.key_map).mT
        weights = torch.where(near, gamma * (scores - largest).exp(), other * features[:, :, 0])
        rows.append(torch.einsum("bhj,bhje->bhe", weights, v[:, :, : i + 1]) / weights.sum(-1, keepdim=True))
    return torch.stack(rows, 2)


@pytest.mark.parametrize("options", [{"window": 3}, {"window": 0}, {"window": 70, "sinks": 2, "affine": True}])
@pytest.mark.parametrize("length", [1, 9, 64, 65, 200])
def test_it_is_the_papers_sum(agree: Any, options: dict[str, Any], length: int) -> None:
    attention = trained(**options)
    window, sinks = options["window"], options.get("sinks", 0)
    agree(lambda q, k, v: by_hand(attention, q, k, v, window, sinks), attention, *qkv(length))


def test_golden_values() -> None:
    """One dimension, q = 1, k = ln 1 … ln 4, v = 1 … 4, W = 1, two keys in the window, γ = 0.1."""
    attention = build("window_linear", heads=1, head_dim=1, causal=True, window=1).double()
    v = torch.arange(1.0, 5.0, dtype=DOUBLE).view(1, 1, 4, 1)
    out = attention(torch.ones_like(v), v.log(), v)
    close(out.flatten(), torch.tensor([1, 1.666667, 1.123077, 1.586826], dtype=DOUBLE), 1e-6)
    close(attention.reference(torch.ones_like(v), v.log(), v), out)
    assert torch.sigmoid(attention.mix).item() == pytest.approx(0.1, abs=1e-7)


@pytest.mark.parametrize("sinks", [0, 3])
def test_a_window_over_the_whole_text_is_softmax(sinks: int) -> None:
    q, k, v = qkv(90)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    close(trained(window=89, sinks=sinks)(q, k, v), expected)


@pytest.mark.parametrize("parts", ["both", "window", "linear"])
def test_ones_come_out_as_ones(parts: str) -> None:
    q, k, v = qkv(150)
    attention = trained(window=5, sinks=2)
    attention.parts = parts
    close(attention(q, k, torch.ones_like(v)), torch.ones_like(v))


def test_the_window_weighs_from_gamma_to_gamma_times_its_keys_however_long_the_queries() -> None:
    """m does not cancel: a hundredfold query does not drown the linear part, whose weights stay from 0 to 2."""
    q, k, _ = qkv(20)
    attention = make(window=3)
    weights = attention.oracle(100 * q, k)
    near = torch.arange(20)[:, None] - torch.arange(20) <= 3
    ratio = (weights * near).sum(-1) / (weights * ~near).sum(-1)
    assert (ratio[:, :, 4:] <= 0.4 / 1e-11).all() and (ratio[:, :, 4:] >= 0.1 / (2 * 16)).all()


def test_gamma_towards_0_leaves_linear_attention_to_strictly_older_keys() -> None:
    attention = trained(window=0)
    torch.nn.init.constant_(attention.mix, -60.0)
    linear = build("hedgehog", heads=HEADS, head_dim=WIDTH, causal=True).double()
    linear.load_state_dict({name: x for name, x in attention.state_dict().items() if name != "mix"})
    q, k, v = qkv(70)
    older = linear.oracle(q, k).tril(-1)
    expected = older / older.sum(-1, keepdim=True) @ v
    close(attention(q, k, v)[:, :, 1:], expected[:, :, 1:])


# Switches


@pytest.mark.parametrize("options", [{"window": 6}, {"window": 6, "sinks": 3}])
def test_the_window_alone_is_the_mechanism_window(options: dict[str, Any]) -> None:
    attention, q, k, v = trained(**options), *qkv(140)
    plain = build("window", heads=HEADS, head_dim=WIDTH, causal=True, **options).double()
    mask = torch.rand(BATCH, 140) < 0.8
    with attention.using("window"):
        close(attention(q, k, v), plain(q, k, v))
        close(attention(q, k, v, key_mask=mask), plain(q, k, v, key_mask=mask))
        close(attention.weights(q, k), plain.weights(q, k))
        close(attention.oracle(q, k), plain.oracle(q, k))
    assert attention.parts == "both"


def test_the_linear_part_alone_is_hedgehog() -> None:
    attention, q, k, v = trained(window=6, sinks=3, affine=True), *qkv(140)
    linear = build("hedgehog", heads=HEADS, head_dim=WIDTH, causal=True).double()
    linear.load_state_dict({name: x for name, x in attention.state_dict().items() if name != "mix"})
    attention.parts = "linear"
    close(attention(q, k, v), linear(q, k, v))
    close(attention.weights(q, k), linear.weights(q, k))
    close(attention.oracle(q, k), linear.oracle(q, k))


def test_a_narrower_window_is_another_module_with_that_window() -> None:
    attention, q, k, v = trained(window=8, sinks=2), *qkv(140)
    for width in (0, 2, 4, 8):
        narrow = make(window=width, sinks=2)
        narrow.load_state_dict(attention.state_dict())
        with attention.using(window=width):
            assert attention.active_window == width
            close(attention(q, k, v), narrow(q, k, v))
            assert attention.cost(140, 140) == narrow.cost(140, 140)
    assert attention.active_window == 8


@pytest.mark.parametrize("parts", ["both", "window", "linear"])
@pytest.mark.parametrize("width", [0, 5])
def test_decoding_obeys_the_switches(parts: str, width: int) -> None:
    attention, q, k, v = trained(window=5, sinks=2), *qkv(160)
    mask = torch.rand(BATCH, 160) < 0.8
    with attention.using(parts, width), torch.no_grad():
        expected = attention.reference(q, k, v, key_mask=mask)
        state, outs, begin = attention.start(BATCH, dtype=DOUBLE), [], 0
        for size in (1, 1, 5, 90, 1, 2, 60):
            rows = slice(begin, begin + size)
            out, state = attention.extend(q[:, :, rows], k[:, :, rows], v[:, :, rows], state, key_mask=mask[:, rows])
            outs.append(out)
            begin += size
    close(torch.cat(outs, 2), expected)


def test_a_state_belongs_to_one_width() -> None:
    attention, (q, k, v) = make(window=5), qkv(3)
    state = attention.start(BATCH, dtype=DOUBLE)
    attention.active_window = 2
    with pytest.raises(InvalidInput, match="parts or active_window changed; start anew"):
        attention.extend(q, k, v, state)


def test_switches_are_checked_and_restored() -> None:
    attention = make(window=5)
    with pytest.raises(InvalidOption, match="parts must be one of both, window, linear, not 'none'"):
        attention.parts = "none"
    with pytest.raises(InvalidOption, match="active_window must be from 0 to the option window, 5, not 6"):
        attention.active_window = 6
    with pytest.raises(InvalidOption), attention.using("linear", 9):
        pass
    assert (attention.parts, attention.active_window) == ("both", 5)
    attention.active_window = 1
    attention.active_window = None
    assert attention.active_window == 5


def test_the_weights_are_differentiable() -> None:
    attention, (q, k, _) = trained(window=3), qkv(12)
    for parts, unused in (("both", set()), ("linear", {"mix"}), ("window", {"query_map", "key_map"})):
        attention.zero_grad()
        with attention.using(parts):
            (attention.oracle(q, k) * torch.randn(12, 12, dtype=DOUBLE)).sum().backward()
        for name, parameter in attention.named_parameters():
            moved = parameter.grad is not None and bool(parameter.grad.abs().max() > 1e-9)
            if name != "mix" or parts == "both":  # alone, either part's factor cancels
                assert moved == (name not in unused)


# State and cost


def test_the_state_does_not_grow() -> None:
    attention = build("window_linear", heads=HEADS, head_dim=WIDTH, causal=True, window=7, sinks=2, features=3)
    state, sizes = attention.start(1), []
    for _ in range(40):
        x = torch.randn(1, HEADS, 5, WIDTH)
        _, state = attention.extend(x, x, x, state)
        sizes.append(state.bytes)
    window, sums, sinks = 2 * 7 * WIDTH, 6 * (WIDTH + 1), 2 * 2 * WIDTH
    assert sizes[1:] == [4 * HEADS * (window + sums + sinks) + 8 * 2] * 39


def test_several_blocks_of_chunks_are_one(monkeypatch: pytest.MonkeyPatch, agree: Any) -> None:
    attention = trained(window=100, sinks=1)
    monkeypatch.setattr(kernel, "BLOCK_NUMBERS", 1)
    assert len(kernel.pieces_of(attention._plan(), 4, 300, WIDTH)) == 5
    agree(attention.reference, attention, *qkv(300))


def test_left_padding_does_not_change_sinks() -> None:
    attention, (q, k, v) = trained(window=4, sinks=2), qkv(100)
    mask = torch.ones(BATCH, 100, dtype=torch.bool)
    mask[:, :9] = False
    alone = attention(q[:, :, 9:], k[:, :, 9:], v[:, :, 9:])
    close(attention(q, k, v, key_mask=mask)[:, :, 9:], alone)
    assert torch.equal(attention(q, k, v, key_mask=mask)[:, :, :9], torch.zeros(BATCH, HEADS, 9, WIDTH, dtype=DOUBLE))


def test_long_queries_stay_finite_in_half_precision() -> None:
    attention = build("window_linear", heads=HEADS, head_dim=WIDTH, causal=True, window=4).to(torch.float16)
    q, k, v = (100 * torch.randn(1, HEADS, 90, WIDTH).half() for _ in range(3))
    out = attention(q.requires_grad_(), k, v)
    out.sum().backward()
    assert out.dtype == torch.float16 and out.isfinite().all() and q.grad is not None and q.grad.isfinite().all()


def test_start_and_refusals() -> None:
    attention = build("window_linear", heads=8, head_dim=64, causal=True)
    assert attention.options.window == 63  # 64 keys with the query's own
    assert sum(p.numel() for p in attention.parameters()) == 2 * 8 * 64 * 64 + 8
    assert attention.mix[0].item() == pytest.approx(-2.197, abs=1e-3)
    assert math.isclose(torch.sigmoid(attention.mix[0]).item(), 0.1, rel_tol=1e-6)
    with pytest.raises(Unsupported, match="window_linear is causal only"):
        build("window_linear", heads=2, head_dim=4)
    with pytest.raises(InvalidOption, match="window must be at least 0"):
        make(window=-1)


def test_short_and_long_chunks_give_the_same_values_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(4)
    attention, tensors = trained(window=20, sinks=1), qkv(150)
    found = []
    for chunk in (kernel.SHORT, kernel.CHUNK):
        monkeypatch.setattr(kernel, "chunk_of", lambda *sizes, chunk=chunk: chunk)
        leaves = [x.clone().requires_grad_() for x in tensors]
        out = attention(*leaves)
        wanted = [*leaves, *attention.parameters()]
        found.append([out, *torch.autograd.grad(out.square().sum(), wanted)])
    for short, long in zip(*found):
        close(short, long, 1e-10)


def test_chunks_are_short_only_where_windows_and_states_are_small() -> None:
    assert kernel.chunk_of(33, 32, 8) == kernel.SHORT
    assert kernel.chunk_of(34, 32, 8) == kernel.CHUNK  # two short chunks of context
    assert kernel.chunk_of(33, 128, 64) == kernel.CHUNK


@pytest.mark.parametrize("affine", [False, True])
def test_the_factor_of_the_linear_part_can_be_set(affine: bool) -> None:
    attention = make(window=3, affine=affine)
    factor = torch.tensor([3.0, 40.0], dtype=DOUBLE)
    attention.set_far_factor(factor)
    close(attention.far_factor.detach(), factor, 1e-9)
    attention.set_far_factor(factor / 100)
    lowest = factor / 100 if affine else torch.full_like(factor, 1 / 0.99)
    close(attention.far_factor.detach(), lowest.clamp_min(0.01 / 0.99) if affine else lowest, 1e-9)
