"""The folder of a grid: nothing is lost, nothing is mixed."""

import errno
import json
import os
from pathlib import Path

import pytest

from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.grid import Arguments, plan
from longspan.arena.runs.results import Folder, latest, left, read_records
from longspan.errors import InvalidInput

GIVEN = Arguments(tasks=("listops",), models=("dense", "window"), seeds=2, lengths=())


def test_a_folder_continues_with_its_planned_cells(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "new" / "run")
    cells = plan(GIVEN)
    assert folder.begin(GIVEN, cells) == cells
    assert folder.begin(GIVEN, []) == cells  # as with another number of workers, by which a budget would be divided
    assert folder.planned() == cells


def test_a_folder_of_other_settings_is_refused_with_the_differences(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.begin(GIVEN, plan(GIVEN))
    other = Arguments(tasks=("listops",), models=("dense", "window"), seeds=2, lengths=(), setting="small", budget=60.0)
    with pytest.raises(InvalidInput, match=r"other settings: setting tiny there, small here; budget none there, 60"):
        folder.begin(other, [])


def test_a_folder_that_is_no_grid_is_refused(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text("{}\n")
    with pytest.raises(InvalidInput, match=r"has results.jsonl and no grid.json"):
        Folder(tmp_path).begin(GIVEN, [])
    for text in ("[", "[]", "{}", '{"arguments": {"tusks": []}}', '{"arguments": 3}'):
        (tmp_path / "grid.json").write_text(text)
        with pytest.raises(InvalidInput, match=r"grid.json cannot be read"):
            Folder(tmp_path).planned()
    for cells in (None, 3, [{"task": "x"}], [{"colour": 3}]):
        (tmp_path / "grid.json").write_text(json.dumps({"arguments": GIVEN.plain(), "cells": cells}))
        with pytest.raises(InvalidInput, match=r"cell"):
            Folder(tmp_path).planned()


def test_records_are_appended_and_read_back(tmp_path: Path) -> None:
    folder, cells = Folder(tmp_path), plan(GIVEN)
    assert folder.records() == []
    given = [
        Record(cell=cells[0], state="done", accuracy=0.5, curve=({"step": 1, "loss": 2.0},), data={"names": ["a–b"]}),
        Record(cell=cells[1], state="failed", error="why"),
    ]
    for record in given:
        folder.append(record)
    assert folder.records() == given
    folder.append(Record(cell=cells[2], state="done", curve=({"step": 1, "loss": float("nan")},)))
    assert folder.records()[2].curve == ({"step": 1, "loss": None},)


@pytest.mark.parametrize("torn", [b'{"cell": {"task"', b"\x00\x00\x00", b"\xff\xfe", b'{"cell"\n', b"\x00\x00\n"])
def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path: Path, torn: bytes) -> None:
    said: list[str] = []
    folder, cells = Folder(tmp_path, warn=said.append), plan(GIVEN)
    first, second = (Record(cell=cell, state="done") for cell in cells[:2])
    folder.append(first)
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(torn)
    assert folder.records() == [first] and len(said) == 1 and "cut short" in said[0]
    folder.append(second)
    assert folder.records() == [first, second] and len(said) == 1


HOSTILE = [
    b"\xff\xfe",
    b'{"cell": 3}',
    b'{"state": "done"}',
    b"[1]",
    b"null",
    b"[" * 100000,
    b"1" * 5000,
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "accuracy": NaN}',
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "accuracy": 41.0}',
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "accuracy": true}',
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "memory": 1' + b"0" * 400 + b"}",
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "error": "\\ud800"}',
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "baselines": {"majority": null}}',
    b'{"cell": {"task": "listops", "model": "dense"}, "state": "done", "curve": [3]}',
    b'{"cell": {"task": "listops", "model": "dense", "speed": 1}, "state": "done"}',
    b'{"cell": {"task": "listops", "model": "dense", "length": 0}, "state": "done"}',
    b'{"cell": {"task": ["listops"], "model": "dense"}, "state": "done"}',
]


def test_damaged_lines_are_skipped_and_counted(tmp_path: Path) -> None:
    said: list[str] = []
    folder, cells = Folder(tmp_path, warn=said.append), plan(GIVEN)
    first, second = (Record(cell=cell, state="done") for cell in cells[:2])
    folder.append(first)
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(b"".join(line + b"\n" for line in HOSTILE))
    folder.append(second)
    held = (tmp_path / "results.jsonl").read_bytes()
    assert folder.records() == [first, second]
    count = len(HOSTILE)
    assert said == [
        f"{tmp_path}: {count} lines of results.jsonl are not usable and were skipped; the first is line 2: "
        "it is not UTF-8: invalid start byte at byte 0; these cells will run again"
    ]
    assert (tmp_path / "results.jsonl").read_bytes() == held
    assert left(cells, folder.records()) == cells[2:]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not JSON: Expecting property name enclosed in double quotes"),
        ('{"state": "done"}', "a record lacks cell"),
        ('{"cell": {"task": "listops", "model": "dense", "speed": 1}, "state": "done"}', "a cell has no speed"),
        (
            '{"cell": {"task": "x", "model": "y"}, "state": "done", "accuracy": 41.0}',
            "accuracy is 41.0, expected a share",
        ),
        ('{"cell": {"task": "x", "model": "y"}, "state": 3}', "state of a record must be text, not 3"),
        ('{"cell": {"task": "x"}, "state": "done"}', "a cell lacks model"),
        ("[1]", "a record is an object, not [1]"),
        ("[" * 100 + "]" * 100, "it is nested too deep"),
        ("[" * 100000 + "]" * 100000, "it is not readable JSON: it is nested too deep"),
    ],
)
def test_a_warning_says_what_is_wrong_with_a_line(tmp_path: Path, line: str, reason: str) -> None:
    folder = Folder(tmp_path)
    folder.append(Record(cell=plan(GIVEN)[0], state="done"))
    path = tmp_path / "results.jsonl"
    path.write_text(f"{path.read_text()}{line}\n{path.read_text()}")
    (note,) = read_records(path).notes
    assert note.startswith(f"line 2 of results.jsonl is not usable and was skipped: {reason}")


def test_reading_a_folder_does_not_change_it(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.append(Record(cell=plan(GIVEN)[0], state="done"))
    path = tmp_path / "results.jsonl"
    path.write_bytes(path.read_bytes() + b'{"cell"')
    held = path.read_bytes()
    assert len(folder.records(repair=False)) == 1 and path.read_bytes() == held


@pytest.mark.parametrize("model", ["../../elsewhere", "a\0b"])
def test_a_cell_of_a_grid_stays_in_its_folder(tmp_path: Path, model: str) -> None:
    cells = [{"task": "listops", "model": model}]
    (tmp_path / "grid.json").write_text(json.dumps({"arguments": GIVEN.plain(), "cells": cells}))
    with pytest.raises(InvalidInput, match="has a cell whose name is no folder"):
        Folder(tmp_path).planned()


def test_cells_left_to_run() -> None:
    cells = plan(GIVEN)
    records = [
        Record(cell=cells[0], state="done"),
        Record(cell=cells[1], state="failed"),
        Record(cell=cells[2], state="failed"),
        Record(cell=cells[2], state="done"),
    ]
    assert left(cells, records) == cells[3:]
    assert left(cells, records, retry=True) == [cells[1], cells[3]]
    assert latest(records)[cells[2].key].state == "done"
    longer = Cell(**{**cells[0].plain(), "steps": 100})
    assert left([longer], records) == [longer]  # a record of another cell of that name is none


def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    with Folder(tmp_path).held(), pytest.raises(InvalidInput, match="is in use by process"), Folder(tmp_path).held():
        pass


def test_a_full_disk_is_one_line_and_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cells = Folder(tmp_path), plan(GIVEN)
    folder.append(Record(cell=cells[0], state="done"))
    held, write, calls = (tmp_path / "results.jsonl").read_bytes(), os.write, list[int]()

    def full(number: int, data: bytes) -> int:
        calls.append(number)
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(number, data[:20])

    with monkeypatch.context() as patch:
        patch.setattr("os.write", full)
        with pytest.raises(InvalidInput) as raised:
            folder.append(Record(cell=cells[1], state="done"))
    assert str(raised.value) == (
        f"{tmp_path / 'results.jsonl'} could not be written: No space left on device; the cells that ended before are "
        "kept: make room, and give the same command again"
    )
    assert (tmp_path / "results.jsonl").read_bytes() == held
    folder.append(Record(cell=cells[1], state="done"))
    assert [record.cell for record in folder.records()] == cells[:2]
