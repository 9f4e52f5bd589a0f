"""What was measured is kept for each machine, and survives whatever happens to the file."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from longspan.errors import InvalidInput
from longspan.measure import store as module
from longspan.measure.case import Case, Measured
from longspan.measure.store import Store, machine_id

CASE = Case(mechanism="window", length=512, options={"window": 64})
KNOWN = {
    "processor": "AMD EPYC",
    "instructions": "AVX2",
    "cores": 2,
    "usable": 2,
    "torch": "2.13",
    "longspan": "0.1",
    "memory": 2**33,
}


def found(seconds: float, case: Case = CASE, state: str = "done") -> Measured:
    return Measured.read({"case": asdict(case), "state": state, "seconds": [seconds], "memory": 7})


def test_stored_measurements_are_read_by_the_next_process(tmp_path: Path):
    path = tmp_path / "measure" / "here.jsonl"
    store = Store(path)
    assert store.get(CASE) is None
    store.put(found(0.5))
    assert store.get(CASE) == found(0.5) == Store(path).get(CASE)
    assert Store(path).get(Case(mechanism="window", length=512)) is None


def test_the_last_line_of_a_case_counts(tmp_path: Path):
    store = Store(tmp_path / "here.jsonl")
    for seconds in (0.5, 0.25):
        store.put(found(seconds))
    assert [each.seconds for each in Store(store.path).all()] == [(0.25,)]


def test_options_that_came_as_tuples_are_those_that_a_file_has_as_lists(tmp_path: Path):
    case = Case(mechanism="reformer", length=8192, options={"buckets": (16, 16)})
    Store(tmp_path / "here.jsonl").put(found(0.5, case))
    assert Store(tmp_path / "here.jsonl").get(case) is not None


@pytest.mark.parametrize(
    "spoilt",
    [
        b'{"case": {"mechanism": "win',
        b"[" * 100_000,
        b'{"case": {"mechanism": "window", "length": "x"}, "state": "done", "seconds": [1.0]}',
        b'{"case": {"mechanism": "window", "length": 8, "heads": 0}, "state": "done", "seconds": [1.0]}',
        b'{"case": {"mechanism": "window", "length": 8, "options": []}, "state": "done", "seconds": [1.0]}',
        b'{"case": {"mechanism": "window", "length": 8}, "state": "done", "seconds": [NaN]}',
        b'{"case": {"mechanism": "window", "length": 8}, "state": "done", "seconds": [1.0], "gemm": "fast"}',
        b'{"case": {"mechanism": "window", "length": 8}, "state": ["done"], "seconds": [1.0]}',
        b"\xff\xfe\x00",
        b"[]",
        b"null",
        b'"text"',
        b'{"case": null, "state": "done"}',
        b'{"state": "done", "seconds": [1]}',
        b'{"case": {"length": 3}, "state": "done", "seconds": [1]}',
        b'{"case": {"mechanism": "linear", "length": 3}, "state": "done", "seconds": []}',
        b'{"case": {"mechanism": "linear", "length": 3}, "state": "done", "seconds": ["soon"]}',
        b'{"case": {"mechanism": "linear", "length": 3}, "state": "done", "seconds": 4}',
        b'{"case": {"mechanism": "linear", "length": 3}, "seconds": [1]}',
        b'{"case": {"mechanism": "linear", "length": "3"}, "state": "done", "seconds": [1]}',
        b'{"case": {"mechanism": "linear", "length": 3}, "state": "done", "seconds": [1], "memory": "much"}',
        b'{"case": {"mechanism": "linear", "length": 3}, "state": "done", "seconds": [NaN]}',
        b'{"case": {"mechanism": "linear", "length": 3}, "state": "dunno", "seconds": [1]}',
        b"[" * 100000,
    ],
)
def test_a_torn_or_foreign_line_is_left_out_and_spoils_no_other(tmp_path: Path, spoilt: bytes):
    path = tmp_path / "here.jsonl"
    Store(path).put(found(0.5))
    with path.open("ab") as file:
        file.write(spoilt)  # and no end of line: its process was killed
    other = Case(mechanism="softmax", length=512)
    Store(path).put(found(0.25, other))
    kept = Store(path)
    assert kept.all() == [found(0.5), found(0.25, other)]


def test_two_writers_lose_nothing(tmp_path: Path):
    one, two = Store(tmp_path / "here.jsonl"), Store(tmp_path / "here.jsonl")
    for number in range(20):
        (one if number % 2 else two).put(found(0.5, Case(mechanism="window", length=1 + number)))
    assert len(Store(tmp_path / "here.jsonl").all()) == 20


def test_an_unwritable_store_is_an_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match=r"cannot be written: .*LONGSPAN_CACHE"):
        Store(tmp_path / "file" / "here.jsonl").put(found(0.5))


def test_measuring_through_the_store_happens_once(tmp_path: Path):
    asked = []

    def measure(case: Case) -> Measured:
        asked.append(case)
        return found(1.0 / len(asked))

    store = Store(tmp_path / "here.jsonl")
    kept = store.through(measure)
    assert kept(CASE) == kept(CASE) == found(1.0) and len(asked) == 1
    anew = Store(store.path).through(measure, refresh=True)
    assert anew(CASE) == anew(CASE) == found(0.5) and len(asked) == 2
    assert Store(store.path).get(CASE) == found(0.5)


@pytest.mark.parametrize(("state", "again"), [("slow", 0), ("unsupported", 0), ("memory", 1), ("failed", 1)])
def test_temporary_failures_are_measured_again(tmp_path: Path, state: str, again: int):
    store, asked = Store(tmp_path / "here.jsonl"), []
    store.put(found(0.5, state=state))
    store.through(lambda case: asked.append(case) or found(0.25))(CASE)
    assert len(asked) == again


def test_another_machine_or_version_has_another_file_and_more_memory_has_not(monkeypatch: pytest.MonkeyPatch):
    usual = machine_id(KNOWN)
    assert usual.startswith("amd-epyc-torch-2.13-")
    assert machine_id({**KNOWN, "memory": 2**40}) == usual
    for name in ("processor", "instructions", "cores", "usable", "torch", "longspan"):
        assert machine_id({**KNOWN, name: "other"}) != usual
    monkeypatch.setattr(module, "PROTOCOL", 0)
    assert machine_id(KNOWN) != usual


def test_the_usual_place_is_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path))
    store = Store()
    store.put(found(0.5))
    assert store.path == tmp_path / "measure" / f"{machine_id()}.jsonl"
    assert json.loads(store.path.read_text().strip())["case"]["mechanism"] == "window"
