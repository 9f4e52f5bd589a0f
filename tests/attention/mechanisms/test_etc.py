"""ETC against a literal mask and label matrix over the two concatenated inputs."""

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64
PROJECTIONS = ("global_q", "g2g_k", "g2g_v", "g2l_k", "g2l_v", "l2g_k", "l2g_v")


def make(count: int, radius: int, labels: int = 0, **options) -> Attention:
    made = build("etc", heads=HEADS, head_dim=WIDTH, global_tokens=count, radius=radius, labels=labels, **options)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made.double()


def heads(number: int, length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype) for _ in range(number)]


def literal(attention: Attention, length: int, segment: list[int] | None, example: list[int] | None, known: set[int]):
    """One example: (length, length) of who reads whom, and of the label of each pair."""
    options = attention.options
    count, clip = options.global_tokens, options.labels
    keep = torch.zeros(length, length, dtype=torch.bool)
    label = torch.zeros(length, length, dtype=torch.int64)
    for i in range(length):
        for j in range(length):
            from_global, to_global = i < count, j < count
            linked = segment is not None and segment[i] == segment[j] and segment[i] >= 0
            if from_global == to_global:
                offset = max(-clip, min(clip, j - i))
                label[i, j] = offset if offset >= 0 else clip - offset
                may = from_global or abs(j - i) <= options.radius
            else:
                label[i, j] = 2 * clip + 1 + (1 if linked else 0)
                free = segment is not None and segment[i if from_global else j] < 0
                hard = options.hard == "both" or (options.hard == "g2l" and from_global)
                may = not hard or linked or free
            keep[i, j] = may and j in known and (example is None or example[i] == example[j])
    return keep, label


def truth(attention: Attention, keep: Tensor, label: Tensor):
    """Both softmaxes as one of the whole matrix, with the projections that belong to each of its four parts."""
    count = attention.options.global_tokens

    def run(q, k, v, *projections, **labels):
        given = dict(zip(PROJECTIONS, projections))
        global_q = given.get("global_q", q)
        out = []
        for i in range(q.shape[2]):
            rows = ("g2g", "g2l") if i < count else ("l2g", "")
            query = (global_q if i < count else q)[:, :, i]
            keys, values = (
                torch.cat(
                    [given.get(f"{rows[0]}_{x}", own)[:, :, :count], given.get(f"{rows[1]}_{x}", own)[:, :, count:]], 2
                )
                for x, own in (("k", k), ("v", v))
            )
            scores = torch.einsum("bhd,bhjd->bhj", query, keys)
            if labels:
                kind = "global" if i < count else "long"
                vectors, numbers = labels[f"{kind}_vectors"], labels[f"{kind}_numbers"]
                own = label[:, i]  # batch keys
                scores = scores + torch.einsum("bhd,hbjd->bhj", query, vectors[:, own]) + numbers[:, own].movedim(1, 0)
            scores = (scores / WIDTH**0.5).masked_fill(~keep[:, None, i], float("-inf"))
            alive = keep[:, i].any(-1)[:, None, None]
            weights = scores.masked_fill(~alive, 0.0).softmax(-1) * alive
            out.append(torch.einsum("bhj,bhje->bhe", weights, values))
        return torch.stack(out, dim=2)

    return run


def compare(agree, attention: Attention, length: int, *, segment=None, example=None, padding=None) -> Tensor:
    """Values and all gradients, those of the label tables too; gives back who reads whom."""
    batch = BATCH
    rows = [None] * batch
    everything = [set(range(length))] * batch
    readable = everything if padding is None else [set(row.nonzero()[:, 0].tolist()) for row in padding]
    pairs = [
        literal(attention, length, s, e, r)
        for s, e, r in zip(rows if segment is None else segment, rows if example is None else example, readable)
    ]
    keep, label = torch.stack([p[0] for p in pairs]), torch.stack([p[1] for p in pairs])
    defined = truth(attention, keep, label)
    ids = {"segment": segment, "example": example}
    side = {name: torch.tensor(value) for name, value in ids.items() if value is not None}
    tables = list(attention.labels)
    projections = [] if attention.options.shared else list(PROJECTIONS)

    def split(given):
        own, labels = given[: 3 + len(projections)], given[3 + len(projections) :]
        return own[:3], own[3:], dict(zip(tables, labels))

    def one(*given):
        qkv, streams, labels = split(given)
        return defined(*qkv, *streams, **labels)

    def forward(method: str):
        def run(*given):
            qkv, streams, labels = split(given)
            streams = {**dict(zip(projections, streams)), **side}
            call = {"key_mask": padding, "streams": streams}
            state = {f"labels.{name}": value for name, value in labels.items()}
            if method == "forward":
                return torch.func.functional_call(attention, state, qkv, call)
            state = {f"of.{name}": value for name, value in state.items()}
            return torch.func.functional_call(_Reference(attention), state, qkv, call)

        return run

    inputs = [*heads(3 + len(projections), length), *(attention.labels[name] for name in tables)]
    agree(one, forward("forward"), *inputs)
    agree(one, forward("reference"), *inputs)
    return keep


class _Reference(torch.nn.Module):
    def __init__(self, of: Attention) -> None:
        super().__init__()
        self.of = of

    def forward(self, *given, **side):
        return self.of.reference(*given, **side)


@pytest.mark.parametrize("labels", [0, 2])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("length", "count", "radius"), [(1, 2, 3), (4, 4, 1), (5, 4, 1), (23, 5, 2), (75, 3, 40)])
def test_equals_the_literal_definition(agree, length: int, count: int, radius: int, shared: bool, labels: int):
    compare(agree, make(count, radius, labels, shared=shared), length)


SEGMENT = [[0, 1, 2, -1, *([0] * 5), *([1] * 4), *([2] * 6), -1], [7, 7, 3, 3, *([3] * 8), *([7] * 8)]]
EXAMPLE = [[0, 0, 1, 1, *([0] * 7), *([1] * 9)], [4] * 20]


@pytest.mark.parametrize("hard", ["none", "g2l", "both"])
@pytest.mark.parametrize("labels", [0, 3])
def test_segments_and_packed_examples(agree, labels: int, hard: str):
    attention = make(4, 2, labels, hard=hard)
    padding = torch.ones(BATCH, 20, dtype=torch.bool)
    padding[0, [2, 9, 10]], padding[1, 13:] = False, False
    compare(agree, attention, 20, segment=SEGMENT)
    compare(agree, attention, 20, segment=SEGMENT, example=EXAMPLE)
    compare(agree, attention, 20, segment=SEGMENT, example=EXAMPLE, padding=padding)
    compare(agree, attention, 20, segment=SEGMENT, padding=padding)
    if hard == "none":
        compare(agree, attention, 20, example=EXAMPLE)
        compare(agree, attention, 20, padding=padding)


def test_labels_by_hand():
    """0 itself, 1 … k to the right, k + 1 … 2k to the left: neither swapped nor colliding with those across."""
    attention = make(2, 3, labels=3)
    found = attention.position_labels(torch.tensor([-5, -3, -2, -1, 0, 1, 2, 3, 9]))
    assert found.tolist() == [6, 6, 5, 4, 0, 1, 2, 3, 3]
    assert attention.labels["long_vectors"].shape == (HEADS, 2 * 3 + 3, WIDTH)


def test_a_label_moves_the_pairs_that_have_it():
    """Two globals and five long tokens; the label for one to the right is raised, in long rows only."""
    attention = make(2, 2, labels=2, shared=True)
    for parameter in attention.parameters():
        torch.nn.init.zeros_(parameter)
    q, k, _ = heads(3, 7)
    before = attention.oracle(q, k)
    with torch.no_grad():
        attention.labels["long_numbers"][1, 1] = 50.0  # of one head
    after = attention.weights(q, k)
    assert torch.equal(before[:, [0, 2]], attention.oracle(q, k)[:, [0, 2]])
    torch.testing.assert_close(after[:, 1, :2], before[:, 1, :2], atol=1e-12, rtol=0)
    for i in range(2, 6):
        assert (after[:, 1, i, i + 1] > 0.999).all()
    torch.testing.assert_close(after[:, 1, 6], before[:, 1, 6], atol=1e-12, rtol=0)  # nothing is to its right


@pytest.mark.parametrize("labels", [0, 4])
def test_lifted_weights_are_bert(dense, agree, labels: int):
    """Shared projections, a radius over everything, labels of zero, nothing masked: full attention."""
    attention = make(3, 30, labels, shared=True)
    for parameter in attention.parameters():
        torch.nn.init.zeros_(parameter)
    everywhere = torch.ones(21, 21, dtype=torch.bool)
    agree(lambda q, k, v: dense(q, k, v, everywhere, WIDTH**-0.5), attention, *heads(3, 21))


@pytest.mark.parametrize("length", [1, 5, 8])
def test_a_sequence_of_globals_only(dense, agree, length: int):
    attention = make(8, 2, shared=True)
    everywhere = torch.ones(length, length, dtype=torch.bool)
    agree(lambda q, k, v: dense(q, k, v, everywhere, WIDTH**-0.5), attention, *heads(3, length))


@pytest.mark.parametrize("labels", [0, 2])
def test_hard_attention_gives_no_gradient_across_segments(labels: int):
    attention = make(3, 2, labels, hard="g2l", shared=True)
    segment = torch.tensor([[0, 1, -1, *([0] * 4), *([1] * 5)]])
    q, k, v = (x.requires_grad_() for x in heads(3, 12, batch=1))
    out = attention(q, k, v, streams={"segment": segment})
    for row, others in ((0, slice(7, 12)), (1, slice(3, 7))):
        for gradient in torch.autograd.grad(out[:, :, row].sum(), (k, v), retain_graph=True):
            assert (gradient[:, :, others] == 0).all()
            assert (gradient != 0).any()
    (free,) = torch.autograd.grad(out[:, :, 2].sum(), v)
    assert (free != 0).all()  # a global token of no segment reads everything


@pytest.mark.parametrize("labels", [0, 3])
def test_packed_examples_are_their_separate_runs(labels: int):
    """Globals of both examples, then the long tokens of both; also garbage beside them."""
    packed = make(5, 3, labels)
    sizes = ((2, 9), (3, 12))
    inputs = heads(10, 26, batch=1)
    example = torch.tensor([[0, 0, 1, 1, 1, *([0] * 9), *([1] * 12)]])
    segment = torch.tensor([[0, 1, 0, 1, 2, *([0] * 4), *([1] * 5), *([0] * 3), *([1] * 4), *([2] * 5)]])
    ids = {"example": example, "segment": segment}
    together = packed(*inputs[:3], streams={**dict(zip(PROJECTIONS, inputs[3:])), **ids})
    for which, (count, _) in enumerate(sizes):
        own = (example[0] == which).nonzero()[:, 0]
        alone = make(count, 3, labels)
        alone.load_state_dict(packed.state_dict())
        parts = [x[:, :, own] for x in inputs]
        streams = {**dict(zip(PROJECTIONS, parts[3:])), "segment": segment[:, own]}
        found = alone(*parts[:3], streams=streams)
        torch.testing.assert_close(together[:, :, own], found, atol=1e-12, rtol=0)


def test_constant_ids_use_the_fused_path():
    attention = make(4, 3, hard="g2l", shared=True)
    q, k, v = heads(3, 80)
    one = {"segment": torch.zeros(BATCH, 80, dtype=torch.int64), "example": torch.full((BATCH, 80), 7)}
    assert torch.equal(attention(q, k, v, streams=one), make(4, 3, shared=True)(q, k, v))


@pytest.mark.parametrize("labels", [0, 2])
def test_dropout_in_training(labels: int):
    attention = make(3, 2, labels, shared=True, dropout=0.5).train()
    q, k, v = (x.requires_grad_() for x in heads(3, 30))
    out = attention(q, k, v)
    assert (out != attention(q, k, v)).any(-1).any(1).all()
    # A head is computed again in the backward pass, with the same weights dropped.
    (gradient,) = torch.autograd.grad(out, v, torch.ones_like(out), retain_graph=True)
    (again,) = torch.autograd.grad(out, v, torch.ones_like(out))
    assert torch.equal(gradient, again)
    assert torch.allclose((gradient * v).sum(), out.sum())  # the output is linear in v


@pytest.mark.parametrize("labels", [0, 4])
def test_memory_and_cost(labels: int):
    attention = make(16, 20, labels).float()
    inputs = [x.requires_grad_() for x in heads(10, 1000, batch=1, dtype=torch.float32)]
    run = lambda: attention(*inputs[:3], streams=dict(zip(PROJECTIONS, inputs[3:])))  # noqa: E731
    known = [*inputs, *attention.parameters()]
    assert (count_flops(run), count_kept(run, known)) == tuple(attention.cost(1000, 1000))
    with LargestTensor() as seen:
        run().sum().backward()
    assert seen.elements <= 1000 * (2 * 20 + 32 + 16 + 32)  # the scores of one head, in whole blocks


# In a model


def test_projections_and_labels_are_counted_as_in_the_paper():
    """2 queries, 4 keys and 4 values; 32 more labels in 12 layers of 12 heads are the 599,040 numbers of the paper."""
    width, count = 768, 12

    def layer(**options) -> MultiHead:
        return MultiHead(width, build("etc", heads=count, head_dim=width // count, **options))

    linear = width**2 + width
    size = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert size(layer(labels=0)) == 11 * linear  # the output's projection too
    assert size(layer(labels=0, shared=True)) == 4 * linear
    assert 12 * (size(layer(labels=28)) - size(layer(labels=12))) == 599_040


def test_in_a_layer():
    mixer = MultiHead(HEADS * WIDTH, make(3, 2, 2, hard="g2l")).double()
    x = torch.randn(BATCH, 15, HEADS * WIDTH, dtype=DOUBLE)
    segment = torch.tensor([0, 1, -1] + [0] * 6 + [1] * 6).expand(BATCH, -1)
    out = mixer(x, streams={"segment": segment})
    weights = mixer.weights(x, streams={"segment": segment})
    assert out.shape == x.shape
    assert (weights[:, :, 0, 9:] == 0).all()
    assert (weights[:, :, 2] > 0).all()


# Bad input


def test_what_is_missing_or_malformed_is_refused():
    q, k, v, *projections = heads(10, 9)
    streams = dict(zip(PROJECTIONS, projections))
    with pytest.raises(InvalidInput, match="g2l_v"):
        make(3, 2)(q, k, v, streams={name: x for name, x in streams.items() if name != "g2l_v"})
    with pytest.raises(InvalidInput, match="reads no stream"):
        make(3, 2, shared=True)(q, k, v, streams=streams)
    with pytest.raises(InvalidInput, match="segment"):
        make(3, 2, hard="g2l")(q, k, v, streams=streams)
    with pytest.raises(InvalidInput, match=r"example must be of integers .* try example.long\(\)"):
        make(3, 2)(q, k, v, streams={**streams, "example": torch.zeros(BATCH, 9)})
    with pytest.raises(InvalidInput, match=r"segment must be \(batch 2, length 9\)"):
        make(3, 2)(q, k, v, streams={**streams, "segment": torch.zeros(BATCH, 8, dtype=torch.int64)})
    with pytest.raises(InvalidInput, match="l2g_k"):
        make(3, 2)(q, k, v, streams={**streams, "l2g_k": streams["l2g_k"][:, :, 1:]})


@pytest.mark.parametrize(
    ("name", "value"), [("global_tokens", 0), ("radius", 0), ("labels", -1), ("hard", "l2g"), ("shared", 1)]
)
def test_invalid_options_are_refused(name: str, value):
    with pytest.raises(InvalidOption, match=name):
        build("etc", heads=HEADS, head_dim=WIDTH, **{name: value})


def test_it_is_bidirectional_only():
    with pytest.raises(Unsupported, match="etc has no causal form"):
        build("etc", heads=HEADS, head_dim=WIDTH, causal=True)
