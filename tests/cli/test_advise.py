"""`longspan advise` from end to end, with made-up measurements."""

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from longspan.arena.runs.cell import Cell, Record
from longspan.cli.advise import read_bytes, read_quality
from longspan.cli.main import main
from longspan.cli.measuring import Teller
from longspan.errors import InvalidInput, InvalidOption
from longspan.measure.case import Case, Measured

SMALL = ["advise", "--length", "512", "--heads", "2", "--head-dim", "8", "--threads", "1"]
NONE = ["--quality", "none"]
SECONDS = {
    "softmax": 0.5,
    "linear": 0.01,
    "nystrom": 0.02,
    "window": 0.1,
    "inducing": 0.2,
    "linformer": 0.3,
    "etc": 0.4,
}


class Processes:
    """In place of real ones."""

    asked: ClassVar[list[Case]] = []

    def __init__(self, *patience: object, limit: float | None = None) -> None:
        pass

    def __enter__(self) -> "Processes":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def measure(self, case: Case) -> Measured:
        self.asked.append(case)
        if case.length > 10000:
            return Measured(case=case, state="slow", error="too slow")
        seconds = SECONDS.get(case.mechanism, 1.0)
        return Measured(case=case, state="done", seconds=(seconds,), memory=2**24, exponent=1.0)


@pytest.fixture(autouse=True)
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("longspan.measure.process.MeasureProcesses", Processes)
    monkeypatch.setattr("longspan.measure.machine.available", lambda: 2**33)
    monkeypatch.setattr(Processes, "asked", [])


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(arguments)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_ranking_what_was_ruled_out_and_the_code(capsys):
    code, out, err = run(capsys, *SMALL, *NONE)
    assert code == 0
    said = err.splitlines()
    assert said[0] == "measuring every mechanism at 512 tokens takes some minutes; --quick takes under a minute"
    assert said[1].startswith("0 of ") and said[1].endswith(" measured; now softmax, 512 tokens")
    assert out.splitlines()[0] == "ranked by time on this machine, not by quality"
    lines = out.splitlines()
    assert max(map(len, lines)) <= 80
    flat = " ".join(out.split())
    assert "training (forward and backward), 512 tokens, batch 1, 2 heads of 8, 1 thread" in flat
    assert "8 GiB free on this machine" in flat
    assert "use linear: 50 times as fast as exact attention" in out
    (row,) = [line.split() for line in lines if line.startswith("1 ")]
    assert row == ["1", "linear", "10", "19.5", "50", "16", "MiB", "n·head_dim"]
    assert "2 more with --all" in out and "softmax  " not in out
    assert "bigbird" in out and "takes 2.0 times as long as exact attention" in out
    assert "sparse" in out and "is causal only" in out
    assert "longspan arena --models dense,linear" in flat
    begin = lines.index("import torch")
    program = "\n".join(lines[begin : lines.index("", lines.index("", begin) + 1)])
    found: dict[str, Any] = {}
    exec(program, found)
    assert tuple(found["y"].shape) == (1, 512, 16) and found["attention"].name == "linear"

    count = len(Processes.asked)
    code, again, err = run(capsys, *SMALL, *NONE, "--all")
    assert code == 0 and len(Processes.asked) == count and not err  # all is known
    assert "7  softmax" in again and "--all" not in again
    run(capsys, *SMALL, "--refresh")
    assert len(Processes.asked) > count


def test_a_long_order_pushes_no_figure_off_the_screen(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SECONDS, "axial", 0.001)
    code, out, _ = run(capsys, *SMALL, *NONE, "--images")
    (row,) = [line.split() for line in out.splitlines() if line.startswith("1 ")]
    assert code == 0 and row[:7] == ["1", "axial", "1", "1.95", "500", "16", "MiB"]
    table = out.partition("\nruled out")[0]
    assert "…" not in table and max(map(len, table.splitlines())) <= 80
    assert "the next layer has to read along the other" in " ".join(out.split())


def test_exact_attention_where_it_is_as_fast(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(SECONDS, "softmax", 0.0104)
    code, out, _ = run(capsys, *SMALL)
    assert code == 0 and "use softmax: nothing is faster than exact attention here" in out
    assert "equally fast within 5%: softmax, linear" in " ".join(out.split())
    assert "longspan arena" not in out


def test_estimates_are_marked(capsys):
    code, out, _ = run(capsys, *SMALL[:1], "--length", "32768", *SMALL[3:])
    assert code == 0 and "≈ estimated from 4,096 and 8,192 tokens" in out and "≈ " in out
    assert "about 50 times as fast" in out


def test_json_has_all_of_it(capsys):
    code, out, _ = run(capsys, *SMALL, "--causal", "--memory", "1GiB", "--json", *NONE)
    found = json.loads(out)
    assert code == 0 and found["room"] == 2**30 and found["question"]["causal"] is True
    first = found["choices"][0]
    assert first["mechanism"] == "linear" and first["faster"] == 50.0 and first["estimated_from"] == []
    assert first["python"].startswith("import torch") and "causal=True" in first["python"]
    assert found["ruled_out"]["etc"] == "has no causal form" and found["front"] == []


def test_nothing_fits(capsys):
    code, out, _ = run(capsys, *SMALL, "--memory", "1MiB")
    assert code == 1 and "no suitable mechanism fits" in out and "takes 16 MiB, but only 1 are allowed" in out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--decode"], "decoding (a step of one token), 512 tokens before it"),
        (
            ["--cross", "--padding", "--inference"],
            "inference (forward only), 512 tokens attending to 512 others, padding",
        ),
        (["--keys", "77"], "512 tokens attending to 77 others"),
    ],
)
def test_the_forms_of_a_question(capsys, flags: list[str], words: str):
    code, out, _ = run(capsys, *SMALL, *flags)
    assert code == 0 and words in " ".join(out.split())
    assert {case.kind for case in Processes.asked} == {
        "decode" if "--decode" in flags else "forward" if "--inference" in flags else "training"
    }


# Accuracy


@pytest.fixture
def arena(tmp_path: Path) -> Path:
    accuracies = {
        "dense": {"listops": 0.4, "text": 0.6},
        "linear": {"listops": 0.3, "text": 0.5},
        "window": {"listops": 0.35, "text": 0.45},
        "nystrom": {"listops": 0.2},
        "lstm": {"text": 0.9},
    }
    records = [
        Record(cell=Cell(task=task, model=model), state="done", accuracy=accuracy)
        for model, tasks in accuracies.items()
        for task, accuracy in tasks.items()
    ]
    records.append(Record(cell=Cell(task="listops", model="performer"), state="failed", error="it broke"))
    folder = tmp_path / "arena"
    folder.mkdir()
    (folder / "results.jsonl").write_text("".join(json.dumps(record.plain()) + "\n" for record in records))
    return folder


def test_accuracies_are_over_the_tasks_that_all_have(arena: Path):
    expected = {"softmax": 0.4, "linear": 0.3, "window": 0.35, "nystrom": 0.2}
    assert read_quality(arena) == (expected, ["listops"])
    assert read_quality(arena / "results.jsonl") == (expected, ["listops"])
    with pytest.raises(InvalidInput, match=r"is not a results\.jsonl"):
        other = arena / "other.jsonl"
        other.touch()
        read_quality(other)
    with pytest.raises(InvalidInput, match="is missing"):
        read_quality(arena.parent)


def test_no_task_that_all_have(arena: Path):
    with (arena / "results.jsonl").open("a") as file:
        record = Record(cell=Cell(task="text", model="reformer"), state="done", accuracy=0.5)
        file.write(json.dumps(record.plain()) + "\n")
    with pytest.raises(InvalidInput, match="no task on which all"):
        read_quality(arena)


def test_the_front_is_shown(capsys, arena: Path):
    code, out, _ = run(capsys, *SMALL, "--quality", str(arena))
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    flat = " ".join(out.split())
    assert "fastest to most accurate (mean of listops): linear – window – softmax" in flat
    assert "dominated by one that is no slower and no less accurate: nystrom (linear)" in flat
    assert "no accuracy known: inducing, linformer, etc" in flat
    assert "30.0 *" in out and "20.0" in out
    assert "accuracies are those of the arena's models at the arena's sizes" in flat


def test_published_accuracies_stand_beside_the_times_unless_told_otherwise(capsys):
    code, out, _ = run(capsys, *SMALL)
    flat = " ".join(out.split())
    assert code == 0 and max(map(len, out.splitlines())) <= 80
    assert "accuracy from the record, not measured here: published: Tay et al. 2020, Long Range Arena, Table 1" in flat
    assert "(mean of listops, text, image, pathfinder): linear" in flat and "49.9 *" in out
    # Big Bird's published mean is above the Transformer's, which is no reason to wait for it twice as long.
    assert "takes 2.0 times as long as exact attention" in flat
    assert "to measure its accuracy: longspan arena --models dense,linear" in flat
    code, out, _ = run(capsys, *SMALL, "--quality", "tiny", "--json")
    found = json.loads(out)
    assert found["quality"].startswith(
        "tiny: our own run of ListOps and Pathfinder, one seed, 2026-11-17, 2 cores of an AMD EPYC"
    )
    assert found["ranked_by"] == "time" and found["tasks"] == ["listops", "pathfinder"]
    by_name = {choice["mechanism"]: choice["accuracy"] for choice in found["choices"]}
    assert by_name["nystrom"] == pytest.approx(0.524) and by_name["softmax"] == pytest.approx(0.5535)


def test_where_exact_attention_is_estimated_so_is_what_is_held_against_it(capsys, monkeypatch: pytest.MonkeyPatch):
    measure = Processes.measure

    def slow_softmax(self: Processes, case: Case) -> Measured:
        if case.mechanism == "softmax" and case.length > 2048:
            return Measured(case=case, state="slow", error="too slow")
        return measure(self, case)

    monkeypatch.setattr(Processes, "measure", slow_softmax)
    code, out, _ = run(capsys, *SMALL[:1], "--length", "8192", *SMALL[3:], *NONE)
    (row,) = [line.split() for line in out.splitlines() if line.startswith("1 ")]
    assert code == 0 and row[:2] == ["1", "linear"] and row[4] == "≈" and "use linear: about" in out
    assert "≈ in × exact: the time of exact attention is an estimate" in out


def test_a_quick_answer(capsys):
    code, out, err = run(capsys, *SMALL[:1], "--length", "32768", *SMALL[3:], "--quick")
    assert code == 0 and "≈ estimated from 512 and 1,024 tokens" in out
    assert err.splitlines()[0] == "estimating 32,768 tokens from short sequences: under a minute"
    assert {case.length for case in Processes.asked} == {512, 1024}
    count = len(Processes.asked)
    run(capsys, *SMALL[:1], "--length", "1024", *SMALL[3:])  # its measurements are not taken for full ones
    assert len(Processes.asked) > count


def test_a_cache_that_cannot_be_written_is_one_line(capsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "file"))
    code, out, err = run(capsys, *SMALL)
    assert code == 2 and not out and "Traceback" not in err
    assert err.splitlines()[-1].endswith("cannot be written: Not a directory; name another folder by LONGSPAN_CACHE")


def test_lines_of_progress_have_an_estimate():
    said, now = list[str](), iter([0.0, 4.0, 10.0, 15.0, 40.0, 60.0])
    teller = Teller(said.append, every=10.0, clock=lambda: next(now))
    for done in range(5):
        teller(done, 20, f"case {done}")
    teller(0, 4, "again")  # the next round has a beginning of its own
    assert said == [
        "0 of 20 measured; now case 0",
        "2 of 20 measured, about 90s left; now case 2",
        "4 of 20 measured, about 2m40s left; now case 4",
        "0 of 4 measured; now again",
    ]


# Wrong input


@pytest.mark.parametrize(
    ("text", "expected"),
    [("8GiB", 2**33), ("500MB", 5 * 10**8), ("2e9", 2 * 10**9), ("1.5 gib", 3 * 2**29), ("7", 7), ("64 KiB", 2**16)],
)
def test_sizes(text: str, expected: int):
    assert read_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "8 gigs", "GiB", "-1GiB", "0", "nan", "inf", "1e999", "8GiBs", "1,5GiB"])
def test_wrong_sizes(text: str):
    with pytest.raises(InvalidOption, match="such as 8GiB, 500MB or 2e9"):
        read_bytes(text)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["advise"], ["--length"]),
        (["advise", "--length", "0"], ["length", "at least 1"]),
        (["advise", "--length", "many"], ["--length", "many"]),
        (["advise", "--length", "512", "--memory", "lots"], ["--memory", "lots", "8GiB"]),
        (["advise", "--length", "512", "--batch", "-1"], ["batch", "at least 1"]),
        (["advise", "--length", "512", "--cross", "--causal"], ["causal", "leave out one"]),
        (["advise", "--length", "512", "--keys", "9", "--decode"], ["decoded", "leave out one"]),
        (["advise", "--length", "512", "--quality", "/no/such"], ["/no/such", "arena"]),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(capsys, arguments: list[str], words: list[str]):
    code, out, err = run(capsys, *arguments)
    assert code == 2 and not out and len(err.splitlines()) == 1
    assert all(word in err for word in words)
    assert Processes.asked == []
