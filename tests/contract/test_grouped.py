"""Fewer key heads than query heads, for every mechanism that claims it: right, streamed, counted, never repeated.

Each form of the audit is built once more with groups of three query heads. Its definition repeats keys and values, so
the checks of the contract compare the fast path with the repeated form.
"""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from longspan.attention import registry
from longspan.attention.base import Attention, share_heads
from longspan.audit.counting import count_flops, count_kept
from longspan.audit.subjects import MechanismSubject, cut
from longspan.audit.targets import resolve
from longspan.errors import Unsupported
from longspan.nn.multihead import MultiHead

HEADS, KEY_HEADS, LENGTH = 6, 2, 70  # of the repeated keys: longer than the chunks of 64
FORMS = [subject for name in registry.names() for subject in resolve(name) if isinstance(subject, MechanismSubject)]
# A factor on the keys belongs to each query head (a decay, a feature map), so sums of keys do too.
SUMS_OF_QUERY_HEADS = ("retention", "hedgehog", "window_linear")


def built(subject: MechanismSubject, heads: int, key_heads: int) -> Attention:
    """The same mechanism for other heads, with weights that are not those of the start."""
    old = subject.module
    torch.manual_seed(0)
    shape = replace(old.shape, heads=heads, key_heads=key_heads)
    options = replace(old.options, **per_head) if (per_head := _per_head(old, heads)) else old.options
    new = type(old)(shape, options, causal=old.causal)
    for parameter in new.parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return new.double().eval()


def _per_head(mechanism: Attention, heads: int) -> dict[str, Any]:
    """Options with a number for each head, such as dilations, repeated to as many heads."""
    names = [name for name in ("dilation", "decay") if isinstance(getattr(mechanism.options, name, None), tuple)]
    return {name: (getattr(mechanism.options, name) * heads)[:heads] for name in names}


def identity(subject: MechanismSubject) -> str:
    return f"{subject.name}-{subject.form.replace(', ', '-')}"


GROUPED = [
    MechanismSubject(built(subject, HEADS, KEY_HEADS), form=subject.form)
    for subject in FORMS
    if type(subject.module).supports.grouped
]
STREAMING = [subject for subject in GROUPED if subject.claims.streaming]


class Repetitions(TorchDispatchMode):
    """The operations that make a tensor of `repeated` numbers in their order, which views of fewer do not."""

    def __init__(self, repeated: list[Tensor]) -> None:
        super().__init__()
        self.repeated, self.found = repeated, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or leaf.dim() < 3:
                continue
            if leaf.untyped_storage().nbytes() < leaf.numel() * leaf.element_size():
                continue  # expanded
            for tensor in self.repeated:
                if leaf.numel() == tensor.numel() and torch.equal(leaf.reshape(-1), tensor.reshape(-1)):
                    self.found.add(str(func))
        return out


@pytest.mark.parametrize("subject", GROUPED, ids=identity)
def test_outputs_and_gradients_are_those_of_repeated_keys_that_are_never_made(subject: MechanismSubject) -> None:
    assert subject.module.supports.grouped
    sample = subject.sample(2, LENGTH, seed=0)
    mask = torch.ones(2, LENGTH, dtype=torch.bool) if subject.claims.padding else None
    if mask is not None:
        mask[0, -9:] = False
    rows = [share_heads(sample[name], HEADS) for name in ("k", "v")]
    with Repetitions([form for x in rows for form in (x, x.transpose(1, 2), x.mT)]) as seen:
        leaves, out = subject.differentiable(sample, mask)
        slope = torch.randn(out.shape, generator=torch.Generator().manual_seed(1), dtype=out.dtype)
        weights = {name: weight for name, weight in subject.module.named_parameters() if weight.requires_grad}
        named = {**leaves, **weights}
        ours = torch.autograd.grad(out, list(named.values()), slope, allow_unused=True, materialize_grads=True)
    assert not seen.found
    streams = subject.streams({**sample, **leaves})
    defined = subject.module.reference(*(leaves[name] for name in "qkv"), key_mask=mask, streams=streams)
    defined = defined.transpose(1, 2).flatten(2)
    torch.testing.assert_close(out, defined, rtol=1e-10, atol=1e-10)
    theirs = torch.autograd.grad(defined, list(named.values()), slope, allow_unused=True, materialize_grads=True)
    for name, a, b in zip(named, ours, theirs):
        worst = float((a - b).abs().max())
        assert worst <= 1e-10 * (1 + float(b.abs().max())), name


@pytest.mark.parametrize("subject", GROUPED, ids=identity)
def test_the_declared_cost_is_what_is_counted(subject: MechanismSubject) -> None:
    single = subject.cast(torch.float32)
    masks = {stream.name for stream in subject.module.streams if stream.kind == "mask"}  # cost is without masks
    sample = {name: x for name, x in single.sample(1, LENGTH, seed=0).items() if name not in masks}
    leaves = {name: x.clone().requires_grad_() if x.is_floating_point() else x for name, x in sample.items()}
    known = [*leaves.values(), *single.module.parameters(), *single.module.buffers()]
    counted = count_flops(lambda: single.heads(leaves)), count_kept(lambda: single.heads(leaves), known)
    assert counted == single.module.cost(LENGTH, LENGTH)


def test_repetitions_are_found() -> None:
    x = torch.randn(2, KEY_HEADS, 5, 3)
    with Repetitions([share_heads(x, HEADS)]) as seen:
        x[:, :, None].expand(-1, -1, 3, -1, -1)
        assert not seen.found
        share_heads(x, HEADS)
    assert seen.found


def state_after(mechanism: Attention, subject: MechanismSubject, length: int) -> Any:
    view = MechanismSubject(mechanism, form=subject.form)
    with torch.no_grad():
        return view.extend(view.sample(2, length, seed=0), view.start(2))[1]


@pytest.mark.parametrize("subject", STREAMING, ids=identity)
def test_the_state_is_that_of_the_key_heads(subject: MechanismSubject) -> None:
    """Chunks give what the whole gives, and a state as large as that of a mechanism with no more heads than keys."""
    sample, outs, state, begin = subject.sample(2, 50, seed=0), [], subject.start(2), 0
    with torch.no_grad():
        for end in (1, 8, 9, 10, 27, 50):
            out, state = subject.extend(cut(sample, begin, end), state)
            outs.append(out)
            begin = end
        torch.testing.assert_close(torch.cat(outs, 1), subject.run(sample), rtol=1e-10, atol=1e-10)
    small = built(subject, KEY_HEADS, KEY_HEADS)
    ours, smaller = (state_after(module, subject, 50) for module in (subject.module, small))
    whole = state_after(built(subject, HEADS, HEADS), subject, 50)
    if subject.name == "softmax" and subject.module.options.score in ("additive", "location"):
        # Keys are transformed, or replaced by a table, for each query head.
        assert ours.v.value.shape[1] == KEY_HEADS and ours.bytes < whole.bytes
    elif subject.name in SUMS_OF_QUERY_HEADS:
        keys = {name: getattr(ours, name, None) for name in ("k", "v")}
        assert all(rows is None or rows.value.shape[1] == KEY_HEADS for rows in keys.values())
        assert ours.sums.shape[1] == HEADS and ours.bytes <= whole.bytes
    elif subject.name == "sparse" and subject.module.options.pattern == "fixed":
        # The heads of a group keep different columns of a block: numbers of one head, but no number twice.
        assert ours.bytes < whole.bytes
    else:
        assert ours.bytes == smaller.bytes < whole.bytes


REFUSED = [name for name in registry.names() if not registry.find(name).supports.grouped]


def test_every_other_mechanism_says_why() -> None:
    assert REFUSED == ["reformer", "routing", "synthesizer"]
    assert all(registry.find(name).one_head_each for name in REFUSED)


@pytest.mark.parametrize("name", ["reformer", "synthesizer"])
def test_layers_without_separate_keys_refuse_fewer(name: str) -> None:
    reason = registry.find(name).one_head_each
    with pytest.raises(Unsupported, match=f"{name} needs kv_heads=4, one for each query head: {reason}"):
        MultiHead(16, name, heads=4, kv_heads=2, max_length=16)


def test_layers_repeat_the_keys_of_mechanisms_that_cannot_share_them() -> None:
    torch.manual_seed(0)
    layer = MultiHead(16, "routing", heads=4, kv_heads=2, clusters=2, window=4).double().eval()
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    whole = MultiHead(16, layer.mechanism, kv_heads=4).double().eval()
    state = layer.state_dict()
    for like in "kv":
        for leaf in ("weight", "bias"):
            name = f"project.{like}.{leaf}"
            state[name] = state[name].unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    whole.load_state_dict(state)
    torch.testing.assert_close(layer(x), whole(x))


@pytest.mark.parametrize("subject", GROUPED, ids=identity)
def test_layers_give_the_keys_as_they_are(subject: MechanismSubject) -> None:
    shape = subject.module.shape
    layer = MultiHead(shape.heads * shape.head_dim, subject.module).double()
    assert [layer.heads[name] for name in "qkv"] == [HEADS, KEY_HEADS, KEY_HEADS]
    seen: list[int] = []
    handle = subject.module.register_forward_pre_hook(lambda _, given: seen.extend(x.shape[1] for x in given[1:3]))
    ids = {
        stream.name: torch.zeros(1, 12, dtype=torch.long) for stream in subject.module.streams if stream.kind == "ids"
    }
    layer(torch.randn(1, 12, layer.width, dtype=torch.float64), streams=ids)
    handle.remove()
    assert seen == [KEY_HEADS, KEY_HEADS]
