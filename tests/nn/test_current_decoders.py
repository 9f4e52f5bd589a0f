"""What current decoders have: norms of queries and keys, of outputs and around 1, rotations that differ by layer."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from longspan.errors import InvalidOption, Unsupported
from longspan.models import build
from longspan.models.folder import load, save
from longspan.nn.multihead import MultiHead
from longspan.nn.norm import OffsetRMSNorm, build_norm
from longspan.nn.residual import Residual
from longspan.nn.rotary import Rotary
from longspan.nn.rotary_scaling import RotaryScaling, amplitude, frequencies

SIZES = {"vocabulary": 11, "width": 16, "layers": 4, "heads": 2, "hidden": 24, "max_length": 64, "dropout": 0.0}
DOUBLE = torch.float64


def stepped(model, ids: Tensor) -> Tensor:
    state, parts = model.start(len(ids)), []
    for token in ids.split(1, 1):
        logits, state = model.extend(token, state)
        parts.append(logits)
    return torch.cat(parts, 1)


def test_gains_around_1():
    norm = build_norm("rms_offset", 8, 1e-6)
    x = torch.randn(3, 8)
    torch.testing.assert_close(norm(x), rms_norm(x, (8,), eps=1e-6))
    assert isinstance(norm, OffsetRMSNorm) and norm.weight.abs().max() == 0
    torch.nn.init.normal_(norm.weight)
    torch.testing.assert_close(norm(x), x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * (1 + norm.weight))
    # In half precision the product is rounded once, in float32 until then.
    half, rounded = norm.bfloat16(), x.bfloat16()
    exact = rms_norm(rounded.float(), (8,), 1 + half.weight.float(), 1e-6)
    assert torch.equal(half(rounded), exact.bfloat16())


def test_norms_of_the_output_and_on_both_sides():
    x = torch.randn(2, 3, 8)
    output, both = (Residual(8, norm="rms", norm_position=where) for where in ("output", "both"))
    torch.testing.assert_close(output(x, lambda y: 2 * y + 1), x + output.norm(2 * x + 1))
    expected = x + both.norm_output(2 * both.norm(x) + 1)
    torch.testing.assert_close(both(x, lambda y: 2 * y + 1), expected)
    assert len(list(both.parameters())) == 2


@pytest.mark.parametrize("kind", ["head", "all"])
def test_queries_and_keys_are_normalised_before_they_are_rotated(kind: str):
    rotary = Rotary(4)
    layer = MultiHead(
        12, heads=4, head_dim=4, kv_heads=2, causal=True, qk_norm=kind, position=rotary, bias=False
    ).double()
    for norm in layer.norms.values():
        torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, 9, 12, dtype=DOUBLE)
    q, k, v = (layer.project[name](x) for name in "qkv")
    shape = (lambda t: t.unflatten(-1, (-1, 4))) if kind == "head" else (lambda t: t)
    q = layer.norms["q"](shape(q)).reshape(2, 9, 4, 4).transpose(1, 2)
    k = layer.norms["k"](shape(k)).reshape(2, 9, 2, 4).transpose(1, 2)
    v = v.reshape(2, 9, 2, 4).transpose(1, 2)
    expected = layer.out(layer.mechanism(rotary(q), rotary(k), v).transpose(1, 2).flatten(2))
    torch.testing.assert_close(layer(x), expected)
    with torch.no_grad():  # decoding joins the three products
        state, parts = layer.start(2), []
        for token in x.split(1, 1):
            out, state = layer.extend(token, state)
            parts.append(out)
    torch.testing.assert_close(torch.cat(parts, 1), expected)
    assert layer.norms["q"].weight.shape == ((4,) if kind == "head" else (16,))


def test_qk_norms_that_cannot_be():
    with pytest.raises(InvalidOption, match="qk_norm must be one of none, head, all, not 'heads'"):
        MultiHead(8, heads=2, qk_norm="heads")
    with pytest.raises(Unsupported, match="synthesizer compares no queries and keys"):
        MultiHead(8, "synthesizer", heads=2, max_length=8, form="random", qk_norm="head")


@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": "all", "norm_position": "output", "norm": "rms"},
        {"norm_position": "both", "norm": "rms_offset", "qk_norm": "head", "logit_cap": 2.0},
        {"rotary_dim": 4, "kv_heads": 1},
        {"rotary_layers": [{"base": 100.0}, {"rotate": False}]},
    ],
    ids=str,
)
def test_models_decode_and_compile_as_they_read(options: dict):
    model = build("decoder", **SIZES, position="rotary", init="normal", init_std=0.5, **options).double().eval()
    ids = torch.randint(0, 11, (2, 9))
    with torch.no_grad():
        whole = model(ids)
        torch.testing.assert_close(stepped(model, ids), whole)
        torch.testing.assert_close(torch.compile(model, backend="eager")(ids), whole)
    if "logit_cap" in options:
        assert whole.abs().max() < 2.0


@pytest.mark.parametrize(
    "options",
    [
        {"qk_norm": "head", "norm": "rms", "norm_position": "output"},
        {"qk_norm": "all", "norm": "rms_offset", "norm_position": "both"},
        {"experts": {"count": 4}},
        {"attention": {"name": "window", "window": 3, "sinks": 2, "softcap": 3.0, "learned_sink": True}},
    ],
    ids=str,
)
def test_mixed_precision_trains_and_decodes(options: dict):
    model = build("decoder", **SIZES, position="rotary", **options)
    ids = torch.randint(0, 11, (2, 12))
    with torch.autocast("cpu", torch.bfloat16):
        whole = model(ids)
        whole.float().square().mean().backward()
        with torch.no_grad():
            state = model.start(2)
            _, state = model.extend(ids[:, :8], state)
            logits, _ = model.extend(ids[:, 8:9], state)
    assert all(parameter.grad is not None for parameter in model.parameters())
    torch.testing.assert_close(logits[:, 0].float(), whole.detach()[:, 8].float(), rtol=0, atol=0.1)


def test_layers_that_rotate_differently():
    layers = [{"base": 100.0}, {"rotate": False}, {"base": 100.0}, {"scaling": {"kind": "linear", "factor": 2.0}}]
    model = build("decoder", **SIZES, position="rotary", rotary_layers=layers)
    positions = [block.mixer.position for block in model.stack.blocks]
    assert positions[0] is positions[2] and positions[1] is None
    assert (positions[0].base, positions[3].base, positions[3].scaling.factor) == (100.0, 10000.0, 2.0)
    with pytest.raises(InvalidOption, match="rotary_layers need position='rotary', not 'learned'"):
        build("decoder", **SIZES, position="learned", rotary_layers=layers)
    with pytest.raises(InvalidOption, match="5 rotary_layers for 4 layers"):
        build("decoder", **SIZES, position="rotary", rotary_layers=[*layers, {}])
    with pytest.raises(InvalidOption, match="layers that share weights have the same attention"):
        build("decoder", **SIZES, position="rotary", rotary_layers=layers, groups=1)
    with pytest.raises(InvalidOption, match="all layers of this model are one block"):
        build("universal_decoder", **{**SIZES, "position": "rotary"}, rotary_layers=layers)


def test_a_folder_keeps_all_of_it(tmp_path: Path):
    long = {"kind": "longrope", "original_length": 8, "short": [1.0] * 4, "long": [2.0] * 4}
    near = {"name": "window", "window": 3, "sinks": 2, "learned_sink": True}
    model = build(
        "decoder",
        **SIZES,
        position="rotary",
        qk_norm="head",
        norm="rms_offset",
        norm_position="both",
        experts={"count": 3, "active": 2},
        rotary_layers=[{"scaling": long}, {"rotate": False}],
        attention=[near, {"name": "softmax", "softcap": 5.0}],
    )
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    assert again.options == model.options and again.switch_length == 8
    ids = torch.randint(0, 11, (2, 12))
    with torch.no_grad():
        assert torch.equal(again.eval()(ids), model.eval()(ids))


def test_longrope_has_divisors_for_short_and_long_texts():
    scaling = RotaryScaling(kind="longrope", factor=4.0, original_length=8, short=(1.0, 2.0), long=(3.0, 5.0))
    plain = frequencies(4, 100.0)
    torch.testing.assert_close(frequencies(4, 100.0, scaling), plain / torch.tensor([1.0, 2.0], dtype=DOUBLE))
    torch.testing.assert_close(
        frequencies(4, 100.0, scaling, longer=True), plain / torch.tensor([3.0, 5.0], dtype=DOUBLE)
    )
    assert amplitude(scaling) == pytest.approx((1 + 2 / 3) ** 0.5)  # √(1 + ln 4 / ln 8)
    rotary = Rotary(4, base=100.0, scaling=scaling)
    x = torch.randn(2, 1, 9, 4, dtype=DOUBLE)
    short, whole = rotary(x[:, :, :8]), rotary(x)
    assert not torch.allclose(whole[:, :, 1:8], short[:, :, 1:])
    # With positions, each row is as long as its own text.
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 7, 8], [0, 0, 0, 0, 0, 1, 2, 3, 4]])
    rows = rotary(x, positions=positions)
    torch.testing.assert_close(rows[0], whole[0])
    torch.testing.assert_close(rows[1:, :, 4:], rotary(x[1:, :, 4:]))
    with pytest.raises(InvalidOption, match="longrope has 2 divisors for 4 pairs of features"):
        Rotary(8, scaling=scaling)
    with pytest.raises(InvalidOption, match="needs as many divisors short as long"):
        RotaryScaling(kind="longrope", original_length=8, short=(1.0,))
