"""The folder of a grid: nothing is lost, nothing is mixed."""

import json
from pathlib import Path

import pytest

from longspan.arena.cell import Cell, Record
from longspan.arena.grid import Arguments, plan
from longspan.arena.results import Folder, latest, left
from longspan.errors import InvalidInput

GIVEN = Arguments(tasks=("listops",), models=("dense", "window"), seeds=2, lengths=())


def test_a_folder_goes_on_with_the_cells_it_was_begun_with(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "new" / "run")
    cells = plan(GIVEN)
    assert folder.begin(GIVEN, cells) == cells
    assert folder.begin(GIVEN, []) == cells  # as with another number of workers, by which a budget would be divided
    assert folder.planned() == cells


def test_a_folder_of_other_settings_is_refused_and_what_differs_is_named(tmp_path: Path) -> None:
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


def test_a_damaged_line_among_others_is_named(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.append(Record(cell=plan(GIVEN)[0], state="done"))
    whole = (tmp_path / "results.jsonl").read_text()
    (tmp_path / "results.jsonl").write_text(whole + '{"cell": 3}\n' + whole)
    with pytest.raises(InvalidInput, match=r"results.jsonl, line 2 is no record"):
        folder.records()


def test_what_is_left() -> None:
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
