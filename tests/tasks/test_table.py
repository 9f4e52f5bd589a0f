"""The task `table`: what is found in a file, batches, linear baselines, and a run from the command line."""

import json
import math
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longspan.cli.main import main
from longspan.data.table_files import encode_rows, find_columns, read_table
from longspan.errors import InvalidInput, InvalidOption, Notice
from longspan.models import build as build_model
from longspan.tasks.base import DataPaths, Prepared
from longspan.tasks.registry import build
from longspan.tasks.table_baselines import linear_regression, logistic_regression

HEADER = "id,age,city,codes,y"
LINES = ["n1,30,Rome,1,yes", "n2,,Oslo,2,no", "n3,50,Rome,1,no", "n4,40,NA,2,yes"]


def write(path: Path, lines: list[str], header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def prepare(folder: Path, lines: list[str] = LINES * 5, **options: Any) -> Prepared:
    path = write(folder / "a.csv", lines)
    given = {"label": "y", "leave_out": ["id"], "share": 0.2, **options}
    return build("table", train=str(path), **given).prepare(DataPaths(None, folder, 0))


def test_what_each_column_holds(tmp_path: Path) -> None:
    names, rows = read_table(write(tmp_path / "a.csv", LINES))
    columns, left_out = find_columns(rows, names[1:4], categorical=["codes"])
    age, city, codes = columns
    assert (age.kind, age.mean, age.deviation) == ("number", 40, pytest.approx((200 / 3) ** 0.5))
    assert (city.kind, city.values, codes.values) == ("category", ("Rome", "Oslo"), ("1", "2")) and not left_out
    encoded = encode_rows(rows, columns)
    np.testing.assert_allclose(encoded.numbers[:, 0] * age.deviation + 40, [30, math.nan, 50, 40])
    assert encoded.categories.tolist() == [[1, 1], [2, 2], [1, 1], [0, 2]] and not encoded.unknown


def test_columns_that_say_nothing_are_left_out(tmp_path: Path) -> None:
    lines = [f"name {number},{number},,one,{number % 2}" for number in range(120)]
    names, rows = read_table(write(tmp_path / "a.csv", lines))
    columns, left_out = find_columns(rows, names[:4])
    assert [column.name for column in columns] == ["age"]
    assert left_out == {
        "id": "120 different values in 120 rows: a name or a text, no category",
        "city": "it is empty",
        "codes": "all of its values are 'one'",
    }


def test_a_mistyped_number_is_an_error_with_its_line(tmp_path: Path) -> None:
    names, rows = read_table(write(tmp_path / "a.csv", ["n,1,a,1,x"] * 20 + ["n,1o,a,1,x", "n,3,a,2,x"]))
    with pytest.raises(InvalidInput, match=r"a.csv, line 22: age is a column of numbers, and '1o' is none; correct it"):
        find_columns(rows, names)


def test_what_is_prepared(tmp_path: Path) -> None:
    prepared = prepare(tmp_path)
    columns, target = prepared.needs["columns"], prepared.needs["target"]
    assert [(column.name, column.kind) for column in columns] == [
        ("age", "number"), ("city", "category"), ("codes", "number")
    ]  # fmt: skip
    assert (target.name, target.values) == ("y", ("no", "yes"))
    batch = prepared.train.load([0, 1], 0)
    assert (
        batch["numbers"].shape == (2, 2) and batch["categories"].shape == (2, 1) and batch["target"].dtype == torch.long
    )
    assert prepared.facts["missing values"] == "10 of 60 (age 5, city 5)"
    assert prepared.facts["columns"] == "2 of numbers, 1 of categories"
    assert {"majority", "logistic regression"} == set(prepared.facts["baselines"])
    with pytest.raises(
        InvalidInput, match=r'age is missing, as in .* of 16 rows; fill it in, or give missing = "learn"'
    ):
        prepare(tmp_path, missing="refuse")


def test_the_loss_and_the_metrics_of_numbers_are_those_of_the_file(tmp_path: Path) -> None:
    lines = [f"n,{number},{'ab'[number % 2]},{number % 3},{3 * number}" for number in range(30)]
    prepared = prepare(tmp_path, lines, regression=True)
    target = prepared.needs["target"]
    batch = prepared.held_out.load(range(6), 0)
    true = target.mean + target.deviation * batch["target"].double()
    assert set(true.round().tolist()) <= set(range(0, 90, 3))
    torch.manual_seed(0)
    sizes = {"layers": 1, "width": 16, "heads": 2, "hidden": 16}
    model = build_model("table_transformer", **sizes, **prepared.needs).eval()
    with torch.no_grad():
        out = model.outputs(batch["numbers"], batch["categories"])["regress"].flatten()
        scores = prepared.objective.measure(model, batch)[0].result()
        loss = prepared.objective.loss(model, batch).total / 6
    errors = (out - batch["target"]).double()
    assert float(loss) == pytest.approx(float((errors**2).mean()), rel=1e-5) == pytest.approx(scores["loss"], rel=1e-5)
    assert scores["mae"] == pytest.approx(float(errors.abs().mean()) * target.deviation, rel=1e-5)
    assert scores["r2"] == pytest.approx(1 - scores["rmse"] ** 2 / float(true.var(correction=0)), rel=1e-4)


def test_linear_models_find_the_plane_and_the_border() -> None:
    draw = np.random.default_rng(0)
    x = np.concatenate([draw.normal(size=(500, 2)), np.ones((500, 1))], 1)
    np.testing.assert_allclose(linear_regression(x, x @ [2.0, -1.0, 3.0]), [2, -1, 3], atol=1e-3)
    labels = (x @ [1.0, 1.0, 0.5] > 0).astype(int)
    weights = logistic_regression(x, labels, 2)
    assert ((x @ weights).argmax(1) == labels).mean() > 0.99
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(x @ weights), torch.from_numpy(labels))
    ridge = 1e-4 * (weights**2).sum()
    assert float(loss) + ridge < 0.1  # far below ln 2


def test_another_table_than_that_of_training_is_refused(tmp_path: Path) -> None:
    prepared = prepare(tmp_path)
    model = build_model("table_transformer", layers=1, width=16, heads=2, hidden=16, columns=[{"name": "age"}])
    with pytest.raises(InvalidInput, match="the model was trained on another table: columns"):
        prepared.objective.loss(model, prepared.train.load([0], 0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"label": "z"}, "has no column 'z'"),
        ({"leave_out": ["other"]}, "has no column 'other'"),
        ({"leave_out": ["id", "age", "city", "codes"]}, "no column is left to predict 'y' from"),
        ({"regression": True}, "line 2: y must be a number, not 'yes'"),
    ],
)
def test_wrong_options_are_one_line(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        prepare(tmp_path, **options)


def test_an_empty_label_is_left_out_and_none_is_a_label(tmp_path: Path) -> None:
    with pytest.warns(Notice, match="a row with an empty field is left out: .*line 2, y"):
        prepared = prepare(tmp_path, ["n,1,a,1,", *["n,1,a,1,none", "n,2,b,2,some"] * 10])
    assert prepared.needs["target"].values == ("none", "some")


def test_a_task_without_a_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"\[task\] names no file: give train"):
        build("table").prepare(DataPaths(None, tmp_path, 0))


# From the command line


def product_table(path: Path, rows: int = 600) -> Path:
    """What no linear model can tell: the label is whether two numbers have one sign, for one of two kinds."""
    draw = np.random.default_rng(0)
    lines = []
    for _ in range(rows):
        a, b = draw.normal(size=2)
        kind = "plain" if draw.random() < 0.5 else "turned"
        label = (a * b > 0) == (kind == "plain")
        lines.append(f"{a:.4f},{b:.4f},{kind if draw.random() > 0.05 else ''},{'yes' if label else 'no'}")
    return write(path, lines, "a,b,kind,y")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    table = product_table(folder / "my.csv")
    arguments = ["train", "--task", "table", "--train", str(table), "--out", str(folder / "run"), "--share", "0.2"]
    arguments += ["--train.epochs", "14", "--train.evaluate_every", "112", "--train.schedule.rate", "3e-3"]
    assert main([*arguments, "--model.width", "32", "--model.hidden", "48", "--batch", "64"]) == 0
    return folder


def test_a_run_beats_the_linear_model(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tomllib.loads((trained / "run/config.toml").read_text())
    assert config["task"]["label"] == "y" and config["model"]["name"] == "table_transformer"
    capsys.readouterr()
    assert main(["evaluate", str(trained / "run"), "--json"]) == 0
    accuracy = json.loads(capsys.readouterr().out)["metrics"]["accuracy"]
    facts = build("table", train=str(trained / "my.csv"), label="y", share=0.2).prepare(
        DataPaths(None, trained, 0, trained / "run/split.json")
    ).facts  # fmt: skip
    linear = facts["baselines"]["logistic regression"]["accuracy"]
    assert linear < 0.65 and accuracy > linear + 0.2


def test_rows_are_predicted(trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new = write(tmp_path / "new.csv", ["2,2,plain", "2,-2,plain", "2,-2,turned", "2,,odd"], "a,b,kind")
    assert main(["predict", str(trained / "run"), str(new)]) == 0
    output, errors = capsys.readouterr()
    assert [line.split("\t")[0] for line in output.splitlines()][:3] == ["yes", "no", "yes"]
    assert "kind has 1 values that training did not have; they are read as missing" in errors
    assert main(["predict", str(trained / "run/model"), str(new), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["line"] for row in found] == [2, 3, 4, 5] and sum(found[0]["probabilities"].values()) == pytest.approx(
        1
    )
    assert main(["predict", str(trained / "run"), str(new), "--out", str(tmp_path / "out.csv")]) == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[0] == "a,b,kind,predicted_y,predicted_y_probability" and lines[1].startswith("2,2,plain,yes,")


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("a,b\n1,2\n", "has no column 'kind'"),
        ("a,b,kind\n1,x,plain\n", "line 2: b must be a number, not 'x'; leave it empty if it is missing"),
        ("", "is empty"),
        (None, "there is no file"),
    ],
)
def test_wrong_tables_are_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], table: str | None, words: str
) -> None:
    if table is not None:
        (tmp_path / "new.csv").write_text(table)
    assert main(["predict", str(trained / "run"), str(tmp_path / "new.csv")]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert words in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["x.csv", "y.csv"], "give one table to predict from, such as new.csv"),
        (["x.csv", "--resize"], "--resize is for models of images, not for this table_transformer"),
        (["x.csv", "--horizon", "3"], "--horizon and --chart are for models of series"),
    ],
)
def test_wrong_flags_are_one_line(
    trained: Path, capsys: pytest.CaptureFixture[str], flags: list[str], words: str
) -> None:
    assert main(["predict", str(trained / "run"), *flags]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert main(["train", "--task", "table"]) == 2
    assert capsys.readouterr().err == "longspan: the task table has no data: give --train FILE\n"


def test_a_number_is_found_to_be_a_regression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps({"a": number, "b": None if number == 3 else "xy"[number % 2], "price": number * 1.5})
             for number in range(40)]  # fmt: skip
    (tmp_path / "my.jsonl").write_text("\n".join(lines))
    assert main(["recipe", "--task", "table", "--train", str(tmp_path / "my.jsonl"), "--label", "price"]) == 0
    output, errors = capsys.readouterr()
    assert tomllib.loads(output)["task"]["regression"] is True and "watch" not in tomllib.loads(output)["train"]
    assert "regression = true: price has 40 different numbers" in errors or "regression = true" in output


def test_a_table_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv", LINES)
    assert main(["data", "show", str(path), "--task", "table", "--label", "y", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    age = next(column for column in found["columns"] if column["name"] == "age")
    assert (age["use"], age["missing"], age["min"], age["max"]) == ("number", 1, 30, 50)
    assert found["labels"] == {"yes": 2, "no": 2} and found["rows"] == 4
    assert main(["data", "show", str(path), "--task", "table"]) == 0
    assert "30 to 50, mean 40" in capsys.readouterr().out


def test_parquet_is_read(tmp_path: Path) -> None:
    parquet = import_module("pyarrow.parquet")
    pyarrow = import_module("pyarrow")
    parquet.write_table(pyarrow.table({"a": [1.5, None], "b": ["x", "y"]}), tmp_path / "a.parquet")
    names, rows = read_table(tmp_path / "a.parquet")
    assert names == ["a", "b"] and [row.fields["a"] for row in rows] == ["1.5", ""]


def test_left_out_columns_are_said(tmp_path: Path) -> None:
    with pytest.warns(Notice, match="the column 'codes' is left out: all of its values are '1'"):
        prepare(tmp_path, [f"n,{number},a,1,{number % 2}" for number in range(20)], leave_out=["id", "city"])
