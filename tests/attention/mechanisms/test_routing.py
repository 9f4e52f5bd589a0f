"""Routing: clusters that follow the data, membership by sequence and by prefix, decoding, and what is refused."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize

from longspan.attention import build
from longspan.attention.mechanisms.routing import RoutingAttention
from longspan.audit.counting import count_flops, count_kept
from longspan.errors import InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead
from longspan.nn.reversible import ReversibleStack

DOUBLE = torch.float64
BATCH, HEADS, WIDTH = 2, 2, 8


def make(*, causal: bool = False, heads: int = HEADS, **options) -> RoutingAttention:
    options = {"clusters": 3, "window": 5, "block": 8, **options}
    return build("routing", heads=heads, head_dim=WIDTH, causal=causal, **options).double().eval()


def qkv(length: int, batch: int = BATCH, heads: int = HEADS) -> list[Tensor]:
    return [torch.randn(batch, heads, length, WIDTH, dtype=DOUBLE) for _ in range(3)]


def sphere(x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:])


def best(products: list[float], window: int) -> list[int]:
    return sorted(range(len(products)), key=lambda i: -products[i])[:window]


def by_sequence(attention: RoutingAttention, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Section 4 of the paper by literal loops: one sequence after the other, one cluster after the other."""
    out = torch.zeros_like(v)
    x, y = sphere(q), sphere(q if attention.causal else k)
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            counts = torch.zeros(q.shape[2], 1, dtype=DOUBLE)
            rows = torch.zeros_like(v[row, head])
            for centroid in attention.centroids.means[head]:
                queries = sorted(best((x[row, head] @ centroid).tolist(), attention.options.window))
                keys = sorted(best((y[row, head] @ centroid).tolist(), attention.options.window))
                for i in queries:
                    read = [j for j in keys if j <= i or not attention.causal]
                    weights = (x[row, head, i] @ y[row, head, read].T * attention.scale).softmax(-1)
                    rows = rows.index_add(0, torch.tensor([i]), (weights @ v[row, head, read])[None])
                    counts[i] += 1
            out = out.index_put((torch.tensor(row), torch.tensor(head)), rows / counts.clamp_min(1))
    return out


def by_prefix(attention: RoutingAttention, q: Tensor, v: Tensor) -> Tensor:
    """The strict form by literal loops over queries."""
    x, block = sphere(q), attention.options.block
    out = []
    for row in range(q.shape[0]):
        for head in range(q.shape[1]):
            points = x[row, head]
            products = points @ attention.centroids.means[head].T
            own = products.argmax(-1).tolist()
            for i in range(q.shape[2]):
                begin = i - i % block
                listed = best(products[:begin, own[i]].tolist(), attention.options.window)
                read = listed + [j for j in range(begin, i + 1) if own[j] == own[i]]
                weights = (points[i] @ points[read].T * attention.scale).softmax(-1)
                out.append(weights @ v[row, head, read])
    return torch.stack(out).view_as(v)


# Who reads what


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 4, 23])
def test_clusters_of_the_sequence_as_the_paper_has_them(agree, length: int, causal: bool):
    attention = make(causal=causal, membership="sequence")
    agree(lambda *x: by_sequence(attention, *x), attention, *qkv(length))


@pytest.mark.parametrize("length", [1, 8, 9, 30])
def test_strict_lists_of_the_prefix(agree, length: int):
    attention = make(causal=True)
    q, _, v = qkv(length)
    agree(lambda q, v: by_prefix(attention, q, v), lambda q, v: attention(q, q, v), q, v)


@given(
    length=st.integers(1, 90),
    clusters=st.integers(1, 6),
    window=st.integers(1, 30),
    block=st.integers(1, 40),
    form=st.sampled_from(["bidirectional", "sequence", "strict"]),
    local=st.integers(0, 1),
)
def test_any_sizes(length: int, clusters: int, window: int, block: int, form: str, local: int):
    torch.manual_seed(length)
    attention = make(
        causal=form != "bidirectional",
        membership=None if form == "bidirectional" else form,
        clusters=clusters,
        window=window,
        block=block,
        local_heads=local,
        local_window=4,
    )
    tensors = qkv(length)
    for mask in (None, torch.rand(BATCH, length) < 0.7):
        expected = attention.reference(*tensors, key_mask=mask)
        torch.testing.assert_close(attention(*tensors, key_mask=mask), expected, atol=1e-10, rtol=1e-10)
    assert count_flops(lambda: attention(*tensors)) == BATCH * attention.cost(length, length).flops


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("membership", [None, "sequence"])
def test_one_cluster_over_everything_is_dense_attention(agree, membership: str | None, causal: bool):
    attention = make(causal=causal, membership=membership, clusters=1, window=30, block=7)
    full = build("softmax", heads=HEADS, head_dim=WIDTH, causal=causal)
    agree(lambda q, k, v: full(sphere(q), sphere(q if causal else k), v), lambda q, k, v: attention(q, k, v), *qkv(30))


def test_the_order_of_tokens_does_not_matter_without_direction():
    attention = make()
    tensors, turned = qkv(30), torch.randperm(30)
    out = attention(*tensors)
    torch.testing.assert_close(attention(*(x[:, :, turned] for x in tensors)), out[:, :, turned], atol=1e-12, rtol=0)


def test_some_tokens_are_in_no_cluster_and_some_in_several():
    attention = make(clusters=4, window=8)
    q, k, v = qkv(32)
    inside = attention._members(sphere(q), torch.ones(BATCH, 32, dtype=torch.bool)).sum(dim=2)
    assert inside.min() == 0 and inside.max() > 1
    assert torch.equal((attention(q, k, v) == 0).all(-1), inside == 0)
    ones = attention(q, k, torch.ones_like(v))  # an average of averages: nothing is lost where clusters overlap
    torch.testing.assert_close(ones[inside > 0], torch.ones_like(ones[inside > 0]), atol=1e-12, rtol=0)


def changed_by_the_future(attention: RoutingAttention) -> float:
    worst = 0.0
    for seed in range(5):
        torch.manual_seed(seed)
        first, other = qkv(40), qkv(40)
        later = [torch.cat([a[:, :, :30], b[:, :, 30:]], 2) for a, b in zip(first, other)]
        worst = max(worst, (attention(*first) - attention(*later))[:, :, :30].abs().max().item())
    return worst


def test_the_paper_lets_the_future_choose_what_the_past_reads():
    assert changed_by_the_future(make(causal=True, membership="sequence")) > 0.1
    assert changed_by_the_future(make(causal=True, membership="strict")) < 1e-12
    assert changed_by_the_future(make(causal=True)) < 1e-12


@pytest.mark.parametrize("membership", ["sequence", "strict"])
def test_no_gradient_from_the_future(membership: str):
    attention = make(causal=True, membership=membership)
    q, _, v = (x.requires_grad_() for x in qkv(20))
    out = attention(q, q, v)
    for gradient in torch.autograd.grad(out[:, :, 11].sum(), (q, v)):
        assert bool((gradient[:, :, 12:] == 0).all())


def test_local_heads_read_their_neighbours():
    attention = make(causal=True, heads=3, local_heads=2, local_window=4)
    window = build("window", heads=2, head_dim=WIDTH, causal=True, window=4)
    q, k, v = qkv(30, heads=3)
    torch.testing.assert_close(attention(q, k, v)[:, :2], window(q[:, :2], k[:, :2], v[:, :2]), atol=1e-12, rtol=0)
    other = k.clone()
    other[:, 2] += 1
    assert torch.equal(attention(q, other, v), attention(q, k, v))  # heads that route read no k


def test_what_is_projected():
    assert make().projects == ("q", "k", "v")
    assert make(causal=True).projects == make(causal=True, membership="sequence").projects == ("q", "v")
    assert make(causal=True, local_heads=1).projects == ("q", "k", "v")
    assert set(MultiHead(16, make(causal=True)).project) == {"q", "v"}


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_as_long_as_the_text(agree, causal: bool):
    """All clusters then hold all tokens, and say the same."""
    attention = make(causal=causal, membership="sequence" if causal else None, window=20)
    q, k, v = qkv(20)
    keep = torch.rand(BATCH, 20) < 0.7
    for mask in (None, keep):
        agree(
            lambda q, k, v, mask=mask: attention.reference(q, k, v, key_mask=mask),
            lambda q, k, v, mask=mask: attention(q, k, v, key_mask=mask),
            *(q, k, v),
        )


@pytest.mark.parametrize("window", [5, 40])  # 40: all of the text
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "membership": "sequence"}], ids=str)
def test_what_is_kept_is_what_the_cost_says(options: dict, window: int):
    attention = make(window=window, **options)
    tensors = [x.requires_grad_() for x in qkv(40, batch=1)]
    known = [*tensors, *attention.buffers()]
    assert count_kept(lambda: attention(*tensors), known) == attention.cost(40, 40).floats


# Centroids


def planted(clusters: int, count: int, width: int) -> tuple[Tensor, Tensor]:
    directions = sphere(torch.randn(clusters, width, dtype=DOUBLE))
    points = directions[torch.randint(clusters, (count,))] + 0.05 * torch.randn(count, width, dtype=DOUBLE)
    return directions, points


def test_centroids_find_planted_directions():
    torch.manual_seed(1)
    directions, points = planted(3, 600, WIDTH)
    attention = make(clusters=3, window=20, decay=0.9, heads=1).train()
    attention.centroids.means.copy_(sphere(directions + 0.7 * torch.randn(1, 3, WIDTH, dtype=DOUBLE)))
    attention.centroids.sums.copy_(attention.centroids.means)
    for begin in range(0, 600, 20):
        x = points[None, None, begin : begin + 20]
        attention(x, x, x)
    cosines = normalize(attention.centroids.means[0], dim=-1) @ normalize(directions, dim=-1).T
    assert bool((cosines.amax(0) > 0.99).all())


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"causal": True, "membership": "sequence"}], ids=str)
def test_one_step_of_the_averages(options: dict):
    attention = make(decay=0.9, **options).train()
    q, k, v = qkv(20)
    keep = torch.rand(BATCH, 20) < 0.7
    before = {name: buffer.clone() for name, buffer in attention.centroids.named_buffers()}
    attention(q, k, v, key_mask=keep)
    for head in range(HEADS):
        counts, sums = torch.zeros(3, dtype=DOUBLE), torch.zeros(3, WIDTH, dtype=DOUBLE)
        for x in [q] if attention.causal else [q, k]:
            for point in sphere(x)[:, head][keep]:
                chosen = (before["means"][head] @ point).argmax()
                counts[chosen] += 1
                sums[chosen] += point
        counts = 0.9 * before["counts"][head] + 0.1 * counts
        sums = 0.9 * before["sums"][head] + 0.1 * sums
        smooth = (counts + 1e-5) / (counts.sum() + 3e-5) * counts.sum()
        torch.testing.assert_close(attention.centroids.counts[head], counts)
        torch.testing.assert_close(attention.centroids.means[head], sums / smooth[:, None])


def test_centroids_stay_in_evaluation_and_have_no_gradient():
    attention = make()
    before = attention.centroids.means.clone()
    tensors = [x.requires_grad_() for x in qkv(20)]
    attention(*tensors).sum().backward()
    assert torch.equal(attention.centroids.means, before) and attention.auxiliary_loss is None
    assert not list(attention.parameters()) and attention.centroids.means.grad is None
    assert {"centroids.means", "centroids.sums", "centroids.counts"} == set(attention.state_dict())


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_the_commitment_loss_and_its_gradient(causal: bool, masked: bool):
    attention = make(causal=causal, commitment=0.3).train()
    q, k, v = (x.requires_grad_() for x in qkv(20))
    keep = torch.rand(BATCH, 20) < 0.6 if masked else torch.ones(BATCH, 20, dtype=torch.bool)
    means = attention.centroids.means.clone()
    attention(q, k, v, key_mask=keep if masked else None)
    parts = [sphere(x).detach().requires_grad_() for x in ([q] if causal else [q, k])]
    loss, elements = 0.0, len(parts) * int(keep.sum()) * HEADS * WIDTH
    for x in parts:
        nearest = torch.einsum("bhid,hcd->bhic", x, means).argmax(-1)
        nearest = torch.stack([means[head][nearest[:, head]] for head in range(HEADS)], dim=1)
        loss = loss + 0.3 * ((x - nearest).square() * keep[:, None, :, None]).sum() / elements
        (gradient,) = torch.autograd.grad(loss, x, retain_graph=True)
        expected = 2 * 0.3 * (x - nearest) * keep[:, None, :, None] / elements
        torch.testing.assert_close(gradient, expected)
    torch.testing.assert_close(attention.auxiliary_loss, loss)
    found = torch.autograd.grad(attention.auxiliary_loss, [q] if causal else [q, k])
    for x, part, gradient in zip((q, k), parts, found):
        (towards,) = torch.autograd.grad(loss, part, retain_graph=True)
        torch.testing.assert_close(gradient, torch.autograd.grad(sphere(x), x, towards)[0], atol=1e-12, rtol=1e-9)


@pytest.mark.parametrize("causal", [False, True])
def test_inside_a_reversible_layer(causal: bool):
    """The second run neither routes anew nor moves the centroids a second time."""
    attention = build("routing", heads=2, head_dim=8, causal=causal, clusters=3, window=5, block=8)
    stack = ReversibleStack([(MultiHead(16, attention), nn.Linear(16, 16))]).double()
    x = torch.randn(2, 20, 16, dtype=DOUBLE, requires_grad=True)
    start = attention.centroids.state_dict()
    start = {name: buffer.clone() for name, buffer in start.items()}
    (found,) = torch.autograd.grad(sum(stack(x, x)).square().sum(), x)
    after = attention.centroids.means.clone()
    attention.centroids.load_state_dict(start)
    ((f, g),) = stack._pairs()
    y = x + f(x)
    (expected,) = torch.autograd.grad((y + x + g(y)).square().sum(), x)
    torch.testing.assert_close(found, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(attention.centroids.means, after)


# Growth


@pytest.mark.slow
def test_work_grows_as_the_power_1_5_where_clusters_follow_the_length():
    work = []
    for length in (1024, 4096):
        clusters = math.isqrt(length)
        attention = make(clusters=clusters, window=length // clusters)
        work.append(attention.cost(length, length).flops)
    assert abs(math.log(work[1] / work[0]) / math.log(4) - 1.5) < 0.15


# Decoding


@pytest.mark.parametrize("local", [0, 1])
@pytest.mark.parametrize("chunks", [[50], [1] * 50, [20, 1, 3, 26], [8, 8, 17, 17], [7, 2, 41]], ids=str)
def test_decoding_equals_the_parallel_pass(chunks: list[int], local: int):
    attention = make(causal=True, local_heads=local, local_window=3)
    tensors = qkv(50)
    keep = torch.rand(BATCH, 50) < 0.7
    for mask in (None, keep):
        state, outs, begin = attention.start(BATCH, dtype=DOUBLE), [], 0
        for count in chunks:
            here = slice(begin, begin + count)
            own = None if mask is None else mask[:, here]
            out, state = attention.extend(*(x[:, :, here] for x in tensors), state, key_mask=own)
            outs.append(out)
            begin += count
        expected = attention(*tensors, key_mask=mask)
        torch.testing.assert_close(torch.cat(outs, 2), expected, atol=1e-10, rtol=1e-10)


def test_the_size_of_the_state():
    """Tokens on the sphere and values of all positions, their clusters, the lists; neighbours for local heads."""
    attention = make(causal=True, heads=3, local_heads=1, local_window=4)
    state = attention.start(BATCH, dtype=DOUBLE)
    lists = BATCH * 2 * 3 * 5 * 16
    assert state.bytes == lists
    _, state = attention.extend(*qkv(20, heads=3), state)
    assert state.bytes == lists + BATCH * 2 * 20 * (2 * WIDTH + 1) * 8 + BATCH * 4 * 2 * WIDTH * 8


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 0}, "option clusters must be at least 1, not 0"),
        ({"window": 0}, "option window must be at least 1, not 0"),
        ({"block": 0}, "option block must be at least 1, not 0"),
        ({"decay": 1.5}, "option decay must be 0 to 1, not 1.5"),
        ({"commitment": -1.0}, "option commitment must be at least 0, not -1.0"),
        ({"local_heads": 2}, "option local_heads must be below the 2 heads, so that one routes, not 2"),
        ({"local_window": 0}, "option local_window must be at least 1, not 0"),
        ({"membership": "loose"}, "option membership must be one of sequence, strict, not 'loose'"),
        (
            {"membership": "strict"},
            "option membership strict goes with causal=True; without a direction, nothing leaks",
        ),
        ({"cluster": 4}, "routing has no option 'cluster': did you mean 'clusters'?"),
    ],
    ids=str,
)
def test_options_that_do_not_fit(options: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("routing", heads=HEADS, head_dim=WIDTH, **options)
    assert str(raised.value) == message


def test_clusters_of_the_sequence_do_not_decode():
    with pytest.raises(Unsupported, match="routing decodes with strict membership only"):
        make(causal=True, membership="sequence").start(1)
