"""Folders: a model is saved completely, and errors name what is wrong with a folder."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from longspan.errors import InvalidInput, InvalidOption, UnknownName
from longspan.models import build, load, names
from longspan.models.base import Model
from longspan.models.decoder import Decoder
from longspan.models.presets import PRESETS, shrink

TINY = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "hidden": 24}
WEIGHTS = "model.safetensors"
STATED = ("word2vec", "regressor", "series_transformer")  # with words or statistics: they have tests of their own


def kinds() -> dict[str, str]:
    """A preset of each kind of model, if there is one."""
    return {PRESETS[name].model: name for name in reversed(PRESETS)}


def small(kind: str) -> Model:
    if kind in kinds():
        preset = shrink(PRESETS[kinds()[kind]])
        return build(preset.model, **preset.options)
    return build(kind, **TINY)


@pytest.mark.parametrize("kind", [name for name in names() if name not in STATED])
def test_every_kind_of_model_is_loaded_as_saved(tmp_path: Path, kind: str):
    model = small(kind).double()
    model.save(tmp_path)
    again = load(tmp_path)
    assert type(again) is type(model) and again.options == model.options
    mine, theirs = model.state_dict(), again.state_dict()
    assert list(mine) == list(theirs) and all(torch.equal(mine[name], theirs[name]) for name in mine)
    storages = [{tensor.data_ptr() for tensor in state.values() if tensor.numel()} for state in (mine, theirs)]
    assert len(storages[0]) == len(storages[1])  # ties are ties again


@pytest.mark.parametrize("kind", ["regressor", "series_transformer"])
def test_a_model_of_series_keeps_its_scale(tmp_path: Path, kind: str):
    model = build(kind, width=8, layers=1)
    model.fit_scale(torch.randn(3, 20, 1) * 5 + 2)
    model.save(tmp_path)
    again = load(tmp_path)
    assert all(torch.equal(tensor, again.state_dict()[name]) for name, tensor in model.state_dict().items())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder without checksums, which tests change."""
    build("decoder", **TINY).save(tmp_path)
    (tmp_path / "manifest.json").unlink()
    return tmp_path


def change(folder: Path, **tensors: torch.Tensor | None) -> None:
    weights = load_file(folder / WEIGHTS)
    for name, tensor in tensors.items():
        weights.pop(name, None)
        if tensor is not None:
            weights[name] = tensor
    save_file(weights, folder / WEIGHTS)


def test_tensors_that_are_missing_unknown_or_of_another_shape_are_named(folder: Path):
    name = "stack.blocks.0.mixer.project.q.weight"
    change(folder, **{name: None})
    with pytest.raises(InvalidInput, match=rf"lacks {name}; it is of another model"):
        load(folder)
    change(folder, **{name: torch.zeros(16, 15), "extra": torch.zeros(1)})
    with pytest.raises(InvalidInput, match="has unknown extra"):
        load(folder)
    change(folder, extra=None)
    with pytest.raises(InvalidInput, match=rf"{name} is \(16, 15\), and the model's is \(16, 16\)"):
        load(folder)


def test_a_pickle_is_never_read(folder: Path):
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=r"pytorch_model\.bin is a pickle, which is never read: convert it"):
        load(folder)


def test_weights_that_were_cut_off(folder: Path):
    path = folder / WEIGHTS
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InvalidInput, match=r"model\.safetensors cannot be read"):
        load(folder)


def test_a_bug_in_a_model_is_not_blamed_on_its_folder(folder: Path, monkeypatch: pytest.MonkeyPatch):
    def broken(*_: object) -> None:
        raise AttributeError("'Decoder' object has no attribute 'stak'")

    with monkeypatch.context() as patch:
        patch.setattr(Decoder, "_build_head", broken)
        with pytest.raises(AttributeError, match="stak"):
            load(folder)
    load(folder)


def test_a_configuration_that_cannot_be_read(folder: Path):
    path = folder / "config.json"
    whole = json.loads(path.read_text())
    for text, error, message in (
        ("{", InvalidInput, "is not JSON"),
        ("[]", InvalidInput, "names no model and options"),
        (json.dumps({**whole, "model": "decodr"}), UnknownName, "no model is called 'decodr': did you mean 'decoder'"),
        (json.dumps({**whole, "options": {**whole["options"], "widht": 3}}), InvalidOption, "has no option 'widht'"),
        (json.dumps({**whole, "options": {**whole["options"], "width": "3"}}), InvalidOption, "option width must be"),
    ):
        path.write_text(text)
        with pytest.raises(error, match=message):
            load(folder)
    path.unlink()
    with pytest.raises(InvalidInput, match=r"it has no config\.json"):
        load(folder)
    with pytest.raises(InvalidInput, match="is not a model of longspan"):
        load(folder / "nowhere")


OLD_NAMES = [
    ("decoder", {"norm_position": "pre"}, "place"),
    ("transformer_xl", {"norm_position": "pre"}, "place"),
    ("vit", {"norm_position": "post", "image_size": 8, "patch_size": 4}, "place"),
]


@pytest.mark.parametrize(("kind", "options", "old"), OLD_NAMES, ids=lambda value: str(value)[:20])
def test_a_folder_with_the_former_name_of_an_option_loads(tmp_path: Path, kind: str, options: dict, old: str):
    sizes = TINY if kind != "vit" else {key: value for key, value in TINY.items() if key != "vocabulary"}
    model = build(kind, **sizes, **options)
    model.save(tmp_path)
    (tmp_path / "manifest.json").unlink()
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"norm_position"', f'"{old}"'))
    assert f'"{old}"' in path.read_text()
    assert load(tmp_path).options == model.options
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "options": {**record["options"], "norm_position": "pre"}}))
    with pytest.raises(InvalidOption, match=rf"config.json has both norm_position and its former name {old}; keep"):
        load(tmp_path)


def test_a_preset_is_changed_by_the_former_name_of_an_option():
    sizes = {"width": 16, "layers": 1, "heads": 2, "hidden": 24, "vocabulary": 11, "max_length": 8}
    assert PRESETS["gpt2"].options["norm_position"] == "pre"
    assert build("gpt2", **sizes, place="post").options.norm_position == "post"
