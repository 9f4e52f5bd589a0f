"""Heads for tasks: shapes, pooling of padded texts, ties, and what is refused."""

import pytest
import torch
from torch import nn

from longspan import config
from longspan.errors import InvalidOption
from longspan.models import build
from longspan.nn.heads import Head, Masked, PerText, PerToken, build_head, pool

WIDTH, VOCABULARY = 8, 13


def make(head: Head) -> Masked | PerText | PerToken:
    torch.manual_seed(0)
    return build_head(head, WIDTH, vocabulary=VOCABULARY, table_width=WIDTH, norm="layer", eps=1e-12).eval()


def states(batch: int = 3, length: int = 5) -> torch.Tensor:
    return torch.randn(batch, length, WIDTH, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    "head,shape",
    [
        (Head(task="pool", activation="tanh"), (3, WIDTH)),
        (Head(task="pair", labels=7, activation="tanh"), (3, 2)),
        (Head(task="classify", labels=4), (3, 4)),
        (Head(task="regress", labels=1), (3, 1)),
        (Head(task="choose", activation="tanh"), (3,)),
        (Head(task="tag", labels=6), (3, 5, 6)),
        (Head(task="span", labels=6), (3, 5, 2)),
        (Head(task="detect", activation="gelu"), (3, 5)),
        (Head(task="span", activation="gelu", hidden=12), (3, 5, 2)),
    ],
    ids=lambda value: value.task if isinstance(value, Head) else None,
)
def test_each_task_has_its_shape(head: Head, shape: tuple[int, ...]) -> None:
    module = make(head)
    assert not isinstance(module, Masked)
    assert module(states()).shape == shape


def test_pooling_reads_real_tokens_alone_on_either_side() -> None:
    x = states()
    right = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [1, 0, 0, 0, 0]], dtype=torch.bool)
    left = right.flip(1)
    assert torch.equal(pool(x, right, "first"), x[:, 0])
    assert torch.equal(pool(x, right, "last"), x[torch.arange(3), torch.tensor([4, 1, 0])])
    assert torch.equal(pool(x, left, "first"), x[torch.arange(3), torch.tensor([0, 3, 4])])
    assert torch.equal(pool(x, left, "last"), x[:, -1])
    torch.testing.assert_close(pool(x, right, "mean")[1], x[1, :2].mean(0))
    torch.testing.assert_close(pool(x, left, "mean")[1], x[1, 3:].mean(0))
    for how in ("first", "last", "mean"):
        torch.testing.assert_close(pool(x, None, how), pool(x, torch.ones(3, 5, dtype=torch.bool), how))


def test_a_text_without_tokens_pools_to_zeros() -> None:
    assert not pool(states(), torch.zeros(3, 5, dtype=torch.bool), "mean").any()


def test_masked_is_layer_norm_and_table() -> None:
    """Devlin et al. 2019 as released: norm(gelu(dense(x))) · tableᵀ + bias."""
    head, x, table = make(Head(task="masked", activation="gelu")), states(), torch.randn(VOCABULARY, WIDTH)
    assert isinstance(head, Masked) and head.dense is not None and head.bias is not None
    nn.init.normal_(head.bias)
    inner = nn.functional.layer_norm(nn.functional.gelu(head.dense(x)), (WIDTH,), eps=1e-12)
    torch.testing.assert_close(head(x, table), inner @ table.T + head.bias)
    chosen = torch.tensor([[0, 2], [1, 4]])
    torch.testing.assert_close(head(x[chosen[:, 0], chosen[:, 1]], table), head(x, table)[chosen[:, 0], chosen[:, 1]])


def test_an_untied_head_has_its_own_table() -> None:
    tied, own = make(Head(task="masked", activation="gelu")), make(Head(task="masked", activation="gelu", tied=False))
    sizes = [sum(parameter.numel() for parameter in head.parameters()) for head in (tied, own)]
    assert sizes[1] - sizes[0] == VOCABULARY * WIDTH
    assert torch.equal(own(states(), torch.zeros(VOCABULARY, WIDTH)), own(states(), torch.ones(VOCABULARY, WIDTH)))


def test_heads_are_read_from_configuration_files() -> None:
    assert Head.read("masked") == Head(task="masked")
    assert Head.read({"task": "tag", "labels": 5}) == Head(task="tag", labels=5)
    model = build("encoder", width=16, layers=1, heads=2, hidden=16, tasks=["pool", {"task": "tag", "labels": 5}])
    assert list(model.heads) == ["pool", "tag"]
    assert config.plain(model.options)["tasks"][1]["labels"] == 5


@pytest.mark.parametrize(
    "tasks,said",
    [
        ("clasify", "clasify"),
        ([3], "a head is the name of a task"),
        (["pool", "pool"], "each task has one head"),
        ({"task": "tag", "label": 2}, "label"),
    ],
)
def test_invalid_heads_are_refused(tasks: object, said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        build("encoder", width=16, layers=1, heads=2, hidden=16, tasks=tasks)


def test_gradients_reach_body_and_head() -> None:
    model = build("encoder", width=16, layers=1, heads=2, hidden=16, dropout=0.0, tasks=["masked"])
    out = model.outputs(torch.tensor([[1, 2, 3]]))["masked"]
    out.square().sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_a_head_with_a_feed_forward_layer_keeps_its_input() -> None:
    head = make(Head(task="tag", labels=2, activation="relu", hidden=12))
    assert isinstance(head, PerToken) and head.dense is None and head.feedforward is not None
    x = states()
    inner = torch.relu(head.feedforward.inner(x))
    expected = head.out(nn.functional.layer_norm(x + head.feedforward.outer(inner), (WIDTH,), eps=1e-12))
    torch.testing.assert_close(head(x), expected)
