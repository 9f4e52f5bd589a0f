"""Relative attention, held to the paper's formula by a literal double loop."""

import math

import pytest
import torch
from torch import Tensor

from longspan.attention.mechanisms import relative
from longspan.errors import Unsupported


def literal(q, k, v, r, u, w, *, keep=None, window=None, ages=None) -> Tensor:
    """One score at a time: A_ij = (q_i + u)ᵀ k_j + (q_i + w)ᵀ r_(i-j), over the keys j ≤ i."""
    batch, heads, queries, width = q.shape
    past, rows = k.shape[2] - queries, []
    for b in range(batch):
        for h in range(heads):
            for i in range(queries):
                scores, values = [], []
                for j in range(past + i + 1):
                    distance = past + i - j if ages is None or j >= past else i + int(ages[b % len(ages), j])
                    if (window is not None and distance >= window) or (keep is not None and not keep[b, j]):
                        continue
                    score = (q[b, h, i] + u[h]) @ k[b, h, j] + (q[b, h, i] + w[h]) @ r[h, distance]
                    scores.append(score / math.sqrt(width))
                    values.append(v[b, h, j])
                if not scores:
                    rows.append(0 * v[b, h, 0])
                else:
                    rows.append(torch.stack(scores).softmax(0) @ torch.stack(values))
    return torch.stack(rows).unflatten(0, (batch, heads, queries))


def inputs(
    batch: int, heads: int, queries: int, past: int, width: int = 4, distance_count: int | None = None
) -> list[Tensor]:
    shapes = [(batch, heads, queries, width), *[(batch, heads, past + queries, width)] * 2]
    shapes += [(heads, distance_count or past + queries, width), (heads, width), (heads, width)]
    return [torch.randn(shape, dtype=torch.float64) for shape in shapes]


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("queries", "past"), [(4, 0), (4, 3), (1, 5)])
def test_it_is_the_double_loop(agree, queries: int, past: int, masked: bool, window: int | None):
    keep = torch.rand(2, past + queries) > 0.4 if masked else None
    given = {"keep": keep, "window": window}
    x = inputs(2, 2, queries, past)
    agree(lambda *x: relative.attend(*x, **given), lambda *x: literal(*x, **given), *x)
    torch.testing.assert_close(relative.weights(x[0], x[1], *x[3:], **given) @ x[2], literal(*x, **given))


def test_distances_of_memory_may_be_given(agree):
    ages = torch.tensor([[17, 11, 8, 3, 2, 1], [13, 12, 9, 5, 4, 2]])
    x = inputs(2, 2, 5, 6, distance_count=24)
    agree(lambda *x: relative.attend(*x, ages=ages), lambda *x: literal(*x, ages=ages), *x)


@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("aged", [False, True])
def test_pieces_change_nothing(agree, monkeypatch, masked: bool, window: int | None, aged: bool):
    """Many pieces, of queries and of the batch, against the definition in one."""
    monkeypatch.setattr(relative, "ROWS", 16)
    monkeypatch.setattr(relative, "PIECE", 1 << 11)
    given = {"keep": torch.rand(3, 90) > 0.3 if masked else None, "window": window}
    if aged:
        given["ages"] = torch.arange(20, 0, -1)[None] * 2
    x = inputs(3, 2, 70, 20, distance_count=120)
    agree(
        lambda *x: relative.attend(*x, **given),
        lambda *x: relative.weights(x[0], x[1], *x[3:], **given) @ x[2],
        *x,
    )


def test_distances_in_ascending_order_give_another_result():
    """The trap of the shift: a table read in the wrong direction gives plausible scores."""
    x = inputs(1, 2, 5, 3)
    turned = [*x[:3], x[3].flip(1), *x[4:]]
    assert not torch.allclose(relative.attend(*x), relative.attend(*turned), atol=1e-3)


def test_nothing_to_read_is_zero():
    x = [tensor.requires_grad_() for tensor in inputs(1, 2, 4, 2)]
    keep = torch.tensor([[False] * 5 + [True]])
    out = relative.attend(*x, keep=keep)
    assert (out[:, :, :3] == 0).all() and (out[:, :, 3] != 0).all()
    gradients = torch.autograd.grad(out[:, :, :3].sum(), x, allow_unused=True)
    assert all((gradient == 0).all() for gradient in gradients)


def test_usage_is_the_sum_of_weights(monkeypatch):
    monkeypatch.setattr(relative, "ROWS", 16)
    q, k, _, r, u, w = inputs(2, 3, 40, 9)
    keep = torch.rand(2, 49) > 0.3
    found = relative.usage(q, k, r, u, w, columns=12, keep=keep)
    whole = relative.weights(q, k, r, u, w, keep=keep).sum(2).mean(1)
    torch.testing.assert_close(found, whole[:, :12])


def test_dropout_is_drawn_again_in_the_backward_pass():
    """The output is linear in the values, so its gradient by them must be the dropped weights of the forward pass."""
    x = inputs(1, 2, 30, 10)
    x[2].requires_grad_()
    out = relative.attend(*x, dropout=0.5)
    (gradient,) = torch.autograd.grad(out, x[2], torch.ones_like(out))
    torch.testing.assert_close((gradient * x[2]).sum(), out.sum())
    torch.manual_seed(1)
    mean = sum(relative.attend(*x, dropout=0.5) for _ in range(200)) / 200
    assert (mean - relative.attend(*x)).abs().mean() < 0.1


def test_dropped_gradients_are_those_of_the_dropped_function():
    x = [tensor.requires_grad_() for tensor in inputs(1, 1, 4, 2, width=2)]

    def run(*leaves: Tensor) -> Tensor:
        torch.manual_seed(3)
        return relative.attend(*leaves, dropout=0.4)

    assert torch.autograd.gradcheck(run, x)


@pytest.mark.parametrize(("masked", "window", "aged"), [(False, None, False), (True, 4, False), (True, None, True)])
def test_second_derivatives_are_those_of_the_definition(masked: bool, window: int | None, aged: bool):
    keep = torch.rand(2, 8) > 0.4 if masked else None
    ages = torch.tensor([[9, 7, 2]]) if aged else None
    given = {"keep": keep, "window": window, "ages": ages}
    x = [part.requires_grad_() for part in inputs(2, 2, 5, 3, distance_count=14 if aged else None)]

    def penalty(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return torch.autograd.grad(sum(gradient.square().sum() for gradient in first), x)

    plain = relative.weights(x[0], x[1], *x[3:], **given) @ x[2]
    torch.testing.assert_close(penalty(relative.attend(*x, **given)), penalty(plain), rtol=0, atol=1e-9)


def test_second_derivatives_under_dropout_are_refused():
    x = [part.requires_grad_() for part in inputs(1, 1, 4, 0)]
    out = relative.attend(*x, dropout=0.5)
    with pytest.raises(Unsupported, match="relative attention with dropout on its weights has no second derivative"):
        torch.autograd.grad(out.sum(), x, create_graph=True)


def test_no_tensor_is_segment_by_total_by_head_dim():
    from torch.utils._python_dispatch import TorchDispatchMode

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            nonlocal largest
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, Tensor):
                    largest = max(largest, tensor.numel())
            return out

    x = [tensor.float().requires_grad_() for tensor in inputs(1, 1, 2048, 2048, width=8)]
    with Watch():
        relative.attend(*x).sum().backward()
    assert largest <= 1.1 * relative.ROWS * (4096 + relative.ROWS)


def test_the_compiled_result_is_the_same():
    x = [tensor.float() for tensor in inputs(1, 2, 9, 4)]
    compiled = torch.compile(relative.attend, backend="eager", fullgraph=True, dynamic=True)
    torch.testing.assert_close(compiled(*x), relative.attend(*x))
