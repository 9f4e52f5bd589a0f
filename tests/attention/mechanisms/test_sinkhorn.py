"""Sinkhorn: balancing, hard permutations, the causal form, SortCut, mixture, decoding and refusals."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longspan.attention import Attention, build
from longspan.attention.parts.sinkhorn_balance import allowed_sources, balance, balance_causal
from longspan.audit.checks import applicable
from longspan.audit.counting import count_flops, count_kept
from longspan.audit.subjects import MechanismSubject
from longspan.errors import InvalidInput, InvalidOption, Unsupported

BATCH, HEADS, WIDTH, BLOCK, MOST = 2, 3, 8, 4, 64
DOUBLE = torch.float64


def make(*, spread: float = 0.5, **options) -> Attention:
    options = {"block": BLOCK, "max_length": MOST, **options}
    attention = build("sinkhorn", heads=HEADS, head_dim=WIDTH, **options).double().eval()
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.add_(spread * torch.randn_like(parameter))
    return attention


def qkv(length: int, batch: int = BATCH) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=DOUBLE) for _ in range(3)]


# Balancing


@pytest.mark.parametrize("blocks", [8, 16, 32])
def test_s_is_doubly_stochastic(blocks: int):
    """Nearly always: one draw in ten needs more than eight rounds, as the definition itself does."""
    logs = torch.randn(200, 1, blocks, blocks, dtype=DOUBLE) / 0.75
    s = balance(logs, None, 8)
    error = (s.sum(-1) - 1).abs().amax(-1)
    assert error.median() < 2e-4 and error.quantile(0.9) < 1e-3
    torch.testing.assert_close(s.sum(-2), torch.ones(200, 1, blocks, dtype=DOUBLE), atol=1e-12, rtol=0)
    for _ in range(8):
        logs = logs - logs.logsumexp(-1, keepdim=True)
        logs = logs - logs.logsumexp(-2, keepdim=True)
    torch.testing.assert_close(s, logs.exp(), atol=1e-12, rtol=0)


def test_more_rounds_balance_better():
    logs = torch.randn(4, HEADS, 16, 16, dtype=DOUBLE) / 0.1
    errors = [(balance(logs, None, rounds).sum(-1) - 1).abs().max() for rounds in (1, 2, 4, 8, 16, 32, 64)]
    assert all(later < earlier for earlier, later in itertools.pairwise(errors))
    assert errors[3] > 0.05  # at a low temperature eight rounds are not many


@pytest.mark.parametrize("causal", [False, True])
def test_a_low_temperature_does_not_underflow(causal: bool):
    attention = make(temperature=0.01, causal=causal).float()
    leaves = [x.float().mul(10).requires_grad_() for x in qkv(30)]
    out = attention(*leaves)
    gradients = torch.autograd.grad(out.sum(), [*leaves, *attention.parameters()])
    assert bool(out.isfinite().all()) and all(bool(g.isfinite().all()) for g in gradients)


def test_balancing_ignores_padded_blocks():
    logs = torch.randn(1, HEADS, 9, 9, dtype=DOUBLE)
    alive = torch.tensor([[True] * 3 + [False] * 2 + [True] * 2 + [False] * 2])
    s = balance(logs, allowed_sources(0, 9, 9, alive, False, logs.device), 7)
    inside = balance(logs[:, :, alive[0]][..., alive[0]], None, 7)
    torch.testing.assert_close(s[:, :, alive[0]][..., alive[0]], inside, atol=1e-12, rtol=0)
    assert not bool(s[:, :, ~alive[0]].any()) and not bool(s[..., ~alive[0]].any())


def test_causal_balancing_never_looks_ahead():
    logs = torch.randn(1, HEADS, 12, 12, dtype=DOUBLE)
    allowed = allowed_sources(0, 12, 12, None, True, logs.device)
    s, _ = balance_causal(logs, allowed, None, 7)
    assert not bool(s.triu().any())
    assert bool((s.diagonal(-1, 2, 3) == 1).all())  # the newest column has had no other taker
    assert bool((s.cumsum(2) <= 12).all()) and bool((s <= 1).all())
    for row in range(1, 12):
        changed = logs.clone()
        changed[:, :, row:] = 100 * torch.randn(1, HEADS, 12 - row, 12, dtype=DOUBLE)
        assert torch.equal(balance_causal(changed, allowed, None, 7)[0][:, :, :row], s[:, :, :row])


# Permutations


def permuting(order: list[int], **options) -> tuple[Attention, list[Tensor]]:
    """An attention whose block i reads block order[i], and inputs on which it does: block i of the keys sums to e_i."""
    count = len(order)
    attention = make(network="linear", **options)
    with torch.no_grad():
        attention.sorting.sort.zero_()
        attention.sorting.sort_bias.zero_()
        for block, source in enumerate(order):
            attention.sorting.sort[:, source, block] = 200.0
    q, k, v = qkv(count * BLOCK)
    keys = k.unflatten(2, (count, BLOCK))
    keys[:, :, :, 0] = torch.eye(count, WIDTH, dtype=DOUBLE) - keys[:, :, :, 1:].sum(3)
    return attention, [q, keys.flatten(2, 3), v]


def permute(x: Tensor, order: list[int]) -> Tensor:
    return x.unflatten(2, (len(order), BLOCK))[:, :, order].flatten(2, 3)


def local(length: int) -> Tensor:
    place = torch.arange(length) // BLOCK
    return place[:, None] == place


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [3, 0, 4, 2, 1]], ids=["identity", "permutation"])
def test_a_hard_permutation_is_local_attention_on_permuted_blocks(dense, order: list[int]):
    length = len(order) * BLOCK
    keep, scale = local(length), WIDTH**-0.5
    attention, (q, k, v) = permuting(order, combine="sorted")
    moved = [permute(x, order) for x in (k, v)]
    torch.testing.assert_close(attention(q, k, v), dense(q, *moved, keep, scale), atol=1e-9, rtol=0)
    attention, (q, k, v) = permuting(order, combine="sum")
    expected = dense(q, *(permute(x, order) for x in (k, v)), keep, scale) + dense(q, k, v, keep, scale)
    torch.testing.assert_close(attention(q, k, v), expected, atol=1e-9, rtol=0)
    attention, (q, k, v) = permuting(order, combine="concat")
    both = [torch.cat([permute(x, order), x], 2) for x in (k, v)]
    expected = dense(q, *both, torch.cat([keep, keep], 1), scale)
    torch.testing.assert_close(attention(q, k, v), expected, atol=1e-9, rtol=0)


def test_sortcut_reads_the_first_sorted_blocks(dense):
    order = [3, 0, 4, 2, 1]
    attention, (q, k, v) = permuting(order, sortcut=2)
    first = [permute(x, order)[:, :, : 2 * BLOCK] for x in (k, v)]
    keep = torch.ones(q.shape[2], 2 * BLOCK, dtype=torch.bool)
    torch.testing.assert_close(attention(q, k, v), dense(q, *first, keep, WIDTH**-0.5), atol=1e-9, rtol=0)


def test_one_block_is_dense_attention(agree):
    full = build("softmax", heads=HEADS, head_dim=WIDTH)
    agree(full, make(block=16, combine="sorted"), *qkv(13))
    agree(full, make(block=16, sortcut=3), *qkv(13))


# The layer


OPTIONS = [
    {},
    {"network": "linear", "iterations": 1},
    {"combine": "sum"},
    {"combine": "sorted"},
    {"mixture": True},
]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("causal", "options"),
    [
        *itertools.product((False, True), OPTIONS),
        (False, {"sortcut": 2}),
        (False, {"sortcut": 9, "mixture": True}),
    ],
    ids=str,
)
def test_equals_the_definition(agree, options: dict, causal: bool, masked: bool):
    attention = make(causal=causal, **options)
    for length in (1, 4, 5, 27):
        keep = torch.rand(BATCH, length) < 0.5 if masked else None
        if keep is not None:
            keep[1, :8] = False
        agree(
            lambda q, k, v, keep=keep: attention.reference(q, k, v, key_mask=keep),
            lambda q, k, v, keep=keep: attention(q, k, v, key_mask=keep),
            *qkv(length),
        )


@given(length=st.integers(1, 60), block=st.integers(1, 20), causal=st.booleans(), cut=st.integers(0, 3))
def test_any_sizes(length: int, block: int, causal: bool, cut: int):
    torch.manual_seed(length)
    attention = make(block=block, causal=causal, sortcut=0 if causal else cut)
    tensors = [x.requires_grad_() for x in qkv(length, batch=1)]
    out = attention(*tensors)
    torch.testing.assert_close(out, attention.reference(*tensors), atol=1e-10, rtol=1e-10)
    cost = attention.cost(length, length)
    assert count_flops(lambda: attention(*tensors)) == cost.flops
    assert count_kept(lambda: attention(*tensors), [*tensors, *attention.parameters()]) == cost.floats


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("network", ["linear", "mlp"])
def test_the_gradient_reaches_the_sort_network(network: str, causal: bool):
    attention = make(network=network, causal=causal)
    out = attention(*qkv(32))
    for name, parameter in attention.named_parameters():
        (gradient,) = torch.autograd.grad(out.pow(2).sum(), parameter, retain_graph=True)
        assert bool((gradient != 0).any()), name


@pytest.mark.parametrize("options", [{}, {"sortcut": 2}, {"mixture": True}, {"combine": "sorted"}], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_the_number_of_padded_positions_does_not_matter(options: dict, causal: bool):
    """Real blocks are balanced among themselves, in front of padding, behind it and around it."""
    if causal and "sortcut" in options:
        return
    attention = make(causal=causal, **options)
    q, k, v = qkv(22)
    keep = torch.ones(BATCH, 22, dtype=torch.bool)
    keep[0, 4:8] = False
    expected = attention(q, k, v, key_mask=keep)
    for more in (1, 2, 3, 7, 30):
        longer = [torch.cat([x, 100 * torch.randn(BATCH, HEADS, more, WIDTH, dtype=DOUBLE)], 2) for x in (q, k, v)]
        mask = torch.nn.functional.pad(keep, (0, more))
        torch.testing.assert_close(attention(*longer, key_mask=mask)[:, :, :22], expected, atol=1e-10, rtol=0)


def test_sortcut_does_not_count_blocks_of_padding():
    attention = make(sortcut=1)
    q, k, _ = qkv(24)
    keep = torch.arange(24) >= 9
    weights = attention.weights(q, k, key_mask=keep.expand(BATCH, -1))
    assert bool((weights.sum(-1) > 0).all()) and not bool(weights[..., ~keep].any())


def test_block_0_has_nothing_sorted_when_causal():
    attention = make(causal=True, combine="sorted")
    out = attention(*qkv(12))
    assert not bool(out[:, :, :BLOCK].any()) and bool((out[:, :, BLOCK:] != 0).all())


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"sortcut": 2}, {"mixture": True}], ids=str)
def test_the_contract(options: dict):
    """For the options that the suite does not see."""
    for causal in (False, True) if "sortcut" not in options else (False,):
        attention = build("sinkhorn", heads=2, head_dim=8, max_length=256, block=5, noise=0.0, causal=causal, **options)
        subject = MechanismSubject(attention)
        for check in applicable(subject):
            if check.name in ("exponent", "refusals") and "sortcut" in options:
                continue  # SortCut mixes fewer blocks, and has no causal form
            if check.name in ("compile", "export"):
                continue  # slow, and the same with a mask follows
            finding = check(subject)
            assert finding.passed, f"{finding.check}: {finding.measured} over {finding.limit}; {finding.detail}"


# Noise


@pytest.mark.parametrize("causal", [False, True])
def test_noise_in_training_only(causal: bool):
    attention = make(causal=causal)
    tensors = qkv(30)
    evaluated = attention(*tensors)
    torch.testing.assert_close(evaluated, attention.reference(*tensors), atol=1e-10, rtol=0)
    attention.train()
    torch.manual_seed(1)
    first = attention(*tensors)
    assert not torch.allclose(first, attention(*tensors)) and not torch.allclose(first, evaluated)
    torch.manual_seed(1)
    assert torch.equal(attention(*tensors), first)
    silent = make(causal=causal, noise=0.0).train()
    assert torch.equal(silent(*tensors), silent.eval()(*tensors))


def test_noise_does_not_leak_the_future():
    attention = make(causal=True).train()
    q, k, v = qkv(30)
    out = attention(q, *[x.requires_grad_() for x in (k, v)])
    for gradient in torch.autograd.grad(out[:, :, 17].sum(), (k, v)):
        assert not bool(gradient[:, :, 18:].any()) and bool(gradient[:, :, :18].any())


# Decoding


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("chunks", [[1] * 27, [27], [3, 1, 9, 2, 12]], ids=["one by one", "at once", "chunks"])
def test_decoding_equals_the_parallel_pass(chunks: list[int], options: dict, masked: bool):
    attention = make(causal=True, **options)
    tensors = qkv(27)
    keep = None
    if masked:
        keep = torch.rand(BATCH, 27) < 0.5
        keep[0, 4:12] = False
    expected = attention(*tensors, key_mask=keep)
    attention.train()  # no noise while decoding
    state, outs, begin = attention.start(BATCH), [], 0
    for size in chunks:
        here = slice(begin, begin + size)
        own = None if keep is None else keep[:, here]
        out, state = attention.extend(*(x[:, :, here] for x in tensors), state, key_mask=own)
        outs.append(out)
        begin += size
    torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=1e-10)


def test_the_sorted_block_is_mixed_once():
    """The first token of a block pays for the mixing; the others compare themselves with two blocks at most."""
    attention = make(causal=True, block=8)
    _, state = attention.extend(*qkv(40), attention.start(BATCH))
    for place in range(40, 48):
        token = qkv(1)
        flops = count_flops(lambda token=token, state=state: attention.extend(*token, state))
        reading = 4 * BATCH * HEADS * WIDTH * (8 + place - 40 + 1)
        assert flops == reading if place > 40 else flops > reading + 4 * BATCH * HEADS * WIDTH * 40
        _, state = attention.extend(*token, state)


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "option temperature must be at least 0.01, not 0.0"),
        ({"block": 0}, "option block must be at least 1, not 0"),
        ({"iterations": 0}, "option iterations must be at least 1, not 0"),
        ({"noise": -1.0}, "option noise must be at least 0, not -1.0"),
        ({"sortcut": -1}, "option sortcut must be at least 0, not -1"),
        ({"combine": "both"}, "option combine must be one of concat, sum, sorted, not 'both'"),
        ({"network": "deep"}, "option network must be one of linear, mlp, not 'deep'"),
        ({"max_length": None}, "sinkhorn has one sort score for every block: give max_length"),
        ({"blok": 3}, "sinkhorn has no option 'blok': did you mean 'block'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        make(**options)
    assert str(raised.value) == message


def test_sortcut_is_for_encoders():
    with pytest.raises(Unsupported, match="sinkhorn with sortcut reads blocks of the future; build it with sortcut=0"):
        make(causal=True, sortcut=2)


def test_the_number_of_blocks_is_a_hard_limit():
    attention = make(causal=True, max_length=30)
    assert attention.sorting.sort.shape[1] == 8
    message = "sinkhorn was built for max_length 30, and there are 31 positions"
    for call in (attention, attention.reference):
        with pytest.raises(InvalidInput, match=message):
            call(*qkv(31))
    _, state = attention.extend(*qkv(30), attention.start(BATCH))
    with pytest.raises(InvalidInput, match=message):
        attention.extend(*qkv(1), state)
