"""The Sparse Transformer against its literal sets, and the facts of the paper."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Attention, build
from longspan.audit.counting import count_flops
from longspan.errors import InvalidInput, InvalidOption, Unsupported

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64
KINDS = ("merged", "local", "distant", "split")


def make(**options) -> Attention:
    return build("sparse", **{"heads": HEADS, "head_dim": WIDTH, "causal": True, **options})


def qkv(length: int, heads: int = HEADS, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, heads, length, WIDTH, dtype=dtype) for _ in range(3)]


def literal(
    length: int, pattern: str, stride: int, kind: str = "merged", summary=2, window=None, heads=HEADS
) -> Tensor:
    """(heads, length, length) by double loops over the sets of section 4.3 of the paper."""
    window = stride + 1 if window is None else window
    keep = torch.zeros(heads, length, length, dtype=torch.bool)
    for head in range(heads):
        own = {"split": "local" if head < (heads + 1) // 2 else "distant"}.get(kind, kind)
        turn = head % (stride // summary)
        for i in range(length):
            for j in range(i + 1):
                if pattern == "strided":
                    a1, a2 = j > i - window, (i - j) % stride == 0
                else:
                    a1 = j // stride == i // stride
                    a2 = stride - (turn + 1) * summary <= j % stride < stride - turn * summary
                keep[head, i, j] = (a1 and own != "distant") or (a2 and own != "local")
    return keep


CASES = [
    *({"pattern": "strided", "stride": 5, "heads_pattern": kind} for kind in KINDS),
    *({"pattern": "strided", "stride": 4, "heads_pattern": "merged", "window": window} for window in (1, 3, 4, 8, 9)),
    *({"pattern": "fixed", "stride": 6, "summary": 2, "heads_pattern": kind} for kind in KINDS),
    {"pattern": "fixed", "stride": 5, "summary": 5, "heads_pattern": "merged"},
    {"pattern": "fixed", "stride": 7, "summary": 3, "heads_pattern": "distant"},
    {"pattern": "strided", "stride": 1, "heads_pattern": "distant"},
]


def mask_of(options: dict, length: int) -> Tensor:
    return literal(
        length,
        options["pattern"],
        options["stride"],
        options["heads_pattern"],
        options.get("summary", 1),
        options.get("window"),
    )


@pytest.mark.parametrize("length", [1, 6, 23, 37])
@pytest.mark.parametrize("options", CASES, ids=str)
def test_equals_the_literal_sets(dense, agree, options: dict, length: int):
    attention, keep, tensors = make(**options), mask_of(options, length), qkv(length)
    agree(lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5), attention, *tensors)
    weights = attention.oracle(*tensors[:2])
    assert torch.equal(weights > 0, keep.expand_as(weights))
    torch.testing.assert_close(attention.weights(*tensors[:2]), weights, atol=1e-12, rtol=0)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_with_padding(dense, agree, options: dict):
    padding = torch.rand(BATCH, 29) < 0.6
    padding[1, :9] = False
    keep = mask_of(options, 29)[None] & padding[:, None, None]
    attention = make(**options)
    agree(
        lambda q, k, v: dense(q, k, v, keep, WIDTH**-0.5),
        lambda q, k, v: attention(q, k, v, key_mask=padding),
        *qkv(29),
    )


# What the paper says of two layers


def reached(first: dict, second: dict, length: int) -> bool:
    """Whether, by the Jacobian of two layers with residuals, every output depends on every input of its past."""
    layers = [build("sparse", heads=1, head_dim=WIDTH, causal=True, **options) for options in (first, second)]

    def stack(x: Tensor) -> Tensor:
        for layer in layers:
            x = x + layer(x, x, x)
        return x

    x = torch.randn(1, 1, length, WIDTH, dtype=DOUBLE)
    jacobian = torch.autograd.functional.jacobian(stack, x)[0, 0, :, :, 0, 0]  # rows width positions width
    support = (jacobian != 0).any(-1).any(1)
    assert not support.triu(1).any()
    return bool(support[torch.ones(length, length, dtype=torch.bool).tril()].all())


@pytest.mark.parametrize(("window", "covers"), [(None, True), (4, True), (3, False)])
def test_two_strided_layers_reach_everything_in_either_order(window: int | None, covers: bool):
    local = {"stride": 4, "window": window, "heads_pattern": "local"}
    distant = {"stride": 4, "heads_pattern": "distant"}
    assert reached(local, distant, 19) is covers
    assert reached(distant, local, 19) is covers


def test_two_fixed_layers_reach_everything_in_one_order_only():
    local = {"pattern": "fixed", "stride": 5, "summary": 1, "heads_pattern": "local"}
    # The summaries do not hold the query itself nor its neighbours: the residual and the first layer do.
    distant = {"pattern": "fixed", "stride": 5, "summary": 1, "heads_pattern": "distant"}
    assert reached(local, distant, 21)
    assert not reached(distant, local, 21)


@pytest.mark.parametrize("pattern", ["strided", "fixed"])
@pytest.mark.parametrize("kind", ["merged", "local"])
@pytest.mark.parametrize("stride", [13, 14, 50])
def test_a_stride_over_everything_is_full_attention(agree, pattern: str, kind: str, stride: int):
    full = build("softmax", heads=HEADS, head_dim=WIDTH, causal=True)
    agree(full, make(pattern=pattern, stride=stride, summary=2, heads_pattern=kind), *qkv(13))


def test_a_row_before_the_first_summary_is_0():
    attention = make(pattern="fixed", stride=6, summary=2, heads_pattern="distant", heads=1)
    leaves = [x.requires_grad_() for x in qkv(20, heads=1)]
    out = attention(*leaves)
    assert bool((out[:, :, :4] == 0).all()) and bool((out[:, :, 4:] != 0).any(-1).all())
    gradients = torch.autograd.grad(out.sum(), leaves)
    assert bool((gradients[0][:, :, :4] == 0).all()) and all(bool(x.isfinite().all()) for x in gradients)


def test_heads_summarise_by_different_columns():
    attention = make(pattern="fixed", stride=6, summary=2, heads=4)
    assert attention.columns == (4, 2, 0, 4)


def test_a_key_in_both_sets_counts_once():
    """Equal scores give equal weights, whether one set contains a key or both do."""
    for pattern in ("strided", "fixed"):
        attention = make(pattern=pattern, stride=4, summary=2)
        q, k, _ = (torch.zeros_like(x) for x in qkv(14))
        weights = attention.weights(q, k)
        for row in weights[0, 0]:
            assert len(row[row > 1e-9].unique().round(decimals=9).unique()) == 1


def test_work_grows_as_n_to_the_one_and_a_half():
    """With a stride of √n (section 4.2)."""
    few, many = (make(stride=int(n**0.5)).cost(n, n).flops for n in (1 << 16, 1 << 20))
    assert 1.45 < math.log(many / few, 16) < 1.55


# Decoding


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", CASES, ids=str)
@pytest.mark.parametrize("chunks", [[1] * 23, [23], [4, 1, 11, 7]], ids=["one by one", "at once", "chunks"])
def test_decoding_equals_the_parallel_pass(chunks: list[int], options: dict, masked: bool):
    attention, tensors = make(**options), qkv(23)
    keep = torch.rand(BATCH, 23) < 0.6 if masked else None
    expected = attention(*tensors, key_mask=keep)
    state, outs, begin = attention.start(BATCH), [], 0
    for count in chunks:
        here = slice(begin, begin + count)
        own = None if keep is None else keep[:, here]
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, key_mask=own)
        outs.append(out)
        begin += count
    torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("options", CASES, ids=str)
def test_a_mask_given_only_at_a_later_step(options: dict):
    attention, tensors = make(**options), qkv(23)
    keep = torch.ones(BATCH, 23, dtype=torch.bool)
    keep[:, 12:17] = torch.rand(BATCH, 5) < 0.5
    state, outs = attention.start(BATCH), []
    for begin, end, mask in ((0, 12, None), (12, 17, keep[:, 12:17]), (17, 23, None)):
        out, state = attention.extend(*(x[:, :, begin:end] for x in tensors), state, key_mask=mask)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 2), attention(*tensors, key_mask=keep), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "rows"),
    [
        ({"stride": 6}, lambda seen: HEADS * seen),
        ({"stride": 6, "heads_pattern": "local"}, lambda seen: HEADS * min(seen, 6)),
        ({"stride": 6, "heads_pattern": "split"}, lambda seen: 2 * min(seen, 6) + seen),
        ({"pattern": "fixed", "stride": 6, "summary": 2}, lambda seen: HEADS * (min(seen, 5) + seen // 6 * 2)),
        ({"pattern": "fixed", "stride": 6, "summary": 2, "heads_pattern": "local"}, lambda seen: HEADS * min(seen, 5)),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "held",
)
def test_the_state_is_as_large_as_the_sets_need(options: dict, rows):
    attention = make(**options)
    state = attention.start(BATCH)
    assert state.bytes == 0
    for seen in range(1, 40):
        _, state = attention.extend(*qkv(1), state)
        assert state.bytes == 2 * BATCH * rows(seen) * WIDTH * DOUBLE.itemsize


def test_a_step_reads_few_keys():
    """window + n/stride for the strided pattern, block + summaries for the fixed one."""
    for options, most in (({"stride": 8}, 9 + 8), ({"pattern": "fixed", "stride": 8, "summary": 2}, 8 + 2 * 8)):
        attention = make(**options)
        _, state = attention.extend(*qkv(63), attention.start(BATCH))
        one = qkv(1)
        assert count_flops(lambda: attention.extend(*one, state)) <= 4 * BATCH * HEADS * WIDTH * most  # noqa: B023


@given(
    length=st.integers(1, 60),
    stride=st.integers(1, 12),
    pattern=st.sampled_from(["strided", "fixed"]),
    kind=st.sampled_from(KINDS),
    part=st.integers(1, 12),
)
def test_any_sizes(length: int, stride: int, pattern: str, kind: str, part: int):
    torch.manual_seed(length)
    attention = make(pattern=pattern, stride=stride, heads_pattern=kind, summary=min(part, stride))
    tensors = qkv(length)
    torch.testing.assert_close(attention(*tensors), attention.reference(*tensors), atol=1e-10, rtol=1e-10)
    assert count_flops(lambda: attention(*tensors)) == BATCH * attention.cost(length, length).flops


def test_dropout_in_training_only():
    attention = make(stride=5, heads_pattern="split", dropout=0.5)
    tensors = qkv(20)
    trained, evaluated = attention.train()(*tensors), attention.eval()(*tensors)
    torch.testing.assert_close(evaluated, attention.reference(*tensors), atol=1e-12, rtol=0)
    assert not torch.allclose(trained, evaluated)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, "option stride must be at least 1, not 0"),
        ({"pattern": "random"}, "option pattern must be one of strided, fixed, not 'random'"),
        ({"heads_pattern": "far"}, "option heads_pattern must be one of merged, local, distant, split, not 'far'"),
        ({"window": 0}, "option window must be at least 1, not 0"),
        (
            {"pattern": "fixed", "stride": 8, "summary": 9},
            "option summary must be at most the stride of 8, not 9",
        ),
        (
            {"pattern": "fixed", "window": 9},
            "option window goes with pattern strided; a fixed block is as long as its stride",
        ),
        ({"heads": 1, "heads_pattern": "split"}, "heads_pattern split needs at least 2 heads, not 1"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        make(**options)
    assert str(raised.value) == message


def test_it_is_causal_only():
    with pytest.raises(Unsupported, match="sparse is causal only; build it with causal=True"):
        make(causal=False)


def test_a_state_of_another_batch_is_refused():
    attention = make(pattern="fixed", stride=6, summary=2)
    _, state = attention.extend(*qkv(3), attention.start(BATCH))
    with pytest.raises(InvalidInput, match="the state has batch 2"):
        attention.extend(*qkv(1, batch=1), state)
