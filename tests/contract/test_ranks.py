"""Any number of leading dimensions, as for `nn.Linear`: equal to one batch, in value and gradient."""

import pytest
import torch
from forms import SUBJECTS, identity
from torch import Tensor

from longspan import attend
from longspan.attention import build
from longspan.errors import InvalidInput
from longspan.nn.multihead import MultiHead

LENGTH = 11
FIRST = list({(subject.name, subject.module.causal): subject for subject in reversed(SUBJECTS)}.values())


def reshape(x: Tensor, leading: tuple[int, ...]) -> Tensor:
    return x.reshape(*leading, *x.shape[1:])


@pytest.mark.parametrize("subject", FIRST, ids=identity)
def test_leading_dimensions_are_a_batch(subject):
    module, supports = subject.module, subject.module.supports
    sample = subject.sample(4, LENGTH, seed=1)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [8], [5], [9]]) if supports.key_mask else None
    for leading in ((2, 2), (4, 1, 1)):
        x = {name: part.clone().requires_grad_(part.is_floating_point()) for name, part in sample.items()}
        y = {name: reshape(part.detach(), leading) for name, part in x.items()}
        y = {name: part.requires_grad_(part.is_floating_point()) for name, part in y.items()}
        shaped_mask = None if mask is None else reshape(mask, leading)
        expected, out = subject.heads(x, mask), subject.heads(y, shaped_mask)
        assert torch.equal(out, reshape(expected, leading))
        g = torch.randn(expected.shape, dtype=expected.dtype)
        expected.backward(g)
        out.backward(reshape(g, leading))
        for name in x:
            if x[name].grad is not None:
                assert torch.equal(y[name].grad, reshape(x[name].grad, leading)), name
    streams = subject.streams(sample)
    shaped = {name: reshape(part, (2, 2)) for name, part in sample.items()}
    shaped_streams = None if streams is None else {name: shaped[name] for name in streams}
    reference = module.reference(sample["q"], sample["k"], sample["v"], streams=streams)
    other = module.reference(shaped["q"], shaped["k"], shaped["v"], streams=shaped_streams)
    torch.testing.assert_close(other, reshape(reference, (2, 2)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("subject", FIRST, ids=identity)
def test_no_leading_dimension_at_all(subject):
    sample = subject.sample(1, LENGTH, seed=2)
    bare = {name: part[0] for name, part in sample.items()}
    assert torch.equal(subject.heads(bare), subject.heads(sample)[0])
    module = subject.module
    if module.causal and module.supports.streaming:
        out, state = module.extend(
            *(bare[name][:, :7] for name in "qkv"),
            module.start(1, dtype=torch.float64),
            streams={name: _positions(bare[name], slice(0, 7)) for name in subject.streams(sample) or {}},
        )
        rest, _ = module.extend(
            *(bare[name][:, 7:] for name in "qkv"),
            state,
            streams={name: _positions(bare[name], slice(7, None)) for name in subject.streams(sample) or {}},
        )
        torch.testing.assert_close(torch.cat([out, rest], 1), subject.heads(bare), rtol=0, atol=1e-10)


def _positions(x: Tensor, positions: slice) -> Tensor:
    return x[positions] if x.dim() < 3 and not x.is_floating_point() else x[..., positions, :]


def test_masks_broadcast_over_the_leading_dimensions():
    q = torch.randn(2, 3, 4, 9, 8, dtype=torch.float64)
    window = build("window", heads=4, head_dim=8, window=2)
    row = torch.arange(9) < 6
    expected = window(q, q, q, key_mask=row.expand(2, 3, 9))
    for mask in (row, row[None], row.expand(3, 9), row.expand(2, 1, 9)):
        assert torch.equal(window(q, q, q, key_mask=mask), expected)
    assert torch.equal(window(q[0], q[0], q[0], key_mask=row), expected[0])
    with pytest.raises(InvalidInput, match=r"key_mask of shape \(2, 9\) does not broadcast over the batch \(2, 3\)"):
        window(q, q, q, key_mask=row.expand(2, 9))
    with pytest.raises(InvalidInput, match=r"q has the leading dimensions \(2, 3\) and k \(3,\); they must be equal"):
        window(q, q[0], q)


def test_attend_takes_any_rank():
    q = torch.randn(2, 3, 4, 9, 8)
    expected = attend("linear", q.flatten(0, 1), q.flatten(0, 1), q.flatten(0, 1), causal=True)
    assert torch.equal(attend("linear", q, q, q, causal=True).flatten(0, 1), expected)
    assert torch.equal(attend("linear", *(q[0, 0],) * 3, causal=True), expected[0])
    with pytest.raises(InvalidInput, match=r"q must be \(…, heads, length, width\), not \(9, 8\)"):
        attend("linear", *(q[0, 0, 0],) * 3)


def test_multihead_takes_any_rank():
    torch.manual_seed(0)
    layer = MultiHead(16, "window", heads=2, window=3, causal=True).double()
    x = torch.randn(2, 3, 10, 16, dtype=torch.float64, requires_grad=True)
    mask = torch.arange(10) < 7
    expected = layer(x.flatten(0, 1), key_mask=mask.expand(6, 10)).unflatten(0, (2, 3))
    out = layer(x, key_mask=mask)
    assert torch.equal(out, expected)
    (gradient,) = torch.autograd.grad(out.square().sum(), x)
    assert torch.equal(gradient, torch.autograd.grad(expected.square().sum(), x)[0])
    assert torch.equal(layer(x[1, 2]), layer(x[1, 2:])[0])
    assert torch.equal(layer.weights(x[0, 0]), layer.weights(x[0, :1])[0])
    parts, state = [], layer.start(6)
    for part in x.split((4, 1, 5), dim=2):
        out, state = layer.extend(part, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 2), layer(x), rtol=0, atol=1e-12)
    assert layer.to("meta")(torch.empty(2, 3, 10, 16, dtype=torch.float64, device="meta")).shape == (2, 3, 10, 16)


def test_multihead_reads_a_context_of_any_rank():
    torch.manual_seed(0)
    layer = MultiHead(16, heads=2, context_width=12).double()
    x, context = torch.randn(2, 3, 5, 16).double(), torch.randn(2, 3, 7, 12).double()
    mask = torch.arange(7) < 4
    expected = layer(x.flatten(0, 1), context.flatten(0, 1), key_mask=mask.expand(6, 7)).unflatten(0, (2, 3))
    assert torch.equal(layer(x, context, key_mask=mask), expected)
    assert torch.equal(layer(x, layer.prepare(context, mask)), expected)
    torch.testing.assert_close(layer(x[0, 0], context[0, 0], key_mask=mask), expected[0, 0])


def test_any_rank_is_exported_and_compiled_and_cast():
    layer = MultiHead(16, heads=2, causal=True).eval()
    x = torch.randn(2, 3, 6, 16)
    with torch.no_grad():
        exported = torch.export.export(layer, (x,)).module()
        torch.testing.assert_close(exported(x), layer(x))
        compiled = torch.compile(layer, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(x), layer(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(layer(x), layer(x.flatten(0, 1)).unflatten(0, (2, 3)))
