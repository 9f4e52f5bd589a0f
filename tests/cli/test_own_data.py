"""A user's own files: trained on without a recipe, by a written recipe, and by every task."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from tests.train.starting import environment

from longspan.cli.main import main
from longspan.cli.own_data import read_words, task_options
from longspan.tasks import registry

SMALL = ["--model.layers", "1", "--model.heads", "2", "--model.width", "16", "--model.hidden", "16"]
SENTENCES = [
    f"the {noun} number {number} sees the {noun} . it was {number} ." for noun in ("fox", "dog") for number in range(20)
]


def csv(path: Path, header: str, rows: list[str]) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def reviews(path: Path, count: int = 40) -> Path:
    words = ["good", "bad"]
    return csv(path, "id,review,stars", [f"{n},film {n} was {words[n % 2]},{n % 2}" for n in range(count)])


def tiny(task: str, folder: Path) -> list[str]:
    """The flags of a small file for each task."""
    if task == "images":
        from PIL import Image

        for name, shade in (("dark", 20), ("light", 220)):
            (folder / "pictures" / name).mkdir(parents=True)
            for number in range(6):
                pixels = np.full((10, 12, 3), shade + number, dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "pictures" / name / f"{number}.png")
        return ["--train", str(folder / "pictures"), "--resize", "8"]
    if task in ("classify", "language"):
        return ["--train", str(reviews(folder / "a.csv")), "--length", "16"]
    if task in ("masked", "detect", "denoise"):
        (folder / "texts").mkdir()
        for number in range(6):
            (folder / "texts" / f"{number}.txt").write_text("\n".join(SENTENCES[number::6]), encoding="utf-8")
        return ["--train", str(folder / "texts"), "--length", "16", "--batch", "4"]
    if task == "choose":
        rows = [f"where is it,in Paris,a plot {number},{number % 2}" for number in range(20)]
        return ["--train", str(csv(folder / "a.csv", "text,left,right,label", rows)), "--choices", "left,right"]
    if task == "tag":
        lines = [
            json.dumps({"tokens": ["Anna", "sees", f"x{n}"], "ner_tags": ["B-person", "O", "O"]}) for n in range(20)
        ]
        (folder / "a.jsonl").write_text("\n".join(lines), encoding="utf-8")
        return ["--train", str(folder / "a.jsonl")]
    if task == "answer":
        rows = [
            {"question": "Where is Anna?", "context": f"Anna {n} is in Paris.", "answer": "Paris"} for n in range(10)
        ]
        (folder / "a.json").write_text(json.dumps(rows), encoding="utf-8")
        return ["--train", str(folder / "a.json"), "--length", "32", "--step", "8"]
    if task == "table":
        rows = [f"{number % 7},{'ab'[number % 2]},{number % 2}" for number in range(40)]
        return ["--train", str(csv(folder / "a.csv", "size,kind,label", rows))]
    if task == "summarize":
        rows = [f'"Film {number} was good. It was long.",good film' for number in range(20)]
        return ["--train", str(csv(folder / "a.csv", "article,highlights", rows)), "--beams", "1", "--length", "32"]
    rows = [f"the fox {number},der Fuchs {number}" for number in range(40)]
    return ["--train", str(csv(folder / "a.csv", "en,de", rows)), "--beams", "1"]


TASKS = (
    "images",
    "table",
    "language",
    "masked",
    "detect",
    "denoise",
    "classify",
    "choose",
    "tag",
    "answer",
    "translate",
    "summarize",
)


@pytest.mark.parametrize("task", TASKS)
def test_a_written_recipe_trains(task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = tiny(task, tmp_path)
    small = [*SMALL, *(["--model.generator_heads", "1", "--model.embedding_width", "16"] if task == "detect" else [])]
    assert main(["recipe", "--task", task, *flags, *small, "--train.steps", "2"]) == 0
    text = capsys.readouterr().out
    tables = tomllib.loads(text)
    assert tables["task"]["name"] == task and tables["train"]["steps"] == 2 and "epochs" not in tables["train"]
    (tmp_path / "my.toml").write_text(text, encoding="utf-8")
    assert main(["train", str(tmp_path / "my.toml"), "--out", str(tmp_path / "run")]) == 0, capsys.readouterr().err
    assert "held out " in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run")]) == 0


@pytest.mark.parametrize("task", registry.names())
def test_every_key_is_in_a_written_recipe(task: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipe", "--task", task]) == 0
    text = capsys.readouterr().out
    tables = tomllib.loads(text)
    assert tables["task"]["name"] == task and {"model", "train"} <= set(tables)
    from dataclasses import fields

    from longspan.train.options import TrainOptions

    lines = text.splitlines()
    for cls in (registry.find(task).Options, TrainOptions):
        for item in fields(cls):
            keys = (f"{item.name} = ", f"# {item.name} = ", f"[task.{item.name}]", f"[train.{item.name}]")
            assert any(line.startswith(keys) for line in lines), item.name


def test_a_file_alone_is_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    reviews(tmp_path / "my.csv")
    given = ["train", "--task", "classify", "--train", "my.csv", *SMALL, "--train.epochs", "1", "--length", "16"]
    assert main(given) == 0
    output, errors = capsys.readouterr()
    assert output.startswith("runs/my/model: loss ")
    assert errors.splitlines()[:5] == [
        "a recipe was written; the run keeps it as config.toml, and `longspan recipe` prints one with every key:",
        '  text = "review", a column of my.csv: a usual name',
        '  label = "stars", a column of my.csv: a usual name',
        "  model: a new encoder, layers 1, heads 2, width 16",
        "  training: 1 epoch, rate 0.0005, warm-up of 1",
    ]
    assert "held out 4 of 40 rows, drawn by seed 0 from each label" in errors
    config = tomllib.loads((tmp_path / "runs/my/config.toml").read_text())
    assert (config["task"]["text"], config["task"]["label"]) == ("review", "stars")
    assert config["task"]["train"] == str(tmp_path / "my.csv") and config["train"]["evaluate_every"] == 2
    # The split is the run's: a file with more rows is refused, since held-out rows would be others.
    kept = json.loads((tmp_path / "runs/my/split.json").read_text())
    labels = [number % 2 for number in kept["held_out"]]
    assert kept["rows"] == 40 and labels.count(0) == labels.count(1) == 2
    assert main(["evaluate", "runs/my"]) == 0
    reviews(tmp_path / "my.csv", 44)
    capsys.readouterr()
    assert main(["evaluate", "runs/my"]) == 2
    assert "has 44 rows now, and had 40 when runs/my/split.json was written" in capsys.readouterr().err


def test_flags_and_dotted_values_in_a_pipe(tmp_path: Path) -> None:
    """`--train FILE` and `--train.steps` are different things."""
    reviews(tmp_path / "my.csv")
    words = ["train", "--train.steps", "1", "--task", "classify", "--train=my.csv", *SMALL, "--text-b", "id", "--json"]
    command = [sys.executable, "-m", "longspan", *words, "--task.length", "16", "--held-out-share", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["step"] == 1
    task = tomllib.loads((tmp_path / "runs/my/config.toml").read_text())["task"]
    assert (task["second"], task["share"], task["length"]) == ("id", 0.5, 16)
    assert "held_out examples 20" in done.stderr


def test_a_flag_has_the_type_of_its_option() -> None:
    file, flags = read_words(["my.toml", "--label", "1", "--names", "0=no,1=yes", "--regression", "--share", "0.3"])
    assert file == Path("my.toml")
    assert task_options(registry.find("classify"), flags.plain) == {
        "label": "1",
        "names": ["0=no", "1=yes"],
        "regression": True,
        "share": 0.3,
    }
    _, flags = read_words(["--resize", "8,9", "--train.steps=5", "--label=-1"])
    assert task_options(registry.find("images"), {"resize": flags.plain["resize"]}) == {"resize": [8, 9]}
    assert flags.dotted == {"train.steps": 5} and flags.plain["label"] == "-1"


def test_flags_change_the_task_of_a_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reviews(tmp_path / "one.csv")
    csv(tmp_path / "two.csv", "words,good", [f"it is {number},{number % 2}" for number in range(20)])
    assert main(["recipe", "--task", "classify", "--train", str(tmp_path / "one.csv"), *SMALL]) == 0
    (tmp_path / "my.toml").write_text(capsys.readouterr().out)
    given = ["--train", str(tmp_path / "two.csv"), "--text", "words", "--label", "good", "--train.epochs", "1"]
    assert main(["train", str(tmp_path / "my.toml"), *given, "--out", str(tmp_path / "run")]) == 0
    assert "labels 0, 1" in capsys.readouterr().err


def test_further_training_of_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tests.tasks.small import pretrained

    body, file = pretrained(tmp_path / "body"), reviews(tmp_path / "my.csv")
    flags = ["--task", "classify", "--train", str(file), "--from", str(body)]
    assert main(["recipe", *flags, "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)
    assert tables["model"] == {"from": str(body)} and tables["train"]["epochs"] == 3
    assert tables["train"]["schedule"] == {"kind": "linear", "rate": 5e-5, "warmup": 1}
    assert main(["recipe", *flags]) == 0
    assert '# trained = "all"' in capsys.readouterr().out
    assert main(["train", *flags, "--model.trained", "head", "--out", str(tmp_path / "run")]) == 0
    assert f"model: {body}, trained further" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "give a recipe, or --task NAME with --train FILE; tasks: images, language, "),
        (["--task", "clasify"], "no task is called 'clasify': did you mean 'classify'?"),
        (["--task", "classify"], "the task classify has no data: give --train FILE, or --set NAME for a named set"),
        (["--task", "classify", "--lable", "x"], "the task classify has no option --lable: did you mean label?"),
        (["--task", "classify", "--steps", "5"], "there is no option --steps; did you mean --train.steps?"),
        (["--task", "classify", "--layers", "5"], "there is no option --layers; did you mean --model.layers?"),
        (["--task", "classify", "--train"], "--train has no value"),
        (["--task", "classify", "--train.steps"], "--train.steps has no value"),
        (["--task", "classify", "--train", "my.csv", "--train.epochs", "many"], "--train.epochs must be float or none"),
        (["--task", "classify", "--train", "my.csv", "--length", "long"], "length must be int, not 'long' (str)"),
        (["my.csv"], "my.csv is not a recipe, a TOML file; to train on it: --task NAME --train my.csv"),
        (["shakespeare-char", "--task", "language"], "shakespeare-char names the task and the model; leave out --task"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    reviews(tmp_path / "my.csv")
    assert main(["train", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1 and not (tmp_path / "runs").exists()


GOOD = [f"film {number} was {number % 2},{number % 2}" for number in range(20)]
FILES: dict[str, tuple[str, list[str], str]] = {
    "column": ("a.csv", ["text,labels", *GOOD], "{path}, line 1, has no column 'lable'; it has 'labels', 'text'"),
    "rows": ("a.csv", ["text,label"], "{path} has no rows"),
    "nothing": ("a.csv", [""], "{path} has no rows"),
    "free": (
        "a.csv",
        ["text,label", *(f"film {n},it was {n}" for n in range(50))],
        "{path}: the column 'label' has 50 different values in 50 rows, such as 'it was 0': it does not look like a "
        "label; name the right column as label",
    ),
    "numbers": (
        "a.csv",
        ["text,label", *(f"film {n},{n / 7}" for n in range(50))],
        "it does not look like a label; to predict numbers, give regression = true",
    ),
    "json": (
        "a.csv",
        ['{"text": "a", "label": 1}'],
        "{path}, line 1: it begins like JSON; call the file .jsonl or .json",
    ),
    "short": ("a.csv", ["text,label", "a,1", "b"], "{path}, line 3: 1 fields, and 2 columns are expected"),
    "parquet": ("a.parquet", ["PAR1"], "{path} is not a readable Parquet file: Parquet file size is 5 bytes"),
    "list": (
        "a.json",
        ['[{"text": "a", "label": 1},', '{"text": "b"}]'],
        "{path}, line 2, has no field 'label'; it has 'text'",
    ),
    "object": ("a.json", ['{"text": "a"}'], "{path}, line 1: expected a list of objects"),
}


@pytest.mark.parametrize("fault", FILES)
def test_a_bad_file_is_one_line_and_leaves_nothing(fault: str, tmp_path: Path, capsys) -> None:
    name, lines, said = FILES[fault]
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    label = "lable" if fault == "column" else "label"
    given = ["--train", str(path), "--text", "text", "--label", label, "--out", str(tmp_path / "runs" / "run")]
    assert main(["train", "--task", "classify", *given]) == 2
    errors = capsys.readouterr().err
    assert said.format(path=path) in errors and errors.count("\n") == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_another_encoding_names_the_flag(tmp_path: Path, capsys) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("\n".join(["text,label", *GOOD, "für alle,1"]).encode("cp1252"))
    given = [
        "train",
        "--task",
        "classify",
        "--train",
        str(path),
        *SMALL,
        "--train.steps",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main(given) == 2
    errors = capsys.readouterr().err
    assert f"{path}, line 22: not UTF-8" in errors and errors.endswith('encoding = "cp1252" (--encoding cp1252)\n')
    assert main([*given, "--encoding", "cp1252"]) == 0


def test_empty_rows_and_rare_labels_are_said(tmp_path: Path, capsys) -> None:
    path = csv(tmp_path / "a.csv", "text,label", [*GOOD, ",1", "x,", "strange,7"])
    given = [
        "train",
        "--task",
        "classify",
        "--train",
        str(path),
        *SMALL,
        "--train.steps",
        "1",
        "--out",
        str(tmp_path / "run"),
    ]
    assert main([*given, "--empty", "refuse"]) == 2
    assert capsys.readouterr().err == f"longspan: {path}, line 22: text is empty\n"
    assert main(given) == 0
    errors = capsys.readouterr().err.splitlines()
    assert f"longspan: {path}: 2 rows with an empty field are left out; the first: {path}, line 22, text" in errors
    assert f"longspan: {path}, line 24: the label '7' occurs only here" in errors


def test_a_held_out_label_that_training_lacks(tmp_path: Path, capsys) -> None:
    path, held = csv(tmp_path / "a.csv", "text,label", GOOD), csv(tmp_path / "b.csv", "text,label", ["x,9"])
    given = ["--train", str(path), "--held-out", str(held), "--out", str(tmp_path / "run")]
    assert main(["train", "--task", "classify", *given]) == 2
    assert capsys.readouterr().err == f"longspan: {held}, line 2: no training text has the label '9'; they have 0, 1\n"


def test_show_tasks_keys_and_recipes(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # names are whole
    assert main(["show", "task", "classify", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    keys = {row["name"]: row for row in found["keys"]}
    assert keys["tokenizer.kind"]["default"] == "wordpiece" and keys["length"]["low"] == 4
    assert "minilm-sst2" in found["recipes"]
    assert main(["show", "train"]) == 0
    output = capsys.readouterr().out
    assert "schedule.warmup" in output and "optimizer.layer_decay" in output and "steps of linear warm-up" in output
    assert main(["show", "recipe", "shakespeare-char"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["task"]["set"] == "tinyshakespeare"
    assert main(["list", "--tasks", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == registry.names()
    for words in (["tasks"], ["recipes"], ["task"]):
        assert main(["show", *words]) == 0
    capsys.readouterr()
    for words, said in (
        (["recipe", "foo"], "no recipe is called 'foo'"),
        (["task", "clasify"], "no task is called 'clasify': did you mean 'classify'?"),
        (["train", "x"], "give one name: show task NAME"),
        ([], "give a name"),
        (["window", "x"], "give one name; 'x' follows 'window'"),
        (["train", "--lengths", "5"], "--lengths is for presets"),
    ):
        assert main(["show", *words]) == 2
        assert said in capsys.readouterr().err


def test_a_run_that_never_saved_leaves_no_split_behind(tmp_path: Path, capsys) -> None:
    path, run = reviews(tmp_path / "my.csv"), str(tmp_path / "run")
    given = ["train", "--task", "classify", "--train", str(path), *SMALL, "--train.steps", "1", "--out", run]
    assert main([*given, "--train.bad_steps", "1", "--train.schedule.rate", "1e38", "--train.steps", "3"]) == 2
    assert "not finite" in capsys.readouterr().err and (tmp_path / "run" / "split.json").is_file()
    reviews(path, 60)
    assert main(given) == 0
    assert "held out 6 of 60 rows" in capsys.readouterr().err


def test_texts_of_tables_and_folders_are_documents(tmp_path: Path, capsys) -> None:
    path = csv(tmp_path / "a.csv", "body,n", [*(f"one {n}. two {n}.,{n}" for n in range(20)), ",7"])
    for task in ("language", "masked"):
        given = ["train", "--task", task, "--train", str(path), *SMALL, "--length", "8", "--train.steps", "1"]
        assert main([*given, "--out", str(tmp_path / task)]) == 0
        errors = capsys.readouterr().err
        assert f"{path}: a row with an empty field is left out: {path}, line 22, body" in errors
        assert ("2 of 20 rows, drawn by seed 0" if task == "language" else "the last 2 of 20 documents") in errors
