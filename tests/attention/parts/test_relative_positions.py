"""Relative positions in the Routing Transformer: the fast path against loops over pairs, gradients, decoding, cost."""

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.attention.devices import as_other_device
from longspan.attention.parts.kmeans import on_sphere
from longspan.audit.counting import count_flops

HEADS, WIDTH, LENGTH, REACH = 2, 8, 21, 3


def make(causal: bool, value_dim: int = WIDTH, **options) -> Attention:
    torch.manual_seed(0)
    given = {"clusters": 3, "window": 6, "block": 8, "relative": REACH, **options}
    attention = build("routing", heads=HEADS, head_dim=WIDTH, value_dim=value_dim, causal=causal, **given)
    return attention.double().eval()


def heads(value_dim: int = WIDTH) -> list[Tensor]:
    sizes = (WIDTH, WIDTH, value_dim)
    return [torch.randn(2, HEADS, LENGTH, size, dtype=torch.float64, requires_grad=True) for size in sizes]


def clip(offset: int) -> int:
    return max(-REACH, min(REACH, offset)) + REACH


def test_ranks_in_the_sorted_list_of_a_cluster_as_released():
    """One head of one sequence, written as loops: Shaw et al. 2018, equations 3 and 4, over the ranks of members."""
    attention = make(True, membership="sequence")
    q, k, v = heads()
    out = attention(q, k, v)
    tables, x = attention.relative, on_sphere(q)
    scores = torch.einsum("bhid,hcd->bhci", x, attention.centroids.means.double())
    lists = scores.topk(6).indices.sort(-1).values[0, 1]  # clusters of the second head
    expected, counts = torch.zeros(LENGTH, WIDTH).double(), torch.zeros(LENGTH, 1).double()
    for members in lists.tolist():
        for rank, i in enumerate(members):
            read = list(enumerate(members[: rank + 1]))
            logits = [x[0, 1, i] @ (x[0, 1, j] + tables.keys[clip(r - rank)]) / WIDTH**0.5 for r, j in read]
            weights = torch.stack(logits).softmax(0)
            expected[i] += sum(w * (v[0, 1, j] + tables.values[clip(r - rank)]) for w, (r, j) in zip(weights, read))
            counts[i] += 1
    torch.testing.assert_close(out[0, 1], expected / counts.clamp_min(1), rtol=0, atol=1e-10)


FORMS = (
    (False, {}),
    (False, {"local_heads": 1, "local_window": 4}),
    (True, {"membership": "sequence"}),
    (True, {}),
    (True, {"local_heads": 1, "local_window": 4}),
)


@pytest.mark.parametrize("value_dim", (WIDTH, 5))
@pytest.mark.parametrize(("causal", "options"), FORMS, ids=str)
def test_fast_path_gradients_cost_and_decoding(causal: bool, options: dict, value_dim: int):
    attention = make(causal, value_dim, **options)
    inputs = heads(value_dim)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [13]])
    for keep in (None, mask):
        out, expected = attention(*inputs, key_mask=keep), attention.reference(*inputs, key_mask=keep)
        torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    g, leaves = torch.randn_like(out), [*inputs, *attention.parameters()]
    found, wanted = (torch.autograd.grad(y, leaves, g, allow_unused=True) for y in (out, expected))
    for a, b in zip(found, wanted):
        torch.testing.assert_close(torch.zeros(1) if a is None else a, torch.zeros(1) if b is None else b)
    assert all(a is not None and a.any() for a in found[3:])
    with torch.no_grad():
        assert count_flops(lambda: attention(*(x[:1].detach() for x in inputs))) == attention.cost(LENGTH, LENGTH).flops
        with as_other_device():
            torch.testing.assert_close(attention(*inputs, key_mask=mask), expected, rtol=0, atol=1e-10)
    if causal and not options.get("membership"):
        state, parts = attention.start(2, dtype=torch.float64), []
        with torch.no_grad():
            for rows in (slice(0, 3), slice(3, 4), slice(4, LENGTH - 1), slice(LENGTH - 1, LENGTH)):
                part, state = attention.extend(*(x[:, :, rows] for x in inputs), state, key_mask=mask[:, rows])
                parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 2), expected, rtol=0, atol=1e-10)
        changed = [torch.cat([x[:, :, :9], torch.randn_like(x[:, :, 9:])], 2) for x in inputs]
        torch.testing.assert_close(attention(*changed)[:, :, :9], attention(*inputs)[:, :, :9], rtol=0, atol=1e-12)


def test_tables_of_zeros_change_nothing():
    for causal in (False, True):
        attention, plain = make(causal), make(causal, relative=0)
        with torch.no_grad():
            attention.relative.keys.zero_()
            attention.relative.values.zero_()
        plain.centroids.load_state_dict(attention.centroids.state_dict())
        inputs = heads()
        torch.testing.assert_close(attention(*inputs), plain(*inputs), rtol=0, atol=1e-10)
    compiled = torch.compile(make(True), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*inputs), make(True)(*inputs), rtol=0, atol=1e-10)
