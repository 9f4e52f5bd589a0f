"""A case in a real process of its own, and what becomes of one that dies."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from longspan.errors import InvalidInput
from longspan.measure.case import NAIVE, Case, Measured
from longspan.measure.process import MeasureProcesses
from longspan.measure.run_case import Patience, run_case

SMALL = Case(mechanism="window", length=300, heads=2, head_dim=8, causal=True)
QUICK = Patience(repeats=2)


def test_one_server_measures_one_case_after_another_and_is_gone_after():
    with MeasureProcesses(QUICK) as processes:
        found = [processes.measure(Case.read({**asdict(SMALL), "kind": kind})) for kind in ("forward", "decode")]
        unable = processes.measure(Case.read({**asdict(SMALL), "mechanism": "etc"}))
        server = processes.server
    assert [each.state for each in found] == ["done", "done"], [each.error for each in found]
    for each in found:
        assert len(each.seconds) == 2 and 0 < each.least <= max(each.seconds) and each.gemm and each.gemm > 0
        assert each.flops and each.memory is not None and each.began
        assert Measured.read(asdict(each)) == each
    assert [each.exponent for each in found] == [1.0, 0.0]
    assert unable.state == "unsupported" and "no causal form" in str(unable.error)
    assert server is not None and server.poll() is not None and processes.server is None


FAKE = """
import os, signal, sys
from longspan.measure import process

def measure(asked):
    name = asked["case"]["mechanism"]
    print("a library says something", flush=True)
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "slow":
        signal.raise_signal(signal.SIGALRM)
    if name == "broken":
        raise RuntimeError("broken")
    process._say({"case": asked["case"], "state": "done", "seconds": [1.0], "gemm": 1.0})

process._measure = measure
sys.exit(process.main())
"""


@pytest.fixture
def fake(tmp_path: Path) -> MeasureProcesses:
    path = tmp_path / "fake.py"
    path.write_text(FAKE)
    return MeasureProcesses(command=(sys.executable, str(path)), limit=100.0)


def test_a_process_that_dies_costs_its_case(fake: MeasureProcesses, monkeypatch: pytest.MonkeyPatch):
    kills = iter([3, 3, 3, 4, 4, 4, 4, 4])
    monkeypatch.setattr("longspan.measure.machine.memory_kills", lambda: next(kills, 4))
    with fake as processes:

        def state(name: str) -> tuple[str, str | None]:
            found = processes.measure(Case(mechanism=name, length=8))
            assert found.case.mechanism == name
            return found.state, found.error

        assert state("killed") == ("failed", "its process was killed by SIGKILL")
        assert state("killed") == ("memory", "the system killed its process because memory ran out")
        assert state("slow") == ("slow", "not done after 100 s")
        assert state("broken") == ("failed", "its process ended with 1")
        assert state("well") == ("done", None)


def test_a_server_that_ends_says_its_last_words():
    command = (sys.executable, "-c", "import sys; sys.exit('no torch here')")
    with MeasureProcesses(command=command) as processes:
        found = processes.measure(SMALL)
    assert found.state == "failed" and str(found.error).endswith("exited with 1: no torch here")
    with pytest.raises(InvalidInput, match="cannot start a process to measure in"):
        MeasureProcesses(command=("/no/such/program",)).measure(SMALL)


def test_the_time_limit_ends_a_process(monkeypatch: pytest.MonkeyPatch):
    with MeasureProcesses(QUICK, limit=1e-6) as processes:
        found = processes.measure(SMALL)
    assert found.state == "slow" and "not done after" in str(found.error)


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would change this process for the tests after it is left out."""
    for name in ("keep_memory", "give_back_memory"):
        monkeypatch.setattr(f"longspan.measure.run_case.{name}", lambda: None)


def test_a_case_estimated_not_to_fit_is_not_run(here: None):
    naive = Case(mechanism=NAIVE, length=2**20, heads=2, head_dim=8)
    found = run_case(naive, QUICK, free=2**20)
    assert found.state == "memory" and "GiB at length" in str(found.error) and found.seconds == ()


def test_a_case_estimated_to_take_too_long_is_not_run(here: None):
    found = run_case(Case(mechanism=NAIVE, length=2**20, heads=2, head_dim=8), Patience(call=1e-9), free=None)
    assert found.state == "slow" and "more than the limit of" in str(found.error) and found.exponent == 2.0


def test_an_error_of_a_case_is_reported(here: None, monkeypatch: pytest.MonkeyPatch):
    def ready(case: Case) -> None:
        raise problem

    monkeypatch.setattr("longspan.measure.run_case.ready", ready)
    for problem, state in ((RuntimeError("odd\nthing"), "failed"), (MemoryError("no more"), "memory")):
        found = run_case(SMALL, QUICK, free=None)
        assert (found.state, found.error) == (state, f"{type(problem).__name__}: {' '.join(str(problem).split())}")


def test_a_length_too_short_for_a_mechanism_is_not_used_to_estimate(here: None):
    """Sixteen global tokens want sixteen positions; the case itself has them."""
    case = Case(mechanism="linformer", length=600, heads=2, head_dim=8, options={"rank": 500})
    assert run_case(case, QUICK, free=None).state == "done"


def test_the_matrix_product_allocates_no_memory(here: None, monkeypatch: pytest.MonkeyPatch):
    """Or it would pay for giving back what a large case has freed, and the machine would seem ten times slower."""
    results = []

    def turns(cases: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
        results.extend(cases["product"]() for _ in range(2))
        return {name: [1.0] * repeats for name in cases}

    monkeypatch.setattr("longspan.measure.run_case.turns", turns)
    assert run_case(SMALL, QUICK, free=None).state == "done"
    assert results[0].data_ptr() == results[1].data_ptr()
