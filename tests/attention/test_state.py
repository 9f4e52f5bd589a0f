"""A state is a value: it can be continued in many ways, and none of them disturbs another."""

from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import build
from longspan.attention.state import MINIMUM, Rows, State, append_mask


def numbered(first: int, count: int, batch: int = 2, dtype: torch.dtype = torch.float32) -> Tensor:
    """Rows that contain their number, different in each sequence: (batch, 3, count, 2)."""
    rows = torch.arange(first, first + count, dtype=dtype)[:, None].expand(count, 2)
    return (rows + 1000 * torch.arange(batch, dtype=dtype)[:, None, None, None]).expand(batch, 3, count, 2)


def filled(count: int, keep: int | None = None) -> Rows:
    rows = Rows.empty(2, keep)
    for index in range(count):
        rows = rows.append(numbered(index, 1)).trim()
    return rows


def test_appended_rows_come_oldest_first():
    rows = Rows.empty(2)
    assert len(rows) == 0
    for first, count in ((0, 1), (1, 4), (5, 2), (7, 100), (107, 1)):
        rows = rows.append(numbered(first, count))
        assert len(rows) == first + count
    assert torch.equal(rows.value, numbered(0, 108))


def test_the_first_rows_set_the_dtype():
    rows = Rows.empty(2).append(numbered(0, 3, dtype=torch.float64))
    assert rows.value.dtype == torch.float64
    assert Rows.empty(1).append(torch.ones(1, 1, 2, 1, dtype=torch.bool)).value.dtype == torch.bool


@pytest.mark.parametrize("count", [1, MINIMUM - 1, MINIMUM, MINIMUM + 1, 70])
def test_two_continuations_of_one_state(count: int):
    parent = filled(count)
    left = parent.append(numbered(5000, 2))
    right = parent.append(numbered(6000, 3))
    more = left.append(numbered(7000, 1))
    assert torch.equal(parent.value, numbered(0, count))
    assert torch.equal(left.value, torch.cat([numbered(0, count), numbered(5000, 2)], 2))
    assert torch.equal(right.value, torch.cat([numbered(0, count), numbered(6000, 3)], 2))
    assert torch.equal(more.value, torch.cat([left.value, numbered(7000, 1)], 2))
    again = parent.append(numbered(8000, 1))
    assert torch.equal(again.value[:, :, -1:], numbered(8000, 1))
    assert torch.equal(left.value[:, :, count:], numbered(5000, 2))


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, 40), st.sampled_from(["append", "select", "trim"]))),
    st.sampled_from([None, 1, 5, 40]),
)
def test_any_tree_of_continuations(steps, keep: int | None):
    """Every state ever made, against plain tensors that are copied each time."""
    states = [(Rows.empty(2, keep), numbered(0, 0))]
    first = 0
    for which, count, what in steps:
        rows, truth = states[which % len(states)]
        if what == "append":
            new = numbered(first, count)
            first += count
            states.append((rows.append(new), torch.cat([truth, new], 2)))
        elif what == "trim":
            states.append((rows.trim(), truth if keep is None else truth[:, :, max(0, truth.shape[2] - keep) :]))
        elif len(rows):
            order = torch.tensor([1, 0])
            states.append((rows.select(order), truth[order]))
    for rows, truth in states:
        assert len(rows) == truth.shape[2]
        if len(rows):
            assert torch.equal(rows.value, truth)


def test_only_the_last_rows_are_kept():
    rows = filled(50, keep=4)
    assert len(rows) == 4
    assert torch.equal(rows.value, numbered(46, 4))
    longer = rows.append(numbered(50, 3))
    assert torch.equal(longer.value, numbered(46, 7))  # all are visible until they are trimmed
    assert torch.equal(longer.trim().value, numbered(49, 4))
    assert torch.equal(rows.value, numbered(46, 4))


def test_appending_no_rows_changes_nothing():
    rows = Rows.empty(2).append(torch.zeros(2, 4, 0, 5))
    assert len(rows) == 0
    rows = rows.append(torch.ones(2, 4, 3, 5))
    assert len(rows.append(torch.zeros(2, 4, 0, 5))) == 3


def test_trimming_fewer_rows_than_are_kept_changes_nothing():
    rows = filled(3, keep=4)
    assert rows.trim() is rows
    unlimited = filled(3)
    assert unlimited.trim() is unlimited


def test_appending_to_a_trimmed_state_and_to_its_parent():
    long = filled(40, keep=5).append(numbered(40, 10))
    short = long.trim()
    a, b = short.append(numbered(900, 1)), long.append(numbered(800, 1))
    assert torch.equal(a.value, torch.cat([numbered(45, 5), numbered(900, 1)], 2))
    assert torch.equal(b.value, torch.cat([numbered(35, 15), numbered(800, 1)], 2))


@pytest.mark.parametrize("order", [[1, 0], [0, 0], [1], [1, 1, 0, 1]])
def test_select_takes_rows_of_the_batch(order: list[int]):
    rows = filled(7)
    chosen = rows.select(torch.tensor(order))
    assert torch.equal(chosen.value, numbered(0, 7)[order])
    extended = chosen.append(numbered(7, 2, batch=len(order)))
    assert torch.equal(extended.value[:, :, :7], numbered(0, 7)[order])
    assert torch.equal(rows.value, numbered(0, 7))


def buffers(steps: int, keep: int | None) -> tuple[int, int]:
    """How many buffers `steps` appends of one row go through, and the most rows that one of them has."""
    rows, seen, room = Rows.empty(1, keep), [], 0
    for _ in range(steps):
        rows = rows.append(torch.zeros(1, 1, 1, 1)).trim()
        storage = rows.value.untyped_storage()
        if not seen or seen[-1] is not rows._buffer:
            seen.append(rows._buffer)  # held, so that no address is used twice
        room = max(room, storage.nbytes() // 4)
    return len(seen), room


def test_growth_is_amortised():
    count, room = buffers(1000, None)
    assert count == 6  # 32, 66, 134, 270, 542, 1086 rows
    assert room == 1086


def test_with_a_limit_the_room_stays_and_the_copies_are_rare():
    count, room = buffers(1000, 20)
    assert room <= 2 * (20 + 1)
    assert count <= 1000 // 20 + 2


def test_rows_of_a_graph_keep_their_gradient():
    pieces = [torch.randn(2, 3, count, 2, requires_grad=True) for count in (1, 4, 2)]
    rows = Rows.empty(2)
    for piece in pieces:
        rows = rows.append(piece)
    weights = torch.randn(2, 3, 7, 2)
    (rows.value * weights).sum().backward()
    for piece, expected in zip(pieces, weights.split((1, 4, 2), 2)):
        assert torch.equal(piece.grad, expected)


def test_rows_with_and_without_gradient_mixed():
    plain, learned, last = numbered(0, 3), torch.randn(2, 3, 2, 2, requires_grad=True), numbered(9, 4)
    parent = Rows.empty(2).append(plain)
    rows = parent.append(learned).append(last)
    assert torch.equal(rows.value, torch.cat([plain, learned, last], 2))
    rows.value.sum().backward()
    assert torch.equal(learned.grad, torch.ones_like(learned))
    assert torch.equal(parent.append(numbered(50, 1)).value[:, :, 3:], numbered(50, 1))
    with torch.no_grad():
        assert torch.equal(rows.append(last).value[:, :, :5], torch.cat([plain, learned], 2))


def test_appending_after_autograd_has_read_the_rows():
    """Queries with a gradient and keys without: appending later keys must not break the backward pass."""
    weight = torch.randn(2, 3, 1, 2, requires_grad=True)
    rows = Rows.empty(2).append(numbered(0, 3))
    first = (rows.value * weight).sum()
    rows = rows.append(numbered(3, 2))
    second = (rows.value * weight).sum()
    (first + second).backward()
    expected = numbered(0, 3).sum(2, keepdim=True) + numbered(0, 5).sum(2, keepdim=True)
    torch.testing.assert_close(weight.grad, expected)


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_decoding_with_a_gradient_of_the_queries_alone(name: str):
    attention = build(name, heads=2, head_dim=4, causal=True).double()
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    whole = q.clone().requires_grad_()
    attention(whole, k, v).sum().backward()
    q.requires_grad_()
    state, outs = attention.start(1), []
    for at in range(5):
        here = slice(at, at + 1)
        out, state = attention.extend(q[:, :, here], k[:, :, here], v[:, :, here], state)
        outs.append(out)
    torch.cat(outs, 2).sum().backward()
    torch.testing.assert_close(q.grad, whole.grad)


def test_a_prompt_read_in_inference_mode_can_be_continued_outside():
    with torch.inference_mode():
        rows = Rows.empty(2).append(numbered(0, 3))
    assert torch.equal(rows.append(numbered(3, 2)).value, numbered(0, 5))


def test_the_callers_tensor_is_never_written_to():
    new = numbered(0, 3).contiguous().requires_grad_()
    rows = Rows.empty(2).append(new)
    rows.append(numbered(3, 1))
    with torch.no_grad():
        rows.append(numbered(4, 1))
    assert torch.equal(new, numbered(0, 3))


# States


@dataclass(frozen=True)
class Example(State):
    k: Rows
    total: Tensor
    seen: Rows | None
    count: int


def example() -> Example:
    return Example(filled(40), torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64), None, 40)


def test_nbytes_counts_the_remembered_numbers():
    assert example().bytes == 2 * 3 * 40 * 2 * 4 + 4 * 8  # the spare room of the buffer is not counted
    assert Example(Rows.empty(2), torch.empty(2, 0), None, 0).bytes == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_bytes_of_the_softmax_state(dtype: torch.dtype):
    attention = build("softmax", heads=2, head_dim=4, causal=True)
    state = attention.start(3)
    assert state.bytes == 0
    q = torch.randn(3, 2, 5, 4, dtype=dtype)
    _, state = attention.extend(q, q, q, state)
    assert state.bytes == 2 * (3 * 2 * 5 * 4) * dtype.itemsize
    keep = torch.ones(3, 5, dtype=torch.bool)
    _, state = attention.extend(q, q, q, state, key_mask=keep)
    assert state.bytes == 2 * (3 * 2 * 10 * 4) * dtype.itemsize + 3 * 10


def test_select_applies_to_every_field_of_a_state():
    chosen = example().select(torch.tensor([1, 1, 0]))
    assert torch.equal(chosen.k.value, numbered(0, 40)[[1, 1, 0]])
    assert chosen.total.tolist() == [[3.0, 4.0], [3.0, 4.0], [1.0, 2.0]]
    assert chosen.seen is None and chosen.count == 40


def test_a_state_within_a_state():
    @dataclass(frozen=True)
    class Outer(State):
        inner: Example
        own: Tensor

    outer = Outer(example(), torch.zeros(2, 5))
    assert outer.bytes == example().bytes + 2 * 5 * 4
    assert torch.equal(outer.select(torch.tensor([1])).inner.k.value, numbered(0, 40)[[1]])


def test_a_state_cannot_be_assigned_to():
    with pytest.raises(FrozenInstanceError):
        example().count = 3


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_extend_leaves_the_old_state_as_it_was(name: str):
    attention = build(name, heads=2, head_dim=4, causal=True)
    prompt, one, other = (torch.randn(2, 2, count, 4) for count in (9, 1, 3))
    _, state = attention.extend(prompt, prompt, prompt, attention.start(2))
    before = state.k.value.clone(), state.v.value.clone(), state.bytes
    first, longer = attention.extend(one, one, one, state)
    attention.extend(other, other, other, state)
    attention.extend(other, other, other, longer)
    assert torch.equal(state.k.value, before[0]) and torch.equal(state.v.value, before[1])
    assert state.bytes == before[2]
    assert torch.equal(attention.extend(one, one, one, state)[0], first)


# Masks


def test_no_mask_is_remembered_while_none_is_given():
    assert append_mask(None, 7, None, torch.zeros(2, 3, 4, 5)) is None


def test_tokens_before_the_first_mask_are_readable():
    new = torch.tensor([[True, False], [False, True]])
    seen = append_mask(None, 3, new, torch.zeros(2, 4, 2, 5))
    assert seen.value.shape == (2, 1, 5, 1)
    assert seen.value[:, 0, :, 0].tolist() == [[True] * 3 + [True, False], [True] * 3 + [False, True]]


def test_the_first_mask_at_the_first_step():
    seen = append_mask(None, 0, torch.tensor([[False, True]]), torch.zeros(1, 4, 2, 5))
    assert seen.value[:, 0, :, 0].tolist() == [[False, True]]


def test_tokens_without_a_mask_after_one_are_readable():
    like = torch.zeros(1, 4, 2, 5)
    seen = append_mask(None, 0, torch.tensor([[False, True]]), like)
    later = append_mask(seen, 2, None, like)
    assert later.value[0, 0, :, 0].tolist() == [False, True, True, True]
    assert seen.value[0, 0, :, 0].tolist() == [False, True]


def test_a_mask_with_a_limit_is_trimmed_as_the_keys_are():
    seen = append_mask(None, 3, torch.tensor([[False, True]]), torch.zeros(1, 4, 2, 5), keep=4)
    assert len(seen) == 5
    assert seen.trim().value[0, 0, :, 0].tolist() == [True, True, False, True]
