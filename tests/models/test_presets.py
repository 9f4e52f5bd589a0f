"""The presets: the papers' parameter counts, and small copies that run and decode."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan import config
from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.models import CausalModel, build, find, load
from longspan.models.base import Model
from longspan.models.cost import blank, cost, count
from longspan.models.presets import PRESETS, names, shrink
from longspan.models.presets import find as find_preset

Sizes = Callable[[str], int]
Presets = Callable[[str], Model]


@pytest.fixture
def size(preset: Presets) -> Sizes:
    return lambda name: sum(count(preset(name)).values())


@pytest.mark.parametrize("name", [name for name, row in PRESETS.items() if row.exact is not None])
def test_counts_that_are_exact(name: str, size: Sizes):
    assert size(name) == PRESETS[name].exact


def test_every_exact_count_is_listed():
    exact = {name: row.exact for name, row in PRESETS.items() if row.exact is not None}
    assert exact == {
        "transformer-base": 63_082_496,
        "transformer-big": 214_245_376,
        "gpt": 116_534_784,
        "gpt2": 124_439_808,
        "gpt2-medium": 354_823_168,
        "gpt2-large": 774_030_080,
        "gpt2-xl": 1_557_611_200,
        "bert-base": 109_482_240,
        "bert-large": 335_141_888,
        "bert-base-cased": 108_310_272,
        "roberta-base": 124_645_632,
        "roberta-large": 355_359_744,
        "camembert-base": 110_621_952,
        "xlm-roberta-base": 278_043_648,
        "distilbert": 66_362_880,
        "transformer-xl-enwik8-12": 41_055_436,
        "transformer-xl-enwik8-24": 277_231_820,
        "transformer-xl-wt103-base": 151_107_538,
        "transformer-xl-wt103-large": 285_205_322,
        "universal-base": 67_280_896,
        "universal-adaptive": 67_282_946,
        "lstm-medium": 19_780_400,
        "seq2seq-sutskever": 384_144_000,
        "seq2seq-bahdanau": 80_451_000,
        "seq2seq-luong": 221_064_000,
        "sparse-enwik8": 94_949_376,
        "sparse-cifar10": 59_196_672,
        "sparse-imagenet64": 151_644_672,
        "longformer-base-4096": 148_659_456,
        "longformer-large-4096": 434_600_960,
        "bigbird-base": 127_468_800,
        "bigbird-large": 359_123_968,
        "etc-base": 165_823_488,
        "etc-base-shared": 109_108_224,
        "reformer-enwik8": 149_182_722,
        "reformer-crime": 2_748_224,
        "vit-small-16": 22_050_664,
        "vit-base-16": 86_567_656,
        "vit-base-32": 88_224_232,
        "vit-large-16": 304_326_632,
        "vit-huge-14": 632_045_800,
        "deit-tiny": 5_717_416,
        "deit-small": 22_050_664,
        "deit-base": 86_567_656,
        "deit-tiny-distilled": 5_910_800,
        "deit-small-distilled": 22_436_432,
        "deit-base-distilled": 87_338_192,
        "perceiver-imagenet": 44_912_254,
        "perceiver-unshared": 326_241_856,
        "resnet-18": 11_689_512,
        "resnet-50": 25_557_032,
        "resnet-50-standalone": 18_038_632,
        "resnet-50-attention": 18_030_472,
        "resnet-50-nonlocal-1": 27_658_792,
        "resnet-50-nonlocal-5": 32_915_496,
        "albert-base": 11_683_584,
        "albert-large": 17_683_968,
        "albert-xlarge": 58_724_864,
        "albert-xxlarge": 222_595_584,
        "electra-small": 13_483_008,
        "electra-base": 108_891_648,
        "electra-large": 334_092_288,
        "bart-base": 139_420_416,
        "bart-large": 406_291_456,
        "led-base": 161_844_480,
        "led-large": 459_801_600,
        "llama-7b": 6_738_415_616,
        "llama-13b": 13_015_864_320,
        "llama-33b": 32_528_943_616,
        "llama-65b": 65_285_660_672,
        "llama2-7b": 6_738_415_616,
        "llama2-70b": 68_976_648_192,
        "llama3-8b": 8_030_261_248,
        "llama3-70b": 70_553_706_496,
        "llama3.1-8b": 8_030_261_248,
        "llama3.2-1b": 1_235_814_400,
        "tinyllama-1.1b": 1_100_048_384,
        "smollm2-135m": 134_515_008,
        "stories260k": 260_032,
        "axial-imagenet-32": 341_178_112,
        "axial-imagenet-64": 606_161_152,
        "ft-transformer": 896_833,
    }


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-small", 0.1252),
        ("gpt3-medium", 0.3559),
        ("gpt3-large", 0.7603),
        ("gpt3-xl", 1.3157),
        ("gpt3-2.7b", 2.6516),
        ("gpt3-6.7b", 6.6584),
        ("gpt3-13b", 12.85),
        ("gpt3-175b", 174.6),
    ],
)
def test_the_computed_column_of_gpt3(name: str, billions: float, size: Sizes):
    digits = len(str(billions).partition(".")[2])
    assert round(size(name) / 1e9, digits) == billions


def test_bert_with_the_heads_of_its_pretraining():
    masked = {"task": "masked", "activation": "gelu"}
    with blank():
        model = build("bert-base", tasks=[masked, {"task": "pair", "activation": "tanh"}])
    assert sum(count(model).values()) == 110_106_428


def test_distilbert_is_sixty_percent_of_bert(size: Sizes):
    assert round(size("distilbert") / size("bert-base"), 3) == 0.606


def test_longformer_adds_to_roberta_what_the_paper_says(size: Sizes):
    roberta = 124_645_632  # the checkpoint: projections of global tokens and rows for positions are added to it
    assert size("longformer-base-4096") == roberta + 12 * 3 * (768**2 + 768) + 3584 * 768


def test_longformers_characters_lack_the_distance_matrices_of_transformer_xl(size: Sizes):
    for name, layers, millions in (("longformer-charlm-small", 12, 41), ("longformer-charlm-large", 30, 102)):
        assert math.floor((size(name) + layers * 512**2) / 1e6) == millions


@pytest.mark.parametrize(("layers", "width", "heads", "bart"), [(6, 768, 12, 139_420_416), (12, 1024, 16, 406_291_456)])
def test_led_is_bart_with_global_projections_and_more_positions(
    layers: int, width: int, heads: int, bart: int, size: Sizes
):
    name = "led-base" if width == 768 else "led-large"
    with blank():
        rows = {"source_length": 1026, "max_length": 1026, "encoder_attention": "softmax"}
        assert sum(count(build(name, **rows)).values()) == bart
    globals_ = 3 * layers * (width**2 + width)
    assert size(name) == bart + globals_ + (16384 - 1026 + 1024 - 1026) * width


@pytest.mark.parametrize("name", names())
def test_every_preset_builds_and_is_costed_at_its_lengths(name: str, preset: Presets):
    row = PRESETS[name]
    model = preset(name)
    assert model.device.type == "meta" and row.paper
    assert sum(count(model).values()) == sum(parameter.numel() for parameter in model.parameters())
    for length in row.lengths or (50,):
        found = cost(model, length)
        assert found.flops > 0 and found.bytes > 0


def read(model: Model, ids: Tensor) -> Tensor:
    """What a model gives out, whichever way it is read."""
    if model.name == "elmo":  # whole words, by their characters
        return model(ids[..., None].expand(*ids.shape, 12) + 1)
    if model.name == "set_transformer":
        return model(torch.randn(2, 9, 2, dtype=torch.float64))
    if model.name in ("image_decoder", "axial_transformer"):
        return model(torch.arange(2 * 288).view(2, 8, 12, 3) % 8)
    if model.name == "table_transformer":
        return model(torch.randn(2, 8, dtype=torch.float64), torch.zeros(2, 0, dtype=torch.long))
    if model.name in ("vit", "resnet", "perceiver"):
        return model.outputs(torch.randn(2, 3, 8, 12, dtype=torch.float64))["classify"]
    if model.name == "electra":
        return model(ids, ids, ids % 3 == 0).detections
    if model.name == "etc_model":
        return torch.cat(model(ids, ids[:, :3]), 1)
    out = model(ids, ids) if getattr(model, "reads_source", False) else model(ids)
    return out[0] if isinstance(out, tuple) else out  # and the memory after it


@pytest.mark.parametrize("name", names())
def test_a_small_copy_runs_and_decodes(name: str):
    row = shrink(find_preset(name))
    model = find(row.model).build(**row.options).double().eval()
    assert sum(count(model).values()) < 200_000
    ids = torch.randint(0, 11, (2, 29))
    whole = read(model, ids)
    assert whole.isfinite().all()
    if not isinstance(model, CausalModel):
        return
    state, seen = model.start(2, source=ids if model.reads_source else None), []
    for piece in ids.split([13, 1, 15], dim=1):
        logits, state = model.extend(piece, state)
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-9)


def test_two_layers_less_would_be_the_printed_size_of_the_large_transformer_xl(size: Sizes):
    layer = 5 * 1024**2 + 2 * 1024 * 4096 + 4096 + 1024 + 2 * 2048 + 2 * 1024  # its own u and w among it
    assert size("transformer-xl-wt103-large") - 2 * layer == 257_919_818


def test_one_block_of_the_universal_transformer(size: Sizes):
    attention, change = 4 * (1024**2 + 1024), 2 * 1024 * 4096 + 4096 + 1024
    assert size("universal-base") == 37000 * 1024 + 3 * attention + 2 * change + 5 * 2048
    assert size("universal-adaptive") == size("universal-base") + 2 * 1025


def test_trained_parameters_of_elmo(preset: Presets):
    assert sum(weight.numel() for weight in preset("elmo-original").parameters() if weight.requires_grad) == 93_600_864


def test_a_small_copy_keeps_what_differs_by_layer():
    settings = shrink(find_preset("routing-pg19")).options["attention"]
    assert [setting["name"] for setting in settings] == ["window", "window", "window", "routing"]
    assert shrink(find_preset("longformer-charlm-small")).options["attention"][-1]["dilation"] == (1, 1, 4, 4)


def test_options_override_those_of_the_preset():
    with blank():
        model = build("gpt2", dropout=0.0, layers=3)
    assert model.options.dropout == 0.0 and len(model.stack.blocks) == 3 and model.options.width == 768
    with pytest.raises(InvalidOption, match="did you mean 'dropout'"):
        build("gpt2", dropuot=0.0)


def test_an_unknown_name():
    with pytest.raises(UnknownName, match="no model or preset is called 'gtp2': did you mean 'gpt2'"):
        build("gtp2")
    with pytest.raises(UnknownName, match="no preset is called 'decodr'"):
        find_preset("decodr")


def test_options_are_plain_enough_for_a_file():
    for row in PRESETS.values():
        options = config.make(find(row.model).Options, row.options, row.model)
        assert config.make(find(row.model).Options, config.plain(options), row.model) == options


# What the papers' architectures asked of the body


def test_half_size_keys_are_scaled_by_their_own_width():
    options = {"vocabulary": 11, "width": 16, "layers": 1, "heads": 2, "hidden": 8, "key_dim": 4}
    model = build("decoder", **options).double().eval()
    mixer, x = model.stack.blocks[0].mixer, torch.randn(1, 5, 16, dtype=torch.float64)
    q, k = (mixer.project[name](x).unflatten(-1, (2, 4)).transpose(1, 2) for name in "qk")
    v = mixer.project["v"](x).unflatten(-1, (2, 8)).transpose(1, 2)
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(mixer(x), mixer.out(out.transpose(1, 2).flatten(2)))
    with pytest.raises(ValueError, match="layer 0: synthesizer needs values as wide as queries"):
        build("decoder", **options, attention="synthesizer", max_length=8)


def test_initial_weights_of_sparse():
    row = shrink(find_preset("sparse-cifar10"))
    model = find("decoder").build(**{**row.options, "width": 128, "head_dim": 8, "hidden": 512})
    block, layers = model.stack.blocks[0], model.options.layers
    wanted = {
        block.mixer.project["q"].weight: 0.125 / 128**0.5,
        block.feedforward.outer.weight: 0.125 / 512**0.5 / (2 * layers) ** 0.5,
        model.embedding.weight: 0.125 / 128**0.5,
        model.embedding.position.tables[0]: 0.125 / (128 * 3) ** 0.5,
    }
    for weight, deviation in wanted.items():
        assert weight.std().item() == pytest.approx(deviation, rel=0.1)
    assert not model.head.weight.any()


def test_initial_weights_of_gpt2():
    model = build("gpt2", layers=4, width=256, heads=4, hidden=1024, vocabulary=512)
    for block in model.stack.blocks:
        for scaled in (block.mixer.out, block.feedforward.outer):
            assert scaled.weight.std().item() == pytest.approx(0.02 / 8**0.5, rel=0.02)
        assert block.feedforward.inner.weight.std().item() == pytest.approx(0.02, rel=0.02)


def test_summed_tables_of_positions():
    model = build("decoder", vocabulary=11, width=8, heads=2, hidden=8, position="axial_sum", axes=(3, 4))
    rows, columns = model.embedding.position.tables
    code = model.embedding.position.rows(torch.tensor([7]))
    torch.testing.assert_close(code[0], rows[1] + columns[3])
    with pytest.raises(InvalidOption, match="axial_sum positions need axes"):
        build("decoder", position="axial_sum")


def test_the_padding_row_is_zero_with_every_initialisation():
    for init in ("xavier", "normal", "fan_in"):
        model = build("decoder", vocabulary=11, width=8, heads=2, hidden=8, layers=1, padding=3, init=init)
        assert not model.embedding.weight[3].any()


def test_a_source_with_separate_positions(tmp_path: Path):
    row = shrink(find_preset("led-base"))
    model = find("transformer").build(**{**row.options, "source_length": 40, "max_length": 20}).eval()
    assert model.source.weight is model.target.weight
    assert model.source.position.length == 40 and model.target.position.length == 20
    source, target = torch.randint(0, 11, (1, 40)), torch.randint(0, 11, (1, 20))
    out = model(source, target)
    with pytest.raises(InvalidInput, match="reads at most 40 source tokens, and 41 were given"):
        model(torch.zeros(1, 41, dtype=torch.long), target)
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.source.weight is again.target.weight
    assert torch.equal(again(source, target), out)
