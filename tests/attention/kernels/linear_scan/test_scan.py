"""Linear attention in chunks equals its definition, the recurrence and the loop-free form."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from longspan.attention.kernels.linear_scan import causal as causal_scan
from longspan.attention.kernels.linear_scan import full as full_scan
from longspan.attention.kernels.linear_scan import rows as scan_rows
from longspan.attention.kernels.linear_scan import scan
from longspan.attention.parts.features import (
    EluPlusOne,
    FeatureMap,
    Identity,
    PositiveExponential,
    Relu,
    as_feature_map,
)
from longspan.errors import InvalidInput, InvalidOption

HEADS, HEAD_DIM, VALUE_DIM = 3, 4, 5
DECAY = torch.tensor([1.0, 0.9, 0.5], dtype=torch.float64)


def draw(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def squares(x: Tensor) -> Tensor:
    return torch.cat([x.square(), x.sigmoid()], -1)


MAPS = {
    "elu": EluPlusOne(),
    "relu": Relu(0.1),
    "identity": Identity(),
    "exponential": PositiveExponential(draw(7, HEAD_DIM, seed=1)),
    "hyperbolic": PositiveExponential(draw(4, HEAD_DIM, seed=1), hyperbolic=True),
    "callable": squares,
}
NORMALISED = [name for name in MAPS if name != "identity"]


def inputs(length: int, *, batch: int = 2, keys: int | None = None, scale: float = 1.0) -> list[Tensor]:
    keys = length if keys is None else keys
    shapes = [(batch, HEADS, length, HEAD_DIM), (batch, HEADS, keys, HEAD_DIM), (batch, HEADS, keys, VALUE_DIM)]
    return [draw(*shape, seed=seed, scale=scale).requires_grad_() for seed, shape in enumerate(shapes, 10)]


def quadratic(q, k, v, feature_map, *, causal, key_mask=None, epsilon=0.0, normalise=True, decay=None):
    """The definition, with its n × n weights."""
    if isinstance(feature_map, FeatureMap):
        phi_q, phi_k = (feature_map.features(x.flatten(0, 1)).unflatten(0, x.shape[:2]) for x in (q, k))
    else:
        phi_q, phi_k = feature_map(q), feature_map(k)
    weights = phi_q @ phi_k.mT
    if decay is not None:
        steps = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        weights = weights * decay.view(-1, 1, 1) ** steps.clamp(min=0)
    if causal:
        weights = weights.tril()
    if key_mask is not None:
        weights = weights.masked_fill(~key_mask[:, None, None], 0.0)
    out = weights @ v
    if not normalise:
        return out
    denominator = weights.sum(-1, keepdim=True) + epsilon
    return out / denominator.masked_fill(denominator == 0, math.inf)


def recurrence(q, k, v, feature_map, *, key_mask=None, decay=None):
    """One token at a time, in the true scale."""
    feature_map = as_feature_map(feature_map, q[:1, 0, :1])
    sums = q.new_zeros(*q.shape[:2], feature_map.width(q.shape[3]), v.shape[3] + 1)
    outputs = []
    for i in range(q.shape[2]):
        phi_q, phi_k = (feature_map.features(x[:, :, i]) for x in (q, k))
        if key_mask is not None:
            phi_k = phi_k.masked_fill(~key_mask[:, i, None, None], 0.0)
        value = nn.functional.pad(v[:, :, i], (0, 1), value=1.0)
        sums = sums * (1.0 if decay is None else decay.view(-1, 1, 1)) + phi_k[..., None] * value[..., None, :]
        total = (phi_q[..., None, :] @ sums).squeeze(-2)
        outputs.append(total[..., :-1] / total[..., -1:].masked_fill(total[..., -1:] == 0, math.inf))
    return torch.stack(outputs, 2)


def loop_free(
    q, k, v, feature_map, *, causal, key_mask=None, chunk=4, epsilon=0.0, normalise=True, decay=None, state=None
):
    plan, hidden = scan._prepare(q, feature_map, key_mask, chunk, epsilon, normalise, decay)
    state = state or scan._fresh(plan, q, v)
    sums, offset = state.sums.flatten(0, 1), state.offset.view(-1, 1, 1)
    if not causal:
        return full_scan.batched(plan, q, k, v, hidden, offset)
    out, sums, offset = causal_scan.batched(plan, q, k, v, hidden, sums, offset)
    return out, scan.ScanState(sums.unflatten(0, q.shape[:2]), offset.view(q.shape[:2]))


def with_gradients(out: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    slope = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out).cos()
    return [out.detach(), *torch.autograd.grad(out, leaves, slope, retain_graph=True)]


def assert_same(actual: Tensor, expected: Tensor, leaves: list[Tensor]) -> None:
    for ours, theirs in zip(with_gradients(actual, leaves), with_gradients(expected, leaves)):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def masks(length: int, kind: str, batch: int = 2) -> Tensor | None:
    position = torch.arange(length).expand(batch, -1)
    match kind:
        case "left":
            return position >= length // 3
        case "right":
            return position < length - length // 3
        case "random":
            return draw(batch, length, seed=5) > 0
        case "nothing":
            return torch.zeros(batch, length, dtype=torch.bool)
        case _:
            return None


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Blocks of a few chunks, so that short sequences have several."""
    monkeypatch.setattr(scan_rows, "BLOCK_FEATURES", 1)


# The definition ------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.sampled_from(NORMALISED),
    st.integers(1, 40),
    st.integers(1, 9),
    st.sampled_from(["all", "left", "right", "random", "nothing"]),
    st.booleans(),
    st.sampled_from([0.0, 0.3]),
)
def test_causal_is_the_definition(name, length, chunk, kind, decays, epsilon):
    leaves, mask, decay = inputs(length), masks(length, kind), DECAY if decays else None
    options = {"key_mask": mask, "epsilon": epsilon, "decay": decay}
    expected = quadratic(*leaves, MAPS[name], causal=True, **options)
    assert_same(scan.causal(*leaves, MAPS[name], chunk=chunk, **options)[0], expected, leaves)
    assert_same(loop_free(*leaves, MAPS[name], causal=True, chunk=chunk, **options)[0], expected, leaves)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(NORMALISED),
    st.integers(1, 30),
    st.integers(1, 30),
    st.sampled_from(["all", "left", "right", "random", "nothing"]),
    st.sampled_from([0.0, 0.3]),
)
def test_full_is_the_definition_also_across_sequences(name, queries, keys, kind, epsilon):
    leaves, options = inputs(queries, keys=keys), {"key_mask": masks(keys, kind), "epsilon": epsilon}
    expected = quadratic(*leaves, MAPS[name], causal=False, **options)
    assert_same(scan.full(*leaves, MAPS[name], **options), expected, leaves)
    assert_same(loop_free(*leaves, MAPS[name], causal=False, **options), expected, leaves)


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("decay", [None, DECAY], ids=["", "decay"])
def test_sums_without_division_are_the_definition(name, decay):
    """Retention, with the identity; other maps are put back to their true scale."""
    leaves = inputs(23)
    expected = quadratic(*leaves, MAPS[name], causal=True, normalise=False, decay=decay)
    assert_same(scan.causal(*leaves, MAPS[name], chunk=4, normalise=False, decay=decay)[0], expected, leaves)
    assert_same(loop_free(*leaves, MAPS[name], causal=True, normalise=False, decay=decay)[0], expected, leaves)


@pytest.mark.parametrize("name", NORMALISED)
def test_recurrence_is_the_definition_and_the_chunk_of_one(name):
    leaves, mask = inputs(17), masks(17, "random")
    expected = recurrence(*leaves, MAPS[name], key_mask=mask, decay=DECAY)
    assert_same(quadratic(*leaves, MAPS[name], causal=True, key_mask=mask, decay=DECAY), expected, leaves)
    assert_same(scan.causal(*leaves, MAPS[name], chunk=1, key_mask=mask, decay=DECAY)[0], expected, leaves)


@pytest.mark.parametrize("length", [1, 7, 1000, 4097])
@pytest.mark.parametrize("name", ["elu", "exponential"])
def test_long_and_odd_lengths_with_the_blocks_of_production(name, length, monkeypatch):
    monkeypatch.undo()
    leaves = inputs(length, batch=1)
    expected, _ = loop_free(*leaves, MAPS[name], causal=True, chunk=128)
    assert_same(scan.causal(*leaves, MAPS[name])[0], expected, leaves)
    assert_same(scan.full(*leaves, MAPS[name]), loop_free(*leaves, MAPS[name], causal=False), leaves)


def test_gradcheck():
    leaves, mask = inputs(5, batch=1), masks(5, "left", 1)
    exponential = MAPS["exponential"]
    options = {"key_mask": mask, "chunk": 2, "epsilon": 0.1, "decay": DECAY}
    assert torch.autograd.gradcheck(lambda *x: scan.causal(*x, exponential, **options)[0], leaves)
    assert torch.autograd.gradcheck(lambda *x: scan.full(*x, exponential, key_mask=mask), leaves)


def test_layout_of_the_inputs_does_not_matter():
    """Heads as projections leave them: (batch, length, heads, head_dim), transposed."""
    leaves = inputs(13)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in leaves]
    for form in (lambda *x: scan.causal(*x, EluPlusOne())[0], lambda *x: scan.full(*x, EluPlusOne())):
        assert_same(form(*views), form(*leaves), leaves)


# Decoding ------------------------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.sampled_from(NORMALISED),
    st.lists(st.integers(1, 9), min_size=1, max_size=6),
    st.sampled_from(["all", "left", "random"]),
    st.booleans(),
    st.booleans(),
)
def test_any_split_gives_the_same_outputs_and_gradients(name, pieces, kind, decays, graph):
    length, decay = sum(pieces), DECAY if decays else None
    leaves, mask = inputs(length), masks(length, kind)
    whole, last = scan.causal(*leaves, MAPS[name], chunk=4, key_mask=mask, decay=decay)
    state, outputs = None, []
    borders = [sum(pieces[:i]) for i in range(len(pieces) + 1)]
    for begin, end in pairwise(borders):
        part, seen = [x[:, :, begin:end] for x in leaves], None if mask is None else mask[:, begin:end]
        if graph:
            out, state = loop_free(*part, MAPS[name], causal=True, key_mask=seen, decay=decay, state=state)
        else:
            out, state = scan.causal(*part, MAPS[name], chunk=3, key_mask=seen, decay=decay, state=state)
        outputs.append(out)
    assert_same(torch.cat(outputs, 2), whole, leaves)
    torch.testing.assert_close(state.sums * (state.offset - last.offset).exp()[..., None, None], last.sums)


def test_gradient_reaches_the_past_through_the_state():
    leaves = inputs(8)
    _, state = scan.causal(*leaves, EluPlusOne())
    features = EluPlusOne().features(leaves[1].flatten(0, 1)).unflatten(0, (2, HEADS))
    assert_same(state.sums, features.mT @ nn.functional.pad(leaves[2], (0, 1), value=1.0), leaves[1:])


def test_state_is_left_as_it_was_and_has_a_constant_size():
    q, k, v = (x.detach() for x in inputs(50))
    state = scan.start(2, HEADS, HEAD_DIM, VALUE_DIM, MAPS["exponential"], dtype=torch.float64)
    sums, offset = state.sums.clone(), state.offset.clone()
    _, later = scan.causal(q, k, v, MAPS["exponential"], state=state)
    assert torch.equal(state.sums, sums) and torch.equal(state.offset, offset)
    assert later.bytes == state.bytes == 2 * HEADS * 8 * (7 * (VALUE_DIM + 1) + 1)


# The future, the missing, the huge -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("size", [1.0, 300.0])
@pytest.mark.parametrize("cut", [1, 6, 7, 8, 20])
def test_the_future_does_not_change_the_past_by_one_bit(name, size, cut):
    before = [x.detach() for x in inputs(24)]
    after = [torch.cat([x[:, :, :cut], size * draw(*x[:, :, cut:].shape, seed=99)], 2) for x in before]
    for decay in (None, DECAY):
        one, two = (scan.causal(*x, MAPS[name], chunk=8, decay=decay)[0][:, :, :cut] for x in (before, after))
        assert torch.equal(one, two)


def test_no_gradient_from_the_past_to_the_future():
    leaves = inputs(24)
    out, _ = scan.causal(*leaves, MAPS["exponential"], chunk=8)
    for gradient in torch.autograd.grad(out[:, :, :13].sum(), leaves):
        assert not gradient[:, :, 13:].any()


@pytest.mark.parametrize("causal", [True, False])
def test_huge_exponents_stay_finite(causal):
    """Exponents in the hundreds, rising and falling: exp() of most of them is 0."""
    leaves = [x.detach().float().requires_grad_() for x in inputs(40, scale=20.0)]
    feature_map = PositiveExponential(draw(7, HEAD_DIM, seed=1).float())
    out = scan.causal(*leaves, feature_map, chunk=4)[0] if causal else scan.full(*leaves, feature_map)
    assert all(x.isfinite().all() for x in with_gradients(out, leaves))
    values = torch.ones_like(leaves[2])
    ones = scan.causal(*leaves[:2], values, feature_map)[0]
    torch.testing.assert_close(ones[:, :, 0], values[:, :, 0])


@pytest.mark.parametrize("name", NORMALISED)
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_rows_with_nothing_to_read_are_zero_with_gradient_zero(name, epsilon):
    leaves, position = inputs(20), torch.arange(20)
    mask = torch.stack([position >= 11, position < 0])
    options = {"key_mask": mask, "chunk": 4, "epsilon": epsilon}
    forms = scan.causal(*leaves, MAPS[name], **options), loop_free(*leaves, MAPS[name], causal=True, **options)
    for out, _ in forms:
        assert not out[0, :, :11].any() and not out[1].any()
        assert out[0, :, 11:].any()
        for gradient in torch.autograd.grad(out.sum(), leaves):
            assert gradient.isfinite().all() and not gradient[1].any() and not gradient[0, :, :11].any()
    out = scan.full(*leaves, MAPS[name], key_mask=mask, epsilon=epsilon)
    assert not out[1].any()
    assert all(x.isfinite().all() and not x[1].any() for x in torch.autograd.grad(out.sum(), leaves))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["elu", "exponential"])
def test_half_precision_is_summed_in_float32(name, dtype):
    leaves = [x.detach().to(dtype).requires_grad_() for x in inputs(300)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    for form in (lambda *x: scan.causal(*x, MAPS[name])[0], lambda *x: scan.full(*x, MAPS[name])):
        results = with_gradients(form(*leaves), leaves)
        for ours, theirs in zip(results, with_gradients(form(*exact), exact)):
            assert ours.dtype == dtype
            torch.testing.assert_close(ours.double(), theirs, rtol=0.05, atol=0.05)
    assert scan.causal(*leaves, MAPS[name])[1].sums.dtype == torch.float32


def test_autocast_does_not_touch_the_sums():
    leaves = [x.detach().float().requires_grad_() for x in inputs(30)]
    for form in (lambda *x: scan.causal(*x, MAPS["exponential"])[0], lambda *x: scan.full(*x, MAPS["exponential"])):
        with torch.autocast("cpu", torch.bfloat16):
            inside = with_gradients(form(*leaves), leaves)
        assert all(torch.equal(*pair) for pair in zip(inside, with_gradients(form(*leaves), leaves)))


# Maps that learn -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [True, False])
def test_parameters_of_a_map_get_their_gradient(causal):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(HEAD_DIM, 6, dtype=torch.float64), nn.Softplus())
    leaves = [*inputs(13), *module.parameters()]
    out = scan.causal(*leaves[:3], module)[0] if causal else scan.full(*leaves[:3], module)
    assert_same(out, quadratic(*leaves[:3], module, causal=causal), leaves)


@pytest.mark.parametrize("name, normalise", [("identity", False), ("exponential", True), ("exponential", False)])
def test_a_learned_decay_gets_its_gradient(name, normalise):
    leaves, decay = inputs(13), (0.9 * DECAY).requires_grad_()
    out, _ = scan.causal(*leaves, MAPS[name], normalise=normalise, decay=decay, chunk=4)
    expected = quadratic(*leaves, MAPS[name], causal=True, normalise=normalise, decay=decay)
    assert_same(out, expected, [*leaves, decay])


# Cost ----------------------------------------------------------------------------------------------------------------


def saved(form, length: int) -> list[int]:
    leaves, sizes = inputs(length, batch=1), {}
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: sizes.setdefault(x.untyped_storage().data_ptr(), x.numel()) and x, lambda x: x
    ):
        out = form(*leaves)
    assert out.requires_grad
    return list(sizes.values())


@pytest.mark.parametrize("block", [1, 2**12], ids=["small blocks", "large blocks"])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk", [1, 16, 64])
def test_saved_memory_is_linear_and_without_features(causal, chunk, block, monkeypatch):
    monkeypatch.setattr(scan_rows, "BLOCK_FEATURES", block)
    feature_map = PositiveExponential(draw(64, HEAD_DIM))

    def form(*x: Tensor) -> Tensor:
        return scan.causal(*x, feature_map, chunk=chunk)[0] if causal else scan.full(*x, feature_map)

    small, large = saved(form, 256), saved(form, 1024)
    assert max(large) < 1024 * HEADS * 64
    assert sum(large) < 1024 * HEADS * 64
    assert sum(large) <= 4.1 * sum(small)


@pytest.mark.parametrize("length", [1, 37, 64, 200])
@pytest.mark.parametrize("name", ["elu", "exponential", "hyperbolic"])
@pytest.mark.parametrize("normalise", [True, False])
def test_declared_flops_are_counted_flops(name, length, normalise):
    q, k, v = (x.detach() for x in inputs(length, batch=2))
    sizes = (MAPS[name], length, length, HEADS, HEAD_DIM, VALUE_DIM)
    with FlopCounterMode(display=False) as counter:
        scan.causal(q, k, v, MAPS[name], chunk=16, normalise=normalise)
    assert counter.get_total_flops() == 2 * scan.flops(*sizes, causal=True, chunk=16, normalise=normalise)
    with FlopCounterMode(display=False) as counter:
        scan.full(q[:, :, :5], k, v, MAPS[name])
    expected = scan.flops(MAPS[name], min(5, length), length, HEADS, HEAD_DIM, VALUE_DIM, causal=False)
    assert counter.get_total_flops() == 2 * expected


# Graphs --------------------------------------------------------------------------------------------------------------


class Layer(nn.Module):
    def __init__(self, name: str, causal: bool, decay: Tensor | None = None) -> None:
        super().__init__()
        self.feature_map, self.causal, self.decay = MAPS[name], causal, decay

    def forward(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None) -> Tensor:
        if self.causal:
            return scan.causal(q, k, v, self.feature_map, key_mask=key_mask, decay=self.decay, chunk=8)[0]
        return scan.full(q, k, v, self.feature_map, key_mask=key_mask)


LAYERS = [("elu", True, None), ("exponential", True, DECAY), ("callable", True, None), ("exponential", False, None)]


@pytest.mark.parametrize("name, causal, decay", LAYERS)
def test_compiles_as_one_graph(name, causal, decay):
    torch._dynamo.reset()
    layer, leaves, mask = Layer(name, causal, decay), inputs(21), masks(21, "right")
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert_same(compiled(*leaves, mask), layer(*leaves, mask), leaves)


@pytest.mark.parametrize("name, causal, decay", LAYERS)
def test_exports_with_a_dynamic_length(name, causal, decay):
    layer, length = Layer(name, causal, decay), torch.export.Dim("length", min=2, max=4096)
    example = [x.detach() for x in inputs(21)]
    program = torch.export.export(layer, tuple(example), dynamic_shapes=[{2: length}] * 3)
    for n in (3, 16, 45):
        q, k, v = (x.detach() for x in inputs(n))
        torch.testing.assert_close(program.module()(q, k, v), layer(q, k, v), rtol=1e-10, atol=1e-10)


# Refusals ------------------------------------------------------------------------------------------------------------


def test_refusals():
    q, k, v = (x.detach() for x in inputs(6))
    with pytest.raises(InvalidInput, match="as many keys"):
        scan.causal(q[:, :, :3], k, v, EluPlusOne())
    with pytest.raises(InvalidInput, match="do not match"):
        scan.full(q, k[:, :1], v, EluPlusOne())
    with pytest.raises(InvalidInput, match="batch, heads"):
        scan.full(q[0], k[0], v[0], EluPlusOne())
    with pytest.raises(InvalidInput, match="dtype"):
        scan.full(q.float(), k, v, EluPlusOne())
    with pytest.raises(InvalidInput, match="key_mask"):
        scan.full(q, k, v, EluPlusOne(), key_mask=torch.ones(2, 5, dtype=torch.bool))
    with pytest.raises(InvalidInput, match="decay"):
        scan.causal(q, k, v, EluPlusOne(), decay=torch.ones(2))
    with pytest.raises(InvalidInput, match="above 0"):
        scan.causal(q, k, v, EluPlusOne(), decay=torch.tensor([1.0, 0.5, 0.0]))
    with pytest.raises(InvalidInput, match="state"):
        state = scan.start(2, HEADS, HEAD_DIM, VALUE_DIM + 1, EluPlusOne(), dtype=torch.float64)
        scan.causal(q, k, v, EluPlusOne(), state=state)
    with pytest.raises(InvalidOption, match="chunk"):
        scan.causal(q, k, v, EluPlusOne(), chunk=0)
    with pytest.raises(InvalidOption, match="epsilon"):
        scan.full(q, k, v, EluPlusOne(), epsilon=-1.0)
