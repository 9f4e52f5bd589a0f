"""The same grid on a local Ray with two workers, of which one is really killed."""

import sys
from pathlib import Path

import pytest

from longspan.arena import cluster, session
from longspan.arena.cell import Cell
from longspan.arena.cluster import RayRunner
from longspan.arena.results import Folder
from longspan.arena.runner import Began, Ended, Event, Noted, Told
from longspan.errors import InvalidInput, Unsupported

FAKE = (sys.executable, str(Path(__file__).with_name("fake_process.py")))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "notes"
    found.mkdir()
    monkeypatch.setenv("FAKE_NOTES", str(found))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    return found


@pytest.mark.slow
def test_a_killed_worker_is_tried_again_and_then_costs_one_cell(tmp_path: Path, notes: Path) -> None:
    pytest.importorskip("ray")
    import psutil
    import ray

    models = ("good", "parent_killed_once", "raises", "parent_killed", "fine")
    cells = [Cell(task="listops", model=model) for model in models]
    cells += [Cell(kind="speed", task="text", model="good", length=64)]
    folder, events = Folder(tmp_path / "run"), list[Event]()
    folder.path.mkdir()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    runner = RayRunner(processors=2, command=FAKE, environment={"FAKE_NOTES": str(notes)})
    assert session.run(folder, runner, cells, hear=events.append) is None

    records = {record.cell: record for record in folder.records()}
    assert [records[cell].state for cell in cells] == ["done", "done", "failed", "failed", "done", "done"]
    assert "ValueError: the third row is no row" in str(records[cells[2]].error)
    assert str(records[cells[3]].error).startswith("its worker died: ")
    assert len(folder.records()) == len(cells)
    runs = [len((notes / cell.key).read_text().splitlines()) for cell in cells]
    assert runs == [1, 2, 1, 2, 1, 1]
    said = [event.line for event in events if isinstance(event, Noted)]
    assert len(said) == 2 and all("it is tried once more" in line for line in said)
    assert {event.record.cell for event in events if isinstance(event, Ended)} == set(cells)
    assert any(isinstance(event, Began) for event in events) and any(isinstance(event, Told) for event in events)
    assert not ray.is_initialized()
    after = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(after, timeout=10)
    assert not alive


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unsupported, match=r"pip install 'longspan\[ray\]'"):
        RayRunner()


def test_cells_that_fit_nowhere_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"cells of 8 threads fit on no machine .* has 2: --threads 2"):
        cluster._check_room([Cell(task="listops", model="good", threads=8)], 2)
