"""Gated linear attention against its recurrence, with gates from wide open to shut."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention import build
from longspan.attention.kernels.linear_scan import gated as gated_scan
from longspan.attention.mechanisms.gated_linear import GatedLinearAttention
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64


def make(**options) -> GatedLinearAttention:
    return build("gated_linear", heads=HEADS, head_dim=WIDTH, causal=True, **options).double()


def inputs(length: int, dtype: torch.dtype = DOUBLE) -> tuple[list[Tensor], Tensor]:
    qkv = [torch.randn(BATCH, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]
    return qkv, torch.randn(BATCH, length, HEADS * WIDTH, dtype=dtype)


def folded(length: int, strength: float = 1.0, value_dim: int = 5) -> list[Tensor]:
    """q, k, v, log gates and a first state, as the engine takes them."""
    q, k, gates = (torch.randn(3, length, WIDTH, dtype=DOUBLE) for _ in range(3))
    v, sums = torch.randn(3, length, value_dim, dtype=DOUBLE), torch.randn(3, WIDTH, value_dim, dtype=DOUBLE)
    return [q, k, v, -strength * gates.abs(), sums]


def recurrence(q: Tensor, k: Tensor, v: Tensor, log_gates: Tensor, sums: Tensor) -> tuple[Tensor, Tensor]:
    rows = []
    for i in range(q.shape[1]):
        sums = log_gates[:, i].exp()[:, :, None] * sums + k[:, i, :, None] * v[:, i, None, :]
        rows.append((q[:, i, None] @ sums)[:, 0])
    return torch.stack(rows, 1), sums


def both(result: tuple[Tensor, Tensor]) -> Tensor:
    """Output and state in one tensor, so that gradients of both are compared."""
    return torch.cat([x.flatten() for x in result])


# The engine


@pytest.mark.parametrize("block", [1, 2**18], ids=["small blocks", "large blocks"])
@pytest.mark.parametrize("length", [1, 2, 7, 63, 64, 65, 200, 321])
def test_the_kernel_equals_the_recurrence(agree, monkeypatch, length: int, block: int):
    monkeypatch.setattr(gated_scan, "BLOCK_NUMBERS", block)
    tensors = folded(length, strength=0.2)
    agree(lambda *x: both(recurrence(*x)), lambda *x: both(gated_scan.gated(*x)), *tensors)


@pytest.mark.parametrize("length", [1, 64, 100])
def test_the_traced_form_equals_the_recurrence(agree, length: int):
    agree(lambda *x: both(recurrence(*x)), lambda *x: both(gated_scan._one_block(*x)), *folded(length))


@pytest.mark.parametrize("strength", [0.0, 1e-3, 3.0, 50.0, 1e4])
def test_no_gate_overflows(strength: float):
    """e^(−Σ log α) of a chunk would, from about 1.4 a step on."""
    tensors = [x.float().requires_grad_() for x in folded(150, strength)]
    out, after = gated_scan.gated(*tensors)
    expected, state = recurrence(*(x.double() for x in tensors))
    torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.double(), state, rtol=1e-4, atol=1e-4)
    assert all(x.isfinite().all() for x in torch.autograd.grad(out.sum() + after.sum(), tensors))


def test_open_gates_are_the_plain_sum(agree):
    q, k, v, gates, sums = folded(90)
    tensors = (q, k, v)
    plain = lambda q, k, v: (q @ k.mT).tril() @ v + q @ sums  # noqa: E731
    agree(plain, lambda *x: gated_scan.gated(*x, torch.zeros_like(gates), sums)[0], *tensors)


@pytest.mark.parametrize("length", [1, 5, 64, 200, 1000])
def test_declared_flops_are_counted_flops(length: int):
    tensors = folded(length)
    with FlopCounterMode(display=False) as counter:
        gated_scan.gated(*tensors)
    assert counter.get_total_flops() == gated_scan.flops(length, 3, WIDTH, 5)


# The mechanism


def test_the_gates_are_those_of_the_paper():
    attention = make(rank=2, temperature=4.0)
    (q, k, v), hidden = inputs(17)
    logits = hidden @ attention.reduce.weight.T @ attention.gate.weight.T + attention.gate.bias
    log_gates = (logits.sigmoid() ** 0.25).log().unflatten(2, (HEADS, WIDTH)).transpose(1, 2)
    start = torch.zeros(BATCH * HEADS, WIDTH, WIDTH, dtype=DOUBLE)
    expected, _ = recurrence(*(x.flatten(0, 1) for x in (q, k, v, log_gates)), start)
    out = attention(q, k, v, streams={"hidden": hidden})
    torch.testing.assert_close(out, expected.unflatten(0, (BATCH, HEADS)), rtol=1e-10, atol=1e-10)


def test_parameters_are_of_low_rank():
    attention = build("gated_linear", heads=8, head_dim=64, causal=True, width=768)
    assert sum(p.numel() for p in attention.parameters()) == 768 * 16 + 16 * 512 + 512


def test_a_masked_position_forgets_nothing():
    attention, ((q, k, v), hidden) = make(), inputs(12)
    keep = torch.ones(BATCH, 12, dtype=torch.bool)
    keep[:, 4:7] = False
    out = attention(q, k, v, key_mask=keep, streams={"hidden": hidden})
    seen = keep[0].nonzero()[:, 0]
    short = attention(*(x[:, :, seen] for x in (q, k, v)), streams={"hidden": hidden[:, seen]})
    torch.testing.assert_close(out[:, :, seen], short, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("chunks", [[1] * 20, [7, 1, 12], [20]], ids=str)
def test_chunks_give_the_whole(chunks: list[int]):
    attention, (tensors, hidden) = make(), inputs(20)
    whole = attention(*tensors, streams={"hidden": hidden})
    state, outs, begin = attention.start(BATCH, dtype=DOUBLE), [], 0
    for count in chunks:
        here = slice(begin, begin + count)
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, streams={"hidden": hidden[:, here]})
        outs.append(out)
        begin += count
    torch.testing.assert_close(torch.cat(outs, 2), whole, rtol=1e-10, atol=1e-10)
    assert state.bytes == BATCH * HEADS * WIDTH * WIDTH * 8


def test_multihead_passes_the_hidden_states():
    mixer = MultiHead(10, make(width=10)).double()
    x = torch.randn(BATCH, 9, 10, dtype=DOUBLE)
    whole = mixer(x)
    state, outs = mixer.start(BATCH, dtype=DOUBLE), []
    for i in range(9):
        out, state = mixer.extend(x[:, i : i + 1], state)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), whole, rtol=1e-10, atol=1e-10)


def test_autocast_does_not_touch_the_sums():
    attention, (tensors, hidden) = make().float(), inputs(100, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = attention(*tensors, streams={"hidden": hidden})
    assert out.dtype == torch.float32  # the gates are in half precision, and they alone
    torch.testing.assert_close(out, attention(*tensors, streams={"hidden": hidden}), rtol=0.1, atol=0.1)


def test_refusals():
    (q, k, v), hidden = inputs(5)
    with pytest.raises(InvalidOption, match="option temperature must be above 0, not 0"):
        make(temperature=0.0)
    with pytest.raises(InvalidOption, match="option rank must be at least 1, not 0"):
        make(rank=0)
    with pytest.raises(Unsupported, match="gated_linear is causal only"):
        build("gated_linear", heads=HEADS, head_dim=WIDTH)
    with pytest.raises(InvalidInput, match=r"hidden must be \(batch, length 5, width 12\), not \(2, 4, 12\)"):
        make()(q, k, v, streams={"hidden": hidden[:, :4]})
    with pytest.raises(InvalidInput, match="another width is an option"):
        make()(q, k, v, streams={"hidden": hidden[..., :5]})
    with pytest.raises(InvalidInput, match="the state must be of shape"):
        make().extend(q, k, v, make().start(1, dtype=DOUBLE), streams={"hidden": hidden})
