"""FAVOR+: the statistics that the paper proves, the redraw schedule, and what may not be kept."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from longspan.attention import build
from longspan.attention.mechanisms.performer import PerformerAttention, draw_rows, haar
from longspan.audit.counting import count_kept
from longspan.errors import InvalidOption
from longspan.nn.reversible import ReversibleStack

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64
KINDS = ["positive", "hyperbolic", "relu"]


def make(features: int = 8, **options) -> PerformerAttention:
    return build("performer", heads=HEADS, head_dim=WIDTH, features=features, **options).double()


def qkv(length: int, keys: int | None = None, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    lengths = (length, keys or length, keys or length)
    return [torch.randn(batch, HEADS, size, WIDTH, dtype=dtype) for size in lengths]


# The estimate of one kernel value exp(x·y). Everything is of x and y that are scaled already: one group of rows is one
# draw of the whole map.


def estimates(rows: Tensor, x: Tensor, y: Tensor, *, hyperbolic: bool = False) -> Tensor:
    """φ(x)·φ(y) for each of (draws, features, size) rows."""
    exponents, size = rows.to(DOUBLE) @ (x + y), (x @ x + y @ y) / 2
    values = (exponents - size).exp()
    return ((values + (-exponents - size).exp()) / 2 if hyperbolic else values).mean(-1)


def groups(draws: int, features: int, size: int, *, orthogonal: bool) -> Tensor:
    if orthogonal:
        assert features == size
    return draw_rows(draws * features, size, orthogonal=orthogonal).unflatten(0, (draws, features))


def pairs(size: int) -> dict[str, tuple[Tensor, Tensor]]:
    axis = torch.zeros(size, dtype=DOUBLE)
    axis[0] = 1.0
    return {
        "random": (
            0.8 * torch.randn(size, dtype=DOUBLE) / size**0.5,
            0.8 * torch.randn(size, dtype=DOUBLE) / size**0.5,
        ),
        "one axis": (axis, torch.zeros_like(axis)),
        "opposite": (axis, -0.5 * axis),
    }


@pytest.mark.parametrize("hyperbolic", [False, True])
@pytest.mark.parametrize("orthogonal", [False, True])
def test_the_mean_over_draws_is_the_kernel(orthogonal: bool, hyperbolic: bool):
    rows = groups(4000, 16, 16, orthogonal=orthogonal)
    for name, (x, y) in pairs(16).items():
        values = estimates(rows, x, y, hyperbolic=hyperbolic)
        error = values.std() / len(values) ** 0.5
        assert abs(values.mean() - (x @ y).exp()) < 4 * error, name


def test_without_the_signs_of_r_the_mean_is_wrong():
    """LAPACK's QR is not uniform: its first entry has always one sign, and the estimate along an axis is biased."""
    x, y = pairs(16)["one axis"]
    raw, r = torch.linalg.qr(torch.randn(4000, 16, 16, dtype=DOUBLE))
    lengths = torch.randn(4000, 16, 16, dtype=DOUBLE).norm(dim=-1, keepdim=True)
    biased = estimates(raw * lengths, x, y)
    assert biased.mean() < 0.97 and biased.mean() + 8 * biased.std() / 4000**0.5 < 1
    signs = torch.where(r.diagonal(dim1=-2, dim2=-1) < 0, -1.0, 1.0)
    assert abs(estimates(raw * signs[:, None, :] * lengths, x, y).mean() - 1) < 0.02


def test_the_error_of_independent_rows_is_the_one_of_the_paper():
    """Lemma 2 of the paper, and Theorem 1's note on the hyperbolic kernel."""
    x, y = torch.tensor([0.3, -0.2, 0.1, 0.2], dtype=DOUBLE), torch.tensor([0.2, 0.1, -0.1, 0.3], dtype=DOUBLE)
    true, s = (x @ y).exp(), (x + y) @ (x + y)
    rows = draw_rows(2**21, 4, orthogonal=False)
    for features in (16, 64, 256):
        drawn = rows.unflatten(0, (-1, features))
        positive = (estimates(drawn, x, y) - true).square().mean()
        expected = s.exp() * true**2 * (1 - (-s).exp()) / features
        assert positive.item() == pytest.approx(expected.item(), rel=0.05)
        hyperbolic = (estimates(drawn, x, y, hyperbolic=True) - true).square().mean()
        assert hyperbolic.item() == pytest.approx((0.5 * (1 - (-s).exp()) * expected).item(), rel=0.05)


def test_orthogonal_rows_err_less():
    for name, (x, y) in pairs(16).items():
        errors = [
            (estimates(groups(4000, 16, 16, orthogonal=orthogonal), x, y) - (x @ y).exp()).square().mean()
            for orthogonal in (True, False)
        ]
        assert errors[0] < errors[1], name


def test_rows_are_orthogonal_within_a_group_and_have_the_right_length():
    rows = draw_rows(40, 16).double()
    for group in rows.split(16):
        product = group @ group.T
        torch.testing.assert_close(product, product.diagonal().diag(), atol=1e-5, rtol=0)
    many = draw_rows(16_000, 16).double()
    assert many.square().sum(-1).mean().item() == pytest.approx(16, rel=0.02)  # chi squared: mean d, variance 2d
    assert many.square().sum(-1).var().item() == pytest.approx(32, rel=0.05)
    for orthogonal in (True, False):
        even = draw_rows(40, 16, orthogonal=orthogonal, regularised=True)
        torch.testing.assert_close(even.norm(dim=-1), torch.full((40,), 4.0))
    assert abs(haar(4000, 3)[:, 0, 0].mean()) < 0.05


def test_the_error_of_attention_falls_as_the_root_of_the_features():
    """On inputs of small norm; at unit variance the estimator's own variance e^s hides it."""
    q, k, v = (scale * torch.randn(1, 2, 256, 32) for scale in (0.25, 0.25, 1.0))
    exact = scaled_dot_product_attention(q, k, v)
    counts, errors = (32, 128, 512, 2048), []
    for features in counts:
        drawn = [build("performer", heads=2, head_dim=32, features=features)(q, k, v) for _ in range(3)]
        errors.append(sum(((out - exact).norm() / exact.norm()).item() for out in drawn) / 3)
    slope = math.log(errors[-1] / errors[0]) / math.log(counts[-1] / counts[0])
    assert slope == pytest.approx(-0.5, abs=0.07)
    assert errors[-1] < 0.03


# Attention


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_ones_come_out_as_ones(kind: str, causal: bool):
    q, k, v = qkv(70)
    ones = torch.ones_like(v)
    torch.testing.assert_close(make(kind=kind, causal=causal)(q, k, ones), ones, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_full_and_causal_agree_with_the_quotient(agree, kind: str):
    full, causal = make(kind=kind), make(kind=kind, causal=True)
    causal.load_state_dict(full.state_dict())

    def quotient(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        similarity = full._features(q) @ full._features(k).mT
        return similarity @ v / similarity.sum(-1, keepdim=True)

    agree(quotient, full, *qkv(21, 30))
    tensors = qkv(133)
    torch.testing.assert_close(causal(*tensors)[:, :, -1], full(*tensors)[:, :, -1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("causal", [False, True])
def test_padding_counts_for_nothing_although_its_features_are_not_zero(causal: bool):
    attention, (q, k, v) = make(causal=causal), qkv(12)
    keep = torch.ones(BATCH, 12, dtype=torch.bool)
    keep[:, 8:] = False
    k, v = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (k, v))
    out = attention(q, k, v, key_mask=keep)[:, :, :8]
    torch.testing.assert_close(out, attention(*(x[:, :, :8] for x in (q, k, v))), rtol=1e-12, atol=1e-14)


def test_huge_later_keys_do_not_change_the_past_by_one_bit():
    attention, (q, k, v) = make(causal=True), qkv(100)
    after = k.clone()
    after[:, :, 60:] *= 300
    assert torch.equal(attention(q, k, v)[:, :, :60], attention(q, after, v)[:, :, :60])
    assert attention(q, after, v).isfinite().all()


@pytest.mark.parametrize("causal", [False, True])
def test_features_are_never_stored(causal: bool):
    attention = build("performer", heads=HEADS, head_dim=WIDTH, features=64, causal=causal)
    kept = []
    for length in (1024, 4096):
        leaves = [x.requires_grad_() for x in qkv(length, batch=1, dtype=torch.float32)]
        known = [*leaves, attention.projection]
        kept.append(count_kept(lambda leaves=leaves: attention(*leaves), known))
        assert kept[-1] == attention.cost(length, length).floats < length * HEADS * 64
    assert kept[1] <= 4 * kept[0]


def test_the_state_has_one_size():
    attention = make(causal=True)
    state = attention.start(BATCH, dtype=DOUBLE)
    _, later = attention.extend(*qkv(300), state)
    assert state.bytes == later.bytes == BATCH * HEADS * 8 * (8 * (WIDTH + 1) + 1)
    assert sum(x.untyped_storage().nbytes() for x in (later.sums, later.offset)) == later.bytes


# The draw


def test_the_seed_fixes_the_draw_and_the_checkpoint_keeps_it():
    torch.manual_seed(5)
    one = make()
    torch.manual_seed(5)
    assert torch.equal(make().projection, one.projection)
    other = make()
    assert not torch.equal(other.projection, one.projection)
    other.load_state_dict(one.state_dict())
    tensors = qkv(9)
    assert torch.equal(other(*tensors), one(*tensors))


def test_redraw_is_new_and_leaves_old_graphs_alone():
    for kind in KINDS:
        attention = make(kind=kind)
        leaves = [x.requires_grad_() for x in qkv(9)]
        expected = torch.autograd.grad(attention(*leaves).square().sum(), leaves)
        out, before = attention(*leaves), attention.projection.clone()
        attention.redraw()
        assert not torch.equal(attention.projection, before)
        for found, wanted in zip(torch.autograd.grad(out.square().sum(), leaves), expected):
            assert torch.equal(found, wanted)


def draws_of(attention: PerformerAttention, passes: int) -> Iterator[int]:
    """Which draw each training pass used, numbered from 0."""
    seen: list[Tensor] = []
    for _ in range(passes):
        attention(*qkv(3))
        if not any(torch.equal(attention.projection, old) for old in seen):
            seen.append(attention.projection.clone())
        yield len(seen) - 1


def test_only_training_redraws_and_at_its_interval():
    attention = make(redraw_interval=3, causal=True)
    first = attention.projection.clone()
    attention.eval()
    assert list(draws_of(attention, 5)) == [0] * 5
    attention.train()
    state = attention.start(BATCH, dtype=DOUBLE)
    for _ in range(5):
        _, state = attention.extend(*qkv(1), state)
    attention.weights(*qkv(5)[:2])
    assert torch.equal(attention.projection, first)
    assert list(draws_of(attention, 8)) == [0, 0, 0, 1, 1, 1, 2, 2]
    resumed = make(redraw_interval=3, causal=True)
    resumed.load_state_dict(attention.state_dict())
    assert list(draws_of(resumed, 3)) == [0, 1, 1]  # the ninth pass belongs to the third draw
    assert list(draws_of(make().train(), 5)) == [0] * 5


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation_by_a_checkpoint_is_not_a_new_pass(reentrant: bool):
    attention = make(redraw_interval=1)
    leaves = [x.requires_grad_() for x in qkv(9)]
    for step in range(3):
        out = checkpoint(attention, *leaves, use_reentrant=reentrant)
        used = attention.projection.clone()
        found = torch.autograd.grad(out.sum(), leaves) if not reentrant else _backward(out, leaves)
        assert torch.equal(attention.projection, used) and int(attention.passes) == step + 1
        expected = torch.autograd.grad(attention.eval()(*leaves).sum(), leaves)
        attention.train()
        for one, other in zip(found, expected):
            assert torch.equal(one, other)


def _backward(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    for leaf in leaves:
        leaf.grad = None
    out.sum().backward()
    return [leaf.grad for leaf in leaves]


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = make(redraw_interval=1)

    def forward(self, x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)
        return self.attention(heads, heads, heads).transpose(1, 2).flatten(2)


def test_reversible_layers_remember_the_rows_even_across_another_pass():
    mixer, other = Mixer(), nn.Tanh()
    stack = ReversibleStack([(mixer, other)])
    x = torch.randn(BATCH, 7, HEADS * WIDTH, dtype=DOUBLE, requires_grad=True)
    out = sum(stack(x, x))
    rows = mixer.attention.projection.clone()
    stack(x, x)  # redraws, before the first pass has had its backward
    assert not torch.equal(mixer.attention.projection, rows)
    (found,) = torch.autograd.grad(out.square().sum(), x)
    assert int(mixer.attention.passes) == 2
    mixer.attention.projection.copy_(rows)
    mixer.eval()
    y = x + mixer(x)
    (expected,) = torch.autograd.grad((y + x + other(y)).square().sum(), x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_a_compiled_module_draws_nothing_and_sees_what_was_drawn():
    torch.compiler.reset()
    attention = make(redraw_interval=1).train()
    compiled, tensors = torch.compile(attention, backend="eager", fullgraph=True), qkv(9)
    for _ in range(2):
        rows = attention.projection.clone()
        out = compiled(*tensors)
        assert torch.equal(attention.projection, rows)
        torch.testing.assert_close(out, attention.reference(*tensors), rtol=1e-10, atol=1e-10)
        attention.redraw()
    torch.compiler.reset()


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"features": 0}, "option features must be at least 1, not 0"),
        ({"kind": "softmax"}, "option kind must be one of positive, hyperbolic, relu, not 'softmax'"),
        ({"redraw_interval": -1}, "option redraw_interval must be at least 0, not -1"),
        ({"orthogonal": 1}, "option orthogonal must be bool, not 1"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption, match=message):
        build("performer", heads=HEADS, head_dim=WIDTH, **options)
