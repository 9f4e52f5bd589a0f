"""`longspan tokenize` and `longspan data` as a user types them."""

import io
import json
from pathlib import Path

import pytest

from longspan.cli.main import main


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    text = tmp_path / "a.txt"
    text.write_text("low low low low low lower lower\nnewest newest newest widest\n" * 3)
    assert main(["tokenize", "learn", str(text), "--size", "280", "--out", str(tmp_path / "t")]) == 0
    assert "t: 2" in capsys.readouterr().out
    return str(tmp_path / "t")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_merges_are_shown_in_order(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    code, out, _ = run(capsys, "tokenize", "show", folder, "--merges", "4", "--json")
    found = json.loads(out)
    assert code == 0 and found["kind"] == "BPE" and found["merges"] == found["size"] - 260
    assert [row["rank"] for row in found["first"]] == [0, 1, 2, 3]
    assert [row["id"] for row in found["first"]] == [260, 261, 262, 263]
    assert {row["role"] for row in found["special"]} == {"pad", "bos", "eos", "mask"}
    code, out, _ = run(capsys, "tokenize", "show", folder)
    assert code == 0 and "<mask>" in out and found["first"][0]["token"] in out


def test_text_goes_in_and_comes_out(
    capsys: pytest.CaptureFixture[str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, out, _ = run(capsys, "tokenize", "encode", folder, "low [MASK]", "--json")
    (row,) = json.loads(out)
    assert code == 0 and row["text"] == "low [MASK]"
    assert "".join(row["pieces"]) == "lowĠ[MASK]" and row["offsets"][0] == [0, 3]
    code, out, _ = run(capsys, "tokenize", "decode", folder, *map(str, row["ids"]))
    assert code == 0 and out == "low [MASK]\n"
    code, out, _ = run(capsys, "tokenize", "encode", folder, "low")
    assert code == 0 and "'low'" in out
    (tmp_path / "lines.txt").write_text("low\nlower\n")
    assert (
        len(json.loads(run(capsys, "tokenize", "encode", folder, "--file", str(tmp_path / "lines.txt"), "--json")[1]))
        == 2
    )
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"low\n")))
    assert json.loads(run(capsys, "tokenize", "encode", folder, "-", "--json")[1])[0]["text"] == "low"
    (allowed,) = json.loads(run(capsys, "tokenize", "encode", folder, "a<mask>", "--allow", "<mask>", "--json")[1])
    assert allowed["ids"][-1] == 3


def test_statistics_are_told(capsys: pytest.CaptureFixture[str], folder: str, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "tokenize", "statistics", folder, str(tmp_path / "a.txt"), "--json")
    found = json.loads(out)
    assert code == 0 and found["lines"] == 6 and found["words"] == 33 and found["unknown_rate"] == 0
    code, out, _ = run(capsys, "tokenize", "statistics", folder, str(tmp_path / "a.txt"))
    assert code == 0 and "tokens per word" in out and "█" in out


def test_sets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "data", "list", "--json")
    rows = {row["name"]: row for row in json.loads(out)}
    assert code == 0 and rows["generated"]["there"] == "generated" and rows["wikitext2"]["there"] == "can be downloaded"
    assert rows["imdb"]["there"] == "no" and "Maas" in rows["imdb"]["terms"]
    code, out, _ = run(capsys, "data", "list")
    assert code == 0 and all(name in out for name in rows)


def test_a_set_is_made_ready(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "ready"
    code, text, _ = run(capsys, "data", "prepare", "generated", "--out", str(out), "--size", "300", "--json")
    found = json.loads(text)
    assert code == 0 and found["vocabulary"] == 300
    assert {row["split"]: row["tokens"] > 1000 for row in found["files"]} == dict.fromkeys(
        ["train", "held_out", "test"], True
    )
    assert (out / "train.json").is_file() and (out / "tokenizer.json").is_file()
    given = ["--out", str(tmp_path / "again"), "--tokenizer", str(out)]
    code, text, _ = run(capsys, "data", "prepare", "generated", *given)
    assert code == 0 and "300 tokens" in text
    assert (tmp_path / "again" / "train.json").read_text() == (out / "train.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tokenize", "learn", "--out", "OUT"], ["give at least one text file"]),
        (["tokenize", "learn", "no-such-file", "--out", "OUT"], ["no-such-file"]),
        (["tokenize", "learn", "EMPTY", "--out", "OUT"], ["empty"]),
        (["tokenize", "learn", "LATIN", "--out", "OUT"], ["latin.txt", "UTF-8", "byte 3"]),
        (["tokenize", "learn", "LATIN", "--size", "9", "--kind", "wordpice", "--out", "OUT"], ["wordpice"]),
        (["tokenize", "learn", "TEXT", "--size", "9", "--out", "OUT"], ["size is 9", "260"]),
        (["tokenize", "learn", "TEXT", "--out", "FOLDER"], ["already"]),
        (["tokenize", "show", "no-such-folder"], ["no-such-folder"]),
        (["tokenize", "encode", "FOLDER"], ["--file"]),
        (["tokenize", "encode", "FOLDER", "low", "--jsn"], ["--jsn"]),
        (["tokenize", "encode", "FOLDER", "a", "--allow", "<msk>"], ["<msk>", "<mask>"]),
        (["tokenize", "decode", "FOLDER", "99999"], ["99999"]),
        (["tokenize", "statistics", "FOLDER"], ["give at least one text file"]),
        (["data", "prepare", "wikitext"], ["wikitext2"]),
        (["data", "prepare", "imdb"], ["--data"]),
        (["data", "prepare", "generated-images", "--out", "OUT"], ["--out"]),
        (["data", "list", "--data", "no-such-folder"], ["no-such-folder", "LONGSPAN_DATA"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, folder: str, arguments: list[str], words: list[str]
) -> None:
    names = {"OUT": "out", "EMPTY": "empty.txt", "LATIN": "latin.txt", "TEXT": "a.txt", "FOLDER": "t"}
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "latin.txt").write_bytes("caf\xe9\n".encode("latin-1"))
    code, out, err = run(capsys, *(str(tmp_path / names[word]) if word in names else word for word in arguments))
    assert code == 2 and not out
    assert err.count("\n") == 1 and err.startswith("longspan: ")
    assert all(word in err for word in words), err
    assert not (tmp_path / "out").exists()
