"""Image files given to `train`, `predict` and `generate`: right ones, and each way in which one can be wrong."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longspan import hub
from longspan.cli.main import main
from longspan.train import recipe
from longspan.train.fit import train

VIT = {"name": "vit", "patch_size": 4, "layers": 1, "heads": 2, "width": 16, "hidden": 32, "dropout": 0.0}
PIXELS = {"name": "image_decoder", "layers": 1, "heads": 2, "width": 16, "hidden": 16, "dropout": 0.0}


def picture(path: Path, size: tuple[int, int] = (8, 8), mode: str = "RGB", light: bool = True, seed: int = 0) -> Path:
    """A noisy image that is light or dark; height and width."""
    path.parent.mkdir(parents=True, exist_ok=True)
    level = 180 if light else 40
    shape = size if mode == "L" else (*size, len(mode))
    pixels = np.random.default_rng(seed).integers(level, level + 40, size=shape).astype(np.uint8)
    Image.fromarray(pixels).save(path)
    return path


def folder_of(path: Path, mode: str = "RGB", count: int = 12) -> Path:
    for number in range(count):
        picture(path / "day" / f"{number}.png", mode=mode, light=True, seed=number)
        picture(path / "night" / f"{number}.png", mode=mode, light=False, seed=number)
    return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that labels colour images of 8 × 8, one that generates grey ones, and one that enlarges them from 4 × 4."""
    folder = tmp_path_factory.mktemp("images")
    colour, grey = folder_of(folder / "colour"), folder_of(folder / "grey", "L")
    options = {"steps": 25, "schedule": {"rate": 3e-3}}
    task = {"name": "images", "train": str(colour), "batch": 8, "share": 0.25}
    train(recipe.begin(recipe.Recipe(task, VIT, options, "here"), folder / "labels", data=None))
    task = {"name": "pixels", "train": str(grey), "batch": 8, "share": 0.25, "levels": 4}
    train(recipe.begin(recipe.Recipe(task, PIXELS, {"steps": 1}, "here"), folder / "pixels", data=None))
    task |= {"source": 4}
    train(recipe.begin(recipe.Recipe(task, PIXELS, {"steps": 1}, "here"), folder / "enlarge", data=None))
    return folder


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main([str(argument) for argument in arguments])
    output, errors = capsys.readouterr()
    assert "Traceback" not in errors
    return code, output, " ".join(errors.split())


def test_image_files_and_folders_are_labelled(trained: Path, tmp_path: Path, capsys) -> None:
    light, dark = picture(tmp_path / "a.png", seed=50), picture(tmp_path / "more" / "b.jpg", light=False, seed=51)
    code, output, _ = run(capsys, "predict", trained / "labels", light, tmp_path / "more")
    lines = [line.split("\t") for line in output.splitlines()]
    assert code == 0 and [(name, label) for name, label, _ in lines] == [(str(light), "day"), (str(dark), "night")]
    code, output, _ = run(capsys, "predict", trained / "labels" / "model", light, "--json")
    found = json.loads(output)[0]
    assert found["file"] == str(light) and sum(found["probabilities"].values()) == pytest.approx(1)
    assert found["label"] == "day" and list(found["probabilities"]) == ["day", "night"]


def test_the_scale_of_the_training_images_is_the_models(trained: Path, tmp_path: Path, capsys) -> None:
    model = hub.load(trained / "labels").model
    pixels = np.stack([np.asarray(Image.open(path)) for path in sorted((trained / "colour").rglob("*.png"))]) / 255
    assert model.pixel_scale.mean == pytest.approx(pixels.mean((0, 1, 2)), abs=0.05)
    hub.save(model, tmp_path / "hf", family="vit")
    image = picture(tmp_path / "a.png")
    ours, theirs = (run(capsys, "predict", folder, image) for folder in (trained / "labels", tmp_path / "hf"))
    assert ours == theirs and ours[0] == 0
    (tmp_path / "hf" / "preprocessor_config.json").unlink()
    code, _, error = run(capsys, "predict", tmp_path / "hf", image)
    assert code == 2 and "does not know the mean and deviation of its training images" in error
    (tmp_path / "hf" / "preprocessor_config.json").write_text('{"image_mean": 0.5}')
    code, _, error = run(capsys, "predict", tmp_path / "hf", tmp_path / "a.png")
    assert code == 2 and "has no lists of numbers called image_mean and image_std" in error


def broken(path: Path, kind: str) -> Path:
    """A file that is no image, or one that ends too early."""
    whole = picture(path.with_name("whole.png"), (64, 64)).read_bytes()
    path.write_bytes(
        {"corrupt": b"\x89PNG\r\n\x1a\n" + b"no image" * 9, "truncated": whole[: len(whole) // 2], "empty": b""}[kind]
    )
    path.with_name("whole.png").unlink()
    return path


@pytest.mark.parametrize("kind", ["corrupt", "truncated", "empty"])
def test_a_damaged_image_is_one_line_everywhere(trained: Path, tmp_path: Path, capsys, kind: str) -> None:
    bad = broken(tmp_path / "bad.png", kind)
    commands = [
        ("predict", trained / "labels", bad, "--resize"),
        ("generate", trained / "pixels", "--complete", bad, "--resize", "--out", tmp_path / "out.png"),
        ("generate", trained / "enlarge", "--source", bad, "--resize", "--out", tmp_path / "out.png"),
    ]
    data = folder_of(tmp_path / "data", count=3)
    broken(data / "day" / "bad.png", kind)
    commands.append(("train", "--task", "images", "--train", data, "--resize", "8", "--out", tmp_path / "run"))
    for command in commands:
        code, _, error = run(capsys, *command)
        assert code == 2 and "bad.png is not a readable image" in error
    assert not (tmp_path / "out.png").exists() and not (tmp_path / "run").exists()


def test_another_size_is_refused_or_scaled(trained: Path, tmp_path: Path, capsys) -> None:
    large = picture(tmp_path / "large.png", (9, 12))
    code, _, error = run(capsys, "predict", trained / "labels", large)
    assert code == 2 and "large.png has 9 × 12 pixels, and the model 8 × 8; give --resize to scale it" in error
    assert run(capsys, "predict", trained / "labels", large, "--resize")[1].split("\t")[1] == "day"
    grey, out = picture(tmp_path / "grey.png", (4, 4), "L"), tmp_path / "out.png"
    code, _, error = run(capsys, "generate", trained / "pixels", "--complete", grey, "--out", out)
    assert code == 2 and "grey.png has 4 × 4 pixels, and the model 8 × 8" in error and not out.exists()
    code, _, error = run(capsys, "generate", trained / "enlarge", "--source", large, "--out", out)
    assert code == 2 and "large.png has 9 × 12 pixels, and the model 4 × 4" in error and not out.exists()
    assert run(capsys, "generate", trained / "enlarge", "--source", grey, "--out", out, "--samples", "1")[0] == 0
    out.unlink()
    resized = ("generate", trained / "pixels", "--complete", grey, "--out", out, "--resize", "--samples", "1")
    assert run(capsys, *resized)[0] == 0 and out.exists()


def test_colour_for_grey_and_the_reverse_are_refused_or_converted(trained: Path, tmp_path: Path, capsys) -> None:
    grey, colour = picture(tmp_path / "grey.png", mode="L"), picture(tmp_path / "colour.png")
    code, _, error = run(capsys, "predict", trained / "labels", grey)
    assert code == 2 and "grey.png is grey, and the images of the model are in colour; give --resize" in error
    assert run(capsys, "predict", trained / "labels", grey, "--resize")[0] == 0
    given = ("generate", trained / "pixels", "--complete", colour, "--samples", "1", "--out", tmp_path / "out.png")
    code, _, error = run(capsys, *given)
    assert code == 2 and "colour.png is in colour, and the images of the model are grey; give --resize" in error
    assert run(capsys, *given, "--resize")[0] == 0
    clear = picture(tmp_path / "clear.png", mode="RGBA")  # transparency is dropped
    assert run(capsys, "predict", trained / "labels", clear)[0] == 0


def test_training_refuses_images_that_do_not_fit(trained: Path, tmp_path: Path, capsys) -> None:
    data, out = folder_of(tmp_path / "data", count=3), tmp_path / "run"
    begin = ("train", "--task", "images", "--train", data, "--out", out)
    picture(data / "day" / "large.png", (9, 12))
    code, _, error = run(capsys, *begin)
    assert code == 2 and "pixels, and" in error and "give all images one size by resize, such as --resize 32" in error
    code, _, error = run(capsys, *begin, "--resize", "8", "--model.patch_size", "3")
    assert code == 2 and "patches of 3 × 3 do not divide images of 8 × 8, so some pixels would not be read" in error
    code, _, error = run(capsys, *begin, "--resize", "8", "--grey", "--from", trained / "labels" / "model")
    assert code == 2 and "the images have 1 channels, and the model reads 3" in error
    small = ("--train.steps", "2", "--train.evaluate_every", "2")
    tuned = run(
        capsys, *begin[:-1], tmp_path / "tuned", "--resize", "8", "--from", trained / "labels" / "model", *small
    )
    assert tuned[0] == 0 and (tmp_path / "tuned" / "model" / "preprocessor_config.json").is_file()
    code, _, error = run(capsys, *begin, "--resize", "10", "--from", trained / "labels" / "model")
    assert code == 2 and "10 × 10 pixels, and the model reads 8 × 8; give resize = [8, 8]" in error
    (data / "day" / "large.png").unlink()
    other = folder_of(tmp_path / "other", "L", count=2)
    code, _, error = run(capsys, *begin, "--held-out", other)
    assert code == 2 and "has images of 8 × 8 × 1 with 2 labels, and" in error
    (data / "day" / "notes.txt").write_text("no image")
    code, _, error = run(capsys, *begin)
    assert code == 2 and "mixes formats" in error
    assert not out.exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["missing.png"], "there is no file missing.png"),
        ([], "give at least one image file, or a folder of images"),
        (["--horizon", "3", "x.png"], "--horizon and --chart are for models of series"),
        (["--out", "x.csv", "x.png"], "--out is for models of series and tables, not for this vit"),
        (["--batch", "0", "x.png"], "batch must be at least 1, not 0"),
    ],
)
def test_wrong_flags_are_one_line(
    trained: Path, tmp_path: Path, monkeypatch, capsys, flags: list[str], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    picture(tmp_path / "x.png")
    code, _, error = run(capsys, "predict", trained / "labels", *flags)
    assert code == 2 and words in error


def test_a_model_of_images_without_labels_says_so(trained: Path, tmp_path: Path, capsys) -> None:
    code, _, error = run(capsys, "predict", trained / "pixels", picture(tmp_path / "a.png", mode="L"))
    assert code == 2 and "this image_decoder has no head for predictions" in error
