"""Routed groups of queries: plain and fused results equal a dense masked softmax."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longspan.attention.kernels.multi_source_softmax import KeySource, _plain, joint
from longspan.attention.layouts import Dense, Routed
from longspan.attention.layouts import routed as routed_module
from longspan.audit.counting import count_flops

BATCH, HEADS, WIDTH, SCALE = 2, 2, 4, 0.7


def make(queries: int, keys: int) -> list[Tensor]:
    return [torch.randn(BATCH, HEADS, length, WIDTH, dtype=torch.float64) for length in (queries, keys, keys)]


def arrange(queries: int, keys: int, groups: int, width: int, kind: str = "random") -> Routed:
    generator = torch.Generator().manual_seed(queries + groups)
    group = torch.randint(-1, groups, (BATCH, HEADS, queries), generator=generator)
    if kind == "one":
        group = torch.full_like(group, groups - 1)
    elif kind == "none":
        group = torch.full_like(group, -1)
    lists = torch.rand(BATCH, HEADS, groups, keys, generator=generator).argsort(dim=-1)[..., :width]
    if width > keys:
        lists = torch.nn.functional.pad(lists, (0, width - keys), value=-1)
    lists = lists.masked_fill(torch.rand(lists.shape, generator=generator) < 0.3, -1)
    return Routed(group, lists)


def pattern(layout: Routed, keys: int, keep: Tensor | None = None) -> Tensor:
    """(batch, heads, queries, keys), word for word."""
    queries = layout.group.shape[2]
    found = torch.zeros(BATCH, HEADS, queries, keys, dtype=torch.bool)
    for row in range(BATCH):
        for head in range(HEADS):
            for i, group in enumerate(layout.group[row, head].tolist()):
                for j in layout.lists[row, head, group].tolist() if group >= 0 else []:
                    if j >= 0 and (keep is None or keep[row, j]):
                        found[row, head, i, j] = True
    return found


def plain(layout: Routed, keep: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda q, k, v: _plain(q, [KeySource(layout, k, v, keep)], SCALE, 0.0)


def fused(layout: Routed, keep: Tensor | None = None) -> Callable[..., Tensor]:
    return lambda q, k, v: joint(q, [KeySource(layout, k, v, keep)], scale=SCALE)


CASES = [
    (1, 1, 1, 1, "random"),
    (7, 9, 3, 4, "random"),
    (70, 40, 3, 8, "random"),
    (100, 30, 5, 6, "one"),  # one group takes all: as many tiles as there can be
    (64, 30, 4, 6, "none"),
    (40, 5, 2, 9, "random"),  # lists longer than the keys
]


@pytest.mark.parametrize("way", [plain, fused])
@pytest.mark.parametrize(("queries", "keys", "groups", "width", "kind"), CASES, ids=str)
def test_plain_and_fused_are_a_dense_softmax(dense, agree, way, queries, keys, groups, width, kind):
    layout = arrange(queries, keys, groups, width, kind)
    keep = pattern(layout, keys)
    agree(lambda q, k, v: dense(q, k, v, keep, SCALE), way(layout), *make(queries, keys))


@pytest.mark.parametrize("way", [plain, fused])
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_masked_keys(dense, agree, monkeypatch, way, piece: int):
    monkeypatch.setattr(routed_module, "PIECE", piece)
    layout = arrange(70, 40, 3, 8)
    mask = torch.rand(BATCH, 40) < 0.6
    mask[1] = False
    keep = pattern(layout, 40, mask)
    agree(lambda q, k, v: dense(q, k, v, keep, SCALE), way(layout, mask), *make(70, 40))


def test_with_another_source_and_large_scores():
    """Rows that stay empty in a tile must not spoil the gradients of its keys."""
    layout = arrange(70, 40, 3, 8)
    q, k, v = (40 * x for x in make(70, 40))
    leaves = [x.float().requires_grad_() for x in (q, k, v)]
    sources = [KeySource(layout, leaves[1], leaves[2]), KeySource(Dense(), leaves[1], leaves[2])]
    out = joint(leaves[0], sources, scale=1.0)
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize(("queries", "keys", "groups", "width", "kind"), CASES, ids=str)
def test_the_declared_cost_equals_the_counted_one(queries, keys, groups, width, kind):
    layout, tensors = arrange(queries, keys, groups, width, kind), make(queries, keys)
    pairs = layout.pairs(HEADS, queries, keys)
    assert count_flops(lambda: fused(layout)(*tensors)) == BATCH * 4 * WIDTH * pairs
    assert layout.scores(*tensors[:2], None, None, SCALE).shape[-1] == layout.width(keys)
