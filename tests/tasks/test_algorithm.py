"""Algorithmic problems: right targets, batches as a decoder and an encoder–decoder read them, and exact counts."""

import math
from pathlib import Path

import pytest
import torch
from tests.tasks.small import run

from longspan.data.sets.algorithms import BEGIN, END, PROBLEMS, Algorithm, alphabet, tokenizer
from longspan.errors import InvalidOption, Unsupported
from longspan.models import build
from longspan.tasks import registry
from longspan.tasks.algorithm import AlgorithmMetrics, LevelCounts, SolveProblem
from longspan.tasks.base import DataPaths

SMALL = {"width": 16, "layers": 1, "heads": 2, "hidden": 16, "dropout": 0.0}


def data(problem: str, low: int = 1, high: int = 6, seed: int = 3, **changes: object) -> Algorithm:
    given = {"symbols": 5, "sizes": (low, high), "examples": 200, "batch": 7, "seed": seed, "fixed": False, **changes}
    return Algorithm(problem, **given)  # type: ignore[arg-type]


def spelled(problem: str, numbers: list[int]) -> str:
    return "".join(alphabet(problem, 5)[number] for number in numbers)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_every_target_is_right(problem: str) -> None:
    levels = set()
    for number in range(200):
        solved = data(problem).example(number, epoch=1)
        source, target = spelled(problem, solved.source), spelled(problem, solved.target)
        if problem == "addition":
            first, second = source.split("+")
            assert len(first) == len(second) and len(target) == len(first) + 1
            assert int(first) + int(second) == int(target)
            assert solved.level == longest_carry(first, second)
        elif problem == "expression":
            assert eval(source) % 10 == int(target)
            depths = [source[:end].count("(") - source[:end].count(")") for end in range(len(source) + 1)]
            assert solved.level == max(depths)
        else:
            assert solved.level == len(source)
            wanted = {
                "copy": source,
                "reverse": source[::-1],
                "sort": "".join(sorted(source)),
                "duplicate": source + source,
                "parity": str(source.count("1") % 2),
            }
            assert target == wanted[problem]
        levels.add(solved.level)
    assert {1, 2, 3, 4} <= levels if problem == "addition" else levels == {1, 2, 3, 4, 5, 6}


def longest_carry(first: str, second: str) -> int:
    """Carries in a row: of the sums of the last digits, those that are too long for them."""
    carried = [int(int(first[-n:]) + int(second[-n:]) >= 10**n) for n in range(1, len(first) + 1)]
    return max(map(len, "".join(map(str, carried)).split("0")))


def test_a_batch_for_decoders_and_for_encoder_decoders() -> None:
    rows = data("reverse")
    batch = rows.load([4, 5, 6], epoch=0)
    for row, number in enumerate([4, 5, 6]):
        solved = rows.example(number, 0)
        source, target = [3 + n for n in solved.source], [*(3 + n for n in solved.target), END]
        length = len(source)
        assert batch["source"][row, :length].tolist() == source and int(batch["source_mask"][row].sum()) == length
        assert batch["ids"][row, : len(target)].tolist() == [BEGIN, *target[:-1]]
        assert batch["targets"][row].tolist() == target + [-100] * (batch["targets"].shape[1] - len(target))
        text = [BEGIN, *source, BEGIN, *target[:-1]]
        assert batch["text"][row, : len(text)].tolist() == text
        answers = [number for number in batch["text_targets"][row].tolist() if number != -100]
        assert answers == target and batch["text_targets"][row, : length + 1].eq(-100).all()
        assert int(batch["level"][row]) == length


def test_examples_depend_on_seed_epoch_and_number_only() -> None:
    rows, fixed = data("sort"), data("sort", fixed=True)
    assert rows.example(8, 2) == data("sort").example(8, 2) != rows.example(8, 3)
    assert fixed.example(8, 2) == fixed.example(8, 3) == rows.example(8, 0)
    assert rows.example(8, 2) != data("sort", seed=4).example(8, 2)
    assert [len(batch) for batch in data("sort", examples=15).batches(0)] == [7, 7, 1]
    assert rows.fingerprint() == (
        "sort of 5 symbols, sizes 1 to 6, 200 examples, new in every epoch, batches of 7, seed 3"
    )


def test_symbols_are_read_and_written() -> None:
    single, many = tokenizer("expression", 10), tokenizer("copy", 64)
    assert single.encode("(3+4)").ids == single.encode("( 3 + 4 )").ids == [15, 6, 13, 7, 16]
    assert many.encode("63 0 7").ids == [66, 3, 10] and many.size == 67 and (many.bos, many.eos, many.pad) == (1, 2, 0)


def test_exact_targets_and_accuracy_by_a_hand_count() -> None:
    rows = data("copy", 2, 3, examples=3)
    batch = rows.load([0, 1, 2], 0)
    model = build("decoder", vocabulary=8, **SMALL)
    targets = batch["text_targets"]
    logits = torch.zeros(*targets.shape, 8).scatter(2, targets.clamp_min(0)[..., None], 5.0)
    place = int((targets[1] != -100).nonzero()[0])
    logits[1, place] = 0.0
    logits[1, place, 7 if int(targets[1, place]) != 7 else 6] = 5.0  # one symbol of the second example is wrong
    model.text_logits = lambda ids: logits  # type: ignore[method-assign]
    metrics, _ = SolveProblem("length").measure(model, batch)
    total = int((targets != -100).sum())
    found = metrics.result()
    right = math.log(math.exp(5) + 7) - 5
    assert found["loss"] == pytest.approx(((total - 1) * right + right + 5) / total, rel=1e-6)
    assert found["accuracy"] == (total - 1) / total and found["exact"] == 2 / 3 and "steps" not in found
    assert sum(row["said"]["right"] for row in metrics.table()) == 2
    assert {row["label"] for row in metrics.table()} <= {"length 2", "length 3"}


def test_levels_are_reported_one_by_one_or_joined() -> None:
    few = AlgorithmMetrics(levels={1: LevelCounts(4, 3, 8.0, 4), 3: LevelCounts(2, 0, 6.0, 2)}, name="depth")
    few.each_level = True
    assert few.result() == {
        "exact_depth_1": 0.75, "steps_depth_1": 2.0, "exact_depth_3": 0.0, "steps_depth_3": 3.0
    }  # fmt: skip
    many = AlgorithmMetrics(levels={n: LevelCounts(1, n % 2) for n in range(1, 25)}, name="length", each_level=True)
    assert len(many.result()) == 12 and many.result()["exact_length_1_to_2"] == 0.5


@pytest.mark.parametrize("name", ["universal_decoder", "universal"])
def test_steps_of_a_model_that_halts_count_real_positions_only(name: str) -> None:
    torch.manual_seed(0)
    model = build(name, vocabulary=8, halting=True, max_steps=4, **SMALL).eval()
    batch = data("copy", 1, 6).load([0, 1, 2, 3], 0)
    with torch.no_grad():
        together, _ = SolveProblem("length").measure(model, batch)
        alone = AlgorithmMetrics(name="length")
        for number in range(4):
            alone.add(SolveProblem("length").measure(model, data("copy", 1, 6).load([number], 0))[0])
    assert together.result() == pytest.approx(alone.result(), rel=1e-5) and 1 <= together.result()["steps"] <= 4
    counts = model.halting_steps()
    assert list(counts) == (["stack"] if name == "universal_decoder" else ["encoder", "decoder"])
    plain = build("universal_decoder", vocabulary=8, **SMALL)
    plain(batch["text"])
    assert plain.halting_steps() == {}


@pytest.mark.parametrize("name", ["decoder", "universal"])
def test_a_problem_is_learned(tmp_path: Path, name: str) -> None:
    options = {"halting": True, "max_steps": 3} if name == "universal" else {}
    task = {"name": "algorithm", "problem": "reverse", "symbols": 3, "largest": 2, "batch": 16, "held_out_examples": 60}
    sizes = {**SMALL, "width": 32, **options}
    found = run(tmp_path / "run", task, {"name": name, **sizes}, steps=250, schedule={"kind": "constant", "rate": 1e-2})
    assert found["exact"] > 0.5 and "exact_length_2" in found and ("steps" in found) == bool(options)


def test_options_and_models_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="smallest is 9, above largest, 4"):
        registry.build("algorithm", smallest=9, largest=4).prepare(DataPaths(None, tmp_path))
    with pytest.raises(InvalidOption, match="test_smallest is 21, above test_largest, 20"):
        registry.build("algorithm", test_smallest=21).prepare(DataPaths(None, tmp_path))
    with pytest.raises(Unsupported, match="the task 'algorithm' needs a model that predicts the next token"):
        SolveProblem("length").measure(build("encoder", vocabulary=8, **SMALL), data("copy").load([0], 0))


def test_the_test_set_may_have_other_sizes_and_is_the_same_for_every_seed(tmp_path: Path) -> None:
    task = registry.build("algorithm", problem="addition", largest=3, test_smallest=5, test_largest=6)
    one, other = (task.prepare(DataPaths(None, tmp_path, seed)) for seed in (0, 1))
    assert one.facts["test sizes"] == "5 to 6" and one.facts["sizes"] == "1 to 3"
    assert one.test.fingerprint() == other.test.fingerprint() != one.held_out.fingerprint()
    assert one.train.fingerprint() != other.train.fingerprint()
    assert one.test.load([0], 0)["source"].shape[1] in (11, 13)
