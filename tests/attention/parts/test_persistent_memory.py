"""Persistent vectors against appending them to the keys and values of plain attention."""

import pytest
import torch
from torch import Tensor

from longspan.attention import Attention, build, find, names
from longspan.attention.devices import as_other_device
from longspan.audit.counting import count_flops
from longspan.audit.settings import small
from longspan.decode import Beam, beam_search, generate
from longspan.errors import InvalidOption, Unsupported
from longspan.models import build as build_model
from longspan.models.cost import cost
from longspan.models.folder import load
from longspan.nn.multihead import MultiHead

HEADS, WIDTH, COUNT, LENGTH = 2, 8, 3, 23
SCORES = ("scaled_dot", "dot", "general", "cosine")
READERS = [name for name in names() if find(name).supports.persistent]
FORMS = [
    (name, causal, options)
    for name in READERS
    for options in (tuple({"score": score} for score in SCORES) if name == "softmax" else small(name))
    for causal in (False, True)
    if (find(name).supports.causal if causal else find(name).supports.bidirectional and "sinks" not in options)
]


def make(name: str, causal: bool = False, value_dim: int = WIDTH, **options) -> Attention:
    torch.manual_seed(0)
    attention = build(name, heads=HEADS, head_dim=WIDTH, value_dim=value_dim, causal=causal, max_length=64, **options)
    attention.add_persistent(COUNT)
    return attention.double().eval()


def inputs(attention: Attention) -> tuple[list[Tensor], dict[str, Tensor]]:
    shape = attention.shape
    widths = {"q": shape.head_dim, "k": shape.head_dim, "v": shape.value_dim}
    heads = [torch.randn(2, HEADS, LENGTH, widths[name], dtype=torch.float64, requires_grad=True) for name in "qkv"]
    streams = {}
    for stream in attention.streams:
        if stream.kind == "mask":
            streams[stream.name] = (torch.arange(LENGTH) % 9 == 0).expand(2, LENGTH)
        else:
            streams[stream.name] = torch.randn(2, HEADS, LENGTH, widths[stream.like], dtype=torch.float64)
    return heads, streams


def test_the_readers():
    assert READERS == ["softmax", "window", "longformer", "sparse", "image_local", "axial"]


@pytest.mark.parametrize("causal", (False, True))
def test_they_are_keys_and_values_of_every_query(causal: bool):
    attention = make("softmax", causal)
    (q, k, v), _ = inputs(attention)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [11]])
    memory = attention.persistent
    keys, values = memory.keys * WIDTH**0.5, memory.values * COUNT**0.5
    scores = torch.cat([q @ k.mT, torch.einsum("bhid,hjd->bhij", q, keys)], -1) / WIDTH**0.5
    may = mask[:, None, None].expand(2, HEADS, LENGTH, LENGTH)
    may = may.tril() if causal else may
    may = torch.cat([may, torch.ones(2, HEADS, LENGTH, COUNT, dtype=torch.bool)], -1)
    weights = scores.masked_fill(~may, float("-inf")).softmax(-1)
    expected = weights @ torch.cat([v, values.expand(2, -1, -1, -1)], 2)
    torch.testing.assert_close(attention(q, k, v, key_mask=mask), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(attention.oracle(q, k, key_mask=mask), weights, rtol=0, atol=1e-12)
    torch.testing.assert_close(attention.weights(q, k, key_mask=mask), weights[..., :LENGTH], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("name", "causal", "options"), FORMS, ids=str)
def test_fast_path_gradients_cost_and_decoding(name: str, causal: bool, options: dict):
    value_dim = 5 if causal else WIDTH
    attention = make(name, causal, value_dim, **options)
    heads, streams = inputs(attention)
    mask = torch.arange(LENGTH) < torch.tensor([[LENGTH], [14]])
    given = {"key_mask": mask, "streams": streams}
    out, expected = attention(*heads, **given), attention.reference(*heads, **given)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-10)
    g, leaves = torch.randn_like(out), [*heads, *attention.parameters()]
    for a, b in zip(torch.autograd.grad(out, leaves, g), torch.autograd.grad(expected, leaves, g)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-9)
    if not attention.streams:
        assert count_flops(lambda: attention(*(x[:1] for x in heads))) == attention.cost(LENGTH, LENGTH).flops
    with torch.no_grad(), as_other_device():
        torch.testing.assert_close(attention(*heads, **given), expected, rtol=0, atol=1e-10)
    if causal:
        state, parts = attention.start(2, dtype=torch.float64), []
        with torch.no_grad():
            for rows in (slice(0, 9), slice(9, 10), slice(10, LENGTH)):
                queries = {stream.name for stream in attention.streams if stream.kind == "queries"}
                part, state = attention.extend(
                    *(x[:, :, rows] for x in heads),
                    state,
                    key_mask=mask[:, rows],
                    streams={stream: streams[stream][:, :, rows] for stream in queries} or None,
                )
                parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 2), expected, rtol=0, atol=1e-10)


def test_they_start_with_variance_1_from_parameters_as_small_as_weights():
    torch.manual_seed(0)
    memory = MultiHead(64, heads=4, head_dim=16, persistent=100).mechanism.persistent
    keys, values = memory.vectors(torch.empty(0))
    assert keys.shape == values.shape == (4, 100, 16)
    assert keys.var().item() == pytest.approx(1.0, abs=0.05) and values.var().item() == pytest.approx(1.0, abs=0.05)
    assert memory.keys.var().item() == pytest.approx(1 / 16, rel=0.05)
    assert memory.values.var().item() == pytest.approx(1 / 100, rel=0.05)


@pytest.mark.parametrize("name", sorted({*names()} - {*READERS}))
def test_other_mechanisms_refuse_them_by_name(name: str):
    attention = build(name, heads=2, head_dim=8, max_length=16, causal=not find(name).supports.bidirectional)
    with pytest.raises(Unsupported, match=f"^{name} cannot read persistent vectors .* these can: softmax, window"):
        attention.add_persistent(4)


def test_scores_without_products_refuse_them():
    for score in ("additive", "location"):
        with pytest.raises(Unsupported, match="softmax cannot read persistent vectors"):
            build("softmax", heads=2, head_dim=8, max_length=16, score=score).add_persistent(4)
    with pytest.raises(InvalidOption, match="persistent must be a number of vectors of at least 1, not -1"):
        MultiHead(16, heads=2, persistent=-1)


OPTIONS = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 0, "persistent": 5, "dropout": 0.0}


def test_a_model_of_all_attention_layers(tmp_path):
    torch.manual_seed(0)
    model = build_model("decoder", **OPTIONS, position="rotary").double().eval()
    assert not any("feedforward" in name for name, _ in model.named_modules())
    with_layer = build_model("decoder", **{**OPTIONS, "hidden": 32, "persistent": 0}, position="rotary")
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, with_layer)]
    # Each layer: 2 · heads · count · head_dim in place of the two matrices, their biases and the norm around them.
    assert counts[0] - counts[1] == 2 * (2 * 2 * 5 * 8 - (2 * 16 * 32 + 32 + 16) - 2 * 16)
    ids = torch.randint(11, (3, 12))
    expected = model(ids)
    state, parts = model.start(3), []
    for part in ids.split((5, 1, 6), 1):
        out, state = model.extend(part, state)
        parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=0, atol=1e-10)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(ids), expected, rtol=0, atol=1e-10)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").double().eval()
    torch.testing.assert_close(again(ids), expected, rtol=0, atol=1e-5)
    assert cost(model, 12).flops == count_flops(lambda: model(ids[:1]))


def test_beams_of_a_model_with_persistent_vectors():
    torch.manual_seed(0)
    model = build_model("decoder", **{**OPTIONS, "hidden": 8}).eval()
    greedy = generate(model, [[1, 2, 3]], max_new=5).tokens
    assert beam_search(model, [[1, 2, 3]], options=Beam(beams=1, max_new=5))[0][0].tokens == greedy[0]
    best = beam_search(model, [[1, 2, 3]], options=Beam(beams=4, max_new=5))[0][0]
    text = torch.tensor([[1, 2, 3, *best.tokens]])
    logs = model(text).log_softmax(-1)[0, 2:-1].gather(-1, text[0, 3:, None]).sum().item()
    assert best.logprob == pytest.approx(logs, abs=1e-4)


def test_reversible_blocks_keep_their_feed_forward_layer():
    with pytest.raises(InvalidOption, match="reversible blocks need a feed-forward layer"):
        build_model("decoder", **OPTIONS, reversible=True, place="pre")
