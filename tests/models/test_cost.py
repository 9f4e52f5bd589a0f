"""What a model is said to cost is what it is counted to cost."""

import pytest
import torch

from longspan.attention import find, names
from longspan.audit.counting import count_flops, count_kept
from longspan.audit.settings import small
from longspan.errors import InvalidInput
from longspan.models import build
from longspan.models.base import Model
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


def counted(model: Model, length: int) -> tuple[int, int]:
    """FLOPs, and numbers alive for the backward pass or given out."""
    ids = torch.randint(0, 11, (1, length))
    inputs = (ids, ids) if model.name == "transformer" else (ids,)
    streams = {}
    if any(s.name == "segment" for m in model.modules() for s in getattr(m, "streams", ()) if s.required):
        streams = {"streams": {"segment": torch.zeros(1, length, dtype=torch.long)}}
    run = lambda: model(*inputs, **streams)  # noqa: E731
    flops = count_flops(run)
    return flops, count_kept(run, [*model.parameters(), *model.buffers()]) + run().numel()


FORMS = [
    (name, options, kind)
    for name in names()
    for options in small(name)
    for kind, able in (("decoder", find(name).supports.causal), ("encoder", find(name).supports.bidirectional))
    if able
]


@pytest.mark.parametrize(("name", "options", "kind"), FORMS, ids=lambda value: str(value).replace(" ", ""))
def test_flops_are_exact_for_every_mechanism(name: str, options: dict, kind: str):
    model = build(kind, **TINY, attention={"name": name, **options})
    for length in (33, 100):
        flops, floats = counted(model, length)
        found = cost(model, length)
        assert found.flops == flops
        # Mechanisms declare what they keep beyond q, k and v; whether they keep all three, and whether their output
        # is copied when the heads are merged, is not declared.
        assert 0.7 * floats <= found.bytes / 4 <= 1.35 * floats


@pytest.mark.parametrize("kind", ["encoder", "decoder", "transformer"])
@pytest.mark.parametrize("place", ["post", "pre"])
def test_memory_is_exact_around_dense_attention(kind: str, place: str):
    model = build(kind, **TINY, place=place)
    flops, floats = counted(model, 40)
    assert (cost(model, 40).flops, cost(model, 40).bytes) == (flops, 4 * floats)


@pytest.mark.parametrize(
    "options",
    [
        *({"activation": name} for name in ("gelu", "gelu_tanh", "gelu_sigmoid", "silu", "glu", "geglu", "swiglu")),
        {"feedforward_chunk": 16},
        {"norm": "rms", "place": "pre"},
        {"embedding_norm": True},
        {"kv_heads": 1},
        {"key_dim": 4},
        {"tied": False},
        {"attention": {"name": "window", "window": 5}, "key_dim": 4},
    ],
    ids=str,
)
def test_memory_is_exact_for_what_stands_around_it(options: dict):
    model = build("decoder", **TINY, **options)
    assert (cost(model, 40).flops, cost(model, 40).bytes // 4) == counted(model, 40)


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


def test_blank_models_cost_what_full_ones_do():
    with blank():
        model = build("transformer", **TINY)
    assert all(parameter.is_meta for parameter in model.parameters())
    full = build("transformer", **TINY)
    assert count(model) == count(full) and cost(model, 50) == cost(full, 50)


def test_a_target_is_as_long_as_the_decoder_can_hold():
    model = build("transformer", **{**TINY, "max_length": 16}, source_length=64)
    ids = torch.randint(0, 11, (1, 64))
    assert cost(model, 64).flops == count_flops(lambda: model(ids, ids[:, :16]))


def test_lengths_that_do_not_fit():
    model = build("decoder", **TINY)
    with pytest.raises(InvalidInput, match="holds at most 256 tokens, not 257"):
        cost(model, 257)
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        cost(model, 0)
