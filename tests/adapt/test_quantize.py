"""Quantised models: what is replaced, saving and loading, decoding, and the command."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import longspan
from longspan.adapt.quantize import compare_models, quantize, write
from longspan.errors import InvalidInput, InvalidOption
from longspan.hub.pretrained import Pretrained
from longspan.models import build
from longspan.models.base import CausalModel, Model
from longspan.nn import packed_product
from longspan.nn.quantized import SCHEMES

SIZES = {"vocabulary": 64, "width": 64, "layers": 2, "heads": 4, "hidden": 96, "max_length": 64}

PACKED = ("aten._weight_int4pack_mm_for_cpu", "aten._weight_int8pack_mm")


class Watch(TorchDispatchMode):
    """The dtypes of the inputs of packed kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removesuffix(".default")
        if name in PACKED:
            self.seen.append((name, args[0].dtype))
        return func(*args, **(kwargs or {}))


def decoder(**options: object) -> CausalModel:
    model = build("decoder", **{**SIZES, "position": "rotary", **options}).eval()
    assert isinstance(model, CausalModel)
    return model


def layers(count: int = 2) -> list[str]:
    inner = (
        "mixer.project.q",
        "mixer.project.k",
        "mixer.project.v",
        "mixer.out",
        "feedforward.inner",
        "feedforward.outer",
    )
    return [f"stack.blocks.{index}.{name}" for index in range(count) for name in inner]


@pytest.mark.parametrize("bits", SCHEMES)
def test_exactly_these_layers_are_replaced(bits: str) -> None:
    result = quantize(decoder(), bits)
    assert result.replaced == [*layers(), "embedding.output"] and result.kept == {}
    assert quantize(decoder(tied=False), bits).replaced == [*layers(), "head"]


def test_embedding_and_norms_keep_their_numbers() -> None:
    model = decoder()
    light = quantize(model, 4).model
    before, after = dict(model.named_parameters()), dict(light.named_parameters())
    assert all(torch.equal(after[name], before[name]) for name in after)
    kinds = {name.rpartition(".")[0] for name in after}
    assert "embedding" in kinds and not any("project" in name or "feedforward.inner" in name for name in kinds)
    assert not any(parameter.requires_grad for parameter in light.parameters())


def test_layers_that_do_not_fit_are_kept_and_named() -> None:
    result = quantize(decoder(hidden=80, vocabulary=50), 4)
    assert result.kept == {
        "stack.blocks.0.feedforward.outer": "80 inputs are not a multiple of the group of 32",
        "stack.blocks.1.feedforward.outer": "80 inputs are not a multiple of the group of 32",
        "embedding.output": "50 outputs are not a multiple of 16, as torch's 4-bit kernel needs",
    }


def test_shared_layers_are_quantised_once() -> None:
    result = quantize(build("encoder", **SIZES, groups=1).eval(), 8)
    assert result.replaced == layers(1)


@pytest.mark.parametrize("bits", SCHEMES)
def test_saved_and_loaded_equal_to_the_bit(bits: str, tmp_path: Path) -> None:
    light = quantize(decoder(), bits).model
    write(Pretrained(light), tmp_path / "light")
    again, ids = longspan.load(tmp_path / "light").model, torch.randint(0, 64, (2, 9))
    record = json.loads((tmp_path / "light" / "config.json").read_text())["quantization"]
    assert record.keys() == {"bits", "group", "layers"} and (record["bits"], record["group"]) == (bits, 32)
    assert sorted(record["layers"]) == sorted([*layers(), "embedding.output"])
    first, second = light.state_dict(), again.state_dict()
    assert list(first) == list(second) and all(torch.equal(first[name], second[name]) for name in first)
    with torch.inference_mode():
        assert torch.equal(light(ids), again(ids))


def test_file_is_smaller(tmp_path: Path) -> None:
    model = decoder(width=128, hidden=512)
    model.save(tmp_path / "full")
    sizes = [(tmp_path / "full" / "model.safetensors").stat().st_size]
    for bits in ("bf16", "8", "4"):
        write(Pretrained(quantize(model, bits).model), tmp_path / bits)
        sizes.append((tmp_path / bits / "model.safetensors").stat().st_size)
    assert sizes == sorted(sizes, reverse=True) and sizes[3] < sizes[0] / 4


@pytest.mark.parametrize("bits", SCHEMES)
@pytest.mark.parametrize("options", [{}, {"kv_heads": 2}, {"tied": False}])
def test_cached_equals_uncached(bits: str, options: dict[str, object]) -> None:
    """One token at a time, through the joined product of q, k and v, as all at once."""
    light, ids = quantize(decoder(**options), bits).model, torch.randint(0, 64, (1, 12))
    assert isinstance(light, CausalModel)
    with torch.inference_mode():
        whole, state, steps = light(ids), light.start(1), []
        for column in range(12):
            logits, state = light.extend(ids[:, column : column + 1], state)
            steps.append(logits)
    assert (torch.cat(steps, 1) - whole).abs().max() < 0.03 * whole.abs().max()


def test_projections_and_the_output_layer_have_fine_inputs(tmp_path: Path) -> None:
    for options, output in (({}, "embedding.output"), ({"tied": False}, "head")):
        light = quantize(decoder(**options), "dynamic8").model
        write(Pretrained(light), tmp_path / output)
        for model in (light, longspan.load(tmp_path / output).model):
            fine = {name for name, layer in model.named_modules() if getattr(layer, "fine", False)}
            assert fine == {output, *(name for name in layers() if ".project." in name)}


def test_a_step_takes_one_product_for_q_k_and_v_in_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_product, "functions", lambda: None)  # torch's kernels can be watched
    light = quantize(decoder(), 4).model
    assert isinstance(light, CausalModel)
    with torch.inference_mode():
        state = light.start(1)
        with Watch() as watch:
            light.extend(torch.tensor([[3]]), state)
    assert watch.seen == [(PACKED[0], torch.bfloat16)] * (2 * 4 + 1)


def test_logits_are_near_the_originals() -> None:
    model, ids = decoder(), torch.randint(0, 64, (1, 20))
    with torch.inference_mode():
        exact = model(ids)
        eight, four, dynamic = (
            float((quantize(model, bits).model(ids) - exact).norm() / exact.norm()) for bits in ("8", "4", "dynamic8")
        )
    assert eight < 0.03 and dynamic < 0.05 and eight < four < 0.2


def test_the_model_itself_is_unchanged() -> None:
    model = decoder()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    quantize(model, 4)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_comparison_counts_bytes_and_tokens() -> None:
    model = decoder()
    before, after = compare_models([model, quantize(model, 8).model], [*range(64), 1, 2, 3])
    assert before.tokens == after.tokens == 63 + 2
    assert before.weight_bytes > after.weight_bytes
    assert before.loss is not None and after.loss is not None and abs(before.loss - after.loss) < 0.05


def test_errors(tmp_path: Path) -> None:
    model: Model = decoder()
    with pytest.raises(InvalidOption, match="bits cannot be '3'"):
        quantize(model, 3)
    with pytest.raises(InvalidInput, match="this model is quantised already \\(bits 8\\): quantise the original"):
        quantize(quantize(model, 8).model, 4)
    with pytest.raises(InvalidInput, match="exists already; give another name with --out"):
        write(Pretrained(model), tmp_path)
    write(Pretrained(quantize(model, 8).model), tmp_path / "light")
    path = tmp_path / "light" / "config.json"
    record = json.loads(path.read_text())
    record["quantization"]["layers"].append("stack.nothing")
    path.write_text(json.dumps(record))
    (tmp_path / "light" / "manifest.json").unlink()
    with pytest.raises(InvalidInput, match=r"names a layer 'stack\.nothing' that this model does not have"):
        longspan.load(tmp_path / "light")
