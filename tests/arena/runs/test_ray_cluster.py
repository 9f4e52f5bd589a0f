"""The same grid on a local Ray with two workers, of which one is really killed."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from longspan.arena.runs import ray_cluster, session
from longspan.arena.runs.cell import Cell
from longspan.arena.runs.ray_cluster import RayRunner
from longspan.arena.runs.results import Folder
from longspan.arena.runs.runner import CellFinished, CellProgress, CellStarted, Event, RunNote
from longspan.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    import psutil

FAKE = (sys.executable, str(Path(__file__).parents[1] / "fake_process.py"))


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    found = tmp_path / "notes"
    found.mkdir()
    monkeypatch.setenv("FAKE_NOTES", str(found))
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    return found


def addresses_of(process: "psutil.Process") -> Iterator[str]:
    """Where a process and all that it started listen."""
    import psutil

    for one in [process, *process.children(recursive=True)]:
        with suppress(psutil.Error):  # it has just ended
            for connection in one.net_connections(kind="inet"):
                if connection.status == psutil.CONN_LISTEN:
                    yield connection.laddr.ip


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
    listening: set[str] = set()

    def hear(event: Event) -> None:
        events.append(event)
        if isinstance(event, CellFinished):
            listening.update(addresses_of(psutil.Process()))

    assert session.run(folder, runner, cells, hear=hear) is None
    # Nothing that Ray started, nor this process, can be reached from another machine.
    assert listening and all(each in ("127.0.0.1", "::ffff:127.0.0.1", "::1") for each in listening)
    assert "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER" not in os.environ

    records = {record.cell: record for record in folder.records()}
    assert [records[cell].state for cell in cells] == ["done", "done", "failed", "failed", "done", "done"]
    assert "ValueError: the third row is no row" in str(records[cells[2]].error)
    assert str(records[cells[3]].error).startswith("its worker died: ")
    assert len(folder.records()) == len(cells)
    runs = [len((notes / cell.key).read_text().splitlines()) for cell in cells]
    assert runs == [1, 2, 1, 2, 1, 1]
    said = [event.line for event in events if isinstance(event, RunNote)]
    assert len(said) == 2 and all("it runs once more" in line for line in said)
    assert {event.record.cell for event in events if isinstance(event, CellFinished)} == set(cells)
    assert any(isinstance(event, CellStarted) for event in events) and any(
        isinstance(event, CellProgress) for event in events
    )
    assert not ray.is_initialized()
    after = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    _, alive = psutil.wait_procs(after, timeout=10)
    assert not alive


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Unsupported, match=r"pip install 'longspan\[ray\]'"):
        RayRunner()


def test_cells_with_too_many_threads_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"cells of 8 threads fit on no machine .* has 2: --threads 2"):
        ray_cluster._check_room([Cell(task="listops", model="good", threads=8)], 2)


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{closed}", "Connection refused"),
        ("ray://127.0.0.1:{closed}", "Connection refused"),
        ("127.0.0.1:99999", ""),
        ("no-such-host.invalid:6379", ""),
        ("nonsense", "an address is HOST:PORT, ray://HOST:PORT or auto"),
        ("http://127.0.0.1", "an address is HOST:PORT, ray://HOST:PORT or auto"),
    ],
)
def test_a_wrong_address_is_one_line(address: str, reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray")
    with socket.socket() as taken:  # a port where nobody listens
        taken.bind(("127.0.0.1", 0))
        address = address.format(closed=taken.getsockname()[1])
        with pytest.raises(InvalidInput) as raised:
            list(RayRunner(address=address).run([Cell(task="listops", model="good")]))
    assert str(raised.value).startswith(f"no Ray cluster at {address}: {reason}") and "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")


def test_the_address_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:7")
    assert RayRunner().address == "127.0.0.1:7" and RayRunner(address="auto").address == "auto"
