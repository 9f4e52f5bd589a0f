"""Recall: the label is the value that went with the key asked for, and nothing else tells it."""

from pathlib import Path

import numpy as np
import pytest

from longspan.arena.tasks.recall import make
from longspan.arena.tasks.registry import DataFolders, build
from longspan.errors import InvalidOption

SIZES = {"train": 4000, "held_out": 500, "test": 1000}
OPTIONS = {"pairs": 4, "keys": 6, "values": 5, "fillers": 3, "joined": False, "length": 32}


def test_the_label_is_the_value_of_the_key() -> None:
    examples = make(OPTIONS, 0, 0, 500)
    for number in range(len(examples)):
        ids = examples.sequence(number).tolist()
        pairs = dict(zip(ids[0:8:2], ids[1:8:2], strict=True))
        assert (
            len(pairs) == 4 and all(4 <= key < 10 for key in pairs) and all(10 <= each < 15 for each in pairs.values())
        )
        assert all(1 <= each < 4 for each in ids[8:-1])
        assert pairs[ids[-1]] - 10 == examples.labels[number]
        assert len(ids) == 32


def test_a_joined_pair_is_one_symbol(tmp_path: Path) -> None:
    options = {**OPTIONS, "joined": True}
    examples = make(options, 0, 0, 500)
    for number in range(len(examples)):
        ids = examples.sequence(number)
        keys, values = np.divmod(ids[:4].astype(int) - 10, 5)
        assert len(set(keys)) == 4 and (ids[4:-1] < 4).all() and (ids >= 1).all()
        assert values[list(keys).index(int(ids[-1]) - 4)] == examples.labels[number]
    task = build("recall", {**options, **SIZES})
    found = task.splits(DataFolders(None, tmp_path))
    assert found.vocabulary == 40 and found.train.tokens.max() == 39
    apart = build("recall", {**OPTIONS, **SIZES})
    assert task.baselines(found) == apart.baselines(apart.splits(DataFolders(None, tmp_path)))  # the same draws


def test_splits_and_baselines(tmp_path: Path) -> None:
    task = build("recall", {**OPTIONS, **SIZES})
    found = task.splits(DataFolders(None, tmp_path))
    assert [len(found.train), len(found.held_out), len(found.test)] == [4000, 500, 1000]
    assert (found.vocabulary, found.classes, found.length, found.padded) == (15, 5, 32, False)
    assert found.train.tokens.max() == 14 and found.train.tokens.min() == 1
    baselines = task.baselines(found)
    assert baselines["majority"] == pytest.approx(1 / 5, abs=0.04)
    # The mean share of the most frequent of 4 values out of 5, by counting all 625 rows.
    rows = np.stack(np.meshgrid(*[np.arange(5)] * 4), -1).reshape(-1, 4)
    expected = (rows[:, :, None] == np.arange(5)).sum(1).max(1).mean() / 4
    assert baselines["frequent_value"] == pytest.approx(expected, abs=0.05)


def test_the_question_alone_does_not_predict_the_label() -> None:
    examples = make(OPTIONS, 1, 0, 20_000)
    last = examples.tokens.reshape(len(examples), 32)[:, -1]
    for key in range(4, 10):
        assert np.bincount(examples.labels[last == key], minlength=5) / (last == key).sum() == pytest.approx(
            [0.2] * 5, abs=0.03
        )


def test_many_symbols_need_two_bytes() -> None:
    assert make(OPTIONS, 0, 0, 2).tokens.dtype == np.uint8
    many = make({**OPTIONS, "keys": 300}, 0, 0, 20)
    assert many.tokens.dtype == np.uint16 and many.tokens.max() > 255


@pytest.mark.parametrize(
    ("options", "message"),
    [({"keys": 3}, "keys must be at least pairs, 4"), ({"length": 8}, "length must be at least 9 for 4 pairs")],
)
def test_impossible_sizes_are_refused(options: dict[str, int], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        build("recall", {**OPTIONS, **options})
