"""`longspan arena` from end to end, with fake processes."""

import errno
import json
import os
import re
import signal
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.results import Folder
from longspan.arena.runs.runner import CellFinished, CellProgress, CellStarted, NoEvent
from longspan.cli.arena_results import print_results
from longspan.cli.arena_screen import Screen
from longspan.cli.main import main
from longspan.report.results import Results

FAKE = Path(__file__).parents[1] / "arena" / "fake_process.py"
TWO = ["--tasks", "listops,recall", "--models", "dense,performer"]


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Fake processes in place of real ones, and where they note that they were run."""
    found = tmp_path / "notes"
    found.mkdir()
    monkeypatch.setenv("FAKE_NOTES", str(found))
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    monkeypatch.setattr("longspan.arena.runs.runner.COMMAND", (sys.executable, str(FAKE)))
    monkeypatch.chdir(tmp_path)
    return found


def test_a_whole_run_and_the_same_again(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    command = ["arena", *TWO, "--seeds", "2", "--lengths", "64", "--budget", "5m", "--out", str(out), "--workers", "2"]
    assert main(command) == 0
    output, said = capsys.readouterr()
    assert "test accuracy, %: mean ± standard deviation over seeds" in output and "50.0 ± 0.0" in output
    assert "(majority)" in output and "10.0" in output
    assert "not comparable with published ones" in output
    printed = output
    assert "2 (1×, 1×)" in output and "1 MiB" in output
    assert output.splitlines()[-1] == f"report: {out / 'report.html'}" and (out / "report.html").is_file()
    assert "accuracy-tiny-listops-dense-seed0: 50.0 %" in said and "0 of 11 cells done" in said
    assert len((out / "results.jsonl").read_text().splitlines()) == 11
    assert len(list(notes.iterdir())) == 11

    assert main([*command[:-1], "1", "--json"]) == 0  # nothing is left; workers are none of its settings
    output, said = capsys.readouterr()
    found = json.loads(output)
    assert found["comparable"] is False and found["failed"] == [] and found["cells"] == 11
    assert found["accuracy"][0] == {
        "task": "listops",
        "model": "dense",
        "pretrain": False,
        "mean": 0.5,
        "deviation": 0.0,
        "seeds": 2,
        "groups": {},
        "state_bytes": None,
    }
    sentence = "No two kinds of models differ by more than the noise on ListOps, Recall: this run ranks none of them."
    assert found["learned"] == sentence and sentence in printed and len(found["conclusions"]) == 2
    assert "11 of 11 cells are finished already" in said
    assert all(len(path.read_text().splitlines()) == 1 for path in notes.iterdir())

    assert main(["arena", *TWO, "--seeds", "1", "--lengths", "64", "--out", str(out)]) == 2
    assert "other settings: seeds 2 there, 1 here; budget 300.0 there, none here" in capsys.readouterr().err
    (out / "report.html").unlink()
    assert main(["arena", "--out", str(out), "--report-only"]) == 0
    assert (out / "report.html").is_file()
    capsys.readouterr()


def test_failed_cells_are_shown_and_run_again_only_with_retry(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["arena", *TWO, "--seeds", "1", "--no-speed", "--out", "run"]
    fake = tmp_path / "fails.py"  # the first time, for one model
    fake.write_text(
        "import json, runpy, sys\nfrom pathlib import Path\n"
        f"cell = json.loads(Path(sys.argv[1]).read_text())\nmark = Path({str(tmp_path)!r}) / cell['task']\n"
        "if cell['model'] == 'dense' and not mark.exists():\n    mark.touch()\n    sys.exit('no [room] left')\n"
        f"runpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    monkeypatch.setattr("longspan.arena.runs.runner.COMMAND", (sys.executable, str(fake)))
    assert main(command) == 1
    output, said = capsys.readouterr()
    line = "accuracy-tiny-listops-dense-seed0: failed: ended with code 1 and no record: no [room] left"
    assert line in said and line in output and "2 of 4 cells have no result; --retry runs them again" in output
    assert main(command) == 1 and len(list(notes.iterdir())) == 2
    assert main([*command, "--retry"]) == 0
    assert len(list(notes.iterdir())) == 4
    assert "no result" not in capsys.readouterr().out.split("report:")[-2]


def test_a_signal_prints_the_command_to_continue(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(self: Screen, event: object) -> None:
        signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Screen, "hear", stop)
        command = ["arena", *TWO, "--seeds", "1", "--no-speed", "--budget", "3m", "--out", "a b"]
        assert main(command) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    again = "longspan arena --tasks listops,recall --models dense,performer --setting tiny --seeds 1 --budget 180s"
    assert f"Continue with: {again} --no-speed --out 'a b'" in said
    assert not (tmp_path / "a b" / "results.jsonl").exists()
    assert main(command) == 0  # as that command would
    capsys.readouterr()


def test_a_full_disk_stops_the_grid_with_a_line_and_keeps_finished_cells(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["arena", *TWO, "--seeds", "1", "--no-speed", "--out", "run", "--workers", "1"]
    append, count = Folder.append, list[Record]()

    def full(self: Folder, record: Record) -> None:
        count.append(record)
        if len(count) == 2:
            monkeypatch.setattr("os.write", refuse)
        append(self, record)

    def refuse(number: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "append", full)
        code = main(command)
    monkeypatch.undo()
    said = capsys.readouterr().err.splitlines()
    assert code == 2 and "results.jsonl could not be written: No space left on device" in said[-1]
    assert "Traceback" not in "".join(said)
    assert len((tmp_path / "run" / "results.jsonl").read_text().splitlines()) == 1


def test_a_damaged_line_does_not_stop_a_grid(tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["arena", *TWO, "--seeds", "1", "--no-speed", "--out", "run"]
    assert main(command) == 0
    path = tmp_path / "run" / "results.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([b"\xff" + lines[0], *lines[1:]]))
    capsys.readouterr()
    assert main(["arena", "--out", "run", "--report-only"]) == 0
    note = "line 1 of results.jsonl is not usable and was skipped: it is not UTF-8: invalid start byte at byte 0"
    assert f"run: {note}" in capsys.readouterr().err
    assert main([*command, "--dry-run"]) == 0
    assert "1 to run" in capsys.readouterr().out
    assert main(command) == 0 and len(path.read_bytes().splitlines()) == 5
    assert f"run: {note}; these cells will run again" in capsys.readouterr().err


def test_a_dry_run_prints_the_plan_and_does_nothing(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["arena", *TWO, "--dry-run", "--workers", "2", "--lengths", "64,32"]
    assert main([*command, "--budget", "20m"]) == 0
    output = capsys.readouterr().out
    assert "18 cells, 12 for accuracy and 6 for speed; 18 to run" in output
    assert "2 workers of 1 thread: about 20m" in output and "speed at length 32: 3 cells" in output
    assert main([*command, "--no-speed", "--setting", "small"]) == 0
    output = capsys.readouterr().out
    assert "listops: 6 cells, 5,000 steps each: dense, performer" in output and "time unknown" in output
    assert main([*command, "--pretrain", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["cells"]) == 30 and found["estimate"] is None and found["cells"][0]["run"] is True
    assert not list(notes.iterdir()) and not (tmp_path / "runs").exists()


def test_make_help_docs_and_plan_name_the_same_default(
    tmp_path: Path, notes: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parents[2]
    (line,) = re.findall(r"longspan (arena .*)", (root / "Makefile").read_text().split("\narena:")[1].split("\n\n")[0])
    given = line.replace("$(RUNS)/arena", str(tmp_path / "run")).split()
    monkeypatch.setenv("LONGSPAN_DATA", str(tmp_path))  # changes nothing
    assert main([*given, "--dry-run", "--workers", "2", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    tasks, models = plan["arguments"]["tasks"], plan["arguments"]["models"]
    assert tasks == ["mqar", "selective_copy", "parity"] and plan["estimate"] < 961
    assert main([*given, "--dry-run", "--workers", "2"]) == 0
    assert "mqar: 7 cells, 52s each, at most 800 steps: " + ", ".join(models) in capsys.readouterr().out
    assert main(["arena", "--help"]) == 0
    shown = "".join(re.sub("[│\n ]", "", capsys.readouterr().out))
    assert ",".join(tasks) in shown and ",".join(models) in shown
    page = (root / "docs" / "arena.md").read_text()
    assert all(f"| `{name}` |" in page for name in models) and all(f"`{name}`" in page for name in tasks)
    assert f"longspan {' '.join(line.split()[:-2])}" in page


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--tasks", "listop"], "no arena task is called 'listop': did you mean 'listops'?"),
        (["--models", "reformr"], "no model of the arena is called 'reformr': did you mean 'reformer'?"),
        (["--setting", "tinny"], "no setting of the arena is called 'tinny': did you mean 'tiny'?"),
        (["--tasks", " , "], "--tasks is empty"),
        (["--tasks", "listops,text,image"], "text, image need data: give its folder by --data or LONGSPAN_DATA; "),
        (["--tasks", "text"], "listops, pathfinder, pathx, recall, mqar, selective_copy, parity need none"),
        (["--data", ".", "--tasks", "listops,image"], "the task image needs CIFAR-10, not found in ."),
        (["--data", "nowhere"], "there is no data folder nowhere"),
        (["--budget", "20"], "--budget must be a time such as 90s, 20m or 1h30m, not '20'"),
        (["--budget", "5s", "--tasks", "listops"], "--budget 5s is too little for"),
        (["--seeds", "0", "--tasks", "listops"], "--seeds must be at least 1, not 0"),
        (["--workers", "0"], "--workers must be at least 1, not 0"),
        (["--threads", "0", "--tasks", "listops"], "--threads must be at least 1, not 0"),
        (["--lengths", "1k"], "--lengths must be whole numbers separated by commas"),
        (["--address", "auto"], "give --runner ray too"),
        (["--runner", "cloud"], "runner"),
        (["--report-only", "--out", "nowhere"], "results.jsonl is missing"),
        (["--report-only", "--retry"], "--report-only runs nothing"),
    ],
)
def test_mistakes_are_one_line(notes: Path, capsys: pytest.CaptureFixture[str], given: list[str], said: str) -> None:
    assert main(["arena", *given]) == 2
    output, errors = capsys.readouterr()
    assert said in errors and errors.count("\n") == 1 and not output


def test_the_live_table_and_the_time_left() -> None:
    now = [0.0]
    console = Console(file=StringIO(), force_terminal=True, width=100)
    cells = [Cell(task="listops", model=name, seconds=16.0) for name in ("dense", "window", "lstm")]
    screen = Screen(console, cells, workers=2, clock=lambda: now[0])
    assert screen.summary() == "0 of 3 cells done, 0 running, 0 failed; time left: about 36s"
    screen.hear(CellStarted(cells[0]))
    screen.hear(CellStarted(cells[1]))
    now[0] = 10.0
    screen.hear(CellProgress(cells[0], 1500, 3000, 0.412))
    screen.hear(CellFinished(Record(cell=cells[1], state="memory", error="no [more]")))
    shown = Console(file=StringIO(), width=100)
    shown.print(screen.table())
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy-tiny-listops-dense-seed0  10s  1,500 / 3,000  41.2 %" in text
    assert "0 of 3 cells done, 1 running, 1 failed; time left: about 19s" in text
    screen.hear(CellFinished(Record(cell=cells[0], state="done")))
    assert screen.summary() == "1 of 3 cells done, 0 running, 1 failed; time left: about 5s"


def test_the_time_left_knows_that_tasks_take_different_times() -> None:
    now = [0.0]
    short, long = Cell(task="listops", model="dense", seconds=16.0), Cell(task="text", model="dense", seconds=76.8)
    screen = Screen(Console(file=StringIO()), [short, long], workers=1, clock=lambda: now[0])
    assert screen.seconds_left() == pytest.approx(24 + 100)
    screen.hear(CellStarted(short))
    now[0] = 30.0  # a quarter more than planned
    screen.hear(CellFinished(Record(cell=short, state="done")))
    assert screen.seconds_left() == pytest.approx(125)
    cells = [Cell(task=task, model=name) for task in ("listops", "text") for name in ("dense", "window")]
    screen, now[0] = Screen(Console(file=StringIO()), cells, workers=1, clock=lambda: now[0]), 0.0
    for cell, seconds in ((cells[0], 10.0), (cells[2], 50.0)):  # without a budget, by the task's own
        screen.hear(CellStarted(cell))
        now[0] += seconds
        screen.hear(CellFinished(Record(cell=cell, state="done")))
    assert screen.seconds_left() == pytest.approx(60)


def test_lines_now_and_then_where_there_is_no_terminal() -> None:
    now, file = [0.0], StringIO()
    cells = [Cell(task="listops", model="dense")]
    screen = Screen(Console(file=file, width=200), cells, workers=1, clock=lambda: now[0])
    screen.hear(CellStarted(cells[0]))
    screen.hear(CellProgress(cells[0], 5, 10, None))
    assert file.getvalue() == ""
    now[0] = 31.0
    screen.hear(NoEvent())
    screen.hear(NoEvent())
    line = "0 of 1 cells done, 1 running, 0 failed; time left: unknown; accuracy-tiny-listops-dense-seed0 step 5 / 10"
    assert file.getvalue().split() == line.split()


def test_pretraining_and_failures_have_their_columns() -> None:
    cell = Cell(task="listops", model="dense")
    pretrained = Cell(task="listops", model="dense", pretrain=True)
    records = [
        Record(cell=cell, state="done", accuracy=0.5, test_count=100, flagged="it has too many parameters"),
        Record(cell=pretrained, state="stopped", error="stopped after 3s"),
        Record(cell=Cell(kind="speed", task="text", model="window", length=64), state="memory"),
    ]
    console = Console(file=StringIO(), width=120)
    print_results(console, Results(records))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "listops, pre-trained" in text and "50.0*" in text and "stopped after 3s" in text
    assert "speed-tiny-text-window-length64: memory: no reason given" in text
    assert "2 of 3 cells have no result" in text
