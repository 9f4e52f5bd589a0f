"""The fused kernel and its plain fallback give the same results."""

from itertools import product

import pytest
import torch
from torch import Tensor

from longspan.attention.kernels import flash
from longspan.attention.kernels.flash import BLOCKED, DEAD

BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 3, 5, 7, 4
SCALE = 0.6


def make(dtype: torch.dtype = torch.float64, keys: int = KEYS) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """g, q, k, v"""
    rows, columns = (BATCH, HEADS, QUERIES, WIDTH), (BATCH, HEADS, keys, WIDTH)
    return tuple(torch.randn(shape, dtype=dtype) for shape in (rows, rows, columns, columns))


def random_mask(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Finite numbers, and about a third of them blocked; the first key can always be read."""
    mask = torch.randn(shape, dtype=dtype)
    hidden = torch.rand(shape) < 0.35
    hidden[..., 0] = False
    return mask.masked_fill(hidden, BLOCKED)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch):
    """Runs a function of this module without the kernel."""

    def run(function, *args, **kwargs):
        with monkeypatch.context() as patch:
            patch.setattr(flash, "_AVAILABLE", False)
            return function(*args, **kwargs)

    return run


def close(found, wanted, tolerance: float = 1e-12) -> None:
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


def both(plain, g: Tensor, q: Tensor, k: Tensor, v: Tensor, tolerance: float = 1e-12, **options) -> None:
    assert flash.fits(q, k, v)
    fused = flash.forward(q, k, v, SCALE, **options)
    close(fused, plain(flash.forward, q, k, v, SCALE, **options), tolerance)
    out, lse = fused
    close(
        flash.backward(g, q, k, v, out, lse, SCALE, **options),
        plain(flash.backward, g, q, k, v, out, lse, SCALE, **options),
        tolerance,
    )


def test_the_fused_kernel_is_available():
    """Otherwise this file would compare the fallback with itself."""
    assert flash._AVAILABLE


def test_no_mask_equals_the_definition(plain):
    g, q, k, v = make()
    scores = q @ k.mT * SCALE
    close(flash.forward(q, k, v, SCALE), (scores.softmax(-1) @ v, scores.logsumexp(-1)))
    both(plain, g, q, k, v)


def test_the_backward_is_the_derivative(plain):
    g, q, k, v = make()
    leaves = [x.requires_grad_() for x in (q, k, v)]
    mask = random_mask(BATCH, 1, QUERIES, KEYS)
    expected = torch.autograd.grad(((q @ k.mT * SCALE + mask).softmax(-1) @ v * g).sum(), leaves)
    q, k, v = (x.detach() for x in leaves)
    out, lse = flash.forward(q, k, v, SCALE, mask=mask)
    close(flash.backward(g, q, k, v, out, lse, SCALE, mask=mask), expected)
    close(plain(flash.backward, g, q, k, v, out, lse, SCALE, mask=mask), expected)


@pytest.mark.parametrize("shape", list(product((1, BATCH), (1, HEADS), (1, QUERIES))))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_masks_broadcast_over_batch_heads_and_queries(plain, shape: tuple[int, ...], dtype: torch.dtype):
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    both(plain, *make(dtype), tolerance, mask=random_mask(*shape, KEYS, dtype=dtype))


@pytest.mark.parametrize("keys", [QUERIES, KEYS, 3])
def test_causal_aligns_to_the_top_left(plain, keys: int):
    g, q, k, v = make(keys=keys)
    both(plain, g, q, k, v, causal=True)
    scores = q @ k.mT * SCALE
    for i in range(QUERIES):
        for j in range(keys):
            if j > i:
                scores[:, :, i, j] = float("-inf")
    close(flash.forward(q, k, v, SCALE, causal=True), (scores.softmax(-1) @ v, scores.logsumexp(-1)))


@pytest.mark.parametrize("shape", [(1, 1, 1), (BATCH, 1, 1), (BATCH, HEADS, QUERIES)])
def test_causal_with_a_mask(plain, shape: tuple[int, ...]):
    both(plain, *make(keys=QUERIES), causal=True, mask=random_mask(*shape, QUERIES))


def test_a_long_input_crosses_the_blocks_of_the_kernel(plain):
    g, q, k, v = (torch.randn(1, 1, n, 8, dtype=torch.float64) for n in (900, 900, 700, 700))
    both(plain, g, q, k, v, 1e-10, mask=random_mask(1, 1, 900, 700))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_with_nothing_to_read_have_a_low_log_sum_exp(plain, dtype: torch.dtype, causal: bool):
    """And other rows do not change."""
    _, q, k, v = make(dtype, keys=QUERIES)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    mask = torch.zeros(BATCH, 1, QUERIES, QUERIES, dtype=wide)
    mask[0, :, 1:3] = BLOCKED
    alive_out, alive_lse = flash.forward(q, k, v, SCALE, causal=causal)
    for out, lse in (
        flash.forward(q, k, v, SCALE, causal=causal, mask=mask),
        plain(flash.forward, q, k, v, SCALE, causal=causal, mask=mask),
    ):
        assert lse.dtype == wide
        dead = lse < DEAD
        assert dead[0, :, 1:3].all() and dead.sum() == 2 * HEADS
        assert out.isfinite().all() and lse.isfinite().all()
        tolerance = {torch.float16: 5e-3, torch.bfloat16: 3e-2}.get(dtype, 1e-5)
        torch.testing.assert_close(out[~dead], alive_out[~dead], atol=tolerance, rtol=tolerance)
        torch.testing.assert_close(lse[~dead], alive_lse[~dead], atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_half_precision_keeps_the_log_sum_exp_in_float32(plain, dtype: torch.dtype, masked: bool):
    g, q, k, v = make(dtype)
    mask = random_mask(BATCH, 1, 1, KEYS, dtype=torch.float32) if masked else None
    truth = flash.forward(q.float(), k.float(), v.float(), SCALE, mask=mask)
    tolerance = 4e-3 if dtype == torch.float16 else 4e-2
    out, lse = flash.forward(q, k, v, SCALE, mask=mask)
    assert out.dtype == dtype and lse.dtype == torch.float32
    close((out.float(), lse), truth, tolerance)
    slow = plain(flash.forward, q, k, v, SCALE, mask=mask)
    assert slow[0].dtype == dtype and slow[1].dtype == torch.float32
    close((slow[0].float(), slow[1]), truth, tolerance)
    expected = flash.backward(g.float(), q.float(), k.float(), v.float(), *truth, SCALE, mask=mask)
    fast = flash.backward(g, q, k, v, out, lse, SCALE, mask=mask)
    assert all(x.dtype == dtype for x in fast)
    close([x.float() for x in fast], expected, 3 * tolerance)
    close([x.float() for x in plain(flash.backward, g, q, k, v, out, lse, SCALE, mask=mask)], expected, 3 * tolerance)


@pytest.mark.parametrize("parts", [(3, 4), (1, 2, 4)])
def test_backward_with_the_output_and_log_sum_exp_of_a_larger_softmax(plain, parts: tuple[int, ...]):
    """What a joint softmax needs: each part gives its share of the gradients, exactly."""
    g, q, k, v = make()
    mask = random_mask(BATCH, HEADS, QUERIES, KEYS)
    out, lse = flash.forward(q, k, v, SCALE, mask=mask)
    whole = flash.backward(g, q, k, v, out, lse, SCALE, mask=mask)

    def sum_of_parts(run):
        shares = [
            run(g, q, part_k, part_v, out, lse, SCALE, mask=part_mask)
            for part_k, part_v, part_mask in zip(k.split(parts, 2), v.split(parts, 2), mask.split(parts, 3))
        ]
        dq, dk, dv = zip(*shares)
        return sum(dq), torch.cat(dk, 2), torch.cat(dv, 2)

    close(sum_of_parts(flash.backward), whole)
    close(sum_of_parts(lambda *args, **options: plain(flash.backward, *args, **options)), whole)


def test_a_fully_blocked_source_adds_nothing(plain):
    g, q, k, v = make()
    out, lse = flash.forward(q, k, v, SCALE)
    other_k, other_v = torch.randn_like(k), torch.randn_like(v)
    mask = torch.full((1, 1, 1, KEYS), BLOCKED, dtype=torch.float64)
    for gradients in (
        flash.backward(g, q, other_k, other_v, out, lse, SCALE, mask=mask),
        plain(flash.backward, g, q, other_k, other_v, out, lse, SCALE, mask=mask),
    ):
        assert all(bool((x == 0).all()) for x in gradients)


@pytest.mark.parametrize("which", ["q", "k", "v", "g", "out", "mask"])
def test_any_strides(plain, which: str):
    """A transposed view is as good as its copy."""
    g, q, k, v = make()
    mask = random_mask(BATCH, HEADS, QUERIES, KEYS)
    out, lse = flash.forward(q, k, v, SCALE, mask=mask)
    gradients = flash.backward(g, q, k, v, out, lse, SCALE, mask=mask)
    tensors = {"g": g, "q": q, "k": k, "v": v, "out": out, "mask": mask}
    tensors[which] = tensors[which].mT.contiguous().mT
    g, q, k, v, given, mask = (tensors[name] for name in ("g", "q", "k", "v", "out", "mask"))
    close(flash.forward(q, k, v, SCALE, mask=mask), (out, lse))
    close(flash.backward(g, q, k, v, given, lse, SCALE, mask=mask), gradients)


def test_values_of_another_width_take_the_fallback():
    _, q, k, _ = make()
    v = torch.randn(BATCH, HEADS, KEYS, WIDTH + 2, dtype=torch.float64)
    assert not flash.fits(q, k, v)
    out, _ = flash.forward(q, k, v, SCALE)
    torch.testing.assert_close(out, (q @ k.mT * SCALE).softmax(-1) @ v)


def test_compilers_and_other_devices_take_the_fallback(monkeypatch: pytest.MonkeyPatch):
    _, q, k, v = make()
    assert flash.fits(q, k, v)
    assert not flash.fits(q.to("meta"), k.to("meta"), v.to("meta"))
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert not flash.fits(q, k, v)
