import pytest
import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.feedforward import FeedForward
from longspan.nn.reversible import ReversibleStack, remember

WIDTH = 6


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


class Mix(nn.Module):
    """A stand-in for attention: mixes positions, reads a context, has dropout."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, shift: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        x = self.linear(self.norm(x)).tanh().cumsum(1) / 4
        if shift is not None:
            x = x * shift
        if mask is not None:
            x = x.masked_fill(~mask[..., None], 0)
        return self.dropout(x)


def build(depth: int, dropout: float = 0.3, chunk: int = 0) -> ReversibleStack:
    torch.manual_seed(0)
    feedforward = [FeedForward(WIDTH, 8, "gelu", dropout=dropout, chunk=chunk) for _ in range(depth)]
    norms = [nn.LayerNorm(WIDTH) for _ in range(depth)]
    return ReversibleStack((Mix(dropout), nn.Sequential(n, f)) for n, f in zip(norms, feedforward))


def streams(dtype: torch.dtype = torch.float64, requires_grad: bool = True) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(2, 5, WIDTH, dtype=dtype, generator=generator).requires_grad_(requires_grad) for _ in range(2)]


def plain(stack: ReversibleStack, x1: Tensor, x2: Tensor, *context: Tensor | None) -> tuple[Tensor, Tensor]:
    """The same net for ordinary autograd."""
    for f, g in stack.blocks:
        x1 = x1 + f(x2, *context)
        x2 = x2 + g(x1)
    return x1, x2


def loss(y1: Tensor, y2: Tensor) -> Tensor:
    return y1.sin().sum() + (y2 * y1.detach().cos()).sum()


def saved_bytes(function) -> int:
    total = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        function()
    return total


@pytest.mark.parametrize("chunk", [0, 2])
def test_gradients_equal_plain_autograd_with_dropout_and_context(chunk: int):
    stack, (x1, x2) = build(4, chunk=chunk).double(), streams()
    shift = torch.rand(2, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(2, 5) > 0.3
    wanted = [x1, x2, shift, *stack.parameters()]
    results = []
    for run in (stack, lambda *inputs: plain(stack, *inputs)):
        torch.manual_seed(5)
        outputs = run(x1, x2, shift, mask)
        results.append((outputs, torch.autograd.grad(loss(*outputs), wanted)))
    (outputs, gradients), (plain_outputs, plain_gradients) = results
    torch.testing.assert_close(outputs, plain_outputs, atol=0, rtol=0)
    torch.testing.assert_close(gradients, plain_gradients, atol=1e-9, rtol=0)
    assert all(gradient.abs().max() > 1e-4 for gradient in gradients)


def test_backward_fills_grad_and_hooks_see_it_once():
    stack, (x1, x2) = build(2, dropout=0.0).double(), streams()
    wanted = torch.autograd.grad(loss(*plain(stack, x1, x2)), list(stack.parameters()))
    calls = []
    for parameter in stack.parameters():
        parameter.register_hook(lambda gradient: calls.append(1) or 2 * gradient)
    loss(*stack(x1, x2)).backward()
    assert len(calls) == len(wanted)
    torch.testing.assert_close([p.grad for p in stack.parameters()], [2 * g for g in wanted])


def test_shared_modules_repeated_context_and_frozen_parameters():
    torch.manual_seed(0)
    mix, g = Mix().double(), nn.Linear(WIDTH, WIDTH).double()
    g.bias.requires_grad_(False)
    scale = nn.Parameter(torch.rand(1, 1, WIDTH, dtype=torch.float64))

    class Both(nn.Module):
        def forward(self, x: Tensor, first: Tensor, second: Tensor) -> Tensor:
            return mix(x) * first * second.square()

    both = Both()
    both.mix = mix
    stack, (x1, x2) = ReversibleStack([(both, g), (both, g)]), streams()
    wanted = [x1, scale, *(p for p in stack.parameters() if p.requires_grad)]
    results = []
    for run in (stack, lambda *inputs: plain(stack, *inputs)):
        torch.manual_seed(5)
        results.append(torch.autograd.grad(loss(*run(x1, x2, scale, scale)), wanted))
    torch.testing.assert_close(*results, atol=1e-9, rtol=0)


def test_saved_bytes_are_constant_in_depth():
    one, many = ([build(depth), streams(torch.float32)] for depth in (1, 12))
    assert saved_bytes(lambda: one[0](*one[1])) == saved_bytes(lambda: many[0](*many[1])) == 2 * 2 * 5 * WIDTH * 4
    ordinary = [saved_bytes(lambda stack=stack, x=x: plain(stack, *x)) for stack, x in (one, many)]
    assert ordinary[1] >= 10 * ordinary[0]


def test_24_layers_invert_in_float32():
    stack = build(24).eval()
    x1, x2 = streams(torch.float32, requires_grad=False)
    back1, back2 = stack.inverse(*stack(x1, x2))
    assert max((back1 - x1).abs().max(), (back2 - x2).abs().max()) < 1e-4


def test_inverse_takes_the_context():
    stack, (x1, x2) = build(3).double().eval(), streams(requires_grad=False)
    shift = torch.rand(2, 5, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(stack.inverse(*stack(x1, x2, shift), shift), (x1, x2))


def test_the_user_s_random_stream_is_left_alone():
    stack, (x1, x2) = build(3).double(), streams()
    torch.manual_seed(5)
    total = loss(*stack(x1, x2))
    after_forward = torch.get_rng_state()
    total.backward()
    assert torch.equal(torch.get_rng_state(), after_forward)
    torch.manual_seed(5)
    plain(stack, x1, x2)
    assert torch.equal(torch.get_rng_state(), after_forward)


def test_autocast_keeps_streams_in_float32_and_casts_the_same_way_twice():
    stack, (x1, x2) = build(4, dropout=0.0), streams(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        y1, y2 = stack(x1.bfloat16(), x2)
        outputs = stack(x1, x2)
        expected = plain(stack, x1, x2)
    assert y1.dtype == y2.dtype == torch.float32
    torch.testing.assert_close(outputs, expected, atol=0, rtol=0)
    seen = []
    handle = stack.blocks[0][0].linear.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    wanted = [x1, x2, *stack.parameters()]
    gradients = torch.autograd.grad(loss(*outputs), wanted)  # outside of autocast, as it should be
    handle.remove()
    assert seen == [torch.bfloat16]
    for gradient, other in zip(gradients, torch.autograd.grad(loss(*expected), wanted)):
        assert (gradient - other).norm() < 0.03 * other.norm()


def test_autocast_cache_is_not_poisoned_for_a_weight_used_outside_too():
    stack, (x1, x2) = build(1, dropout=0.0), streams(torch.float32)
    linear = stack.blocks[0][0].linear
    with torch.autocast("cpu", torch.bfloat16):
        y1, _ = stack(x1.detach(), x2.detach())
        linear(y1.detach()).sum().backward()
    assert linear.weight.grad is not None


class Rounding(nn.Module):
    """A decision that any rounding of the input changes."""

    def __init__(self, remembers: bool) -> None:
        super().__init__()
        self.remembers = remembers
        self.runs = 0
        self.scale = nn.Parameter(torch.ones(()))

    def decide(self) -> Tensor:
        self.runs += 1
        return torch.tensor([1, -1])[self.runs % 2]

    def forward(self, x: Tensor) -> Tensor:
        sign = remember(self.decide) if self.remembers else self.decide()
        return self.scale * sign * x.sin()


@pytest.mark.parametrize("remembers", [True, False])
def test_decisions_of_the_first_run_serve_the_second(remembers: bool):
    def gradients(run) -> tuple[Tensor, ...]:
        stack, x = ReversibleStack([(Rounding(remembers), nn.Tanh())]), streams()
        parameters = list(stack.parameters())
        return torch.autograd.grad(loss(*run(stack, *x)), [*x, *parameters])

    reversible = gradients(lambda stack, x1, x2: stack(x1, x2))
    ordinary = gradients(plain)
    equal = all(torch.allclose(a, b) for a, b in zip(reversible, ordinary))
    assert equal == remembers  # without it the test would see the difference


def test_backward_twice_reads_the_decisions_twice():
    stack, x = ReversibleStack([(Rounding(True), nn.Tanh())]), streams()
    total = loss(*stack(*x))
    first = torch.autograd.grad(total, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(total, x), first)


def test_remember_elsewhere_just_computes_without_gradient():
    x = torch.ones(2, requires_grad=True)
    assert not remember(lambda: x * 2).requires_grad
    assert remember(lambda: 3) == 3


def test_more_decisions_than_at_first_are_refused():
    class Growing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                remember(lambda: 1)
            return x.sin()

    with pytest.raises(Unsupported, match="more often in its second run than in its first"):
        loss(*ReversibleStack([(Growing(), nn.Tanh())])(*streams())).backward()


def test_a_step_before_backward_is_refused():
    stack, x = build(1).double(), streams()
    total = loss(*stack(*x))
    with torch.no_grad():
        next(stack.parameters()).add_(1)
    with pytest.raises(InvalidInput, match="changed in place between forward and backward; call backward before"):
        total.backward()


def test_second_derivatives_are_refused():
    stack, x = build(1).double(), streams()
    total = loss(*stack(*x))
    with pytest.raises(Unsupported) as caught:
        torch.autograd.grad(total, x, create_graph=True)
    assert str(caught.value) == (
        "a reversible stack, which keeps no activations, has no second derivative, which create_graph=True needs; "
        "build the model with reversible=False"
    )


def test_one_output_is_enough_and_without_gradients_nothing_is_kept():
    stack, (x1, x2) = build(2, dropout=0.0).double(), streams()
    for index in (0, 1):
        gradients = [torch.autograd.grad(run[index].sum(), [x1, x2]) for run in (stack(x1, x2), plain(stack, x1, x2))]
        torch.testing.assert_close(*gradients)
    with torch.no_grad():
        assert stack(x1, x2)[0].grad_fn is None


def test_functional_call_gets_gradients_of_the_parameters_it_gave():
    stack, x = build(2, dropout=0.0).double(), streams()
    given = {name: (p.detach() * 1.1).requires_grad_() for name, p in stack.named_parameters()}
    gradients = torch.autograd.grad(loss(*torch.func.functional_call(stack, given, tuple(x))), list(given.values()))
    with torch.no_grad():
        for name, parameter in stack.named_parameters():
            parameter.copy_(given[name])
    torch.testing.assert_close(gradients, torch.autograd.grad(loss(*plain(stack, *x)), list(stack.parameters())))


def test_plain_while_compiling():
    stack, x = build(2, dropout=0.0).double(), streams()
    compiled = torch.compile(stack, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*x), stack(*x))


def test_refusals():
    with pytest.raises(InvalidOption, match=r"at least one pair .* got groups of \[\]"):
        ReversibleStack([])
    with pytest.raises(InvalidOption, match=r"got groups of \[1\]"):
        ReversibleStack([(nn.Tanh(),)])
    with pytest.raises(InvalidInput, match=r"one shape, got \(2, 3\) and \(2, 4\)"):
        build(1)(torch.zeros(2, 3), torch.zeros(2, 4))
