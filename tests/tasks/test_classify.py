"""Labels and numbers for texts, from files to predictions."""

import json
from pathlib import Path

import pytest
import torch
from tests.tasks.small import pretrained, run, tokenizer

from longspan import hub
from longspan.cli.main import main
from longspan.errors import InvalidInput, InvalidOption
from longspan.tasks.base import DataPaths
from longspan.tasks.choose import ChoiceObjective
from longspan.tasks.predict import predict
from longspan.tasks.registry import build

TEXTS = [("the film was good", "très bien"), ("the plot was bad", "5 stars? no"), ("a very good plot", "très bien")]


def table(path: Path, repeat: int = 20) -> Path:
    rows = [(f"{text} {'very ' * (at % 3)}film", label) for at, (text, label) in enumerate(TEXTS * repeat)]
    if path.suffix == ".jsonl":
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
    elif path.suffix == ".csv":
        lines = ["text,label", *(f'"{text}","{label}"' for text, label in rows)]
    else:
        lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_labels_of_any_name_go_through_training_saving_and_predicting(tmp_path: Path, kind: str, name: str) -> None:
    file = table(tmp_path / f"train.{kind}")
    task = {"name": "classify", "train": str(file), "batch": 16, "length": 32}
    figures = run(tmp_path / "run", task, {"from": str(pretrained(tmp_path / "body", name))})
    assert figures["accuracy"] == 1.0
    found = hub.load(tmp_path / "run" / "model")
    assert found.labels == ["5 stars? no", "très bien"]
    said = predict(found, ["the film was good", "the plot was bad film", ""])
    assert [each["label"] for each in said[:2]] == ["très bien", "5 stars? no"] and len(said) == 3


def test_a_number_is_told(tmp_path: Path) -> None:
    lines = [f"the film\t{'good ' * count}film\t{count}.5" for count in (1, 2, 3, 4)] * 8
    (tmp_path / "a.tsv").write_text("one\ttwo\tscore\n" + "\n".join(lines) + "\n")
    task = {"name": "classify", "train": str(tmp_path / "a.tsv"), "text": "one", "second": "two", "label": "score"}
    model = {"from": str(pretrained(tmp_path / "body")), "head": {"pool": "mean"}}
    figures = run(tmp_path / "run", {**task, "regression": True}, model, steps=150)
    assert figures["pearson"] > 0.95  # ranks of equal texts would hang on the last bit
    (answer,) = predict(hub.load(tmp_path / "run" / "model"), ["the film\tgood good film"])
    assert 1.5 < answer["value"] < 3.5


def test_baselines_and_padding_are_said(tmp_path: Path) -> None:
    task = build("classify", train=str(table(tmp_path / "a.csv")), length=32)
    facts = task.prepare(DataPaths(None, tmp_path), tokenizer()).facts
    assert list(facts["baselines"]) == ["majority", "bag of words"]
    assert facts["baselines"]["bag of words"]["accuracy"] == 1 > facts["baselines"]["majority"]["accuracy"]
    assert facts["padding"].endswith("%") and facts["train examples"] == 54


def test_shuffled_labels_are_those_of_other_texts(tmp_path: Path) -> None:
    file = str(table(tmp_path / "a.csv"))
    plain, mixed = (
        build("classify", train=file, shuffled_labels=flag).prepare(DataPaths(None, tmp_path), tokenizer()).train
        for flag in (False, True)
    )
    labels = [[each.whole["label"] for each in data.examples] for data in (plain, mixed)]
    assert labels[0] != labels[1] and sorted(labels[0]) == sorted(labels[1])


@pytest.mark.parametrize(
    ("train", "held_out", "options", "said"),
    [
        ("good\tx\nbad\ty\n", "good\tz\n", {}, "line 2: no training text has the label 'z'; they have x, y"),
        ("good\tx\nbad\tx\n", "good\tx\n", {}, "all labels are 'x'"),
        ("good\t1\nbad\tmuch\n", "good\t1\n", {"regression": True}, "line 3: 'much' is not a number"),
        ("good\tx\n\ty\n", "good\tx\n", {"empty": "refuse"}, "line 3: text is empty"),
    ],
)
def test_bad_labels_are_named_by_file_and_line(
    tmp_path: Path, train: str, held_out: str, options: dict[str, object], said: str
) -> None:
    for name, content in (("train", train), ("dev", held_out)):
        (tmp_path / f"{name}.tsv").write_text("text\tlabel\n" + content)
    task = build("classify", train=str(tmp_path / "train.tsv"), held_out=str(tmp_path / "dev.tsv"), **options)
    with pytest.raises(InvalidInput, match=said):
        task.prepare(DataPaths(None, tmp_path), tokenizer())


def test_permuted_choices_have_permuted_probabilities(tmp_path: Path) -> None:
    rows = [f"where was Anna\tin Paris\tvery bad\t{0}\n", f"where was Anna\ta plot\tin London\t{1}\n"] * 12
    (tmp_path / "a.tsv").write_text("text\tleft\tright\tlabel\n" + "".join(rows))
    task = {"name": "choose", "train": str(tmp_path / "a.tsv"), "choices": ["left", "right"], "batch": 8}
    figures = run(tmp_path / "run", task, {"from": str(pretrained(tmp_path / "body"))})
    assert figures["accuracy"] == 1.0
    found = hub.load(tmp_path / "run" / "model")
    made = build("choose", **{key: value for key, value in task.items() if key != "name"})
    batch = made.prepare(DataPaths(None, tmp_path), found.tokenizer).train.load([0, 1, 2], 0)
    turned = {name: tensor.flip(1) if tensor.dim() == 3 else tensor for name, tensor in batch.items()}
    with torch.no_grad():
        scores = ChoiceObjective(2).scores
        torch.testing.assert_close(scores(found.model, batch).flip(1), scores(found.model, turned))
    one, other = predict(found, ["where was Anna\tin Paris\tvery bad", "where was Anna\tvery bad\tin Paris"])
    assert (one["text"], other["text"]) == ("in Paris", "in Paris")
    assert one["probabilities"] == pytest.approx(other["probabilities"][::-1], abs=1e-6)


def test_fresh_weights_are_the_control_of_pretraining(tmp_path: Path) -> None:
    task = {"name": "classify", "train": str(table(tmp_path / "a.csv")), "batch": 16, "length": 32}
    model, nothing = {"from": str(pretrained(tmp_path / "body"))}, {"schedule": {"kind": "constant", "rate": 0.0}}
    run(tmp_path / "kept", task, model, steps=1, **nothing)
    run(tmp_path / "drawn", task, {**model, "fresh": True}, steps=1, **nothing)
    body, kept, drawn = (hub.load(tmp_path / name).model for name in ("body", "kept/model", "drawn/model"))
    assert kept.options == drawn.options
    assert torch.equal(kept.embedding.weight, body.embedding.weight)
    assert not torch.equal(drawn.embedding.weight, body.embedding.weight)
    with pytest.raises(InvalidOption, match="fresh must be true or false"):
        run(tmp_path / "wrong", task, {**model, "fresh": "yes"}, steps=1)


def test_evaluation_says_what_was_said_of_each_label(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = table(tmp_path / "a.csv")
    task = {"name": "classify", "train": str(file), "batch": 16, "length": 32}
    run(tmp_path / "run", task, {"from": str(pretrained(tmp_path / "body"))})
    assert main(["evaluate", str(tmp_path / "run"), "--split", "train"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert "accuracy 1" in first and "calibration_error" in first
    counts = [int(line.split("(")[1].split(")")[0]) for line in rest]
    assert [line.split(" (")[0].strip() for line in rest] == ["5 stars? no", "très bien"] and sum(counts) == 54
    assert rest[0].endswith(f": {counts[0]} 5 stars? no")
    file.write_text(file.read_text().replace("5 stars? no", "zero stars"))  # which goes behind the other one now
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert "has the labels 5 stars? no, très bien, but the data have très bien, zero stars" in capsys.readouterr().err


def test_blocks_are_unfrozen_one_by_one_from_the_top(tmp_path: Path) -> None:
    task = {"name": "classify", "train": str(table(tmp_path / "a.csv")), "batch": 16, "length": 32}
    body = pretrained(tmp_path / "body")
    before = hub.load(body).model.state_dict()
    trained = {}
    for steps in (2, 4, 6, 8):
        run(tmp_path / str(steps), task, {"from": str(body)}, steps=steps, unfreeze_every=2)
        after = hub.load(tmp_path / str(steps) / "model").model.state_dict()
        changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
        trained[steps] = {part for part in ("blocks.1.", "blocks.0.", "embedding.") if any(part in n for n in changed)}
    assert trained == {
        2: set(),
        4: {"blocks.1."},
        6: {"blocks.1.", "blocks.0."},
        8: {"blocks.1.", "blocks.0.", "embedding."},
    }


def test_a_file_of_a_spreadsheet(tmp_path: Path) -> None:
    """Semicolons and cp1252, as many write them."""
    rows = "text;label\n" + "gut für alle;ja\nschlecht;nein\n" * 10
    (tmp_path / "a.csv").write_bytes(rows.encode("cp1252"))
    task = {"train": str(tmp_path / "a.csv"), "length": 16}
    with pytest.raises(InvalidInput, match=r'a\.csv, line 2: not UTF-8: .* give the task encoding = "cp1252"'):
        build("classify", **task).prepare(DataPaths(None, tmp_path))
    prepared = build("classify", **task, encoding="cp1252").prepare(DataPaths(None, tmp_path))
    assert prepared.facts["labels"] == "ja, nein" and prepared.facts["train examples"] == 18
