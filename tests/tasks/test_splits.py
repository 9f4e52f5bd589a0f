"""Held-out rows: how many of each label, and the same ones whenever a run is opened."""

from collections import Counter
from pathlib import Path

import pytest

from longspan.errors import InvalidInput
from longspan.tasks.base import DataPaths
from longspan.tasks.splits import hold_out, hold_out_numbers, split_off


def test_each_label_has_its_share_in_both() -> None:
    labels = ["a"] * 60 + ["b"] * 30 + ["c"] * 9 + ["d"]
    train, held = split_off(100, 0.1, 0, labels)
    assert sorted(train + held) == list(range(100)) and len(held) == 10
    assert Counter(labels[number] for number in held) == {"a": 6, "b": 3, "c": 1}  # d occurs once: it is trained on
    assert split_off(100, 0.1, 0, labels) == (train, held) != split_off(100, 0.1, 1, labels)
    assert len(split_off(100, 0.1, 0)[1]) == 10


def test_too_few_rows() -> None:
    with pytest.raises(InvalidInput, match="there are 1 examples, too few to hold some out; give a held_out file"):
        split_off(1, 0.1, 0)
    with pytest.raises(InvalidInput, match=r"a\.csv: every label occurs once, so none can be held out"):
        split_off(3, 0.4, 0, ["x", "y", "z"], "a.csv")


def test_a_run_keeps_its_split(tmp_path: Path) -> None:
    folders = DataPaths(None, tmp_path, 0, tmp_path / "split.json")
    train, held, said = hold_out(list("abcdefghij"), 0.2, folders, "a.csv")
    assert said == "2 of 10 rows, drawn by seed 0" and sorted(train + held) == list("abcdefghij")
    other_seed = DataPaths(None, tmp_path, 5, tmp_path / "split.json")
    assert hold_out(list("abcdefghij"), 0.5, other_seed, "a.csv")[:2] == (train, held)  # the file decides
    with pytest.raises(InvalidInput, match=r"a\.csv has 11 rows now, and had 10 when .*split\.json was written"):
        hold_out_numbers(11, 0.2, folders, "a.csv")
    (tmp_path / "split.json").write_text('{"rows": 10, "held_out": "all"}')
    with pytest.raises(InvalidInput, match=r"split\.json is damaged"):
        hold_out_numbers(10, 0.2, folders, "a.csv")
