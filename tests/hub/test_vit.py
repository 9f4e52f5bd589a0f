"""ViT and DeiT here and there: states, maps, heads, other image sizes, odd configurations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.hub.parity import assert_close, assert_round_trip, loaded, random_model
from torch import Tensor
from transformers import DeiTConfig, ViTConfig
from transformers.models.deit import modeling_deit as theirs_deit
from transformers.models.vit import modeling_vit as theirs_vit

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import families
from longspan.models import build
from longspan.nn.recorder import recording

SMALL = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 4,
}
BODIES = {"vit": (theirs_vit.ViTModel, ViTConfig), "deit": (theirs_deit.DeiTModel, DeiTConfig)}
CLASSIFIERS = {
    "vit": (theirs_vit.ViTForImageClassification, ViTConfig),
    "deit": (theirs_deit.DeiTForImageClassification, DeiTConfig),
    "deit with a teacher": (theirs_deit.DeiTForImageClassificationWithTeacher, DeiTConfig),
}
FAMILIES = pytest.mark.parametrize("family", BODIES)
CLASSES = pytest.mark.parametrize(("cls", "config_of"), CLASSIFIERS.values(), ids=list(CLASSIFIERS))
DTYPES = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def images(height: int, width: int, channels: int = 3, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(2, channels, height, width, generator=generator, dtype=torch.float64).to(dtype)


def exact(cls: Any, config: ViTConfig | DeiTConfig, dtype: torch.dtype = torch.float64) -> Any:
    """Their own attention computes its softmax in float32, whatever the model's type; torch's does not."""
    model = random_model(cls, config, dtype)
    model.set_attn_implementation("sdpa")
    return model


@FAMILIES
@DTYPES
@pytest.mark.parametrize("size", [(16, 16), (8, 20)], ids=str)
def test_states_and_pooler_equal_theirs(folder: Path, size: tuple[int, int], dtype: torch.dtype, family: str) -> None:
    cls, config_of = BODIES[family]
    theirs = exact(cls, config_of(**{**SMALL, "image_size": size}), dtype)
    found = loaded(theirs, folder)
    given = images(*size, dtype=dtype)
    with torch.no_grad():
        expected = theirs(given, output_hidden_states=True)
        with recording(found.model.stack, maps=False) as seen:
            out = found.model(given)
        pooled = found.model.outputs(given)["pool"]
        last = theirs.layernorm(expected.hidden_states[-1])  # their last state is before the norm, ours after it
    assert_close(out, expected.last_hidden_state)
    assert_close(pooled, expected.pooler_output)
    for own, other in zip(seen.states[:-1], expected.hidden_states[:-1], strict=True):
        assert_close(own, other)
    assert_close(seen.states[-1], last)


@FAMILIES
def test_maps_equal_theirs(folder: Path, family: str) -> None:
    cls, config_of = BODIES[family]
    theirs = random_model(cls, config_of(**SMALL), torch.float32)
    found = loaded(theirs, folder)
    given = images(16, 16, dtype=torch.float32)
    with torch.no_grad(), recording(found.model.stack) as seen:
        expected = theirs(given, output_attentions=True)
        found.model(given)
    assert len(seen.maps) == len(expected.attentions) == 3
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own, other)


@FAMILIES
@pytest.mark.parametrize("size", [(24, 24), (12, 12), (20, 8), (8, 32), (19, 25)], ids=str)
def test_stretched_positions_equal_theirs(folder: Path, size: tuple[int, int], family: str) -> None:
    """Larger and smaller images, one with as many patches in another shape, and one with pixels left over."""
    cls, config_of = BODIES[family]
    theirs = exact(cls, config_of(**SMALL))
    found = loaded(theirs, folder)
    given = images(*size)
    with torch.no_grad():
        expected = theirs(given, interpolate_pos_encoding=True).last_hidden_state
        assert_close(found.model(given, interpolate=True), expected)
    with pytest.raises(InvalidInput, match="interpolate=True"):
        found.model(given)


ODD = {
    "plain": {},
    "one layer, five labels": {"num_hidden_layers": 1, "num_labels": 5},
    "wide heads": {"head_dim": 7},
    "no biases": {"qkv_bias": False},
    "grey": {"num_channels": 1},
    "relu, eps": {"hidden_act": "relu", "layer_norm_eps": 1e-3},
    "tanh gelu": {"hidden_act": "gelu_new"},
    "oblong": {"image_size": (8, 20), "patch_size": (2, 5)},
    "pixels left over": {"image_size": 18, "patch_size": 4},
}


@CLASSES
@pytest.mark.parametrize("given", ODD.values(), ids=list(ODD))
def test_logits_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, given: dict[str, Any], cls: Any, config_of: Any
) -> None:
    config = config_of(**{**SMALL, "num_labels": 3, **given})
    theirs = exact(cls, config)
    found = loaded(theirs, folder)
    side = config.image_size if isinstance(config.image_size, (list, tuple)) else (config.image_size,) * 2
    with torch.no_grad():
        pixels = images(*side, channels=config.num_channels)
        assert_close(found.model.outputs(pixels)["classify"], theirs(pixels).logits)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@CLASSES
def test_a_number_is_regressed(folder: Path, tmp_path: Path, cls: Any, config_of: Any) -> None:
    theirs = exact(cls, config_of(**SMALL, num_labels=1))
    found = loaded(theirs, folder)
    with torch.no_grad():
        assert_close(found.model.outputs(images(16, 16))["regress"], theirs(images(16, 16)).logits)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@CLASSES
def test_the_names_of_their_modules_are_read_too(folder: Path, cls: Any, config_of: Any) -> None:
    """Their files keep the names of earlier versions; a state_dict has those of the modules today."""
    theirs = exact(cls, config_of(**SMALL, num_labels=3))
    theirs.save_pretrained(folder)
    names = theirs.state_dict()
    assert any(".layers.0.attention.q_proj." in name for name in names)
    save_file({name: tensor.contiguous() for name, tensor in names.items()}, folder / "model.safetensors")
    found = hub.load(folder)
    with torch.no_grad():
        assert_close(found.model.outputs(images(16, 16))["classify"], theirs(images(16, 16)).logits)


@FAMILIES
def test_another_pooler(folder: Path, tmp_path: Path, family: str) -> None:
    cls, config_of = BODIES[family]
    theirs = exact(cls, config_of(**SMALL, pooler_output_size=10, pooler_act="relu"))
    found = loaded(theirs, folder)
    with torch.no_grad():
        assert_close(found.model.outputs(images(16, 16))["pool"], theirs(images(16, 16)).pooler_output)
    assert_round_trip(found, folder, cls, tmp_path / "back")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["pooler_output_size"] == 10


@FAMILIES
def test_missing_keys_are_the_base_model(family: str) -> None:
    found, theirs = families.find(family, ""), BODIES[family][1]()
    own = found.options({}, [])
    for each in found.fields:
        expected = getattr(theirs, each.theirs, None)
        assert own[each.ours] == (expected if each.values is None else each.values[expected]), each.theirs


def test_a_model_of_ours_is_written_and_read_there(tmp_path: Path) -> None:
    options = {"width": 24, "layers": 1, "heads": 4, "hidden": 8, "image_size": 8, "patch_size": 4}
    model = build("vit", **options, tasks=[{"task": "classify", "labels": 4}]).double().eval()
    hub.save(model, tmp_path, family="vit")
    theirs = theirs_vit.ViTForImageClassification.from_pretrained(tmp_path, attn_implementation="sdpa")
    with torch.no_grad():
        assert_close(model.outputs(images(8, 8))["classify"], theirs(images(8, 8)).logits)
    for task, refused in (
        ({"task": "pool"}, "a layer with an activation"),
        ({"task": "pool", "activation": "tanh", "pool": "mean"}, "on the class token"),
    ):
        with pytest.raises(Unsupported, match=refused):
            hub.save(build("vit", **options, tasks=[task]), tmp_path, family="vit")


DISTILLED = {"width": 24, "layers": 2, "heads": 4, "hidden": 8, "image_size": 8, "patch_size": 4, "distillation": True}


def test_a_distilled_model_of_ours_is_written_and_read_there(tmp_path: Path) -> None:
    tasks = [{"task": "classify", "labels": 4}]
    for fusion, cls in (
        ("logits", theirs_deit.DeiTForImageClassificationWithTeacher),
        ("label", theirs_deit.DeiTForImageClassification),
    ):
        model = build("vit", **DISTILLED, tasks=tasks, fusion=fusion, drop_path=0.1).double().eval()
        hub.save(model, tmp_path / fusion, family="deit")
        theirs = cls.from_pretrained(tmp_path / fusion, attn_implementation="sdpa")
        with torch.no_grad():
            assert_close(model.outputs(images(8, 8))["classify"], theirs(images(8, 8)).logits)
    with pytest.raises(Unsupported, match="cannot say fusion = 'softmax'; it would be read as 'logits'"):
        hub.save(build("vit", **DISTILLED, tasks=tasks), tmp_path, family="deit")
    with pytest.raises(Unsupported, match="cannot say distillation = False"):
        hub.save(build("vit", **{**DISTILLED, "distillation": False}, fusion="label"), tmp_path, family="deit")


def test_a_teachers_logits_are_those_of_its_token(folder: Path) -> None:
    theirs = exact(theirs_deit.DeiTForImageClassificationWithTeacher, DeiTConfig(**SMALL, num_labels=3))
    found = loaded(theirs, folder)
    with torch.no_grad():
        label, teacher = found.model.student_logits(images(16, 16), "classify")
        expected = theirs(images(16, 16))
    assert_close(label, expected.cls_logits)
    assert_close(teacher, expected.distillation_logits)


def test_a_deit_starts_other_labels(folder: Path) -> None:
    """Both heads start anew for another number of labels; without heads, the body alone is read."""
    theirs = exact(theirs_deit.DeiTForImageClassificationWithTeacher, DeiTConfig(**SMALL, num_labels=3))
    found = loaded(theirs, folder, tasks=[{"task": "classify", "labels": 7}])
    assert set(found.fresh) == {f"{head}.{kind}" for head in ("heads.classify.out", "teacher_head")
                                for kind in ("weight", "bias")}  # fmt: skip
    assert found.model.outputs(images(16, 16))["classify"].shape == (2, 7)
    alone = hub.load(folder, tasks=[])
    with torch.no_grad():
        assert_close(alone.model(images(16, 16)), theirs.deit(images(16, 16)).last_hidden_state)
    assert len(alone.unused) == 4


def test_refusals(folder: Path) -> None:
    theirs = exact(theirs_vit.ViTForMaskedImageModeling, ViTConfig(**{**SMALL, "encoder_stride": 4}))
    with pytest.raises(Unsupported, match="no vit is called 'ViTForMaskedImageModeling'"):
        loaded(theirs, folder)
    record = json.loads((folder / "config.json").read_text())
    record |= {"architectures": ["ViTModel"], "pooler_act": "softplus"}
    (folder / "config.json").write_text(json.dumps(record))
    with pytest.raises(Unsupported, match="pooler_act is 'softplus'"):
        hub.load(folder, tasks=["pool"])
    theirs = exact(theirs_deit.DeiTForMaskedImageModeling, DeiTConfig(**{**SMALL, "encoder_stride": 4}))
    with pytest.raises(Unsupported, match="no deit is called 'DeiTForMaskedImageModeling'"):
        loaded(theirs, folder)
