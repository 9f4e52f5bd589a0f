"""`longspan train`, `resume` and `evaluate` from end to end, on a small text."""

import json
import tomllib
from pathlib import Path

import pytest
from tests.train.starting import TEXT, losses, recipe, result, same

from longspan.cli.inputs import dotted
from longspan.cli.main import main
from longspan.cli.own_data import EXAMPLE
from longspan.train.recipe import find


def test_train_evaluate_and_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = str(recipe(tmp_path)), tmp_path / "run"
    assert main(["train", made, "--out", str(folder), "--train.steps", "6", "--train.schedule.warmup=2"]) == 0
    output, errors = capsys.readouterr()
    assert output.startswith(f"{folder}/model: loss ")
    assert "train tokens" in errors and "parameters; 6 steps" in errors  # the facts of the task, and of the model
    assert list(losses(folder)) == [1, 2, 3, 4, 5, 6]
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["train"]["steps"] == 6 and config["train"]["schedule"]["warmup"] == 2
    assert config["train"]["clip"] == 1.0 and config["task"]["name"] == "language"  # defaults stand there too

    assert main(["evaluate", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    logged = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["held_out"]
    assert found["metrics"] == pytest.approx(logged) and found["split"] == "held_out"
    assert main(["evaluate", str(folder), "--split", "test"]) == 2
    assert "the task has no test data" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--split", "tests"]) == 2
    capsys.readouterr()

    before = result(folder)
    assert main(["resume", str(folder)]) == 0  # there is nothing left to do
    assert "resuming from step 6" in capsys.readouterr().err and same(before, result(folder))


def test_evaluate_with_a_stride(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = str(recipe(tmp_path)), tmp_path / "run"
    assert main(["train", made, "--out", str(folder), "--train.steps", "4"]) == 0
    length = tomllib.loads((folder / "config.toml").read_text())["task"]["length"]
    found = {}
    for stride in (None, length, 1):
        capsys.readouterr()
        assert main(["evaluate", str(folder), "--json", *([] if stride is None else ["--stride", str(stride)])]) == 0
        found[stride] = json.loads(capsys.readouterr().out)["metrics"]["loss"]
    assert found[None] == found[length] != found[1]
    assert main(["evaluate", str(folder), "--stride", str(length + 1)]) == 2
    assert f"stride must be at most the length of {length}, not {length + 1}" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--stride", "1", "--split", "train"]) == 2
    assert "--stride is for held_out and test" in capsys.readouterr().err


def test_a_run_is_named_after_its_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(recipe(tmp_path)), "--train.steps", "1"]) == 0
    assert (tmp_path / "runs" / "small" / "model" / "tokenizer.json").is_file()


def test_a_run_that_was_not_saved_is_begun_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, folder = str(recipe(tmp_path)), tmp_path / "run"
    arguments = ["train", made, "--out", str(folder), "--train.steps", "3"]
    assert main([*arguments, "--train.bad_steps", "1", "--train.schedule.rate", "1e38"]) == 2  # after its first steps
    assert "not finite" in capsys.readouterr().err
    assert main(["resume", str(folder)]) == 2
    assert "none was saved yet" in capsys.readouterr().err
    assert main(arguments) == 0
    assert list(losses(folder)) == [1, 2, 3]


def test_values_are_read_as_toml() -> None:
    given = ["--a.b", "3", "--a.c=x y", "--a.d", "-1.5", "--a.e", "[1, 2]", "--a.f", "true", "--a.g", '{ k = "v" }']
    assert dotted(given, EXAMPLE) == {
        "a.b": 3,
        "a.c": "x y",
        "a.d": -1.5,
        "a.e": [1, 2],
        "a.f": True,
        "a.g": {"k": "v"},
    }


@pytest.fixture
def trained_on_a_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run on a named set, whose folder was given by a relative path; it is opened from another folder."""
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    (tmp_path / "sets" / "tinyshakespeare").mkdir(parents=True)
    (tmp_path / "sets" / "tinyshakespeare" / "input.txt").write_text(TEXT)
    made = recipe(tmp_path)
    made.write_text(made.read_text().replace(f'train = "{tmp_path}/text.txt"', 'set = "tinyshakespeare"'))
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(made), "--out", "run", "--data", "sets", "--train.steps", "2"]) == 0
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "run"


def test_a_run_keeps_where_its_data_are(trained_on_a_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = trained_on_a_set
    assert tomllib.loads((folder / "config.toml").read_text())["data"] == str(folder.parent / "sets")
    for command in ("evaluate", "resume"):
        assert main([command, str(folder)]) == 0, capsys.readouterr().err


def test_data_that_have_moved(
    trained_on_a_set: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, old = trained_on_a_set, trained_on_a_set.parent / "sets"
    moved = old.rename(old.parent / "moved")
    capsys.readouterr()
    for command in ("evaluate", "resume"):
        assert main([command, str(folder)]) == 2
        assert capsys.readouterr().err.splitlines()[-1] == (
            f"longspan: the folder of data sets, {old}, is not there; name it by --data or LONGSPAN_DATA"
        )
    assert main(["evaluate", str(folder), "--data", "../moved"]) == 0
    assert main(["resume", str(folder), "--data", "../moved"]) == 0
    assert tomllib.loads((folder / "config.toml").read_text())["data"] == str(moved)  # from now on
    assert main(["evaluate", str(folder)]) == 0
    again = moved.rename(old.parent / "again")
    monkeypatch.setenv("LONGSPAN_DATA", str(again))
    assert main(["evaluate", str(folder)]) == 0


def test_files_of_a_recipe_are_kept_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(tmp_path)
    made.write_text(made.read_text().replace(str(tmp_path / "text.txt"), "text.txt"))
    monkeypatch.chdir(tmp_path)
    assert main(["train", str(made), "--out", "run", "--train.steps", "1"]) == 0
    monkeypatch.chdir("/")
    assert main(["evaluate", str(tmp_path / "run")]) == 0
    # A model that is trained further is found again, too.
    monkeypatch.chdir(tmp_path)
    text = made.read_text()
    made.write_text(text[: text.index("[model]")] + '[model]\nfrom = "run/model"\n\n' + text[text.index("[train]") :])
    assert main(["train", str(made), "--out", "tuned", "--train.steps", "1"]) == 0
    monkeypatch.chdir("/")
    assert main(["resume", str(tmp_path / "tuned")]) == 0


def test_a_recipe_can_name_its_data(trained_on_a_set: Path, tmp_path: Path) -> None:
    """So that the configuration of a run is a recipe, too."""
    given = ["train", str(trained_on_a_set / "config.toml"), "--out", str(tmp_path / "second"), "--train.steps", "1"]
    assert main(given) == 0
    assert losses(tmp_path / "second")[1] == losses(trained_on_a_set)[1]


def test_baselines_stand_in_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [("good film", "yes"), ("bad plot", "no"), ("very good", "yes"), ("the bad film", "no")] * 5
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    path = tmp_path / "labels.toml"
    path.write_text(
        f'[task]\nname = "classify"\ntrain = "{tmp_path}/a.csv"\nlength = 8\n'
        '[model]\nname = "encoder"\nwidth = 8\nlayers = 1\nheads = 1\nhidden = 8\n[train]\nsteps = 1\n'
    )
    assert main(["train", str(path), "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().err.splitlines()
    at = lines.index("baselines without a model, on the held-out data:")
    assert lines[at + 1].startswith("  majority      accuracy 0.") and lines[at + 2].startswith(
        "  bag of words  accuracy 1"
    )
    assert "majority" not in lines[0]
    # And what was trained is predicted with; wrong numbers are refused.
    assert main(["predict", str(tmp_path / "run"), "good film"]) == 0
    capsys.readouterr()
    assert main(["predict", str(tmp_path / "run"), "good film", "--threshold", "nan"]) == 2
    assert main(["predict", str(tmp_path / "run"), "good film", "--batch", "0"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "longspan: --threshold must be a finite number, not nan",
        "longspan: top and batch must be at least 1, not 1 and 0",
    ]


def test_recipes_and_runs_with_the_former_name_of_an_option_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, folder = recipe(tmp_path), tmp_path / "run"
    path.write_text(path.read_text().replace("layers = 1", 'layers = 1\nplace = "pre"'))
    assert main(["train", str(path), "--out", str(folder), "--train.steps", "1"]) == 0
    options = json.loads((folder / "model" / "config.json").read_text())["options"]
    assert options["norm_position"] == "pre" and "place" not in options
    assert tomllib.loads((folder / "config.toml").read_text())["model"]["place"] == "pre"  # as the recipe has it
    for command in ("evaluate", "resume"):
        assert main([command, str(folder)]) == 0
    capsys.readouterr()
    assert main(["train", str(path), "--out", str(tmp_path / "other"), "--model.norm_position", "post"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    said = "decoder has both --model.norm_position and its former name place; keep --model.norm_position"
    assert line.endswith(said)


def test_a_folder_does_not_hide_a_recipe_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shakespeare-char").mkdir()
    assert find(Path("shakespeare-char")).name == "shakespeare-char.toml"
    assert find(tmp_path / "shakespeare-char") == tmp_path / "shakespeare-char"
