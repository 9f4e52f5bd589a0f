"""`longspan data show` on every format, with counts that were made by hand."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.tasks.small import pretrained

from longspan.cli.main import main

ROWS = [
    ("one two three", "a"),
    ("one  two three", "b"),  # the same words
    ("four five", "a"),
    ("", "a"),
    ("six", "c"),
    ("seven eight nine ten", "b"),
]


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["data", "show", *words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def write(path: Path, rows: list[tuple[str, str]] = ROWS) -> str:
    if path.suffix == ".jsonl":
        text = "".join(json.dumps({"review": one, "class": two}) + "\n" for one, two in rows)
    elif path.suffix == ".json":
        text = json.dumps([{"review": one, "class": two} for one, two in rows])
    else:
        separator = "\t" if ".tsv" in path.name else ","
        text = "\n".join(separator.join(row) for row in [("review", "class"), *rows]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return str(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.tsv.gz", "a.jsonl", "a.json"])
def test_counts_of_a_table(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / name)
    other = write(tmp_path / f"other{''.join(Path(name).suffixes)}", [("six", "c"), ("eleven", "a")])
    body = str(pretrained(tmp_path / "body"))
    found = shown(capsys, path, "--held-out", other, "--length", "3", "--tokenizer", body)
    assert found["rows"] == 6 and found["labels"] == {"a": 2, "b": 2, "c": 1}
    assert found["columns"] == [
        {"name": "review", "use": "text: a usual name"},
        {"name": "class", "use": "label: a usual name"},
    ]
    assert found["lengths"]["review"]["words"] == {"min": 1, "median": 3.0, "mean": 2.6, "95 %": 3.8, "max": 4}
    assert found["lengths"]["review"]["characters"]["max"] == 20
    assert found["lengths"]["tokens"]["min"] >= 3  # with two special ones
    assert found["cut"]["unit"] == "tokens" and found["encoding"] == "utf-8"
    assert [item["label"] for item in found["labels_once"]] == ["c"]
    assert found["empty"]["rows"] == 1 and found["empty"]["first"][0].endswith(", review")
    assert (found["duplicates"]["rows"], found["duplicates"]["other_label"]) == (1, 1)
    assert found["duplicates"]["first"][0].endswith(", another label")
    assert found["shared"][0]["shared"] == 1 and found["shared"][0]["rows"] == 2
    assert found["examples"][0] == {"review": "one two three", "class": "a"}


def test_the_page_for_a_reader(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "a.csv")
    assert main(["data", "show", path, "--text", "review", "--length", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}: 6 rows; CSV, utf-8"
    columns = [line.split(maxsplit=1) for line in lines[2:4]]
    assert [(name, use.strip()) for name, use in columns] == [
        ("review", "text: given"),
        ("class", "label: a usual name"),
    ]
    assert f"  labels that occur once: c ({path}, line 6)" in lines
    for line in (
        "empty rows: 1",
        "duplicates: 1, 1 of them with another label",
        "  line 3: the same text as line 2, another label",
        "longer than 3 words: 1 rows (16.7 %)",
        "  review: one two three | class: a",
    ):
        assert line in lines, line


def test_other_kinds_of_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("one two\nthree\n\nfour\n")
    found = shown(capsys, str(tmp_path / "a.txt"))
    assert (found["format"], found["rows"], found["documents"], found["labels"]) == ("plain text", 3, 2, {})
    (tmp_path / "a.conll").write_text("Anna\tB-person\nsees\tO\n\nParis\tB-place\n")
    found = shown(capsys, str(tmp_path / "a.conll"))
    assert found["rows"] == 2 and found["labels"] == {"person": 1, "place": 1}
    asked = {"id": "1", "question": "Where?", "answers": [{"text": "Paris", "answer_start": 8}]}
    squad = {"data": [{"paragraphs": [{"context": "Anna in Paris.", "qas": [asked]}]}]}
    (tmp_path / "a.json").write_text(json.dumps(squad))
    assert shown(capsys, str(tmp_path / "a.json"))["examples"][0]["answer"] == "Paris"
    (tmp_path / "p.en").write_text("one\ntwo\n")
    (tmp_path / "p.de").write_text("eins\nzwei\n")
    found = shown(capsys, str(tmp_path / "p"), "--task", "translate")
    assert found["lengths"]["de"]["characters"]["max"] == 4
    for label in ("pos", "neg"):
        (tmp_path / "texts" / label).mkdir(parents=True)
        (tmp_path / "texts" / label / "1.txt").write_text("same")
    found = shown(capsys, str(tmp_path / "texts"))
    assert found["labels"] == {"neg": 1, "pos": 1} and found["duplicates"]["other_label"] == 1


def test_images_and_named_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:
    images = np.zeros((3, 5, 4, 1), np.uint8)
    images[2] = 7
    np.savez(tmp_path / "a.npz", x=images, y=np.array([0, 1, 1]))
    found = shown(capsys, str(tmp_path / "a.npz"))
    assert (found["rows"], found["height"], found["width"], found["channels"]) == (3, 5, 4, 1)
    assert found["labels"] == {"1": 2, "0": 1} and found["duplicates"]["rows"] == 1
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    found = shown(capsys, "generated-labels")
    assert found["rows"] == 2000 and sum(found["labels"].values()) == 2000 and len(found["shared"]) == 2
    assert shown(capsys, "generated-pairs")["columns"][0] == {"name": "en", "use": "source"}
    assert shown(capsys, "generated-images")["height"] == 16


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["gone.csv"], "there is no file, folder or data set gone.csv: check the path"),
        (["sst3"], "there is no file, folder or data set sst3: did you mean 'sst2'?"),
        (["a.csv", "--text", "revew"], "a.csv, line 1, has no column 'revew'; it has 'review', 'class'"),
        (["a.csv", "--length", "0"], "--length must be at least 1, not 0"),
        (["a.csv", "--task", "tags"], "no task is called 'tags': did you mean 'tag'?"),
        (["empty.csv"], "empty.csv has no rows"),
        (["folder"], "folder has no file that ends in .txt, .text, .md"),
        (["latin.csv"], "latin.csv, line 2: not UTF-8"),
    ],
)
def test_wrong_words(words: list[str], said: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.csv")
    (tmp_path / "empty.csv").write_text("review,class\n")
    (tmp_path / "latin.csv").write_bytes("review,class\nfür,a\n".encode("cp1252"))
    (tmp_path / "folder").mkdir()
    assert main(["data", "show", *words]) == 2
    errors = capsys.readouterr().err
    assert said in errors and errors.count("\n") == 1
