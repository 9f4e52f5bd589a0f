"""Parallel text: pairs line by line, every one once an epoch, in batches with little padding."""

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.data.text.parallel import Parallel, find_pair, read_pairs
from longspan.data.text.token_files import write_tokens
from longspan.errors import InvalidInput, InvalidOption

BEGIN, END, PAD = 1, 2, 0


def skewed(folder: Path, count: int = 5000, **options: object) -> Parallel:
    """Lengths as of sentences: most are short, and the two sides go together."""
    draw = np.random.default_rng(0)
    base = draw.lognormal(2.5, 0.6, count)
    sides = []
    for name in ("source", "target"):
        lengths = np.clip(base * draw.lognormal(0, 0.15, count), 1, 200).astype(int)
        sides.append(write_tokens(folder / name, (draw.integers(3, 50, n) for n in lengths), vocabulary=50))
    return Parallel(*sides, begin=BEGIN, end=END, padding=PAD, **options)


@pytest.mark.parametrize("size", [{"max_tokens": 1024}, {"batch": 32}], ids=["tokens", "pairs"])
@pytest.mark.parametrize("epoch", [0, 3])
def test_an_epoch_has_every_pair_once_and_little_padding(tmp_path, size, epoch):
    data = skewed(tmp_path, **size)
    batches = data.batches(epoch)
    assert sorted(number for batch in batches for number in batch) == list(range(5000))
    assert data.padded() < 0.1
    # What batches drawn without regard to length would be filled up with.
    order = np.random.default_rng(0).permutation(5000).reshape(-1, 40)
    full = sum(int(data.lengths[:, rows].max(1).sum()) * len(rows) for rows in order)
    assert 1 - data.lengths.sum() / full > 0.4


def test_no_side_of_a_batch_is_larger_than_said(tmp_path):
    data = skewed(tmp_path, max_tokens=512)
    for numbers in data.batches(0):
        found = data.load(numbers, 0)
        assert max(found["source"].numel(), found["targets"].numel()) <= 512


def test_the_order_is_a_function_of_seed_and_epoch(tmp_path):
    one, again, other = (skewed(tmp_path, max_tokens=512, seed=seed) for seed in (0, 0, 1))
    assert one.batches(2) == again.batches(2) and one.fingerprint() == again.fingerprint()
    assert one.batches(2) != one.batches(3) and one.batches(2) != other.batches(2)
    assert {frozenset(batch) for batch in one.batches(2)} != {frozenset(batch) for batch in one.batches(3)}
    assert len({len(one.batches(epoch)) for epoch in range(4)}) == 1  # so that steps are a number of epochs
    assert one.fingerprint() != other.fingerprint()


def test_a_batch_is_source_begun_target_and_ended_target(tmp_path):
    source = write_tokens(tmp_path / "s", [[5, 6, END], [7, END]], vocabulary=10)
    target = write_tokens(tmp_path / "t", [[8], [9, 4, 3]], vocabulary=10)
    data = Parallel(source, target, begin=BEGIN, end=END, padding=PAD, batch=2)
    found = {name: tensor.tolist() for name, tensor in data.load([0, 1], 0).items()}
    assert found == {
        "source": [[5, 6, END], [7, END, PAD]],
        "source_mask": [[True, True, True], [True, True, False]],
        "ids": [[BEGIN, 8, PAD, PAD], [BEGIN, 9, 4, 3]],
        "targets": [[8, END, -100, -100], [9, 4, 3, END]],
        "number": [0, 1],
    }
    assert data.sentence(1) == [7, END]
    assert data.load([1], 0)["source"].dtype == torch.long


def test_long_pairs_are_left_out_or_refused(tmp_path):
    data = skewed(tmp_path, max_tokens=64, longest=30)
    assert data.lengths[:, data.kept].max() <= 30 and 0 < len(data) < 5000
    with pytest.raises(InvalidInput, match=r"the pairs, line \d+: it has \d+ tokens, and a batch 64"):
        skewed(tmp_path, max_tokens=64)
    with pytest.raises(InvalidInput, match="every pair has more than 1"):
        skewed(tmp_path, max_tokens=64, longest=1)
    with pytest.raises(InvalidOption, match="one of the two"):
        skewed(tmp_path, max_tokens=64, batch=3)


# Files


def write(folder: Path, **files: str | bytes) -> None:
    for name, content in files.items():
        (folder / f"train.{name}").write_bytes(content.encode() if isinstance(content, str) else content)


def test_pairs_are_two_files_packed_or_not_or_two_columns(tmp_path):
    write(tmp_path, en="a dog\na cat\n")
    (tmp_path / "train.de.gz").write_bytes(gzip.compress(b"ein Hund\r\neine Katze"))
    (tmp_path / "train.tsv").write_text("a dog\tein Hund\na cat\teine Katze\n")
    expected = (["a dog", "a cat"], ["ein Hund", "eine Katze"])
    assert read_pairs(*find_pair(f"{tmp_path}/train", "en", "de")) == expected
    assert read_pairs(*find_pair(f"{tmp_path}/train.tsv", "en", "de")) == expected
    with pytest.raises(InvalidInput, match=r"there is no file .*train\.fr"):
        find_pair(f"{tmp_path}/train", "en", "fr")


@pytest.mark.parametrize(
    ("en", "de", "said"),
    [
        ("a\nb\nc\n", "x\n", r"train\.de ends with line 1, and .*train\.en has 3"),
        ("a\n", "x\ny\n", r"train\.en ends with line 1, and .*train\.de has 2"),
        ("a\n\nc\n", "x\ny\nz\n", r"train\.en, line 2: it is empty"),
        ("a\nb\n", "x\n \t\n", r"train\.de, line 2: it is empty"),
        ("a\nb\n", b"x\n\xff\xfe\n", r"train\.de, line 2: not UTF-8"),
        ("", "", r"train\.en is empty"),
    ],
    ids=["target-short", "source-short", "empty-line", "blank-line", "encoding", "empty"],
)
def test_what_is_wrong_with_files_is_said_by_file_and_line(tmp_path, en, de, said):
    write(tmp_path, en=en, de=de)
    with pytest.raises(InvalidInput, match=said):
        read_pairs(*find_pair(f"{tmp_path}/train", "en", "de"))


@pytest.mark.parametrize(
    ("content", "said"),
    [("a\tx\nb\n", "line 2: expected two columns"), ("a\tx\nb\t \n", "line 2: a column is empty")],
    ids=["one", "blank"],
)
def test_what_is_wrong_with_columns_is_said_by_line(tmp_path, content, said):
    (tmp_path / "p.tsv").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        read_pairs(*find_pair(f"{tmp_path}/p.tsv", "en", "de"))
