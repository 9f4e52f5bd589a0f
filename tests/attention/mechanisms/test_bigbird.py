"""Big Bird against its literal union of blocks, and what the tables must be."""

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Attention, build
from longspan.attention.base import Shape
from longspan.attention.mechanisms.bigbird import BigBirdAttention
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64


def make(**options) -> BigBirdAttention:
    built = build("bigbird", **{"heads": HEADS, "head_dim": WIDTH, "block": 4, **options})
    assert isinstance(built, BigBirdAttention)
    return built


def qkv(length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype) for _ in range(3)]


def last_of(length: int, block: int = 4) -> Tensor:
    return torch.tensor([(length - 1) // block])


def drawn(attention: BigBirdAttention, length: int) -> list[list[list[int]]]:
    """The random blocks of each head and row block."""
    last = last_of(length, attention.options.block)
    fixed = attention._fixed_blocks(last, int(last) + 1)
    return [[[b for b in row if b >= 0] for row in head] for head in attention._random_blocks(fixed, last)[0].tolist()]


def literal(attention: BigBirdAttention, length: int) -> Tensor:
    """(heads, length, length) by loops over queries and keys; only the random blocks come from the module."""
    block, around, final = (
        attention.options.block,
        attention.options.window // 2,
        (length - 1) // attention.options.block,
    )
    random = drawn(attention, length)
    keep = torch.zeros(HEADS, length, length, dtype=torch.bool)
    for head in range(HEADS):
        for i in range(length):
            for j in range(length):
                row, key = i // block, j // block
                keep[head, i, j] = (
                    abs(row - key) <= around or {row, key} & {0, final} != set() or key in random[head][row]
                )
    return keep


@pytest.mark.parametrize("length", [1, 4, 7, 17, 40, 45])
@pytest.mark.parametrize(
    "options", [{"random": 2}, {"random": 0}, {"random": 1, "window": 5}, {"window": 1}, {"plan": "released"}], ids=str
)
def test_equals_the_literal_union(dense, agree, options: dict, length: int):
    attention = make(**options)
    keep, tensors = literal(attention, length), qkv(length)
    agree(lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5), attention, *tensors)
    weights = attention.oracle(*tensors[:2])
    assert torch.equal(weights > 0, keep.expand_as(weights))
    torch.testing.assert_close(attention.weights(*tensors[:2]), weights, atol=1e-12, rtol=0)


@pytest.mark.parametrize("length", [1, 5, 6, 17, 40])
@pytest.mark.parametrize("random", [0, 2])
def test_the_etc_form_equals_its_literal_union(dense, agree, random: int, length: int):
    """The first 5 positions read and are read by all; the others are in blocks that begin after them."""
    attention, globals_ = make(form="etc", global_tokens=5, random=random), 5
    keep = torch.ones(HEADS, length, length, dtype=torch.bool)
    if length > globals_:
        rest = drawn(attention, length - globals_)
        for head in range(HEADS):
            for i in range(globals_, length):
                for j in range(globals_, length):
                    row, key = (i - globals_) // 4, (j - globals_) // 4
                    keep[head, i, j] = abs(row - key) <= 1 or key in rest[head][row]
    agree(lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5), attention, *qkv(length))


def test_the_etc_form_has_no_random_blocks_by_default():
    assert make(form="etc").random == 0 and make().random == 3 and make(form="etc", random=2).random == 2


# The tables


@given(
    count=st.integers(1, 30),
    random=st.integers(0, 6),
    window=st.sampled_from([1, 3, 5]),
    form=st.sampled_from(["itc", "etc"]),
    plan=st.sampled_from(["uniform", "released"]),
)
def test_every_block_is_read_at_most_once_and_in_the_right_number(
    count: int, random: int, window: int, form: str, plan: str
):
    attention = make(random=random, window=window, form=form, plan=plan)
    last = torch.tensor([count - 1])
    table = attention._table(last, 4 * count)[0].tolist()
    for head in range(HEADS):
        for row in range(count):
            blocks = [block for block in table[head][row] if block >= 0]
            assert len(blocks) == len(set(blocks)) and all(block < count for block in blocks)
            ends = {0, count - 1} if form == "itc" else set()
            if row in ends:
                assert not blocks  # answered apart, by everything
                continue
            around = set(range(max(0, row - window // 2), min(count, row + window // 2 + 1))) | ends
            assert around <= set(blocks)
            limit = count if plan == "uniform" else min(count, 2 * random + 5)
            available = len(set(range(limit)) - around)
            assert len(blocks) == len(around) + min(random, available)
            assert all(block < limit for block in set(blocks) - around)


def test_tables_differ_between_heads_layers_and_seeds_and_come_from_torch():
    torch.manual_seed(3)
    one, two = make(), make()
    torch.manual_seed(3)
    again = make()
    tables = [drawn(layer, 400) for layer in (one, two, again)]
    assert tables[0] == tables[2] != tables[1]
    assert tables[0][0] != tables[0][1] != tables[0][2]


def test_draws_are_uniform():
    """Every block outside of window and globals is as likely as any other, for every turn."""
    attention = build("bigbird", heads=4000, head_dim=WIDTH, block=4, random=3)
    fixed = attention._fixed_blocks(torch.tensor([19]), 20)
    table = attention._random_blocks(fixed, torch.tensor([19]))[0]  # heads blocks random
    for row in (1, 8, 18):
        free = sorted(set(range(1, 19)) - {row - 1, row, row + 1})
        expected = 4000 / len(free)
        for turn in range(3):
            counts = torch.bincount(table[:, row, turn], minlength=20)[free].double()
            chi_squared = float(((counts - expected) ** 2 / expected).sum())
            assert chi_squared < len(free) + 5 * (2 * len(free)) ** 0.5


def test_identical_after_loading_and_in_training():
    attention, other = make(), make()
    tensors = qkv(60)
    assert torch.equal(attention.train()(*tensors), attention.eval()(*tensors))
    assert not torch.equal(other(*tensors), attention(*tensors))
    other.load_state_dict(attention.state_dict())
    assert torch.equal(other(*tensors), attention(*tensors))
    assert torch.equal(copy.deepcopy(attention).half().double()(*tensors), attention(*tensors))


def test_building_draws_from_the_generator_and_running_does_not():
    attention = make()
    before = torch.get_rng_state()
    attention(*qkv(0 + 30))
    torch.set_rng_state(before)
    tensors = qkv(30)
    state = torch.get_rng_state()
    attention(*tensors)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("length", "random"), [(13, 100), (28, 3), (29, 4), (60, 15)])
def test_enough_random_blocks_are_full_attention(agree, length: int, random: int):
    """And so are few blocks: nb <= 4 + random."""
    full = build("softmax", heads=HEADS, head_dim=WIDTH)
    agree(full, make(random=random), *qkv(length))


def test_the_released_plan_draws_from_the_first_blocks():
    attention = build("bigbird", heads=50, head_dim=WIDTH, block=64, random=3, plan="released")
    for length, limit in ((1024, 16), (4096, 16), (8192, 11), (960, 11), (512, 8)):
        blocks = {b for head in drawn(attention, length) for row in head[1:-1] for b in row}
        assert max(blocks) < limit and (limit == 8 or max(blocks) == min(limit, length // 64 - 1) - 1)


# Padding


@pytest.mark.parametrize("options", [{}, {"form": "etc", "global_tokens": 5, "random": 2}], ids=str)
def test_a_padded_batch_equals_each_sequence_alone(agree, options: dict):
    """Lengths end in different blocks, so each sequence has its own last block and random blocks."""
    attention, lengths = make(**options), (41, 17, 3, 57)
    tensors = qkv(57, batch=4)
    keep = torch.arange(57) < torch.tensor(lengths)[:, None]

    def padded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = attention(q, k, v, key_mask=keep)
        return torch.cat([out[i, :, :n] for i, n in enumerate(lengths)], 1)

    def alone(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        outs = [attention(q[i : i + 1, :, :n], k[i : i + 1, :, :n], v[i : i + 1, :, :n]) for i, n in enumerate(lengths)]
        return torch.cat([out[0] for out in outs], 1)

    agree(alone, padded, *tensors)


def test_padding_inside_random_blocks_is_not_read():
    attention = make()
    q, k, v = qkv(60)
    keep = torch.rand(BATCH, 60) < 0.6
    expected = attention(q, k, v, key_mask=keep)
    k, v = (torch.where(keep[:, None, :, None], x, torch.full_like(x, 1e4)) for x in (k, v))
    assert torch.equal(attention(q, k, v, key_mask=keep), expected)
    torch.testing.assert_close(attention.reference(q, k, v, key_mask=keep), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE])
def test_a_sequence_of_nothing_but_padding_is_0(dtype: torch.dtype):
    attention = make()
    keep = torch.ones(BATCH, 30, dtype=torch.bool)
    keep[0] = False
    leaves = [x.requires_grad_() for x in qkv(30, dtype=dtype)]
    out = attention(*leaves, key_mask=keep)
    assert bool((out[0] == 0).all()) and bool((out[1] != 0).any(-1).all())
    for gradient in torch.autograd.grad(out.sum(), leaves):
        assert bool((gradient[0] == 0).all()) and bool(gradient.isfinite().all())


# Cost, dropout, refusals


@given(length=st.integers(1, 70), random=st.integers(0, 4), form=st.sampled_from(["itc", "etc"]))
def test_any_sizes(length: int, random: int, form: str):
    torch.manual_seed(length)
    attention = make(random=random, form=form, global_tokens=7)
    tensors = [x.requires_grad_() for x in qkv(length, batch=1)]
    torch.testing.assert_close(attention(*tensors), attention.reference(*tensors), atol=1e-10, rtol=1e-10)
    cost = attention.cost(length, length)
    assert count_flops(lambda: attention(*tensors)) == cost.flops
    assert count_kept(lambda: attention(*tensors), tensors) == cost.floats


def test_no_large_tensor_is_made():
    """At n = 4096 none is larger than a copy of the values."""
    attention: Attention = BigBirdAttention(Shape(heads=2, head_dim=16))
    leaves = [torch.randn(1, 2, 4096, 16, requires_grad=True) for _ in range(3)]
    with LargestTensor() as seen:
        torch.autograd.grad(attention(*leaves).sum(), leaves)
    assert seen.elements <= max(2 * 4096 * 16, 1 << 20)


@pytest.mark.parametrize("form", ["itc", "etc"])
def test_dropout_in_training_only(form: str):
    attention = make(form=form, global_tokens=3, dropout=0.5)
    keep = torch.arange(45) < torch.tensor([[45], [30]])
    tensors = qkv(45)
    trained, evaluated = attention.train()(*tensors, key_mask=keep), attention.eval()(*tensors, key_mask=keep)
    torch.testing.assert_close(evaluated, attention.reference(*tensors, key_mask=keep), atol=1e-12, rtol=0)
    assert not torch.allclose(trained, evaluated)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"block": 0}, "option block must be at least 1, not 0"),
        ({"window": 4}, "option window must be odd, as many blocks on each side, not 4"),
        ({"random": -1}, "option random must be at least 0, not -1"),
        ({"form": "global"}, "option form must be one of itc, etc, not 'global'"),
        ({"plan": "paper"}, "option plan must be one of uniform, released, hugging_face, not 'paper'"),
        ({"global_tokens": 0}, "option global_tokens must be at least 1, not 0"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        make(**options)
    assert str(raised.value) == message


def test_it_has_no_causal_form():
    with pytest.raises(Unsupported, match="bigbird has no causal form; these can: "):
        make(causal=True)


@pytest.mark.parametrize("length", [28, 29, 45, 60])
def test_the_plan_of_hugging_face_equals_its_definition(agree, length: int):
    """Full attention up to 7 blocks; beyond, the first block counts twice in rows that are not global."""
    attention = make(plan="hugging_face", random=1)
    q, k, v = qkv(length)
    mask = torch.arange(length) < torch.tensor([[length], [length - 9]])
    agree(
        lambda q, k, v: attention.reference(q, k, v, key_mask=mask),
        lambda q, k, v: attention(q, k, v, key_mask=mask),
        *(q, k, v),
    )
    block = torch.arange(length) // 4
    near, middle = (block[:, None] - block).abs() <= 1, (block > 0) & (block < block[-1])
    keep = near | ~middle | ~middle[:, None]
    powers = (q @ k.mT / WIDTH**0.5).exp()
    if length > 28:
        powers = powers * keep * torch.where(middle[:, None] & (block == 0), 2, 1)
    powers = powers * mask[:, None, None]
    torch.testing.assert_close(attention.oracle(q, k, key_mask=mask), powers / powers.sum(-1, keepdim=True))
    torch.testing.assert_close(attention.weights(q, k, key_mask=mask), attention.oracle(q, k, key_mask=mask))


def test_the_cost_of_the_hugging_face_plan_is_exact():
    attention = make(plan="hugging_face", random=1)
    for length in (20, 45):
        tensors = qkv(length, batch=1, dtype=torch.float32)
        assert count_flops(lambda given=tensors: attention(*given)) == attention.cost(length, length).flops


def test_the_plan_of_hugging_face_has_no_etc_form():
    with pytest.raises(InvalidOption, match="of the itc form"):
        make(plan="hugging_face", form="etc")
