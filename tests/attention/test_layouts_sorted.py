"""Sorted rounds: plain and fused results equal a dense softmax over the pairs of the rounds."""

from collections.abc import Callable
from dataclasses import fields, replace

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.attention.kernels.multi_source_softmax import KeySource, _plain, joint
from longspan.attention.layouts import Sorted
from longspan.attention.layouts import sorted as sorted_module
from longspan.attention.layouts import sorted_whole as whole_module
from longspan.audit.counting import LargestTensor, count_flops

BATCH, HEADS, WIDTH, SCALE = 2, 2, 4, 0.7


def arrange(length: int, rounds: int, chunk: int, **given) -> Sorted:
    """Chunks over the sorted order of random buckets; some tokens are in none, some read themselves."""
    generator = torch.Generator().manual_seed(length + 7 * rounds)
    bucket = torch.randint(0, 3, (BATCH, HEADS, rounds, length), generator=generator)
    order = (bucket * length + torch.arange(length)).argsort(dim=-1)
    place = torch.empty_like(order).scatter_(-1, order, torch.arange(length).expand_as(order))
    slot = bucket * (length + 2) + place // chunk + 1
    slot = slot.masked_fill(torch.rand(BATCH, 1, 1, length, generator=generator) < 0.1, -1)
    own = (torch.rand(BATCH, HEADS, length, generator=generator) < 0.3) & (slot[:, :, 0] >= 0)
    return Sorted(order, slot, own, **{"block": chunk, "back": chunk, **given})


def counts(layout: Sorted, keep: Tensor | None = None) -> Tensor:
    """How many rounds show each pair, (batch, heads, length, length), word for word from the docstring."""
    length = layout.order.shape[-1]
    found = torch.zeros(BATCH, HEADS, length, length)
    for row in range(BATCH):
        for head in range(HEADS):
            for slots in layout.slot[row, head].tolist():
                for i in range(length):
                    for j in range(length):
                        if i == j:
                            read = bool(layout.reads_self[row, head, i])
                        else:
                            step = slots[i] - slots[j]
                            read = step == 0 or (layout.before and step == 1)
                            read = read and slots[i] >= 0 and slots[j] >= 0 and (j < i or not layout.causal)
                        if keep is not None:
                            read = read and bool(keep[row, i]) and bool(keep[row, j])
                        found[row, head, i, j] += read
    return found.clamp_max(1) if layout.once else found


def dense(layout: Sorted, keep: Tensor | None = None) -> Callable[..., Tensor]:
    count = counts(layout, keep)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        weights = (torch.einsum("bhid,bhjd->bhij", q, k) * SCALE).exp() * count
        return weights / weights.sum(-1, keepdim=True).clamp_min(1e-300) @ v

    return run


def plain(layout: Sorted, keep: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda q, k, v: _plain(q, [KeySource(layout, k, v, keep)], SCALE, 0.0)


def fused(layout: Sorted, keep: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda q, k, v: joint(q, [KeySource(layout, k, v, keep)], scale=SCALE)


def blocks(layout: Sorted, keep: Tensor | None = None) -> Callable[..., Tensor]:
    """The fused path of long texts."""
    long = _Long(*(getattr(layout, field.name) for field in fields(layout)))
    return fused(long, keep)


class _Long(Sorted):
    def _whole(self, queries: int) -> bool:
        return False


def make(length: int) -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64) for _ in range(3)]


CASES = [
    (1, 1, 4, {}),
    (3, 2, 4, {}),
    (24, 3, 4, {}),
    (25, 3, 4, {"causal": True}),
    (25, 2, 5, {"once": False}),
    (31, 2, 4, {"block": 12}),  # several chunks in a block
    (31, 2, 4, {"block": 8, "back": 20, "causal": True}),  # more in front than one block
    (20, 2, 4, {"block": 8, "back": 20, "causal": True}),  # the same, and fewer blocks than heads
    (17, 2, 4, {"before": False}),
    (17, 3, 4, {"before": False, "once": False, "causal": True}),
    (70, 3, 4, {}),  # more pairs than blocks show
    (70, 2, 4, {"causal": True}),
]


@pytest.mark.parametrize("way", [plain, fused, blocks])
@pytest.mark.parametrize(("length", "rounds", "chunk", "given"), CASES, ids=str)
def test_plain_and_fused_are_a_dense_softmax(agree, way, length: int, rounds: int, chunk: int, given: dict):
    layout = arrange(length, rounds, chunk, **given)
    agree(dense(layout), way(layout), *make(length))


@pytest.mark.parametrize("way", [plain, fused, blocks])
@pytest.mark.parametrize("causal", [False, True])
def test_masked_keys(agree, way, causal: bool):
    layout = arrange(26, 3, 4, causal=causal)
    keep = torch.rand(BATCH, 26) < 0.7
    keep[1] = False
    agree(dense(layout, keep), way(layout, keep), *make(26))


@pytest.mark.parametrize("piece", [1, 1 << 30])
def test_heads_one_by_one_or_all_together(agree, monkeypatch, piece: int):
    monkeypatch.setattr(sorted_module, "PIECE", piece)
    monkeypatch.setattr(whole_module, "PIECE", piece)
    layout = arrange(25, 3, 4)
    for way in (fused, blocks):
        agree(dense(layout), way(layout), *make(25))


@pytest.mark.parametrize("way", [fused, blocks])
def test_more_sequences_take_no_more_calls(way):
    """Short texts are not processed one by one: the number of calls does not grow with the batch."""
    layout = arrange(12, 3, 4)
    again = replace(layout, **{name: getattr(layout, name).repeat(4, 1, *[1] * rest) for name, rest in PARTS.items()})
    calls = []
    for each, batch in ((layout, BATCH), (again, 4 * BATCH)):
        leaves = [torch.randn(batch, HEADS, 12, WIDTH, requires_grad=True) for _ in range(3)]
        with Calls() as seen:
            torch.autograd.grad(way(each)(*leaves).sum(), leaves)
        calls.append(seen.count)
    assert calls[0] == calls[1]


PARTS = {"order": 2, "slot": 2, "reads_self": 1}  # how many sizes follow batch and heads


class Calls(TorchDispatchMode):
    """The number of torch operators that are called."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_slots_past_16_bits(agree):
    layout = arrange(20, 2, 4)
    far = Sorted(layout.order, torch.where(layout.slot < 0, -1, layout.slot + (1 << 20)), layout.reads_self, 4, 4)
    agree(fused(layout), fused(far), *make(20))


@pytest.mark.parametrize(("length", "rounds", "chunk", "given"), CASES, ids=str)
def test_the_declared_cost_equals_the_counted_one(length: int, rounds: int, chunk: int, given: dict):
    layout, tensors = arrange(length, rounds, chunk, **given), make(length)
    pairs = layout.pairs(HEADS, length, length)
    assert count_flops(lambda: fused(layout)(*tensors)) == BATCH * 4 * WIDTH * pairs
    assert layout.scores(*tensors[:2], None, None, SCALE).shape[-1] == layout.width(length)


def test_no_large_tensor():
    length = 2048
    layout = arrange(length, 2, 16, causal=True)
    leaves = [x.requires_grad_() for x in make(length)]
    with LargestTensor() as seen:
        torch.autograd.grad(fused(layout)(*leaves).sum(), leaves)
    assert seen.elements < length * length // 8
