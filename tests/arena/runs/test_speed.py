"""Cells of the efficiency table: what a record says, what does not fit, and the table's ratios."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longspan.arena.runs import speed
from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.speed import Protocol, SpeedSubject, estimate_memory, measure, protocol, table
from longspan.errors import InvalidOption
from longspan.measure import machine
from longspan.measure.footprint import kept
from longspan.measure.naive import Naive, materialise
from longspan.models.encoder import Encoder

QUICK = Protocol(batch=2, warm_up=1, repeats=3, least=3, limit_seconds=20)


class Reader(nn.Module):
    def __init__(self, length: int, layers: int = 2) -> None:
        super().__init__()
        self.encoder = Encoder(
            Encoder.Options(vocabulary=257, width=16, heads=2, layers=layers, hidden=32, max_length=length)
        )
        self.head = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.encoder(ids).mean(1))


def subject(length: int, *, naive: bool = False) -> SpeedSubject:
    torch.manual_seed(0)
    model = Reader(length)
    if naive:
        materialise(model)
    return SpeedSubject(model, torch.optim.AdamW(model.parameters(), fused=True), 257, 2, {"model": {"layers": 2}})


def cell(model: str = "dense", length: int = 64) -> Cell:
    return Cell(kind="speed", task="text", model=model, setting="tiny", length=length)


def test_a_record_is_complete_and_survives_json():
    said: list[str] = []
    record = measure(cell(), subject(64), QUICK, say=said.append)
    assert record.state == "done" and record.error is None and record.began is not None
    assert record.steps_per_second is not None and record.steps_per_second > 0
    assert record.memory is not None and record.memory_by == "resident"
    assert record.parameters == sum(each.numel() for each in Reader(64).parameters())
    assert record.machine.items() >= machine.describe().items()
    assert record.energy["joules"] is not None and record.energy["by"]
    options = record.options
    assert options["batch"] == 2 and options["repeats"] == record.steps == 3 and options["warm_up"] == 3
    assert options["saved_bytes"] > 0 and options["model"] == {"layers": 2}
    assert len(said) == 2 and all("dense at 64" in line for line in said)
    assert Record.read(json.loads(json.dumps(record.plain()))).plain() == record.plain()


@pytest.mark.parametrize("model", ["naive", "dense", "linear", "lstm"])
def test_a_cell_of_a_setting(model: str):
    record = speed.run(replace(cell(model, 32), seconds=0.0))
    assert record.state == "done" and record.parameters_ratio is not None and record.parameters_ratio < 1.1
    assert record.options["shell"]["width"] == 64 and record.options["shell"]["attention_dropout"] == 0.0
    assert record.options["batch"] == 4 and record.options["naive"] == (model == "naive")
    assert record.options["model"]["kind"] == {"linear": "kernel", "lstm": "recurrent"}.get(model, "dense")
    assert json.dumps(record.plain())


def test_naive_and_fused_are_one_model():
    ids = torch.randint(1, 257, (2, 48))
    naive, fused = (speed.prepare(cell(model, 48)).model.eval() for model in ("naive", "dense"))
    assert sum(isinstance(each, Naive) for each in naive.modules()) == 1
    assert not any(isinstance(each, Naive) for each in fused.modules())
    torch.testing.assert_close(naive(ids), fused(ids))


@pytest.mark.parametrize("given", [{"task": "listops"}, {"length": None}, {"length": 0}, {"kind": "accuracy"}])
def test_invalid_speed_cells_are_refused(given: dict[str, Any]):
    with pytest.raises(InvalidOption, match="a speed cell is of the task text and has a length"):
        speed.run(replace(cell(), **given))


def test_a_slow_step_is_measured_once():
    record = measure(cell(), subject(64), Protocol(1, 5, 30, 2, limit_seconds=0.0))
    assert record.options["warm_up"] == 3 and record.options["repeats"] == 1


@pytest.mark.parametrize("naive", [False, True])
def test_the_memory_of_a_longer_text_is_estimated_from_shorter_ones(naive: bool):
    found, length = subject(2048, naive=naive), 2048
    there = kept(speed._forward(found, 1, length, "cpu"), speed._weights(found.model))
    beside = 4 * sum(4 * each.numel() for each in found.model.parameters())
    expected = there.bytes + max(there.bytes / 2, 3 * there.largest) + beside
    assert estimate_memory(found, length, 1) == pytest.approx(expected, rel=0.02)
    assert (there.largest == 2 * length**2 * 4) == naive  # the scores of two heads


def test_a_cell_that_does_not_fit_into_memory_is_not_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "available", lambda: 2**20)
    monkeypatch.setattr(speed, "_measured", lambda *given: pytest.fail("it was tried"))
    record = measure(cell("naive", 64), subject(64, naive=True), replace(QUICK, batch=32))
    assert record.state == "memory" and record.steps_per_second is None
    assert record.error is not None
    assert record.error.startswith("naive at length 64 with batch 32 takes about 0.0 GiB, and 0.0 are free")
    assert record.options["estimated_bytes"] > 2**20 == record.options["free_bytes"]
    assert json.dumps(record.plain())


@pytest.mark.parametrize(
    "error",
    [MemoryError("no more"), RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 9 bytes")],
)
def test_memory_that_runs_out_after_all(error: Exception, monkeypatch: pytest.MonkeyPatch):
    def fail(*given: Any) -> Record:
        raise error

    monkeypatch.setattr(speed, "_measured", fail)
    record = measure(cell(), subject(64), QUICK)
    assert (
        record.state == "memory"
        and record.error == f"out of memory: dense at length 64 with batch {QUICK.batch}: {error}"
    )


def test_other_errors_stay_errors(monkeypatch: pytest.MonkeyPatch):
    def fail(*given: Any) -> Record:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr(speed, "_measured", fail)
    with pytest.raises(RuntimeError, match="do not fit"):
        measure(cell(), subject(64), QUICK)


def test_the_batch_depends_on_the_length_and_the_setting_alone():
    def work(length: int) -> float:
        return 1e3 * length**2

    batches = {length: protocol(cell(length=length), "cpu", work).batch for length in (1024, 2048, 4096, 8192, 16384)}
    assert batches == {1024: 2, 2048: 2, 4096: 2, 8192: 1, 16384: 1}  # 64e9 / (1e3 · 4096²) is 3.8
    assert protocol(cell("naive", 4096), "cpu", work) == protocol(cell("linear", 4096), "cpu", work)
    assert protocol(cell(), "cuda", work) == Protocol(32, 10, 30, 30, None)
    assert protocol(replace(cell(), seconds=5.0), "cpu", work).limit_seconds == 5.0


def record(model: str, length: int, speed: float, memory: int, saved: int, **given: Any) -> Record:
    return Record(
        cell=cell(model, length),
        state=given.pop("state", "done"),
        steps_per_second=speed,
        memory=memory,
        memory_by="resident",
        options={"batch": given.pop("batch", 2), "saved_bytes": saved},
        machine={name: given.pop(name, "A") for name in ("processor", "instructions")} | {"gpu": []},
    )


def test_the_ratios_of_the_table():
    rows = table(
        [
            record("linear", 1024, 8.0, 100, 50),
            record("naive", 1024, 2.0, 400, 500),
            record("dense", 1024, 4.0, 200, 100).plain(),  # as a line of a file has it
            record("linear", 2048, 4.0, 200, 100),
            Record(cell=Cell(task="listops", model="dense"), state="done", steps_per_second=1.0),
        ]
    )
    assert [(row["model"], row["length"]) for row in rows] == [
        ("naive", 1024),
        ("dense", 1024),
        ("linear", 1024),
        ("linear", 2048),
    ]
    linear = rows[2]
    assert (linear["steps_per_second"], linear["memory"], linear["saved"]) == (8.0, 100, 50)
    assert (linear["steps_per_second_to_naive"], linear["steps_per_second_to_fused"]) == (4.0, 2.0)
    assert (linear["memory_to_naive"], linear["memory_to_fused"]) == (0.25, 0.5)
    assert (linear["saved_to_naive"], linear["saved_to_fused"]) == (0.1, 0.5)
    assert rows[0]["steps_per_second_to_naive"] == rows[1]["steps_per_second_to_fused"] == 1.0
    assert rows[3]["steps_per_second_to_naive"] is None  # nothing of that length to hold it against


def test_only_records_of_equal_conditions_are_compared():
    for other in ({"batch": 4}, {"processor": "B"}, {"instructions": "B"}, {"state": "memory"}):
        rows = table([record("naive", 1024, 2.0, 400, 500, **other), record("linear", 1024, 8.0, 100, 50)])
        assert [row["steps_per_second_to_naive"] for row in rows if row["model"] == "linear"] == [None]


def test_of_a_cell_that_was_run_again_the_last_counts():
    failed = Record(cell=cell("linear", 1024), state="failed", error="killed")
    rows = table([failed, record("linear", 1024, 1.0, 1, 1), record("linear", 1024, 3.0, 1, 1)])
    assert [row["steps_per_second"] for row in rows] == [3.0]
    (row,) = table([record("linear", 1024, 1.0, 1, 1), failed])
    assert row["state"] == "failed" and row["error"] == "killed" and row["steps_per_second"] is None
