"""The headline of the arena's page, and accuracy over state: what follows from constructed numbers, and no more."""

import json
import re
from dataclasses import replace

from tests.report.arena_results import record

from longspan.arena.runs.cell import Record
from longspan.report.arena import arena_page
from longspan.report.arena_conclusions import learned
from longspan.report.arena_state import state_chart
from longspan.report.figures import write
from longspan.report.results import Results

ONE_SEED = "With one seed each, that is the noise of the test alone."


def results(**accuracies: dict[str, float]) -> Results:
    """One seed of each model on each task, 2000 test sequences: 50 % is ± 2.2, 90 % ± 1.3, 99 % ± 0.4."""
    return Results(
        [record(task, model, 0, value) for task, values in accuracies.items() for model, value in values.items()]
    )


def test_different_leaders() -> None:
    said = learned(
        results(
            mqar={"dense": 0.99, "window": 0.50, "linear": 0.20, "performer": 0.30, "lstm": 0.40},
            parity={"dense": 0.50, "window": 0.50, "linear": 0.50, "performer": 0.50, "lstm": 0.99},
        )
    )
    assert said == (
        "No kind of model is best at everything: dense models lead on MQAR (Transformer, 99.0 ± 0.4 %); recurrent "
        "models lead on Parity (Bidirectional LSTM, 99.0 ± 0.4 %). All 6 pairs of kinds differ by more than the noise "
        f"on at least one task. {ONE_SEED}"
    )


def test_one_leader_everywhere_and_pairs_that_are_alike() -> None:
    said = learned(
        results(
            mqar={"dense": 0.99, "window": 0.50, "linear": 0.51},
            parity={"dense": 0.90, "window": 0.52, "linear": 0.50},
        )
    )
    assert said == (
        "One kind of model is best at everything: dense models lead on MQAR (Transformer, 99.0 ± 0.4 %) and Parity "
        "(Transformer, 90.0 ± 1.3 %). 2 of 3 pairs of kinds differ by more than the noise on at least one task, all "
        f"but fixed pattern and kernel. {ONE_SEED}"
    )


def test_no_leader_on_one_task() -> None:
    said = learned(
        results(mqar={"dense": 0.90, "window": 0.90, "lstm": 0.50}, parity={"dense": 0.5, "window": 0.5, "lstm": 0.9})
    )
    assert said == (
        "Recurrent models lead on Parity (Bidirectional LSTM, 90.0 ± 1.3 %); on MQAR no kind is ahead of all others "
        "beyond the noise. 2 of 3 pairs of kinds differ by more than the noise on at least one task, all but dense and "
        f"fixed pattern. {ONE_SEED}"
    )


def test_nothing_differs_or_nothing_can() -> None:
    alike = {"dense": 0.50, "window": 0.51, "lstm": 0.49}
    assert learned(results(mqar=alike, parity=alike)) == (
        "No two kinds of models differ by more than the noise on MQAR, Parity: this run ranks none of them."
    )
    assert learned(results(mqar={"linear": 0.2, "performer": 0.9})) == ""  # one kind
    assert learned(Results([record("mqar", "dense", 0, None, state="failed", error="no")])) == ""
    two = learned(results(mqar={"dense": 0.9, "lstm": 0.5}))
    assert two == f"Dense models lead on MQAR (Transformer, 90.0 ± 1.3 %). {ONE_SEED}"
    seeds = [record("mqar", model, seed, value) for model, value in (("dense", 0.9), ("lstm", 0.5)) for seed in (0, 1)]
    assert learned(Results(seeds)) == "Dense models lead on MQAR (Transformer, 90.0 ± 1.3 %)."


def test_seeds_that_vary_more_than_they_differ_rank_nothing() -> None:
    # 90, 50 and 10 percent: ± 99 by Student's t, although each test alone has ± 2.
    records = [record("mqar", "dense", seed, value) for seed, value in enumerate((0.9, 0.5, 0.1))]
    records += [record("mqar", "lstm", seed, value) for seed, value in enumerate((0.05, 0.05, 0.05))]
    assert learned(Results(records)).startswith("No two kinds of models differ by more than the noise on MQAR")


def with_state(model: str, accuracy: float, state: int | None, **groups: float) -> Record:
    by = "tokens between a question and its key" if groups else None
    return replace(record("mqar", model, 0, accuracy), state_bytes=state, groups=groups, grouped_by=by)


def test_the_page_shows_state_and_parts_of_the_test(tmp_path) -> None:
    found = Results(
        [
            with_state("dense", 0.99, 16384, near=1.0, far=0.98),
            with_state("window", 0.40, 2048, near=0.9, far=0.06),
            with_state("inducing", 0.30, None),
        ]
    )
    page = re.sub(r"<[^>]*>", " ", arena_page(found, []))
    page = " ".join(page.split())
    assert page.count("The arena") == 2 and "Long Range Arena" not in page  # title and heading
    assert "Accuracy over state" in page and "by tokens between a question and its key" in page
    assert "Transformer 16 KiB" in page and "Local Attention 2 KiB" in page and "state 2,048 bytes" in page
    assert "90.0" in page and "6.0" in page
    names = [path.name for path in write(found, tmp_path)]
    assert "state_mqar.svg" in names
    assert state_chart(Results([with_state("dense", 0.99, 16384)]), "mqar") is None
    assert "Accuracy over state" not in arena_page(results(mqar={"dense": 0.9, "lstm": 0.5}), [])


def test_records_without_the_new_fields_are_read_and_wrong_ones_are_not() -> None:
    plain = with_state("dense", 0.99, 16384, near=1.0).plain()
    assert Record.read(json.loads(json.dumps(plain))).groups == {"near": 1.0}
    old = {name: value for name, value in plain.items() if name not in ("groups", "grouped_by", "state_bytes")}
    assert Record.read(old).state_bytes is None and Record.read(old).groups == {}
    for name, value in (("groups", {"near": 1.5}), ("groups", {"near": None}), ("state_bytes", -1)):
        try:
            Record.read({**plain, name: value})
        except ValueError as error:
            assert "near is" in str(error) or "state_bytes of a record must be" in str(error)
        else:
            raise AssertionError(f"{name} = {value} was read")
