"""Fewer key heads than query heads: the results of repeated keys and values, without repeating them."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.attention import Attention, build
from longspan.attention.base import share_heads
from longspan.attention.kernels.linear_scan import scan
from longspan.attention.layouts import Band, ByHead, Dense, Residue
from longspan.attention.parts.features import EluPlusOne
from longspan.attention.parts.sliding_window import SlidingWindow
from longspan.errors import InvalidInput
from longspan.nn.multihead import MultiHead

DOUBLE, HEADS, KEY_HEADS, WIDTH = torch.float64, 6, 2, 4
WINDOWS = [
    {},
    {"sinks": 3},
    {"learned_sink": True},
    {"sinks": 3, "learned_sink": True},
    {"sinks": 2, "softcap": 2.0},
    {"dilation": 2},
    {"dilation": (1, 2, 3, 1, 1, 2)},
]
FORMS = [("window", {"window": 5, **options}, True) for options in WINDOWS] + [("window", {"window": 5}, False)]
KERNELS = [
    (name, options, causal)
    for causal in (True, False)
    for name, options in (
        ("linear", {}),
        ("linear", {"features": "softplus"}),
        ("performer", {"features": 16}),
        ("performer", {"features": 16, "kind": "relu"}),
        ("cosformer", {"max_length": 150}),
    )
]
FORMS += [*KERNELS, ("longformer", {"window": 5}, True), ("longformer", {"window": 5, "dilation": 2}, True)]


def mechanism(name: str, options: dict, causal: bool) -> Attention:
    torch.manual_seed(0)
    return build(name, heads=HEADS, head_dim=WIDTH, causal=causal, **options).double()


def heads(length: int, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    torch.manual_seed(1)
    counts = (HEADS, KEY_HEADS, KEY_HEADS)
    return [torch.randn(2, count, length, WIDTH, dtype=dtype).requires_grad_() for count in counts]


def padding(length: int) -> Tensor:
    mask = torch.ones(2, length, dtype=torch.bool)
    mask[0, : length // 4] = False
    return mask


@pytest.mark.parametrize("length", [9, 150])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name,options,causal", FORMS, ids=str)
def test_outputs_and_gradients_are_those_of_repeated_keys(name, options, causal, masked, length):
    attention, (q, k, v) = mechanism(name, options, causal), heads(length)
    mask = padding(length) if masked else None
    out = attention(q, k, v, key_mask=mask)
    repeated = attention(q, share_heads(k, HEADS), share_heads(v, HEADS), key_mask=mask)
    torch.testing.assert_close(out, repeated, rtol=1e-10, atol=1e-12)
    slope = torch.randn_like(out)
    given = [q, k, v, *attention.parameters()]
    for ours, theirs in zip(torch.autograd.grad(out, given, slope), torch.autograd.grad(repeated, given, slope)):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("name,options,causal", [form for form in FORMS if form[2]], ids=str)
def test_decoding_gives_the_rows_of_the_whole_and_a_third_of_the_state(name, options, causal, masked):
    attention, (q, k, v) = mechanism(name, options, causal), [x.detach() for x in heads(60)]
    mask, whole_keys = padding(60) if masked else None, (share_heads(k, HEADS), share_heads(v, HEADS))
    sizes = []
    for keys, values in ((k, v), whole_keys):
        state, outputs, begin = attention.start(2, dtype=DOUBLE), [], 0
        for count in (1, 7, *[1] * 30, 12, *[1] * 10):
            new = [x[:, :, begin : begin + count] for x in (q, keys, values)]
            out, state = attention.extend(
                *new, state, key_mask=None if mask is None else mask[:, begin : begin + count]
            )
            outputs.append(out)
            begin += count
        expected = attention(q, k, v, key_mask=mask)
        torch.testing.assert_close(torch.cat(outputs, 2), expected, rtol=1e-10, atol=1e-12)
        sizes.append(state.bytes)
    shared = 2 * 3 * 8 if "sinks" in options and options["sinks"] == 3 else 2 * 2 * 8 if "sinks" in options else 0
    shared += (
        0 if mask is None or not isinstance(attention, SlidingWindow) else 2 * attention.reach
    )  # positions and masks are the same for all heads
    assert (sizes[1] - shared) == 3 * (sizes[0] - shared)


def test_a_state_of_all_heads_cannot_be_continued_with_fewer():
    attention, (q, k, v) = mechanism("linear", {}, True), heads(4)
    state = attention.extend(q, share_heads(k, HEADS), share_heads(v, HEADS), attention.start(2, dtype=DOUBLE))[1]
    message = "the state has 6 heads and the keys 2; give as many key heads at every step"
    with pytest.raises(InvalidInput, match=message):
        attention.extend(q, k, v, state)


def test_a_decay_for_each_query_head_needs_a_state_for_each():
    (q, k, v), decay = heads(4), torch.linspace(0.5, 1.0, HEADS)
    out, state = scan.causal(q, k, v, EluPlusOne(), decay=decay)
    repeated = scan.causal(q, share_heads(k, HEADS), share_heads(v, HEADS), EluPlusOne(), decay=decay)
    torch.testing.assert_close(out, repeated[0])
    torch.testing.assert_close(state.sums, repeated[1].sums)
    few = scan.start(2, KEY_HEADS, WIDTH, WIDTH, EluPlusOne(), dtype=DOUBLE)
    with pytest.raises(InvalidInput, match="expected a state of 6 heads, one for each decay, got 2"):
        scan.causal(q, k, v, EluPlusOne(), decay=decay, state=few)
    with pytest.raises(InvalidInput, match=r"expected one decay for each of 6 heads, got shape \(2,\)"):
        scan.causal(q, k, v, EluPlusOne(), decay=decay[:2])


class Stored:
    """Counts the numbers that autograd stores, each storage once."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.kept: list[Tensor] = []

    def pack(self, x: Tensor) -> Tensor:
        self.kept.append(x)  # so that no address is used twice
        self.sizes[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes() // x.element_size()
        return x

    @property
    def numbers(self) -> int:
        return sum(self.sizes.values())


def stored(attention: Attention, *given: Tensor) -> int:
    stored = Stored()
    with torch.autograd.graph.saved_tensors_hooks(stored.pack, lambda x: x):
        attention(*given)
    return stored.numbers


@pytest.mark.parametrize("name,options,causal", [form for form in FORMS if "softcap" not in form[1]], ids=str)
def test_no_repeated_keys_are_stored(name, options, causal):
    """The backward pass needs as many numbers as with repeated keys, less the copies of keys and values."""
    attention, (q, k, v) = mechanism(name, options, causal), heads(150)
    repeated = [share_heads(x, HEADS).detach().requires_grad_() for x in (k, v)]
    spared = 2 * 2 * (HEADS - KEY_HEADS) * 150 * WIDTH
    difference = stored(attention, q, *repeated) - stored(attention, q, k, v)
    if isinstance(attention, SlidingWindow) or (name != "cosformer" and causal):
        assert difference == spared
    else:  # also fewer states, or fewer features of keys
        assert difference > spared


class Allocations(TorchDispatchMode):
    """The storages of at least `least` numbers that operations allocate."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.kept, self.large = least, [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(x, Tensor) and x.untyped_storage().nbytes() >= self.least * x.element_size():
                self.kept.append(x)  # so that no address is used twice
                self.large.add(x.untyped_storage().data_ptr())
        return out


def test_no_key_is_repeated_while_it_runs():
    """Of the size of repeated keys, the fused path allocates the output and nothing else."""
    attention, (q, k, v) = mechanism("window", {"window": 5}, True), heads(3000)
    with torch.no_grad(), Allocations(q.numel()) as allocations:
        out = attention(q, k, v)
    assert allocations.large - {q.untyped_storage().data_ptr()} == {out.untyped_storage().data_ptr()}
    with torch.no_grad(), Allocations(q.numel()) as repeated:
        attention(q, share_heads(k, HEADS), share_heads(v, HEADS))
    assert len(repeated.large) == len(allocations.large) + 2


def test_layouts_of_some_heads():
    near, far = Band(2, 0), Residue(3, Band(2, 0))
    by_head = ByHead((((0, 3, 4), near), ((1, 2, 5), far)))
    assert by_head.of_heads(slice(0, None, 3)) == near
    assert by_head.of_heads(slice(2, None, 3)) == far
    assert by_head.of_heads(slice(1, None, 3)) == ByHead((((1,), near), ((0,), far)))
    assert Dense().of_heads(slice(0, 1)) == Dense()
    assert far.share_keys(3) == Residue(3, near.share_keys(3)) and far.share_keys(3).shared


@pytest.mark.parametrize("name,options,causal", [form for form in FORMS if form[2]], ids=str)
def test_layers_keep_the_key_heads_only(name, options, causal):
    torch.manual_seed(0)
    layer = MultiHead(24, attention=name, heads=HEADS, kv_heads=KEY_HEADS, causal=True, **options).double()
    x, state, outputs = torch.randn(2, 20, 24, dtype=DOUBLE), layer.start(2), []
    for token in x.split(1, 1):
        out, state = layer.extend(token, state)
        outputs.append(out)
    torch.testing.assert_close(torch.cat(outputs, 1), layer(x))
    wide = MultiHead(24, attention=name, heads=HEADS, causal=True, **options).double()
    wide_state = wide.extend(x, wide.start(2))[1]
    assert state.bytes < 0.4 * wide_state.bytes
