"""The task `pixels`: what it prepares, bits per dimension, and images from the command line."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.cli.main import main
from longspan.data.images.grids import grid, read_image, write_png
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build as build_model
from longspan.tasks.base import DataPaths
from longspan.tasks.pixels import PixelLikelihood, independent_bits, quantise, scale_down
from longspan.tasks.registry import build
from longspan.train import recipe
from longspan.train.fit import train

SMALL = {"name": "image_decoder", "layers": 1, "heads": 2, "width": 16, "hidden": 32, "dropout": 0.0}


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataPaths:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    return DataPaths(None, tmp_path / "work", 0)


def test_what_is_prepared_says_what_the_model_needs(folders: DataPaths) -> None:
    options = {"set": "generated-images", "limit": 100, "levels": 4, "conditional": True, "source": 4}
    prepared = build("pixels", **options).prepare(folders)
    assert prepared.needs == {
        "image_size": (16, 16), "channels": 1, "levels": 4, "classes": 4, "source_size": (4, 4)
    }  # fmt: skip
    batch = prepared.train.load([0, 1], 0)
    assert batch["images"].shape == (2, 16, 16, 1) and int(batch["images"].max()) <= 3
    assert batch["source"].shape == (2, 4, 4, 1) and batch["labels"].shape == (2,)


def test_bits_per_dimension_are_nats_over_all_channels(folders: DataPaths) -> None:
    prepared = build("pixels", set="generated-images", limit=100, levels=4).prepare(folders)
    model = build_model("image_decoder", **{k: v for k, v in SMALL.items() if k != "name"}, **prepared.needs).eval()
    batch = prepared.held_out.load([0, 1, 2], 0)
    metrics, _ = prepared.objective.measure(model, batch)
    nats = model.nats(batch["images"]).sum().item()
    assert metrics.result()["bits_per_dim"] == pytest.approx(nats / (3 * 256 * math.log(2)), rel=1e-6)
    assert prepared.objective.count(batch) == 3 * 256


def test_a_model_without_context_knows_the_frequencies_of_each_place(folders: DataPaths) -> None:
    splits, _ = build("pixels", set="generated-images", limit=50).read_splits(folders)
    train_values, tested = (quantise(splits[name].pixels, 4) for name in ("train", "held_out"))
    total = 0.0
    for place in np.ndindex(16, 16, 1):
        counts = 1 + np.bincount(train_values[(slice(None), *place)], minlength=4)
        total -= np.log2(counts / counts.sum())[tested[(slice(None), *place)]].sum()
    assert independent_bits(splits["train"], splits["held_out"], 4) == pytest.approx(total / tested.size)


def test_scaling_down_takes_means() -> None:
    pixels = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1)
    assert scale_down(pixels, (2, 2))[0, ..., 0].tolist() == [[2, 4], [10, 12]]
    assert quantise(np.array([0, 63, 64, 255], dtype=np.uint8), 4).tolist() == [0, 0, 1, 3]


def test_a_model_of_labels_is_refused(folders: DataPaths) -> None:
    prepared = build("pixels", set="generated-images", limit=20).prepare(folders)
    model = build_model("vit", image_size=16, channels=1, patch_size=4, layers=1, heads=2, width=8, hidden=8)
    with pytest.raises(Unsupported, match="needs a model that generates images pixel by pixel"):
        prepared.objective.loss(model, prepared.train.load([0], 0))
    with pytest.raises(InvalidInput, match="do not scale down to a side of 5: give a divisor"):
        build("pixels", set="generated-images", source=5).prepare(folders)


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    task = {"name": "pixels", "set": "generated-images", "limit": 64, "levels": 4, "batch": 16, "conditional": True}
    train(recipe.begin(recipe.Recipe(task, SMALL, {"steps": 2}, "here"), tmp_path / "run", data=None))
    return tmp_path / "run"


def test_images_are_generated_completed_and_written(trained: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "grid.png"
    arguments = ["generate", str(trained), "--samples", "3", "--seed", "1", "--out", str(out), "--json"]
    assert main(arguments) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["file"] == str(out) and said["images"] == 3 and len(said["bits_per_dim"]) == 3
    first = out.read_bytes()
    assert main(arguments) == 0 and out.read_bytes() == first
    half = tmp_path / "half.png"
    write_png(half, np.full((16, 16, 1), 200, dtype=np.uint8))
    assert main(["generate", str(trained), "--samples", "1", "--complete", str(half), "--class", "2",
                 "--out", str(out)]) == 0  # fmt: skip
    side = read_image(out, (16, 16), 1, resize=True)
    assert side.shape == (16, 16, 1) and (side[:8] > 150).all()


AXIAL = {"width": 16, "heads": 2, "exterior_layers": 2, "outer_layers": 2, "inner_layers": 1, "dropout": 0.0}


def test_an_axial_transformer_is_trained_and_generates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = {"name": "pixels", "set": "generated-images", "limit": 64, "levels": 4, "batch": 16, "conditional": True}
    made = recipe.Recipe(task, {"name": "axial_transformer", **AXIAL}, {"steps": 3}, "here")
    train(recipe.begin(made, tmp_path / "run", data=None))
    half, out = tmp_path / "half.png", tmp_path / "grid.png"
    write_png(half, np.full((16, 16, 1), 200, dtype=np.uint8))
    flags = ["--complete", str(half), "--rows", "12", "--class", "2", "--samples", "1", "--out", str(out), "--json"]
    assert main(["generate", str(tmp_path / "run"), *flags]) == 0
    assert json.loads(capsys.readouterr().out)["bits_per_dim"][0] == pytest.approx(2, abs=0.2)  # hardly trained
    assert (read_image(out, (16, 16), 1, resize=True)[:11] > 150).all()


def test_training_estimates_what_evaluation_sums() -> None:
    torch.manual_seed(0)
    sizes = {**AXIAL, "output_scale": 1.0, "image_size": 4, "channels": 3, "levels": 4}
    model = build_model("axial_transformer", **sizes).double().eval()
    batch = {"images": torch.randint(0, 4, (5, 4, 4, 3))}
    objective = PixelLikelihood()
    exact = model.nats(batch["images"]).sum().item()
    metrics, _ = objective.measure(model, batch)
    assert metrics.nats == pytest.approx(exact, rel=1e-9) and metrics.dimensions == objective.count(batch) == 240
    draws = [objective.loss(model, batch).total.item() for _ in range(100)]
    assert abs(np.mean(draws) - exact) < 4 * np.std(draws) / 10 and np.std(draws) > 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["a prompt"], "generates images, which need no prompt; leave out the text"),
        (["--class", "7"], "--class must be 0 to 3, not 7"),
        (["--rows", "3"], "--rows is for --complete"),
        (["--source", "small.png"], "this model enlarges no images; leave out --source"),
        (["--complete", "missing.png"], "there is no file missing.png"),
        (["--samples", "0"], "--samples must be at least 1, not 0"),
    ],
)
def test_wrong_flags_are_one_line(trained: Path, capsys, flags: list[str], words: str) -> None:
    capsys.readouterr()
    assert main(["generate", str(trained), *flags]) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error


def test_a_grid_is_nearly_square() -> None:
    images = np.zeros((5, 4, 6, 3), dtype=np.uint8)
    assert grid(images).shape == (2 * 4 + 2, 3 * 6 + 2 * 2, 3)


def test_an_image_of_another_size_is_refused(tmp_path: Path) -> None:
    write_png(tmp_path / "large.png", np.zeros((8, 9, 3), dtype=np.uint8))
    with pytest.raises(InvalidInput, match=r"has 8 × 9 pixels, and the model 4 × 4; give --resize to scale it"):
        read_image(tmp_path / "large.png", (4, 4), 3)
    assert read_image(tmp_path / "large.png", (4, 4), 3, resize=True).shape == (4, 4, 3)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG broken")
    with pytest.raises(InvalidInput, match="is not a readable image"):
        read_image(tmp_path / "broken.png", (4, 4), 3)
