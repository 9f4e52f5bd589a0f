"""Tasks with a label at every token asked for: MQAR, selective copying, parity."""

from pathlib import Path

import numpy as np
import pytest

from longspan.arena.tasks.examples import NO_LABEL, LabelledSequences, SequenceData, Splits
from longspan.arena.tasks.registry import DataFolders, build
from longspan.arena.tasks.token_labels import matrix, ranges
from longspan.errors import InvalidInput, InvalidOption

FEW = {"train": 300, "held_out": 40, "test": 60}
NOWHERE = DataFolders(None, Path("/nonexistent"))  # nothing is read or written


def splits_of(name: str, **options: object) -> tuple[Splits, np.ndarray, np.ndarray]:
    splits = build(name, {**FEW, **options}).splits(NOWHERE)
    return splits, *matrix(splits.test)


def rows_of(rows: list[list[int]], labels: list[list[int]], **splits: object) -> Splits:
    """Hand-written rows as train, held-out and test."""
    ids = np.array(rows, dtype=np.uint8)
    starts = np.arange(len(rows) + 1, dtype=np.int64) * ids.shape[1]
    examples = LabelledSequences(ids.ravel(), starts, np.array(labels).ravel(), "by hand", per_token=True)
    return Splits(examples, examples, examples, length=ids.shape[1], padded=False, **splits)


def test_mqar_asks_each_key_once_for_its_value() -> None:
    splits, ids, labels = splits_of("mqar", length=32, pairs=4, keys=9, values=7)
    assert (splits.vocabulary, splits.classes, splits.length, splits.padded) == (17, 7, 32, False)
    for row, answers in zip(ids, labels, strict=True):
        pairs = dict(zip(row[0:8:2], row[1:8:2], strict=True))
        assert len(pairs) == 4 == len(set(pairs.values()))
        assert all(1 <= key <= 9 for key in pairs) and all(10 <= value <= 16 for value in pairs.values())
        asked = np.flatnonzero(answers != NO_LABEL)
        assert sorted(row[asked]) == sorted(pairs) and asked.min() >= 8 and not (asked % 2).any()
        assert all(pairs[row[place]] - 10 == answers[place] for place in asked)
        assert not row[8:][answers[8:] == NO_LABEL].any()


def test_mqar_draws_near_questions_more_often() -> None:
    _, _, labels = splits_of("mqar", length=64, pairs=1, keys=400, values=400, test=4000)
    gaps = (labels[:, 2:] != NO_LABEL).argmax(1) // 2  # from 0
    weights = np.arange(1, 32) ** -0.99
    shares = np.bincount(gaps, minlength=31) / len(gaps)
    assert np.abs(shares - weights / weights.sum()).max() < 0.02
    _, _, labels = splits_of("mqar", length=64, pairs=1, keys=400, values=400, test=4000, power=1.0)
    shares = np.bincount((labels[:, 2:] != NO_LABEL).argmax(1) // 2, minlength=31) / 4000
    assert shares.max() < 0.045 and shares.min() > 0.02  # 1/31 each


def test_mqar_baselines_and_distances_by_hand() -> None:
    # Keys 1 and 2, values 4, 5, 6 with the labels 0, 1, 2.
    rows = [[1, 4, 2, 5, 1, 0, 2, 0], [2, 6, 1, 4, 1, 0, 2, 0]]
    labels = [[-100] * 4 + [0, -100, 1, -100], [-100] * 4 + [0, -100, 2, -100]]
    task = build("mqar", {"length": 8, "pairs": 2, "keys": 3, "values": 3, **FEW})
    splits = rows_of(rows, labels, vocabulary=7, classes=3)
    # Label 0 is 2 of 4; the last pair's values 5 and 4 are right for one question each.
    assert task.baselines(splits) == {"majority": 0.5, "value_in_context": 0.5, "latest_value": 0.5}
    groups = task.groups(splits)
    assert groups is not None and groups.names == ("1–8",)
    task = build("mqar", {"length": 64, "pairs": 8, **FEW})
    splits = task.splits(NOWHERE)
    groups, (ids, answers) = task.groups(splits), matrix(splits.test)
    assert groups is not None and groups.names == ("1–8", "9–16", "17–32", "33–64")
    numbers = groups.numbers.reshape(ids.shape)
    for row, place in zip(*np.nonzero(answers != NO_LABEL), strict=True):
        distance = place - int(np.flatnonzero(ids[row] == ids[row, place])[0])
        assert numbers[row, place] == (0 if distance <= 8 else 1 if distance <= 16 else 2 if distance <= 32 else 3)


def test_selective_copy_asks_for_the_symbols_in_order() -> None:
    splits, ids, labels = splits_of("selective_copy", length=24, marks=5, symbols=6)
    assert (splits.vocabulary, splits.classes, splits.length) == (8, 6, 24)
    for row, answers in zip(ids, labels, strict=True):
        before = row[:18]
        assert before[before >= 2].tolist() == (answers[19:] + 2).tolist()
        assert row[18] == 1 and not row[19:].any() and (before != 1).all()
        assert (answers[:19] == NO_LABEL).all()
    last = np.array([np.flatnonzero(row[:18]).max() for row in ids])
    assert 0 < (last == 17).mean() < 0.6  # 5/18 in the mean; always, in the released generator


def test_selective_copy_baselines_by_hand() -> None:
    # Two symbols, 2 and 3, among four places; then the sign and two blanks.
    rows = [[2, 0, 0, 3, 1, 0, 0], [2, 2, 0, 0, 1, 0, 0], [3, 2, 0, 0, 1, 0, 0]]
    labels = [[-100] * 5 + answers for answers in ([0, 1], [0, 0], [1, 0])]
    task = build("selective_copy", {"length": 7, "marks": 2, "symbols": 2, **FEW})
    splits = rows_of(rows, labels, vocabulary=4, classes=2)
    # Label 0 is 4 of 6. The most frequent symbol (the lower of equal ones) is 2 everywhere: also 4 of 6. Evenly spread
    # symbols would be at 2/3 and 7/3: nearest are 2 and 3, 2 and 2, and in the last row 2 and 2, of which one is right.
    assert task.baselines(splits) == {
        "majority": pytest.approx(4 / 6),
        "frequent_symbol": pytest.approx(4 / 6),
        "nearest_place": pytest.approx(5 / 6),
    }
    groups = task.groups(splits)
    assert groups is not None and groups.names == ("1–2",) and len(groups.numbers) == 21


def test_parity_is_trained_short_and_tested_beyond() -> None:
    splits, ids, labels = splits_of("parity", trained_length=10, length=24)
    assert splits.train.tokens.shape == (3000,) and (splits.vocabulary, splits.classes, splits.length) == (2, 2, 24)
    seen, answers = matrix(splits.train)
    assert (answers == seen.cumsum(1) % 2).all()
    assert (labels[:, :10] == NO_LABEL).all() and (labels[:, 10:] == (ids.cumsum(1) % 2)[:, 10:]).all()
    groups = build("parity", {"trained_length": 10, "length": 24, **FEW}).groups(splits)
    assert groups is not None and groups.names == ("11–20", "21–24")
    assert groups.numbers[:24].tolist() == [0] * 20 + [1] * 4


def test_parity_baselines_by_hand() -> None:
    task = build("parity", {"trained_length": 2, "length": 4, **FEW})
    train = rows_of([[1, 1], [0, 1], [0, 0]], [[1, 0], [0, 1], [0, 0]], vocabulary=2, classes=2).train
    test = rows_of([[1, 1, 1, 0], [0, 1, 1, 0]], [[-100, -100, 1, 1], [-100, -100, 0, 0]], vocabulary=2, classes=2)
    splits = Splits(train, train, test.test, vocabulary=2, classes=2, length=4, padded=False)
    # Trained labels are 0 in 4 of 6. Of the bits asked for, 1 0 1 0 with labels 1 1 0 0, two are right. Three ones were
    # never seen: the majority, twice wrong; two ones have the label 0, twice right.
    assert task.baselines(splits) == {"majority": 0.5, "last_bit": 0.5, "table_of_counts": 0.5}


def test_no_row_is_in_two_splits_and_a_seed_gives_the_same() -> None:
    for name, options in (("mqar", {}), ("selective_copy", {"length": 9, "marks": 3}), ("parity", {})):
        task = build(name, {**FEW, **options})
        one, again, other = task.splits(NOWHERE), task.splits(NOWHERE), task.splits(NOWHERE, seed=1)
        assert one.test.digest() == again.test.digest() != other.test.digest()
        rows = [
            part.sequence(number).tobytes()
            for part in (one.train, one.held_out, one.test)
            for number in range(len(part))
        ]
        assert len(set(rows)) == len(rows) == 400
        assert one.notes["sizes"] == FEW and one.notes["labelled"]["test"] == len(one.test.asked)
    with pytest.raises(InvalidOption, match="only 4 different rows of 300 were found; ask for fewer, or longer ones"):
        build("parity", {**FEW, "trained_length": 2}).splits(NOWHERE)


def test_the_generators_are_what_they_were() -> None:
    digests = {name: splits_of(name)[0].test.digest() for name in ("mqar", "selective_copy", "parity")}
    assert digests == {
        "mqar": "7136e15e7f7239e6",
        "selective_copy": "13ab0f9ab654e793",
        "parity": "918c4fe7327f679b",
    }


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        (
            "mqar",
            {"length": 31},
            "option length must be even and at least 32 for 8 pairs and as many questions, not 31",
        ),
        ("mqar", {"keys": 7}, "option keys must be at least pairs, 8: they differ"),
        (
            "selective_copy",
            {"length": 16},
            "option length must be at least 17 for 8 symbols, a sign and as many blanks",
        ),
        ("parity", {"length": 32}, "option length must be more than trained_length, 32, not 32"),
    ],
)
def test_wrong_options(name: str, options: dict[str, int], said: str) -> None:
    with pytest.raises(InvalidOption, match=said):
        build(name, options)


def test_batches_have_labels_and_groups_at_tokens() -> None:
    tokens, labels = np.arange(1, 8, dtype=np.uint8), np.array([-100, 1, 2, -100, 0, 1, -100])
    examples = LabelledSequences(tokens, np.array([0, 3, 7]), labels, "two", per_token=True)
    assert len(examples) == 2 and examples.asked.tolist() == [1, 2, 0, 1]
    data = SequenceData(examples, 2, length=3, padded=True, shuffle=False, groups=np.array([0, 0, 1, 1, 1, 0, 0]))
    batch = data.load([1, 0], 0)  # the longer one is cut to the length
    assert batch["label"].tolist() == [[-100, 0, 1], [-100, 1, 2]] and batch["group"].tolist() == [[1, 1, 0], [0, 0, 1]]
    assert batch["ids"].tolist() == [[4, 5, 6], [1, 2, 3]]
    chosen = examples.select([1])
    assert chosen.per_token and chosen.labels.tolist() == [-100, 0, 1, -100] and len(chosen) == 1
    with pytest.raises(InvalidInput, match="two has 6 labels for 7 tokens of single texts: expected one for each"):
        LabelledSequences(tokens, np.array([0, 3, 7]), labels[:6], "two", per_token=True)


def test_ranges_double() -> None:
    names, numbers = ranges(np.array([1, 8, 9, 16, 17, 40]), 40)
    assert names == ("1–8", "9–16", "17–32", "33–40") and numbers.tolist() == [0, 0, 1, 1, 2, 3]
