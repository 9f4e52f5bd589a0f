"""`longspan profile` from end to end, with made-up measurements."""

import json
from pathlib import Path

import pytest
from tests.measure.made_up import law

from longspan.cli.main import main
from longspan.measure.case import Case, Measured
from longspan.measure.process import MeasureProcesses
from longspan.measure.run_case import without_result

COMMAND = ["profile", "--mechanisms", "linear,etc,window", "--lengths", "1024,2048,8192", "--causal"]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Case]:
    """The cases that were measured, none of them really."""
    found: list[Case] = []

    def measure(self: MeasureProcesses, case: Case) -> Measured:
        found.append(case)
        if case.mechanism == "etc":
            return without_result(case, "unsupported", "etc has no causal form")
        if case.mechanism == "naive" and case.length > 2048:
            return without_result(case, "memory", "naive takes about 9.0 GiB at length 8192, and 4.0 are free")
        return law(case)

    monkeypatch.setattr(MeasureProcesses, "measure", measure)
    return found


def test_tables_fit_a_terminal_and_say_everything(asked: list[Case], capsys: pytest.CaptureFixture[str]):
    assert main([*COMMAND, "--backward", "--decode"]) == 0
    shown = capsys.readouterr().out
    assert {case.kind for case in asked} == {"forward", "training", "decode"} and all(case.causal for case in asked)
    assert max(len(line) for line in shown.splitlines() if "n^" in line or " ms" in line) <= 80
    for words in (
        "forward, length 8,192",
        "forward and backward, length",
        "decoding: one more token",
        "1.00 (1.00)",
        "4K",
    ):
        assert words in shown, words
    assert "etc, forward: unsupported: etc has no causal form" in shown
    assert shown.count("9.0 GiB at length 8192, and 4.0 are free") == 3  # once for each kind
    table = shown.split("speed relative to sdpa, by length\n")[1].splitlines()
    assert [line.split() for line in table[1:4]] == [
        ["naive", "0.50", "0.50", "memory"],
        ["sdpa", "1.00", "1.00", "1.00"],
        ["linear", "0.25", "0.50", "2.00"],
    ]


def test_the_record_and_the_page(asked: list[Case], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    files = ["--out", str(tmp_path / "profile.json"), "--html", str(tmp_path / "profile.html")]
    assert main([*COMMAND, "--json", "--threads", "2", "--batch", "3", *files]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record == json.loads((tmp_path / "profile.json").read_text())
    assert record["machine"]["torch_threads"] == 2 and record["settings"]["batch"] == 3
    assert [row["mechanism"] for row in record["rows"]] == ["naive", "sdpa", "linear", "etc", "window"]
    assert "longspan profile" in (tmp_path / "profile.html").read_text()


def test_progress_in_a_pipe_is_lines_of_standard_error(asked: list[Case], capsys: pytest.CaptureFixture[str]):
    assert main(COMMAND) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[:2] == [
        "measuring 15 cases, each in its own process",
        "0 of 15 measured; now naive, forward, 1,024 tokens",
    ]


def test_a_disk_that_is_full_is_one_line(asked: list[Case], capsys: pytest.CaptureFixture[str]):
    assert main([*COMMAND, "--out", "/dev/full"]) == 2
    output, said = capsys.readouterr()
    assert (
        said.splitlines()[-1]
        == "longspan: /dev/full: No space left on device; make room, or name a folder on another disk"
    )
    assert "forward, length 8,192" in output  # what was measured is not lost


def test_a_case_that_fails_is_in_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr(MeasureProcesses, "measure", lambda self, case: without_result(case, "failed", "odd"))
    assert main(["profile", "--mechanisms", "window", "--lengths", "64"]) == 1
    assert "window, forward: failed: odd" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--mechanisms", "windw"], "did you mean 'window'?"),
        (["--mechanisms", ","], "--mechanisms is empty"),
        (["--lengths", "1k"], "--lengths must be whole numbers"),
        (["--lengths", "0"], "lengths must be at least 1"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--patience", "0"], "must be above 0"),
        (["--html", "/no/such/folder/page.html"], "there is no folder"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_measured(
    asked: list[Case], arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["profile", *arguments]) == 2
    problem = capsys.readouterr().err
    assert said in problem and problem.count("\n") == 1 and asked == []


def test_the_help_has_examples(capsys: pytest.CaptureFixture[str]):
    assert main(["profile", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "longspan profile --backward --decode" in shown and "--patience" in shown


def test_options_of_a_mechanism_are_given_by_its_name(asked: list[Case], capsys: pytest.CaptureFixture[str]):
    assert main([*COMMAND, "--window.window", "64", "--linear.features=relu"]) == 0
    given = {case.mechanism: case.options for case in asked}
    assert given == {"naive": {}, "sdpa": {}, "etc": {}, "window": {"window": 64}, "linear": {"features": "relu"}}
    assert "\nwindow " in (shown := capsys.readouterr().out) and "\n  window=64" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--performer.features", "64"], "there are options for performer, which is not measured"),
        (["--window.widow", "64"], "did you mean 'window'?"),
        (["--window.window", "0"], "longspan: --window.window must be at least 1, not 0"),
        (["--cuasal"], "there is no option --cuasal"),
        (["64"], "'64' follows no option"),
        (["--window.window"], "--window.window has no value"),
    ],
)
def test_wrong_options_of_a_mechanism(
    asked: list[Case], capsys: pytest.CaptureFixture[str], options: list[str], said: str
):
    assert main([*COMMAND, *options]) == 2
    assert said in capsys.readouterr().err and not asked
