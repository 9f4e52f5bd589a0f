"""A process for each cell: what goes wrong in one costs that one, and what ends the runner costs nothing."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.results import Folder
from longspan.arena.runs.runner import CellFinished, CellProgress, CellStarted, Event, LocalRunner, NoEvent

HERE = Path(__file__).parents[1]
FAKE = (sys.executable, str(HERE / "fake_process.py"))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where fake processes note that they were run."""
    found = tmp_path / "notes"
    found.mkdir()
    monkeypatch.setenv("FAKE_NOTES", str(found))
    monkeypatch.delenv("LONGSPAN_DATA", raising=False)
    return found


def cells_of(*models: str) -> list[Cell]:
    return [Cell(task="listops", model=model) for model in models]


def ended(events: list[Event]) -> dict[str, Record]:
    return {event.record.cell.model: event.record for event in events if isinstance(event, CellFinished)}


def runs(notes: Path, cell: Cell) -> int:
    return len((notes / cell.key).read_text().splitlines())


def test_a_failure_costs_one_cell(tmp_path: Path, notes: Path) -> None:
    cells = cells_of("good", "raises", "killed", "segfault", "memory", "half", "fine")
    runner = LocalRunner(tmp_path / "cells", workers=2, command=FAKE, kills=lambda: 0)
    events = list(runner.run(cells))
    found = ended(events)
    assert {name: record.state for name, record in found.items()} == {
        "good": "done",
        "raises": "failed",
        "killed": "failed",
        "segfault": "failed",
        "memory": "memory",
        "half": "failed",
        "fine": "done",
    }
    assert found["raises"].error == "ended with code 1 and no record: ValueError: the third row is no row"
    assert found["killed"].error == (
        "ended by SIGKILL: out of memory, or killed by a user (the system counts no out-of-memory kill)"
        ", length 128 and batch 4"
    )
    assert found["segfault"].error == "ended by SIGSEGV, with nothing on standard error"
    assert found["half"].error == "ended with code 0 and no record, with nothing on standard error"
    assert found["good"].accuracy == 0.5 and found["raises"].began is not None
    assert [event.cell for event in events if isinstance(event, CellStarted)] == cells
    assert CellProgress(cells[0], 5, 10, 0.25) in events and NoEvent() in events


def test_out_of_memory_kills_are_counted_if_the_system_counts_them(tmp_path: Path, notes: Path) -> None:
    counts = iter([3, 4])
    runner = LocalRunner(tmp_path / "cells", workers=1, command=FAKE, kills=lambda: next(counts))
    (record,) = ended(list(runner.run(cells_of("killed")))).values()
    assert record.state == "memory" and record.error == (
        "out of memory: killed at length 128 with batch 4: ended by SIGKILL while the system killed a process because "
        "memory ran out"
    )
    runner = LocalRunner(tmp_path / "cells", workers=1, command=FAKE, kills=lambda: None)
    (record,) = ended(list(runner.run(cells_of("killed")))).values()
    assert record.state == "failed" and "(the system keeps no count)" in str(record.error)


def test_each_process_has_its_threads_and_its_data(tmp_path: Path, notes: Path) -> None:
    cells = [Cell(task="listops", model="good", threads=3)]
    runner = LocalRunner(tmp_path / "cells", workers=1, command=FAKE, environment={"LONGSPAN_DATA": "/there"})
    assert ended(list(runner.run(cells)))["good"].state == "done"
    assert (notes / cells[0].key).read_text() == "3 /there\n"


def test_speeds_are_measured_alone(tmp_path: Path, notes: Path) -> None:
    cells = cells_of("good", "fine")
    cells += [Cell(kind="speed", task="text", model="good", length=length) for length in (1, 2)]
    cells += cells_of("also", "too")
    running, most = set(), []
    for event in LocalRunner(tmp_path / "cells", workers=4, command=FAKE).run(cells):
        if isinstance(event, CellStarted):
            assert not any(cell.kind == "speed" for cell in running)
            assert event.cell.kind != "speed" or not running
            running.add(event.cell)
        elif isinstance(event, CellFinished):
            running.remove(event.record.cell)
        most.append(len(running))
    assert max(most) == 2 and not running


@pytest.mark.parametrize("model", ["waits", "stubborn"])
def test_a_cell_that_takes_too_long_is_stopped(
    tmp_path: Path, notes: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("longspan.arena.runs.runner.GRACE", 0.05)
    told: list[int] = []  # so that it is stopped while it waits, and not before
    runner = LocalRunner(tmp_path / "cells", workers=1, command=FAKE, limit=lambda cell: 0.0 if told else None)
    found = []
    for event in runner.run(cells_of(model)):
        if isinstance(event, CellProgress) and event.steps == 0:
            told.append(event.step or 0)
        if isinstance(event, CellFinished):
            found.append(event.record)
    (record,) = found
    assert record.state == "stopped" and "stopped after" in str(record.error)
    with pytest.raises(ProcessLookupError):
        os.kill(told[0], 0)


def test_closing_a_runner_stops_its_processes(tmp_path: Path, notes: Path) -> None:
    events = LocalRunner(tmp_path / "cells", workers=2, command=FAKE).run(cells_of("waits", "stubborn", "good"))
    told = set()
    for event in events:
        if isinstance(event, CellProgress) and event.steps == 0:
            told.add(event.step)
        if len(told) == 2:
            break
    events.close()
    for number in told:
        with pytest.raises(ProcessLookupError):
            os.kill(number, 0)


def test_a_left_record_is_used_unless_cells_run_again(tmp_path: Path, notes: Path) -> None:
    cells = cells_of("good")
    list(LocalRunner(tmp_path / "cells", workers=1, command=FAKE).run(cells))
    assert ended(list(LocalRunner(tmp_path / "cells", workers=1, command=FAKE).run(cells)))["good"].state == "done"
    assert runs(notes, cells[0]) == 1
    list(LocalRunner(tmp_path / "cells", workers=1, command=FAKE, again=True).run(cells))
    assert runs(notes, cells[0]) == 2


def start(folder: Path, workers: int, *models: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(HERE / "driver.py"), str(folder), str(workers), *models]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def until(process: subprocess.Popen[str], line: str) -> list[str]:
    """Reads what it says until a line begins so."""
    assert process.stdout is not None
    found: list[str] = []
    while not (found and found[-1].startswith(line)):
        said = process.stdout.readline()
        assert said, f"it ended and said {found}"
        found.append(said.strip())
    return found


def states(folder: Path) -> list[tuple[str, str]]:
    lines = (folder / "results.jsonl").read_text().splitlines()
    return sorted((values["cell"]["model"], values["state"]) for values in map(json.loads, lines))


def test_a_runner_that_is_killed_loses_nothing_and_repeats_nothing(tmp_path: Path, notes: Path) -> None:
    models, folder = ("good", "raises", "waits_once", "fine"), tmp_path / "run"
    with start(folder, 1, *models) as process:
        until(process, "CellProgress waits_once 5")
        number = int(until(process, "CellProgress waits_once")[-1].split()[-1])  # of the cell's process
        watch = os.pidfd_open(number)
        process.kill()
    assert select.select([watch], [], [], 20)[0], "the cell's process outlived its runner"
    os.close(watch)
    assert states(folder) == [("good", "done"), ("raises", "failed")]

    with start(folder, 2, *models) as process:
        output, _ = process.communicate()
    assert process.returncode == 0
    assert states(folder) == [("fine", "done"), ("good", "done"), ("raises", "failed"), ("waits_once", "done")]
    assert [runs(notes, cell) for cell in cells_of(*models)] == [1, 1, 2, 1]
    assert "CellStarted good" not in output and "CellStarted raises" not in output


def test_a_written_but_unread_record_is_used(tmp_path: Path, notes: Path) -> None:
    folder = tmp_path / "run"
    with start(folder, 1, "good", "fine") as process:
        process.communicate()
    (folder / "results.jsonl").write_text((folder / "results.jsonl").read_text()[:-20])  # as if killed while writing
    with start(folder, 1, "good", "fine") as process:
        output, _ = process.communicate()
    assert "the last line of results.jsonl was cut short" in output
    assert states(folder) == [("fine", "done"), ("good", "done")]
    assert [runs(notes, cell) for cell in cells_of("good", "fine")] == [1, 1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_cells_without_records(tmp_path: Path, notes: Path, number: int) -> None:
    folder = tmp_path / "run"
    with start(folder, 1, "good", "waits") as process:
        until(process, "CellProgress waits 5")
        child = int(until(process, "CellProgress waits")[-1].split()[-1])
        process.send_signal(number)
        process.communicate()
    assert process.returncode == 128 + number
    assert states(folder) == [("good", "done")]
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert Folder(folder).records()[0].state == "done"
