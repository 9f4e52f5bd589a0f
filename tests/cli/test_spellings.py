"""The same thing has the same flag in every command; old spellings still work."""

import json

import pytest
from tests.cli.test_help import COMMANDS, called
from tests.hub.folders import bert
from tests.train.starting import recipe

from longspan.cli.main import main
from longspan.cli.spellings import OLD, modern_flags

RUNNABLE = [words for words in COMMANDS if called(words).default_command is not None]


def options(words: tuple[str, ...]) -> dict[str, object]:
    """The type of each flag."""
    return {
        name: argument.hint
        for argument in called(words).assemble_argument_collection()
        for name in argument.names
        if name.startswith("--")
    }


@pytest.mark.parametrize("words", RUNNABLE, ids=" ".join)
def test_every_command_prints_json(words):
    assert options(words)["--json"] is bool


@pytest.mark.parametrize("words", RUNNABLE, ids=" ".join)
def test_a_flag_has_no_second_name_in_another_command(words):
    """Left: other names that commands had or could have for what is right."""
    others = {"--prompts": "--file", "--jobs": "--workers", "--shard": "--shard-size", "--longest": "--max-length"}
    assert not others.keys() & options(words).keys()


def test_old_spellings_are_flags_no_more_and_new_ones_are():
    for words, names in OLD.items():
        known = options(words)
        assert not names.keys() & known.keys() and set(names.values()) <= known.keys()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (["generate", "m/", "--prompts", "a.txt"], ["generate", "m/", "--file", "a.txt"]),
        (["generate", "m/", "--prompts=a.txt"], ["generate", "m/", "--file=a.txt"]),
        (["audit", "--all", "--jobs", "2"], ["audit", "--all", "--workers", "2"]),
        (["translate", "m/", "--batch", "9"], ["translate", "m/", "--batch-tokens", "9"]),
        (["data", "prepare", "x", "--shard", "9"], ["data", "prepare", "x", "--shard-size", "9"]),
        (["embed", "m/", "--batch", "9"], ["embed", "m/", "--batch", "9"]),
        (["data", "list"], ["data", "list"]),
        ([], []),
    ],
)
def test_old_spellings_are_read_as_the_new_ones(old, new):
    assert modern_flags(old) == new


def test_lengths_are_a_list_or_given_one_by_one(capsys):
    costs = []
    for lengths in (
        ["--lengths", "64,128"],
        ["--lengths", "64", "--lengths", "128"],
        ["--length", "64", "--length=128"],
    ):
        assert main(["show", "gpt2", *lengths, "--json"]) == 0
        costs.append([item["length"] for item in json.loads(capsys.readouterr().out)["costs"]])
    assert costs == [[64, 128]] * 3
    assert main(["show", "gpt2", "--lengths", "1k"]) == 2
    assert "--lengths must be whole numbers separated by commas" in capsys.readouterr().err


def output(capsys, *arguments: str) -> object:
    """What a command prints with --json."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_of_tokenizers(tmp_path, capsys):
    folder = str(tmp_path / "tokenizer")
    (tmp_path / "text.txt").write_text("a b c " * 50)
    learned = output(capsys, "tokenize", "learn", str(tmp_path / "text.txt"), "--kind", "bytes", "--out", folder)
    assert learned["path"] == folder and learned["kind"] == "bytes" and learned["size"] >= 256
    (row,) = output(capsys, "tokenize", "encode", folder, "abc")
    assert output(capsys, "tokenize", "decode", folder, *map(str, row["ids"])) == {"ids": row["ids"], "text": "abc"}


def test_json_of_a_converted_folder(tmp_path, capsys):
    bert(tmp_path / "bert")
    found = output(capsys, "convert", str(tmp_path / "bert"), str(tmp_path / "own"), "--to", "longspan")
    assert found == {
        "path": str(tmp_path / "own"),
        "family": "bert",
        "model": "encoder",
        "dtype": "float32",
        "untrained": [],
        "tokenizer": True,
        "unused": [],
    }


def test_json_of_a_run(tmp_path, capsys):
    folder = tmp_path / "run"
    found = output(capsys, "train", str(recipe(tmp_path)), "--out", str(folder), "--train.steps", "2")
    assert (found["run"], found["model"], found["step"]) == (str(folder), str(folder / "model"), 2)
    assert found["metrics"]["loss"] > 0
    assert output(capsys, "resume", str(folder)) == found


def test_json_of_an_audit(tmp_path, capsys):
    (certificate,) = output(capsys, "audit", "torch.nn:Identity", "--width", "8", "--out", str(tmp_path / "a.json"))
    assert certificate["passed"] and certificate["subject"] == "torch.nn:Identity"
    assert json.loads((tmp_path / "a.json").read_text()) == [certificate]
