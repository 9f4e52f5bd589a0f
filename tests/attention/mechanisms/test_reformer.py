"""Reformer: the paper's union of rounds, the strict form, its decoding, and what is refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from longspan.attention import build
from longspan.attention.mechanisms.reformer import ReformerAttention
from longspan.audit.counting import count_flops
from longspan.errors import InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead
from longspan.nn.reversible import ReversibleStack

DOUBLE = torch.float64
BATCH, HEADS, WIDTH = 2, 2, 8


def make(*, causal: bool = False, width: int = WIDTH, dropout: float = 0.0, **options) -> ReformerAttention:
    options = {"rounds": 2, "chunk": 4, "buckets": 4, **options}
    return build("reformer", heads=HEADS, head_dim=width, causal=causal, dropout=dropout, **options).double().eval()


def inputs(length: int, width: int = WIDTH, batch: int = BATCH) -> tuple[Tensor, Tensor]:
    return tuple(torch.randn(batch, HEADS, length, width, dtype=DOUBLE) for _ in range(2))


def run(attention: ReformerAttention, q: Tensor, v: Tensor, **given) -> Tensor:
    return attention(q, q, v, **given)


def buckets(attention: ReformerAttention, q: Tensor) -> list[list[list[list[int]]]]:
    """[row][head][round][position]: argmax over [xR; -xR], the digits of a product of hashes put together."""
    found = []
    for row in range(q.shape[0]):
        heads = []
        for head in range(HEADS):
            rounds = []
            for turn in range(attention.options.rounds):
                turned = q[row, head] @ attention.rotations[head, turn]
                digits, worth = torch.zeros(len(turned), dtype=torch.long), 1
                for part, factor in zip(turned.split([f // 2 for f in attention.factors], -1), attention.factors):
                    digits, worth = digits + worth * torch.cat([part, -part], -1).argmax(-1), worth * factor
                rounds.append(digits.tolist())
            heads.append(rounds)
        found.append(heads)
    return found


def shown(attention: ReformerAttention, bucket: list[int]) -> list[list[bool]]:
    """The pairs that one round shows, by literal loops."""
    length, chunk = len(bucket), attention.options.chunk
    if attention.strict:
        place = [sum(bucket[j] == bucket[i] for j in range(i)) for i in range(length)]
    else:
        order = sorted(range(length), key=lambda i: (bucket[i], i))
        place = [order.index(i) for i in range(length)]
    return [
        [
            (bucket[i] == bucket[j] or not attention.options.bucket_mask)
            and place[i] // chunk - place[j] // chunk in (0, 1)
            and (j <= i or not attention.causal)
            for j in range(length)
        ]
        for i in range(length)
    ]


def by_rounds(attention: ReformerAttention, q: Tensor, v: Tensor, penalty: float = 1e5) -> Tensor:
    """The appendix word for word: a softmax per round, less log N_ij, rounds weighed by their log-sum-exp."""
    hashed = buckets(attention, q)
    rows = []
    for row in range(q.shape[0]):
        heads = []
        for head in range(HEADS):
            keep = torch.stack([torch.tensor(shown(attention, bucket)) for bucket in hashed[row][head]])
            x = q[row, head]
            scores = x @ (x / x.norm(dim=-1, keepdim=True)).T - penalty * torch.eye(len(x), dtype=DOUBLE)
            count = keep.sum(0).clamp_min(1).to(DOUBLE).log() * (1 - torch.eye(len(x), dtype=DOUBLE))
            outs, sums = [], []
            for seen in keep:
                part = (scores - count).masked_fill(~seen, -1e30)
                sums.append(part.logsumexp(-1))
                outs.append(part.softmax(-1) @ v[row, head])
            share = torch.stack(sums).softmax(0)
            heads.append(sum(weight[:, None] * out for weight, out in zip(share, outs)))
        rows.append(torch.stack(heads))
    return torch.stack(rows)


# A1: the union of rounds, exactly


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", [None, "paper"])
@pytest.mark.parametrize("rounds", [1, 2, 4, 8])
def test_rounds_are_the_softmax_over_their_union(agree, rounds: int, form: str | None, causal: bool):
    attention = make(rounds=rounds, form=form, causal=causal)
    agree(lambda q, v: by_rounds(attention, q, v), lambda q, v: run(attention, q, v), *inputs(27))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", [None, "paper"])
def test_a_product_of_hashes(agree, form: str | None, causal: bool):
    attention = make(buckets=(2, 4, 2), form=form, causal=causal)
    assert attention.rotations.shape[-1] == 4
    agree(lambda q, v: by_rounds(attention, q, v), lambda q, v: run(attention, q, v), *inputs(33))


@given(
    length=st.integers(1, 90),
    chunk=st.integers(1, 40),
    half=st.integers(1, 6),
    rounds=st.integers(1, 4),
    causal=st.booleans(),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans(), st.booleans()),
)
def test_any_sizes(length: int, chunk: int, half: int, rounds: int, causal: bool, flags: tuple[bool, ...]):
    torch.manual_seed(length)
    paper, unmasked, uncorrected, always = flags
    attention = make(
        rounds=rounds,
        chunk=chunk,
        buckets=2 * half,
        causal=causal,
        form="paper" if paper or unmasked else None,
        bucket_mask=not unmasked,
        count_correction=not uncorrected,
        reads_self="always" if always else "alone",
    )
    q, v = inputs(length)
    keep = torch.rand(BATCH, length) < 0.7
    for mask in (None, keep):
        expected = attention.reference(q, q, v, key_mask=mask)
        torch.testing.assert_close(run(attention, q, v, key_mask=mask), expected, atol=1e-10, rtol=1e-10)
    assert count_flops(lambda: run(attention, q, v)) == BATCH * attention.cost(length, length).flops


# A2: rounds that repeat each other


@pytest.mark.parametrize("causal", [False, True])
def test_a_repeated_round_changes_nothing(causal: bool):
    twice = make(rounds=3, causal=causal)
    once = make(rounds=2, causal=causal)
    twice.rotations[:, 1] = twice.rotations[:, 0]
    once.rotations.copy_(twice.rotations[:, 1:])
    q, v = inputs(40)
    torch.testing.assert_close(run(twice, q, v), run(once, q, v), atol=1e-11, rtol=0)

    loose = make(rounds=3, causal=causal, count_correction=False)
    other = make(rounds=2, causal=causal, count_correction=False)
    loose.rotations.copy_(twice.rotations)
    other.rotations.copy_(once.rotations)
    assert (run(loose, q, v) - run(other, q, v)).abs().max() > 0.1


# A3: one bucket in one chunk


def dense_shared(q: Tensor, v: Tensor, causal: bool) -> Tensor:
    length = q.shape[2]
    scores = q @ (q / q.norm(dim=-1, keepdim=True)).mT - 1e5 * torch.eye(length, dtype=q.dtype)
    if causal:
        scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -1e30)
    return scores.softmax(-1) @ v


@pytest.mark.parametrize("causal", [False, True])
def test_one_chunk_is_dense_attention_with_shared_queries_and_keys(agree, causal: bool):
    attention = make(chunk=30, rounds=1, causal=causal, form="paper", bucket_mask=False)
    agree(lambda q, v: dense_shared(q, v, causal), lambda q, v: run(attention, q, v), *inputs(30))


def test_one_bucket_in_the_strict_form(agree):
    attention = make(chunk=30, rounds=1, buckets=2, causal=True)
    attention.rotations.zero_()  # every token in bucket 0
    agree(lambda q, v: dense_shared(q, v, True), lambda q, v: run(attention, q, v), *inputs(30))
    q, v = inputs(30)
    assert torch.equal(run(attention, q, v)[:, :, 0], v[:, :, 0])


# A4: more rounds, nearer to dense


def test_more_rounds_are_closer_to_dense_attention():
    q, v = inputs(64, width=16, batch=1)
    expected, errors = dense_shared(q, v, False), []
    for rounds in (1, 4, 16, 128):
        attention = make(rounds=rounds, chunk=16, buckets=8, width=16)
        errors.append((run(attention, q, v) - expected).abs().mean().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.2 and errors[-1] < 2e-3


# A6: what the future can do


def changed_by_the_future(attention: ReformerAttention) -> float:
    worst = 0.0
    for seed in range(5):
        torch.manual_seed(seed)
        q, v = inputs(64, batch=1)
        other, other_v = inputs(64, batch=1)
        q2, v2 = (torch.cat([a[:, :, :60], b[:, :, 60:]], 2) for a, b in ((q, other), (v, other_v)))
        worst = max(worst, (run(attention, q, v) - run(attention, q2, v2))[:, :, :60].abs().max().item())
    return worst


def test_the_paper_lets_the_future_choose_what_the_past_reads():
    options = {"causal": True, "chunk": 8, "buckets": 8, "rounds": 1}
    assert changed_by_the_future(make(form="paper", **options)) > 0.1
    assert changed_by_the_future(make(form="strict", **options)) < 1e-12
    assert changed_by_the_future(make(**options)) < 1e-12
    # A chunk that holds every bucket and the one before it, wherever they begin.
    assert changed_by_the_future(make(**{**options, "form": "paper", "chunk": 64})) < 1e-12


# Masks, zeros, random numbers


def test_masked_tokens_are_in_no_bucket():
    attention = make(causal=True)
    q, v = inputs(30)
    keep = torch.rand(BATCH, 30) < 0.6
    out = run(attention, q, v, key_mask=keep)
    assert bool((out.transpose(1, 2)[~keep] == 0).all())
    for row in range(BATCH):  # as if they were not there
        alone = run(attention, q[row : row + 1, :, keep[row]], v[row : row + 1, :, keep[row]])
        torch.testing.assert_close(out[row : row + 1, :, keep[row]], alone, atol=1e-12, rtol=0)


def test_a_zero_vector_has_a_gradient():
    attention = make()
    q, v = inputs(12)
    q[:, :, 3] = 0.0
    q.requires_grad_()
    out = run(attention, q, v)
    (gradient,) = torch.autograd.grad(out.sum(), q)
    assert bool(out.isfinite().all()) and bool(gradient.isfinite().all())


def test_rotations_are_saved_and_redrawn_on_request():
    torch.manual_seed(5)
    first = make()
    torch.manual_seed(5)
    assert torch.equal(make().rotations, first.rotations)
    assert "rotations" in first.state_dict() and not list(first.parameters())
    before = first.rotations.clone()
    first.redraw()
    assert not torch.equal(first.rotations, before) and first.rotations.shape == before.shape


def test_the_given_keys_are_not_read():
    attention = make()
    q, v = inputs(20)
    assert torch.equal(attention(q, torch.randn_like(q), v), attention(q, q, v))
    assert set(MultiHead(16, attention).project) == {"q", "v"}


def test_dropout_in_training_only():
    attention = make(dropout=0.5)
    q, v = inputs(20)
    assert not torch.allclose(run(attention.train(), q, v), run(attention.eval(), q, v))


@pytest.mark.parametrize("causal", [False, True])
def test_inside_a_reversible_layer(causal: bool):
    """The second run takes over the buckets of the first; without that a rounding can move a token to another."""
    attention = build("reformer", heads=2, head_dim=8, causal=causal, rounds=2, chunk=4, buckets=4)
    stack = ReversibleStack([(MultiHead(16, attention), nn.Linear(16, 16)) for _ in range(3)]).double()
    x = torch.randn(2, 30, 16, dtype=DOUBLE, requires_grad=True)
    y = sum(stack(x, x))
    (found,) = torch.autograd.grad(y.square().sum(), x)
    x1 = x2 = x
    for f, g in stack._pairs():
        x1 = x1 + f(x2)
        x2 = x2 + g(x1)
    (expected,) = torch.autograd.grad((x1 + x2).square().sum(), x)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)


# Decoding


@pytest.mark.parametrize("options", [{}, {"count_correction": False, "reads_self": "always"}], ids=str)
@pytest.mark.parametrize("chunks", [[150], [1] * 150, [70, 1, 5, 74], [64, 63, 23]], ids=["whole", "single", "a", "b"])
def test_decoding_equals_the_parallel_pass(chunks: list[int], options: dict):
    """Steps of one token past the point where keys are gathered, steps of several, and steps the parallel way."""
    attention = make(causal=True, chunk=3, buckets=4, rounds=2, **options)
    q, v = inputs(150)
    keep = torch.rand(BATCH, 150) < 0.8
    for mask in (None, keep):
        state, outs, begin = attention.start(BATCH), [], 0
        for count in chunks:
            here = slice(begin, begin + count)
            own = None if mask is None else mask[:, here]
            out, state = attention.extend(q[:, :, here], q[:, :, here], v[:, :, here], state, key_mask=own)
            outs.append(out)
            begin += count
        expected = run(attention, q, v, key_mask=mask)
        torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=1e-10)


def test_the_size_of_the_state():
    attention = make(causal=True, rounds=3, buckets=(4, 2))
    q, v = inputs(20)
    _, state = attention.extend(q, q, v, attention.start(BATCH, dtype=DOUBLE))
    rows = BATCH * HEADS * 20
    assert state.bytes == rows * (2 * WIDTH * 8 + 3 * 8) + BATCH * HEADS * 3 * 8 * 8


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buckets": 7}, "option buckets must be even, each half being the other's mirror, not 7"),
        ({"buckets": (4, 3)}, "option buckets must be even, each half being the other's mirror, not (4, 3)"),
        ({"buckets": 0}, "option buckets must be at least 2, not 0"),
        ({"buckets": ()}, "option buckets must be int or a tuple of int, not () (tuple)"),
        ({"rounds": 0}, "option rounds must be at least 1, not 0"),
        ({"chunk": 0}, "option chunk must be at least 1, not 0"),
        ({"form": "loose"}, "option form must be one of paper, strict, released, not 'loose'"),
        ({"form": "strict"}, "option form strict goes with causal=True; without a direction, paper leaks nothing"),
        ({"bucket_mask": 1}, "option bucket_mask must be bool, not 1 (int)"),
        ({"reads_self": "never"}, "option reads_self must be one of alone, always, not 'never'"),
        ({"bukets": 4}, "reformer has no option 'bukets': did you mean 'buckets'?"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("reformer", heads=HEADS, head_dim=WIDTH, **options)
    assert str(raised.value) == message


def test_strict_chunks_have_no_other_buckets_to_hide():
    with pytest.raises(InvalidOption, match="bucket_mask=False goes with form paper"):
        make(causal=True, bucket_mask=False)


def test_the_form_of_the_paper_does_not_decode():
    with pytest.raises(Unsupported, match="reformer decodes in its strict form only"):
        make(causal=True, form="paper").start(1)


# The released form


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options", [{}, {"chunks_before": 2}, {"chunks_before": 0}, {"rounds": 3}, {"reads_self": "always"}], ids=str
)
def test_the_released_form_is_its_definition(options: dict, causal: bool, agree):
    """Below, at and above one chunk, and with a ring so short that keys are counted twice."""
    attention = make(causal=causal, form="released", eps=1e-6, **options)
    for length in (1, 3, 4, 7, 8, 21):
        q, v = inputs(length)
        for keep in (None, torch.rand(BATCH, length) < 0.7):
            agree(
                lambda q, v, keep=keep: run(attention, q, v, key_mask=keep),
                lambda q, v, keep=keep: attention.reference(q, q, v, key_mask=keep),
                q,
                v,
            )


def test_the_first_chunk_of_the_released_form_reads_the_last():
    attention = make(form="released", rounds=1, buckets=2, chunk=4)
    q, _ = inputs(16, batch=1)
    order = attention._hash(q)[0, :, 0].argsort(dim=-1, stable=True)
    weights = attention.weights(q, q)[0]
    for head in range(HEADS):
        sorted_map = weights[head][order[head]][:, order[head]].unflatten(0, (4, 4)).unflatten(2, (4, 4))
        reads = (sorted_map.sum(dim=(1, 3)) > 0).int()
        assert torch.equal(reads, torch.eye(4, dtype=torch.int32) + torch.eye(4, dtype=torch.int32).roll(-1, 1))


def test_the_released_form_costs_what_it_says_and_drops_weights():
    attention = make(form="released", rounds=2, dropout=0.5)
    q, v = inputs(21, batch=1)
    assert attention.cost(21, 21).flops == count_flops(lambda: run(attention, q, v))
    still = run(attention, q, v)
    assert not torch.equal(run(attention.train(), q, v), still)
    assert torch.equal(run(attention.eval(), q, v), still)


def test_the_released_form_in_reversible_layers_hashes_once():
    torch.manual_seed(1)
    mixers = [MultiHead(16, make(causal=True, form="released")).double() for _ in range(3)]
    stack = ReversibleStack([(mixer, nn.Linear(16, 16).double()) for mixer in mixers])
    x = torch.randn(2, 21, 16, dtype=DOUBLE, requires_grad=True)
    y1, y2 = stack(x, x)
    (y1 * y2).sum().backward()
    z1 = z2 = leaf = x.detach().clone().requires_grad_()
    for mixer, change in stack.blocks:
        z1 = z1 + mixer(z2)
        z2 = z2 + change(z1)
    (z1 * z2).sum().backward()
    torch.testing.assert_close(x.grad, leaf.grad, rtol=0, atol=1e-9)


def test_a_seed_gives_the_same_rotations_to_every_layer():
    one, two = make(seed=5), make(seed=5)
    assert torch.equal(one.rotations, two.rotations) and not torch.equal(one.rotations, make(seed=6).rotations)


def test_the_released_form_refuses():
    with pytest.raises(InvalidOption, match="options chunks_before and chunks_after are for form released"):
        make(chunks_before=2)
    with pytest.raises(InvalidOption, match="form released has no bucket mask and no count correction"):
        make(form="released", bucket_mask=False)
    with pytest.raises(Unsupported, match="reformer decodes in its strict form only"):
        make(causal=True, form="released").start(1)
