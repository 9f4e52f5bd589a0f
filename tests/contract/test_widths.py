"""Values wider or narrower than queries and keys: the fast path against the definition, for every mechanism."""

import copy
import dataclasses
from itertools import cycle

import pytest
import torch
from forms import SUBJECTS, identity

from longspan.attention import build, find
from longspan.attention.devices import as_other_device
from longspan.audit.counting import count_flops
from longspan.errors import InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead
from longspan.nn.rotary import Rotary

EQUAL = {"inducing", "synthesizer"}  # need equal widths
LENGTH = 37
WIDE = [subject for subject in SUBJECTS if subject.name not in EQUAL]


def with_values(subject, value_dim: int):
    """The subject with values of another width."""
    twin, old = copy.copy(subject), subject.module
    torch.manual_seed(1)
    shape = dataclasses.replace(old.shape, value_dim=value_dim)
    twin.module = type(old)(shape, old.options, causal=old.causal).to(subject.dtype).eval()
    return twin


@pytest.mark.parametrize(
    ("subject", "value_dim"),
    [*zip(WIDE, cycle((5, 12)))],
    ids=lambda x: None if isinstance(x, int) else identity(x),
)
def test_values_may_be_wider_or_narrower_than_keys(subject, value_dim: int):
    subject = with_values(subject, value_dim)
    module = subject.module
    sample = {
        name: x.requires_grad_() if x.is_floating_point() else x
        for name, x in subject.sample(2, LENGTH, seed=1).items()
    }
    leaves = [x for x in sample.values() if x.requires_grad]
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [23]]) if module.supports.key_mask else None
    out = subject.heads(sample, mask)
    assert out.shape == (2, 2, LENGTH, value_dim)
    heads = sample["q"], sample["k"], sample["v"]
    expected = module.reference(*heads, key_mask=mask, streams=subject.streams(sample))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-9)
    g = torch.randn(out.shape, dtype=out.dtype)
    found, wanted = (torch.autograd.grad(y, leaves, g, allow_unused=True) for y in (out, expected))
    for a, b in zip(found, wanted):
        if b is None:
            assert a is None or not a.any()
        else:
            torch.testing.assert_close(torch.zeros_like(b) if a is None else a, b, rtol=0, atol=1e-8)
    if not module.streams:
        assert count_flops(lambda: subject.heads(sample)) == module.cost(LENGTH, LENGTH).flops * 2
    with torch.no_grad():
        with as_other_device():
            torch.testing.assert_close(subject.heads(sample, mask), expected, rtol=0, atol=1e-9)
        if module.causal and module.supports.streaming:
            streams = subject.streams(sample) or {}
            state, parts = module.start(2, dtype=torch.float64), []
            for rows in (slice(0, 20), slice(20, 21), slice(21, LENGTH)):
                part, state = module.extend(
                    *(x[:, :, rows] for x in heads),
                    state,
                    key_mask=None if mask is None else mask[:, rows],
                    streams={n: x[:, rows] if x.dim() < 4 else x[:, :, rows] for n, x in streams.items()},
                )
                parts.append(part)
            torch.testing.assert_close(torch.cat(parts, 2), expected, rtol=0, atol=1e-9)


def test_the_widths_alternate_over_the_forms_of_a_mechanism():
    """So that both cases are tested for every mechanism with more than one form."""
    seen: dict[str, set[int]] = {}
    for subject, width in zip(WIDE, cycle((5, 12))):
        seen.setdefault(subject.name, set()).add(width)
    assert {name for name, widths in seen.items() if len(widths) == 1} == {"gated_linear"}


@pytest.mark.parametrize("name", sorted(EQUAL))
def test_mechanisms_that_need_equal_widths_say_why(name: str):
    reason = find(name).equal_widths
    with pytest.raises(Unsupported, match=f"^{name} needs values as wide as queries and keys, not 5 and 8: {reason}$"):
        build(name, heads=2, head_dim=8, value_dim=5, max_length=16)


def naive(layer: MultiHead, x: torch.Tensor, *, causal: bool, turn=lambda x: x) -> torch.Tensor:
    """Multi-head attention as Vaswani et al. write it, from the layer's weights."""
    q, k, v = (layer.project[name](x).unflatten(-1, (layer.heads[name], -1)).transpose(1, 2) for name in "qkv")
    q, k = turn(q), turn(k)
    k, v = (y.repeat_interleave(q.shape[1] // y.shape[1], 1) for y in (k, v))
    scores = q @ k.mT / k.shape[-1] ** 0.5
    if causal:
        scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).triu(1).bool(), float("-inf"))
    return layer.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize(("key_dim", "value_dim"), ((4, 8), (8, 4), (20, 6)))
def test_multihead_with_keys_of_another_width(key_dim: int, value_dim: int, causal: bool):
    torch.manual_seed(0)
    rotary = Rotary(key_dim)
    layer = MultiHead(
        24, heads=4, kv_heads=2, key_dim=key_dim, value_dim=value_dim, causal=causal, position=rotary
    ).double()
    assert {name: x.out_features for name, x in layer.project.items()} == {
        "q": 4 * key_dim,
        "k": 2 * key_dim,
        "v": 2 * value_dim,
    }
    x = torch.randn(2, 33, 24, dtype=torch.float64, requires_grad=True)
    expected, out = naive(layer, x, causal=causal, turn=rotary), layer(x)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    inputs = [x, *layer.parameters()]
    for a, b in zip(torch.autograd.grad(out.sum(), inputs), torch.autograd.grad(expected.sum(), inputs)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-11)
    if causal:
        state, parts = layer.start(2), []
        with torch.no_grad():
            for part in x.split((20, 1, 12), 1):
                y, state = layer.extend(part, state)
                parts.append(y)
        torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-12)


def test_multihead_says_each_width_once():
    assert MultiHead(24, heads=4).mechanism.shape == find("softmax")(build("softmax", heads=4, head_dim=6).shape).shape
    shape = MultiHead(24, "window", heads=4, head_dim=8, key_dim=3).mechanism.shape
    assert (shape.head_dim, shape.value_dim) == (3, 8)
    built = build("window", heads=4, head_dim=3, value_dim=8)
    layer = MultiHead(24, built)
    assert (layer.project["k"].out_features, layer.project["v"].out_features, layer.out.in_features) == (12, 32, 32)
    with pytest.raises(InvalidOption, match="key_dim: the mechanism given to MultiHead is already built"):
        MultiHead(24, built, key_dim=4)
