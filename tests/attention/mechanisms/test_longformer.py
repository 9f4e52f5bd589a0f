"""Longformer against its literal definition: window, dilation, global tokens with projections of their own."""

import pytest
import torch
from torch import Tensor, nn

from longspan.attention import Attention, build
from longspan.attention.parts.sliding_window import SlidingWindow
from longspan.audit.counting import count_flops, count_kept
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.nn.multihead import MultiHead

BATCH, HEADS, WIDTH = 2, 3, 4
DOUBLE = torch.float64
PROJECTIONS = ("global_q", "global_k", "global_v")


def make(window: int, dilation: int | tuple[int, ...] = 1, **options) -> Attention:
    return build("longformer", heads=HEADS, head_dim=WIDTH, window=window, dilation=dilation, **options)


def heads(count: int, length: int, batch: int = BATCH, dtype: torch.dtype = DOUBLE) -> list[Tensor]:
    return [torch.randn(batch, HEADS, length, WIDTH, dtype=dtype) for _ in range(count)]


def marks(length: int, *places: list[int]) -> Tensor:
    """One list of global positions for each example."""
    marked = torch.zeros(len(places), length, dtype=torch.bool)
    for row, own in enumerate(places):
        marked[row, own] = True
    return marked


def beside(marked: Tensor, projections: list[Tensor]) -> dict[str, Tensor]:
    return {"global_mask": marked, **dict(zip(PROJECTIONS, projections))}


def literal(length: int, window: int, dilation: int | tuple[int, ...], chosen: set[int], readable: set[int]) -> Tensor:
    """(heads, length, length) of one example: the set of keys of each row, by the paper's words."""
    dilations = dilation if isinstance(dilation, tuple) else (dilation,) * HEADS
    keep = torch.zeros(HEADS, length, length, dtype=torch.bool)
    for head in range(HEADS):
        for i in range(length):
            near = {i + dilations[head] * step for step in range(-window, window + 1)}
            read = readable if i in chosen else (near | chosen) & readable
            keep[head, i, sorted(read)] = True
    return keep


def truth(dense, marked: Tensor, keep: Tensor):
    """Two attentions, one per set of projections; global rows use the second."""

    def run(q, k, v, global_q, global_k, global_v):
        local, whole = (dense(*own, keep.clone(), WIDTH**-0.5) for own in ((q, k, v), (global_q, global_k, global_v)))
        return torch.where(marked[:, None, :, None], whole, local)

    return run


@pytest.mark.parametrize("dilation", [1, 2, (1, 2, 3)], ids=str)
@pytest.mark.parametrize(("length", "window"), [(1, 2), (7, 2), (23, 3), (71, 4), (70, 40)])
def test_equals_the_literal_definition(dense, agree, length: int, window: int, dilation):
    """Globals inside and outside of windows, ragged, some examples without any."""
    attention = make(window, dilation)
    places = [[], [0], [length - 1, 0, length // 2], list(range(min(5, length)))]
    marked = marks(length, *places)
    keep = torch.stack([literal(length, window, dilation, set(own), set(range(length))) for own in places])
    inputs = heads(6, length, batch=len(places))

    def fast(q, k, v, *projections):
        return attention(q, k, v, streams=beside(marked, list(projections)))

    agree(truth(dense, marked, keep), fast, *inputs)
    weights = attention.oracle(*inputs[:2], streams=beside(marked, inputs[3:]))
    assert torch.equal(weights > 0, keep)  # every key of the set, and no other
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights.sum(-1)))  # none of them twice


@pytest.mark.parametrize("dilation", [1, (1, 2, 1)], ids=str)
def test_padding_is_neither_read_nor_global(dense, agree, dilation):
    length, window = 29, 3
    attention = make(window, dilation)
    padding = torch.ones(3, length, dtype=torch.bool)
    padding[0, 20:], padding[1, :4], padding[2, ::3] = False, False, False
    marked = marks(length, [1, 22, 28], [0, 3, 4], [2, 3])
    real = marked & padding
    where = lambda row: set(row.nonzero()[:, 0].tolist())  # noqa: E731
    keep = torch.stack([literal(length, window, dilation, where(g), where(own)) for g, own in zip(real, padding)])
    agree(
        truth(dense, real, keep),
        lambda q, k, v, *own: attention(q, k, v, key_mask=padding, streams=beside(marked, list(own))),
        *heads(6, length, batch=3),
    )


def test_a_padded_batch_equals_its_examples_alone():
    attention, lengths = make(2), (5, 17, 11)
    inputs = heads(6, 17, batch=3)
    padding = torch.arange(17) < torch.tensor(lengths)[:, None]
    marked = marks(17, [0, 4, 9], [3], [])  # 9 is padding
    together = attention(*inputs[:3], key_mask=padding, streams=beside(marked, inputs[3:]))
    for row, length in enumerate(lengths):
        own = [x[row : row + 1, :, :length] for x in inputs]
        alone = attention(*own[:3], streams=beside(marked[row : row + 1, :length], own[3:]))
        torch.testing.assert_close(together[row : row + 1, :, :length], alone, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["q", "k", "v", *PROJECTIONS])
def test_which_rows_depend_on_each_projection(name: str):
    """Local rows read global keys by the ordinary projections; only global rows know the others."""
    attention, marked = make(2), marks(20, [3, 15], [3, 15])
    inputs = dict(zip(("q", "k", "v", *PROJECTIONS), heads(6, 20)))

    def run(given: dict[str, Tensor]) -> Tensor:
        streams = {name: given[name] for name in PROJECTIONS}
        return attention(given["q"], given["k"], given["v"], streams={"global_mask": marked, **streams})

    before, after = run(inputs), run({**inputs, name: torch.randn_like(inputs[name])})
    changed = (before != after).any(-1).any(1)
    assert torch.equal(changed, marked if name in PROJECTIONS else ~marked)


@pytest.mark.parametrize("window", [13, 50])
def test_limits_are_full_attention(dense, agree, window: int):
    everywhere = torch.ones(13, 13, dtype=torch.bool)
    full = lambda q, k, v: dense(q, k, v, everywhere, WIDTH**-0.5)  # noqa: E731
    q, k, v, *projections = heads(6, 13)
    nowhere = beside(torch.zeros(BATCH, 13, dtype=torch.bool), projections)
    agree(full, lambda q, k, v: make(window)(q, k, v, streams=nowhere), q, k, v)
    agree(full, make(window), q, k, v)
    all_global = torch.ones(BATCH, 13, dtype=torch.bool)
    agree(full, lambda *own: make(1)(q, k, v, streams=beside(all_global, list(own))), *projections)


def test_without_globals_it_costs_what_the_window_costs():
    """No mask, or a mask of nothing: the same bits and the same work."""
    attention, window = make(5), build("window", heads=HEADS, head_dim=WIDTH, window=5)
    q, k, v, *projections = heads(6, 100)
    nowhere = beside(torch.zeros(BATCH, 100, dtype=torch.bool), projections)
    for streams in (None, nowhere):
        assert torch.equal(attention(q, k, v, streams=streams), window(q, k, v))
        assert count_flops(lambda streams=streams: attention(q, k, v, streams=streams)) == count_flops(
            lambda: window(q, k, v)
        )


@pytest.mark.parametrize("count", [1, 4, 60])
def test_cost_with_globals(count: int):
    attention = make(5)
    inputs = [x.requires_grad_() for x in heads(6, 100, batch=1, dtype=torch.float32)]
    streams = beside(marks(100, list(range(count))), inputs[3:])
    run = lambda: attention(*inputs[:3], streams=streams)  # noqa: E731
    assert (count_flops(run), count_kept(run, inputs)) == tuple(attention.cost(100, 100, global_tokens=count))


def test_dropout_reaches_global_rows_too():
    attention = make(3, dropout=0.5).train()
    inputs = heads(6, 12)
    streams = beside(marks(12, [4], [4]), inputs[3:])
    first, *others = (attention(*inputs[:3], streams=streams) for _ in range(6))  # two may drop the same few by chance
    differs = torch.stack([(other != first).any(-1) for other in others])
    assert differs.any(0).all()


def test_compiled_programs_hold_up_to_capacity_global_tokens():
    attention = make(2, capacity=3)
    inputs = heads(6, 9)
    torch.compiler.reset()
    compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
    for places in ([[], [5]], [[0, 1, 8], [2]]):
        streams = beside(marks(9, *places), inputs[3:])
        torch.testing.assert_close(compiled(*inputs[:3], streams=streams), attention(*inputs[:3], streams=streams))
    with pytest.raises(RuntimeError, match="capacity, 3"):
        compiled(*inputs[:3], streams=beside(marks(9, [], [0, 1, 2, 3]), inputs[3:]))
    short = heads(6, 2)  # more room than tokens
    streams = beside(marks(2, [1], [0, 1]), short[3:])
    torch.testing.assert_close(compiled(*short[:3], streams=streams), attention(*short[:3], streams=streams))
    torch.compiler.reset()


# The language model


@pytest.mark.parametrize("dilation", [1, (1, 2, 3)], ids=str)
def test_the_causal_form_is_the_left_half_of_the_window(dilation):
    attention = make(4, dilation, causal=True)
    window = build("window", heads=HEADS, head_dim=WIDTH, window=4, dilation=dilation, causal=True)
    q, k, v = heads(3, 37)
    assert torch.equal(attention(q, k, v), window(q, k, v))
    assert attention.streams == ()


def test_decoding_keeps_a_ring_of_window_times_dilation():
    attention = make(4, (1, 2, 3), causal=True)
    q, k, v = heads(3, 60)
    state, parts, sizes = attention.start(BATCH, dtype=DOUBLE), [], []
    for t in range(60):
        out, state = attention.extend(*(x[:, :, t : t + 1] for x in (q, k, v)), state)
        parts.append(out)
        sizes.append(state.bytes)
    torch.testing.assert_close(torch.cat(parts, 2), attention(q, k, v), atol=1e-12, rtol=0)
    assert set(sizes[12:]) == {2 * BATCH * HEADS * 12 * WIDTH * 8}


# In a model


def test_the_projections_of_roberta_base():
    """12 · 3 · (768² + 768) = 21.26 million more parameters than RoBERTa, initialised as copies."""
    width, count = 768, 12
    attention = build("longformer", heads=count, head_dim=width // count)
    mixer = MultiHead(width, attention)
    more = sum(p.numel() for name, p in mixer.named_parameters() if name.startswith("extra."))
    assert 12 * more == 12 * 3 * (width**2 + width) == 21_261_312
    for name, like in (("global_q", "q"), ("global_k", "k"), ("global_v", "v")):
        assert torch.equal(mixer.extra[name].weight, mixer.project[like].weight)
    assert not any(
        name.startswith("extra.")
        for name, _ in MultiHead(
            width, build("longformer", heads=count, head_dim=width // count, causal=True)
        ).named_parameters()
    )


def test_in_a_layer():
    mixer = MultiHead(HEADS * WIDTH, make(2)).double()
    x = torch.randn(BATCH, 15, HEADS * WIDTH, dtype=DOUBLE)
    marked = marks(15, [0], [7, 9])
    out = mixer(x, streams={"global_mask": marked})
    weights = mixer.weights(x, streams={"global_mask": marked})
    assert out.shape == x.shape
    assert torch.equal((weights > 0).all(-1).all(1), marked)  # global rows, and no others, read everything


def test_global_projections_are_computed_only_for_global_tokens_and_once_if_tied():
    mixer = MultiHead(HEADS * WIDTH, make(2)).double()
    x = torch.randn(BATCH, 15, HEADS * WIDTH, dtype=DOUBLE)
    streams = {"global_mask": marks(15, [0], [7, 9])}
    apart = mixer(x, streams=streams)  # the projections start as copies
    made: list[nn.Module] = []
    for module in (*mixer.project.values(), *mixer.extra.values()):
        module.register_forward_hook(lambda module, given, out: made.append(module))
    mixer(x)
    assert len(made) == 3
    mixer(x, streams=streams)
    assert len(made) == 3 + 6
    mixer.tie()
    assert sum(p.numel() for p in mixer.parameters()) == 4 * ((HEADS * WIDTH) ** 2 + HEADS * WIDTH)
    torch.testing.assert_close(mixer(x, streams=streams), apart)
    assert len(made) == 3 + 6 + 3


# Bad input


def test_globals_without_projections_are_refused():
    q, k, v, *projections = heads(6, 5)
    streams = beside(marks(5, [0], [1]), projections)
    for name in PROJECTIONS:
        less = {key: value for key, value in streams.items() if key != name}
        with pytest.raises(InvalidInput, match=name):
            make(2)(q, k, v, streams=less)


@pytest.mark.parametrize(
    "marked",
    [torch.zeros(BATCH, 5), torch.zeros(BATCH, 6, dtype=torch.bool), torch.zeros(1, 5, dtype=torch.bool)],
    ids=["floats", "too long", "another batch"],
)
def test_a_malformed_mask_is_refused(marked: Tensor):
    q, k, v, *projections = heads(6, 5)
    with pytest.raises(InvalidInput, match="global_mask"):
        make(2)(q, k, v, streams=beside(marked, projections))


def test_projections_of_another_length_are_refused():
    q, k, v, *projections = heads(6, 5)
    with pytest.raises(InvalidInput, match="global_k"):
        make(2)(q, k, v, streams={**beside(marks(5, [0], [1]), projections), "global_k": heads(1, 4)[0]})


def test_options_and_forms_that_do_not_fit_are_refused():
    with pytest.raises(InvalidOption, match="window"):
        make(0)
    with pytest.raises(InvalidOption, match="dilation"):
        make(2, (1, 2))
    with pytest.raises(InvalidOption, match="capacity"):
        make(2, capacity=0)
    q, k, v, *projections = heads(6, 5)
    with pytest.raises(InvalidInput, match="global_mask"):
        make(2, causal=True)(q, k, v, streams=beside(marks(5, [0], [1]), projections))
    with pytest.raises(Unsupported, match="longformer"):
        make(2)(q, k, v, bias=torch.zeros(HEADS, 9, dtype=DOUBLE))
    assert issubclass(type(make(2)), SlidingWindow)
