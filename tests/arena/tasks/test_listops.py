"""ListOps: trees as likely as those of the original code, three splits without a common tree, baselines as measured."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.listops import grow, make
from longspan.arena.tasks.listops_expressions import CLOSE, OPEN, evaluate, read_file, write_file
from longspan.arena.tasks.registry import DataFolders, build
from longspan.arena.tasks.shards import load_or_generate
from longspan.errors import InvalidInput, InvalidOption

LONG = {"depth": 10, "arguments": 10, "min_length": 500, "max_length": 2000, "probability": 0.25}
TINY = {"depth": 3, "arguments": 5, "min_length": 10, "max_length": 40}
SIZES = {"train": 400, "held_out": 100, "test": 100}


@cache
def long_trees() -> tuple[LabelledSequences, int]:
    """The shards of one sample, and the roots tried for it."""
    trees, labels, tried = grow(LONG, np.random.Generator(np.random.PCG64(1)), 3000)
    starts = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])])
    return LabelledSequences(np.frombuffer(b"".join(trees), np.uint8), starts, np.array(labels), "sample"), tried


def _shape(ids: np.ndarray) -> tuple[int, int, int]:
    """Depth, digits and subtrees directly under the root."""
    opens = (ids >= OPEN) & (ids < CLOSE)
    level = np.cumsum(opens.astype(np.int64) - (ids == CLOSE))
    return int(level.max()) + 1, int(((ids < OPEN) & (level == 1)).sum()), int((opens & (level == 2)).sum())


def _splits(options: dict[str, Any], cache: Path, seed: int = 0, **place: Any) -> Splits:
    return build("listops", {**TINY, **SIZES, **options}).splits(DataFolders(None, cache, **place), seed)


def test_statistics_are_those_of_the_original_generator() -> None:
    """Expected shares of the published generator; tolerances are three standard errors of 3000 trees at least."""
    examples, tried = long_trees()
    lengths = np.diff(examples.starts)
    assert lengths.min() > 500 and lengths.max() < 2000
    assert len(examples) / (tried / LONG["probability"]) == pytest.approx(0.082, abs=0.01)  # of raw trees
    for share, length, tolerance in [
        (0.05, 539, 10),
        (0.25, 701, 25),
        (0.5, 953, 40),
        (0.75, 1309, 50),
        (0.95, 1804, 40),
    ]:
        assert np.quantile(lengths, share) == pytest.approx(length, abs=tolerance)
    shapes = np.array([_shape(examples.sequence(each)) for each in range(len(examples))])
    assert (shapes[:, 0] == 10).all()
    assert (shapes[:, 1] + shapes[:, 2]).mean() == pytest.approx(6.9, abs=0.15)
    assert shapes[:, 2].mean() == pytest.approx(2.3, abs=0.1)
    shares = np.bincount(examples.labels) / len(examples)
    assert shares[[0, 9]] == pytest.approx([0.17, 0.17], abs=0.022)
    assert ((shares[1:9] > 0.055) & (shares[1:9] < 0.105)).all()
    roots = np.bincount(examples.tokens[examples.starts[:-1]], minlength=CLOSE)[OPEN:CLOSE] / len(examples)
    assert roots == pytest.approx([0.25] * 4, abs=0.025)


def test_another_evaluator_finds_the_same_values() -> None:
    """On 3000 long trees, and on 7000 of other shapes."""
    examples, _ = long_trees()
    for number in range(len(examples)):
        assert evaluate(examples.sequence(number)) == examples.labels[number]
    for depth, arguments, probability in [
        (2, 10, 0.25),
        (3, 5, 0.5),
        (5, 2, 0.6),
        (6, 10, 0.25),
        (8, 3, 0.5),
        (4, 40, 0.2),
    ]:
        options = {
            "depth": depth,
            "arguments": arguments,
            "probability": probability,
            "min_length": 3,
            "max_length": 300,
        }
        found = make(options, 0, 0, 1170)
        for number in range(len(found)):
            ids = found.sequence(number)
            assert evaluate(ids) == found.labels[number]
            assert OPEN <= ids[0] < CLOSE and 3 < len(ids) < 300 and _shape(ids)[0] <= depth


def test_baselines_are_those_of_the_specification() -> None:
    """17.0, 36.3 to 36.9 and 51.7 there; here half of the sample predicts the other, with three standard errors."""
    examples, _ = long_trees()
    half = Splits(examples.select(range(1500)), examples, examples.select(range(1500, 3000)), 17, 10, 2000, True)
    found = build("listops", {}).baselines(half)
    assert found["majority"] == pytest.approx(0.17, abs=0.03)
    assert found["first_token"] == pytest.approx(0.365, abs=0.04)
    assert found["root_digits"] == pytest.approx(0.517, abs=0.04)


def test_baselines_improve_with_what_they_read(tmp_path: Path) -> None:
    found = build("listops", {**TINY, **SIZES}).baselines(_splits({}, tmp_path))
    assert list(found) == ["majority", "first_token", "root_digits"]
    assert found["majority"] < found["first_token"] < found["root_digits"] < 1
    flat = {"depth": 2, "arguments": 9, "min_length": 5}  # all digits are under the root
    assert build("listops", {**TINY, **SIZES, **flat}).baselines(_splits(flat, tmp_path))["root_digits"] == 1


def test_splits_have_their_sizes_and_no_common_tree(tmp_path: Path) -> None:
    found = _splits({}, tmp_path)
    parts = [found.train, found.held_out, found.test]
    assert [len(part) for part in parts] == [400, 100, 100]
    trees = [part.sequence(number).tobytes() for part in parts for number in range(len(part))]
    assert len(set(trees)) == 600
    assert all(10 < len(tree) < 40 for tree in trees)
    assert found.length == 40 and found.vocabulary == 17 and found.padded and found.classes == 10
    assert found.notes["sizes"] == SIZES and found.notes["hashes"]["test"] == found.test.digest()


def test_splits_are_a_function_of_the_seed(tmp_path: Path) -> None:
    one, again, other = _splits({}, tmp_path), _splits({}, tmp_path / "again"), _splits({}, tmp_path, seed=1)
    assert one.test.digest() == again.test.digest() != other.test.digest()


def test_the_result_does_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    options = {**TINY, "probability": 0.25}
    one, two = (
        load_or_generate(
            "listops", options, make, count=50, shard=20, seed=0, cache=tmp_path / str(processes), processes=processes
        )
        for processes in (1, 2)
    )
    assert one[0].digest() == two[0].digest() and one[1] == two[1]


def test_duplicate_trees_are_drawn_again(tmp_path: Path) -> None:
    """There are 400 trees of an operator and two digits; all of them are found, and not one more."""
    few = {"depth": 2, "arguments": 2, "min_length": 3, "max_length": 6, "train": 300, "held_out": 40, "test": 50}
    found = _splits(few, tmp_path)
    assert found.notes["drawn"] > 390 and found.notes["different"] >= 390
    with pytest.raises(InvalidOption, match="only 400 are different, not 500; ask for fewer"):
        _splits({**few, "train": 410}, tmp_path)


def test_lengths_that_no_tree_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="max_length must be at least min_length"):
        build("listops", {"min_length": 50, "max_length": 51})
    with pytest.raises(InvalidOption, match="none had more than 500 and fewer than 2000 tokens"):
        _splits({"min_length": 500, "max_length": 2000}, tmp_path)


def test_files_are_read_instead(tmp_path: Path) -> None:
    made_ones = _splits({}, tmp_path / "cache")
    folder = tmp_path / "data" / "listops"
    folder.mkdir(parents=True)
    write_file(made_ones.train, folder / "basic_train.tsv")
    write_file(made_ones.held_out, folder / "basic_val.tsv.gz")
    task = build("listops", {**TINY, "files": "listops", "test": 30})
    place = DataFolders(tmp_path / "data", tmp_path / "cache")
    with pytest.raises(InvalidInput, match=r"has none of basic_test.tsv, .* without `files` trees are generated"):
        task.splits(place)
    write_file(made_ones.test, folder / "lra_basic_test.tsv.gz")
    found = task.splits(place)
    assert found.train.digest() == made_ones.train.digest() and len(found.test) == 30
    with pytest.raises(InvalidInput, match="no folder elsewhere or"):
        build("listops", {"files": "elsewhere"}).splits(place)


@pytest.mark.data
def test_trees_of_the_original_code_are_like_ours(data: Path) -> None:
    theirs = read_file(data / "listops" / "lra_basic_train.tsv.gz")
    ours, _ = long_trees()
    lengths = [np.diff(each.starts) for each in (theirs, ours)]
    for share in (0.25, 0.5, 0.75):
        one, other = (np.quantile(each, share) for each in lengths)
        assert one == pytest.approx(other, rel=0.06)
    shares = [np.bincount(each.labels) / len(each) for each in (theirs, ours)]
    assert shares[0] == pytest.approx(shares[1], abs=0.035)
    tokens = [np.bincount(each.tokens, minlength=17) / len(each.tokens) for each in (theirs, ours)]
    assert tokens[0] == pytest.approx(tokens[1], abs=0.002)


def test_the_first_tree_is_unchanged_between_versions() -> None:
    """A change of the generator changes VERSION, or else caches hold what is no longer made."""
    found = make({**TINY, "probability": 0.25}, 0, 0, 3)
    assert found.digest() == "8200f1c7a800ad07"
