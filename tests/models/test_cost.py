"""What a model is said to cost is what it is counted to cost."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from longspan.attention import find, names
from longspan.attention.mechanisms.relative import ROWS
from longspan.audit.counting import count_flops, count_kept
from longspan.audit.settings import small
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build
from longspan.models.base import Model
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word2vec import Word2Vec
from longspan.models.cost import blank, cost, count

TINY = {
    "vocabulary": 11,
    "width": 16,
    "layers": 2,
    "heads": 2,
    "hidden": 24,
    "max_length": 256,
    "dropout": 0.0,
    "position": "learned",
}


def read(model: Model, length: int) -> Callable[[], Tensor]:
    """A pass over random tokens."""
    ids = torch.randint(0, 11, (1, length))
    inputs = (ids, ids) if getattr(model, "reads_source", False) else (ids,)
    streams = {}
    if any(s.name == "segment" for m in model.modules() for s in getattr(m, "streams", ()) if s.required):
        streams = {"streams": {"segment": torch.zeros(1, length, dtype=torch.long)}}
    return lambda: model(*inputs, **streams)


def kept(model: Model, run: Callable[[], Tensor]) -> int:
    """Numbers alive for the backward pass, or given out."""
    return count_kept(run, [*model.parameters(), *model.buffers()]) + run().numel()


def counted(model: Model, run: Callable[[], Tensor]) -> tuple[int, int]:
    return count_flops(run), kept(model, run)


FORMS = [
    (name, options, kind)
    for name in names()
    for options in small(name)
    for kind, able in (("decoder", find(name).supports.causal), ("encoder", find(name).supports.bidirectional))
    if able and not (kind == "encoder" and "sinks" in options)
]


@pytest.mark.parametrize(("name", "options", "kind"), FORMS, ids=lambda value: str(value).replace(" ", ""))
def test_flops_are_exact_for_every_mechanism(name: str, options: dict, kind: str):
    model = build(kind, **TINY, attention={"name": name, **options})
    for length in (33, 100):
        assert cost(model, length).flops == count_flops(read(model, length))
    # Mechanisms declare what they keep beyond q, k and v; whether they keep all three, and whether their output is
    # copied when the heads are merged, is not declared.
    floats = kept(model, read(model, 100))
    assert 0.7 * floats <= cost(model, 100).bytes / 4 <= 1.35 * floats


@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
@pytest.mark.parametrize("norm_position", ["post", "pre"])
def test_memory_is_exact_around_dense_attention(kind: str, norm_position: str):
    model = build(kind, **TINY, norm_position=norm_position)
    flops, floats = counted(model, read(model, 40))
    assert (cost(model, 40).flops, cost(model, 40).bytes) == (flops, 4 * floats)


@pytest.mark.parametrize(
    "options",
    [
        *({"activation": name} for name in ("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "glu", "geglu", "swiglu")),
        {"feedforward_chunk": 16},
        {"norm": "rms", "norm_position": "pre"},
        {"norm": "layer", "norm_position": "output", "qk_norm": "all"},
        {"norm": "rms", "norm_position": "both", "qk_norm": "head", "kv_heads": 1},
        {"norm": "rms_offset", "norm_position": "both"},
        {"attention": {"name": "softmax", "learned_sink": True}},
        {"experts": {"count": 5, "active": 2}},
        {"experts": {"count": 4, "active": 1, "limit": None}, "logit_cap": 3.0},
        {"attention": {"name": "window", "window": 5, "sinks": 2}},
        {"embedding_norm": True},
        {"kv_heads": 1},
        {"key_dim": 4},
        {"value_dim": 4},
        {"tied": False},
        {"head_activation": "gelu", "head_bias": True},
        {"head_activation": "relu", "tied": False, "embedding_width": 6},
        {"attention": {"name": "window", "window": 5}, "key_dim": 4},
    ],
    ids=str,
)
def test_memory_is_exact_for_the_layers_around_attention(options: dict):
    model = build("decoder", **TINY, **options)
    assert (cost(model, 40).flops, cost(model, 40).bytes // 4) == counted(model, read(model, 40))


# Other bodies and other families


@pytest.mark.parametrize(
    "options", [{"tied": False}, {"merge": "mean"}, {"tied": False, "feedforward_chunk": 16}], ids=str
)
def test_reversible_blocks_keep_two_streams_and_compute_one_sublayer_again(options: dict):
    model = build("decoder", **TINY, norm_position="pre", reversible=True, **options)
    n, width, heads = 40, 16, 2
    flops, floats = counted(model, read(model, n))
    attention = n * (4 * width + (width + heads) + (width + 2))  # what is read, q, k and v; the output; the norm
    assert (cost(model, n).flops, cost(model, n).bytes // 4) == (flops, floats + attention)
    deep = build("decoder", **{**TINY, "layers": 8}, norm_position="pre", reversible=True, **options)
    assert cost(deep, n).bytes == cost(model, n).bytes and cost(deep, n).flops > 3 * flops


@pytest.mark.parametrize("kind", ["universal_encoder", "universal_decoder", "universal"])
@pytest.mark.parametrize(
    "options", [{}, {"norm_position": "pre"}, {"transition": "convolution", "activation": "gelu"}], ids=str
)
def test_a_shared_block_costs_at_every_step(kind: str, options: dict):
    model = build(kind, **TINY, **options, step_signal="learned")
    assert (cost(model, 40).flops, cost(model, 40).bytes // 4) == counted(model, read(model, 40))


@pytest.mark.parametrize("combine", ["listing", "accumulate"])
def test_halting_costs_at_most_all_steps(combine: str):
    model = build("universal_decoder", **TINY, halting=True, combine=combine)
    torch.nn.init.constant_(model.stack.halting.unit.bias, -20.0)  # nobody halts
    flops, floats = counted(model, read(model, 40))
    found = cost(model, 40)
    assert found.flops == flops and found.bytes / 4 == pytest.approx(floats, rel=0.02)
    assert found.notes == ("with all of at most 4 steps",)


MEMORY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "dropout": 0.0, "hidden_dropout": 0.0}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("transformer_xl", {}),
        ("transformer_xl", {"same_length": True, "clamp": 10}),
        ("transformer_xl", {"norm_position": "pre", "untie": True, "tied": False}),
        ("transformer_xl", {"cutoffs": (5,)}),
        ("transformer_xl", {"cutoffs": (5, 8), "divisor": 2}),
        ("compressive", {}),
        ("compressive", {"compression": "mean", "reconstruction": "none"}),
        ("compressive", {"compression": "dilated", "time": "true"}),
        ("compressive", {"compression": "most_used", "reconstruction": "autoencoding"}),
        ("compressive", {"compression": "most_used", "time": "true"}),
    ],
    ids=str,
)
def test_the_cost_with_a_full_memory(kind: str, options: dict):
    more = {"slots": 6, "ratio": 3} if kind == "compressive" else {}
    model = build(kind, **MEMORY, segment=12, memory=20, **more, **options)
    with torch.no_grad():
        memory = model(torch.randint(0, 11, (1, 60)))[1]
    for length in (12, 40):  # a segment, and several of them
        ids = torch.randint(0, 5, (1, length))  # frequent words, which have the widest vectors
        flops, floats = counted(model, lambda: model(ids, memory)[0])  # noqa: B023
        found = cost(model, length)
        assert found.flops == flops
        assert 0.7 * floats <= found.bytes / 4 <= 1.1 * floats  # tables of distances are counted, and stay for good


@pytest.mark.parametrize("same_length", [False, True])
def test_a_segment_that_is_read_in_several_pieces(same_length: bool):
    model = build("transformer_xl", **MEMORY, segment=2 * ROWS + 10, memory=30, same_length=same_length)
    ids = torch.randint(0, 11, (1, 2 * ROWS + 10))
    with torch.no_grad():
        memory = model(ids)[1]
    assert cost(model, len(ids[0])).flops == count_flops(lambda: model(ids, memory))


@pytest.mark.parametrize("sharing", ["none", "projections", "all"])
def test_two_inputs(sharing: str):
    options = {key: value for key, value in TINY.items() if key not in ("position", "max_length")}
    model = build("etc_model", **options, global_tokens=6, radius=4, sharing=sharing)
    ids, short = torch.randint(0, 11, (1, 40)), torch.randint(0, 11, (1, 6))
    flops, floats = counted(model, lambda: torch.cat(model(ids, short), 1))
    assert cost(model, 40).flops == flops and cost(model, 40).bytes / 4 == pytest.approx(floats, rel=0.1)


RECURRENT = {"vocabulary": 11, "width": 16, "layers": 2, "dropout": 0.0}
BAHDANAU = {"cell": "gru", "bidirectional": True, "reverse_source": False, "decoder": "bahdanau", "maxout": 5}


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("recurrent", {"cell": cell}) for cell in ("lstm", "gru", "elman")),
        ("recurrent", {"tied": True, "learned_start": True}),
        ("seq2seq", {}),
        ("seq2seq", {"bidirectional": True}),
        ("seq2seq", BAHDANAU),
        ("seq2seq", {"decoder": "luong", "score": "general", "input_feeding": True}),
        ("seq2seq", {"decoder": "luong", "score": "additive"}),
        ("seq2seq", {"decoder": "luong", "score": "dot", "reach": "local_p"}),
        ("seq2seq", {"decoder": "luong", "score": "location", "max_source": 64}),
    ],
    ids=str,
)
def test_recurrent_layers(kind: str, options: dict):
    # torch has one step for all of a float32 LSTM on a CPU, into which it does not look.
    model, ids = build(kind, **RECURRENT, **options).double(), torch.randint(0, 11, (1, 40))
    flops, floats = counted(model, lambda: model(ids, ids) if kind == "seq2seq" else model(ids))
    if kind == "seq2seq" and model.options.decoder != "plain" and model.options.score == "additive":
        flops += 2 * 40 * 40 * 16  # torch does not count products with a vector
    assert cost(model, 40).flops == flops and cost(model, 40).bytes / 4 == pytest.approx(floats, rel=0.1)


@pytest.mark.parametrize("kind", ["regressor", "series_transformer"])
def test_a_model_of_series(kind: str):
    model, series = build(kind, width=16, values=2, dropout=0.0).double(), torch.randn(1, 40, 2).double()
    flops, floats = counted(model, lambda: model(series))
    assert cost(model, 40).flops == flops and cost(model, 40).bytes / 4 == pytest.approx(floats, rel=0.1)


@pytest.mark.parametrize("clip", [3.0, None])
def test_elmo(clip: float | None):
    sizes = {"cells": 24, "projection": 8, "filters": (4, 4, 6), "character_width": 5, "characters": 12}
    model, words = build("elmo", **sizes, dropout=0.0, clip=clip).double(), torch.randint(1, 257, (1, 40, 12))
    flops, floats = counted(model, lambda: model(words))
    assert cost(model, 40).flops == flops and cost(model, 40).bytes / 4 == pytest.approx(floats, rel=0.1)


def test_a_model_that_reads_no_sequence():
    with pytest.raises(Unsupported, match="cost of word2vec is not declared"):
        cost(Word2Vec.of(Vocabulary(["a", "b"], [1, 1])), 10)


def test_the_formula_of_a_dense_layer():
    n, d, hidden = 100, 16, 24
    one, two = (build("encoder", **{**TINY, "layers": layers}) for layers in (1, 2))
    layer = cost(two, n).flops - cost(one, n).flops
    assert layer == 8 * n * d**2 + 4 * n**2 * d + 4 * n * d * hidden


def test_parts_add_up_and_ties_count_once():
    model = build("transformer", **TINY)
    parts = count(model)
    assert parts["target: tokens"] == 11 * 16 and parts["decoder: cross-attention"] == 2 * 4 * (16 * 16 + 16)
    assert sum(parts.values()) == sum(parameter.numel() for parameter in model.parameters())
    found = cost(model, 20)
    assert sum(part.flops for part in found.parts.values()) == found.flops


def test_a_mechanisms_own_weights_are_a_part():
    model = build("encoder", **TINY, attention={"name": "linformer", "rank": 8, "sharing": "layerwise"})
    assert count(model)["stack: mechanism"] == 8 * 256


def test_blank_models_have_the_cost_of_full_ones():
    with blank():
        model = build("transformer", **TINY)
    assert all(parameter.is_meta for parameter in model.parameters())
    full = build("transformer", **TINY)
    assert count(model) == count(full) and cost(model, 50) == cost(full, 50)


def test_a_target_is_as_long_as_the_decoder_can_hold():
    model = build("transformer", **{**TINY, "max_length": 16}, source_length=64)
    ids = torch.randint(0, 11, (1, 64))
    assert cost(model, 64).flops == count_flops(lambda: model(ids, ids[:, :16]))


def test_invalid_lengths_are_refused():
    model = build("decoder", **TINY)
    with pytest.raises(InvalidInput, match="holds at most 256 tokens, not 257"):
        cost(model, 257)
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        cost(model, 0)
