"""Sequences with a shared prefix cache give the same results as separate ones."""

import pytest
import torch
from torch import Tensor

from longspan.attention import build
from longspan.attention.mechanisms.softmax import SoftmaxAttention, SoftmaxState
from longspan.attention.parts.shared_prefix_cache import PATIENCE
from longspan.attention.state import Rows

HEADS, WIDTH = 4, 8


def make(score: str = "scaled_dot") -> SoftmaxAttention:
    torch.manual_seed(0)
    return build("softmax", heads=HEADS, head_dim=WIDTH, causal=True, score=score, max_length=256).double().eval()


def draw(batch: int, length: int, key_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    sizes = ((batch, heads, length, WIDTH) for heads in (HEADS, key_heads, key_heads))
    q, k, v = (torch.randn(size, dtype=torch.float64) for size in sizes)
    return q, k, v


def copied(state: SoftmaxState, rows: Tensor) -> SoftmaxState:
    """The definition of `select`: each row has separate keys, values and mask."""
    chosen = [None if part is None else part.select(rows) for part in (state.k, state.v, state.seen)]
    return SoftmaxState(*chosen)


def walk(
    mechanism: SoftmaxAttention,
    orders: list[list[int]],
    *,
    key_heads: int = HEADS,
    mask: Tensor | None = None,
    new: int = 1,
) -> tuple[SoftmaxState, SoftmaxState]:
    """Reads a prompt for two sentences, then applies `orders`; shared and copied states must agree at every step."""
    q, k, v = draw(2, 5, key_heads)
    _, ours = mechanism.extend(q, k, v, mechanism.start(2), key_mask=mask)
    plain = ours
    for order in orders:
        rows = torch.tensor(order)
        ours, plain = ours.select(rows), copied(plain, rows)
        token = draw(len(order), new, key_heads)
        out, ours = mechanism.extend(*token, ours)
        expected, plain = mechanism.extend(*token, plain)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    return ours, plain


FORK = [0, 0, 0, 1, 1, 1]
ORDERS = {
    "beams": [FORK, [0, 0, 2, 4, 3, 5], [1, 1, 1, 5, 5, 3], [2, 1, 0, 3, 4, 5]],
    "a sentence is through": [FORK, [1, 2, 1, 3, 3, 4], [5, 3, 3], [0, 0, 1]],
    "sentences change places": [FORK, [3, 4, 4, 0, 1, 1]],
    "another size": [FORK, [0, 2, 3, 5], [0, 0, 1, 1, 2, 2, 3, 3]],
    "no families any more": [FORK, [0, 0, 1, 2, 3, 5], [0, 3, 4, 5], [1, 1, 2, 3]],
    "none from the start": [[0, 1, 1], [0, 2, 1]],
}


@pytest.mark.parametrize("orders", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("key_heads", [HEADS, 2, 1])
@pytest.mark.parametrize("padded", [False, True])
def test_every_reordering_equals_copied_states(orders: list[list[int]], key_heads: int, padded: bool):
    mask = torch.tensor([[False, False, True, True, True], [True] * 5]) if padded else None
    walk(make(), orders, key_heads=key_heads, mask=mask)


@pytest.mark.parametrize("score", ["dot", "general", "additive", "location", "cosine"])
def test_every_score(score: str):
    walk(make(score), ORDERS["beams"])


def test_several_tokens_at_once():
    walk(make(), ORDERS["beams"], new=3)


def test_unread_keys_are_dropped():
    torch.manual_seed(0)
    orders = [FORK, *([[0, 0, 1, 3, 3, 4], [1, 0, 0, 4, 3, 3]] * PATIENCE)]
    ours, plain = walk(make(), orders)
    assert ours.family is not None and len(ours.k) < 5 * PATIENCE  # of 3 at each of 2 · PATIENCE steps
    assert ours.bytes < plain.bytes


def test_reordering_members_copies_nothing():
    mechanism = make()
    _, state = mechanism.extend(*draw(2, 5), mechanism.start(2))
    forked = state.select(torch.tensor(FORK))
    assert forked.k is state.k and forked.v is state.v
    _, after = mechanism.extend(*draw(6, 1), forked)
    turned = after.select(torch.tensor([2, 2, 0, 3, 4, 5]))
    assert turned.k is after.k and turned.v is after.v


def test_an_old_state_stays_valid():
    mechanism = make()
    _, state = mechanism.extend(*draw(2, 5), mechanism.start(2))
    forked = state.select(torch.tensor(FORK))
    first, second = draw(6, 1), draw(6, 1)
    expected, _ = mechanism.extend(*first, forked)
    mechanism.extend(*second, forked.select(torch.tensor([1, 1, 1, 3, 3, 3])))
    mechanism.extend(*draw(2, 1), state)
    torch.testing.assert_close(mechanism.extend(*first, forked)[0], expected, rtol=0, atol=0)


def test_a_mask_after_the_fork():
    mechanism = make()
    _, state = mechanism.extend(*draw(2, 5), mechanism.start(2))
    rows = torch.tensor(FORK)
    token, mask = draw(6, 2), torch.tensor([[True, False]]).expand(6, 2)
    out, _ = mechanism.extend(*token, state.select(rows), key_mask=mask)
    expected, _ = mechanism.extend(*token, copied(state, rows), key_mask=mask)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)


def test_a_bias_disables_sharing():
    mechanism = make()
    bias = torch.randn(HEADS, 2 * 20 - 1, dtype=torch.float64)
    _, state = mechanism.extend(*draw(2, 5), mechanism.start(2), bias=bias)
    plain, rows = state, torch.tensor(FORK)
    for _ in range(3):
        token = draw(6, 1)
        state, plain = state.select(rows), copied(plain, rows)
        assert state.family is None
        out, state = mechanism.extend(*token, state, bias=bias)
        expected, plain = mechanism.extend(*token, plain, bias=bias)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
        rows = torch.tensor([1, 0, 0, 3, 3, 5])


def test_half_precision_has_a_finite_mask():
    mechanism = make().bfloat16()
    q, k, v = (part.bfloat16() for part in draw(1, 3))
    _, state = mechanism.extend(q, k, v, mechanism.start(1), key_mask=torch.tensor([[False, True, True]]))
    token = tuple(part.bfloat16() for part in draw(2, 1))
    out, _ = mechanism.extend(*token, state.select(torch.tensor([0, 0])))
    assert out.isfinite().all()


def test_rows_of_each_batch_row_can_be_gathered():
    rows = Rows.empty(2).append(torch.arange(12.0).view(2, 1, 6, 1))
    found = rows.gather(torch.tensor([[0, 5], [1, 2]])).value.flatten(1)
    assert found.tolist() == [[0.0, 5.0], [7.0, 8.0]]


@pytest.mark.parametrize("padded", [False, True])
def test_many_members_with_few_shared_keys_go_apart_and_keep_their_own_keys_only(padded: bool) -> None:
    """64 samples of a prompt of 5 tokens would compare each with the keys of all others."""
    mask = torch.tensor([[False, False, True, True, True], [True] * 5]) if padded else None
    many = [row for row in (0, 1) for _ in range(64)]
    ours, _ = walk(make(), [many, *[list(range(128))] * 4], mask=mask)
    assert ours.family is None
    assert ours.k.batch == 128 and len(ours.k) == 5 + 5
    assert (ours.seen is None) != padded


def test_few_members_stay_together() -> None:
    ours, _ = walk(make(), [FORK, *[list(range(6))] * 40])
    assert ours.family is not None and not ours.family.crowded
