"""`longspan list` and `longspan show` of models and presets."""

import json

import pytest

from longspan.cli.main import main
from longspan.cli.tables import short_bytes, short_number
from longspan.models import names, registry
from longspan.models.presets import PRESETS


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_lists(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for flag, wanted in (("--models", names()), ("--presets", list(PRESETS))):
        code, out, err = run(capsys, "list", flag)
        assert code == 0 and not err and all(name in out for name in wanted)
        assert all(len(line) <= 80 for line in out.splitlines()) and "…" not in out
        code, out, _ = run(capsys, "list", flag, "--json")
        assert [row["name"] for row in json.loads(out)] == wanted


@pytest.mark.parametrize("name", names())
def test_a_model_with_its_options(capsys, monkeypatch, name):
    monkeypatch.setenv("COLUMNS", "200")  # narrow screens fold long names
    code, out, _ = run(capsys, "show", name, "--json")
    row = json.loads(out)
    assert code == 0 and row["kind"] == "model" and row["summary"] and row["paper"]
    assert all(option["help"] for option in row["options"])
    code, out, _ = run(capsys, "show", name)
    assert code == 0 and all(option["name"] in out for option in row["options"])


def test_a_preset_with_its_figures(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "show", "transformer-base")
    assert code == 0 and not err
    for words in ("63,082,496", "the paper says 65M", "decoder: cross-attention", 'build("transformer-base")'):
        assert words in out
    row = json.loads(run(capsys, "show", "transformer-base", "--json")[1])
    assert row["kind"] == "preset" and sum(row["parts"].values()) == row["parameters"] == 63_082_496
    assert [item["length"] for item in row["costs"]] == [512, 1024, 4096, 16384]
    assert row["options"] == {"vocabulary": 37000}  # the rest are the defaults


def test_every_preset_has_a_table_of_costs(monkeypatch, capsys, preset):
    monkeypatch.setattr(registry, "build", preset)
    monkeypatch.setenv("COLUMNS", "80")
    for name in PRESETS:
        code, out, err = run(capsys, "show", name)
        assert code == 0 and not err and "FLOPs, forward" in out and "activations" in out, name
        assert all(len(line) <= 80 for line in out.splitlines()), name


def test_a_cost_that_depends_says_on_what(capsys):
    row = json.loads(run(capsys, "show", "transformer-xl-enwik8-12", "--lengths", "512", "--json")[1])
    assert row["cost_notes"] == ["with 512 memories in front, in segments of 512"]
    assert "with 512 memories in front" in run(capsys, "show", "transformer-xl-enwik8-12")[1]


def test_a_preset_at_given_lengths(capsys):
    row = json.loads(run(capsys, "show", "gpt2", "--lengths", "64,128", "--json")[1])
    assert [item["length"] for item in row["costs"]] == [64, 128]
    assert row["costs"][0]["activation_bytes"] < row["costs"][1]["activation_bytes"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "gtp2"], ["no attention, model or preset", "did you mean 'gpt2'"]),
        (["show", "decodr"], ["did you mean 'decoder'"]),
        (["show", "gpt2", "--lengths", "2000"], ["holds at most 1024 tokens, not 2000"]),
        (["show", "gpt2", "--lengths", "0"], ["at least 1, not 0"]),
        (["show", "window", "--lengths", "64"], ["for presets", "window"]),
        (["list", "--models", "--presets"], ["--models", "--presets"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, arguments, words):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out and err.count("\n") == 1
    assert all(word in err for word in words)


def test_short_numbers():
    assert [short_number(n) for n in (7, 999, 1000, 1_234_567, 7.26e14)] == ["7", "999", "1 k", "1.23 M", "726 T"]
    assert [short_bytes(n) for n in (7, 1024, 3 * 2**30)] == ["7 B", "1 KiB", "3 GiB"]
