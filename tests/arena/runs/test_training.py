"""One cell from its task to its record."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.arena.toy import PRESET, SHELL, VOCABULARY, Toy

from longspan.arena import settings
from longspan.arena.models import registry as arena_models
from longspan.arena.runs import grid, process, results, training
from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.pretraining import HiddenRows, share_of
from longspan.arena.tasks import registry as arena_tasks
from longspan.arena.tasks.examples import SequenceData
from longspan.arena.tasks.registry import DataFolders
from longspan.errors import InvalidInput, InvalidOption, Unsupported


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataFolders:
    """Where the toy is a task of `tiny`; no memory is given back, which would hold for all later tests."""

    def build(name: str, options: Any) -> Toy:
        return Toy(Toy.Options(**options))

    monkeypatch.setattr(arena_tasks, "build", build)
    monkeypatch.setitem(settings.SETTINGS["tiny"], "toy", PRESET)
    monkeypatch.setattr(training, "keep_memory", lambda: False)
    monkeypatch.setattr(training, "_memory", lambda device, before=None: 1)
    monkeypatch.setattr(training, "commit", lambda: "a commit")
    return DataFolders(None, tmp_path)


def with_preset(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    monkeypatch.setitem(settings.SETTINGS["tiny"], "toy", replace(PRESET, **changes))


def toy(**values: Any) -> Cell:
    return Cell(task="toy", model=values.pop("model", "dense"), **values)


def test_a_record_holds_all_of_a_cell(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    with_preset(monkeypatch, shell={**SHELL, "pool": "first", "dropout": 0.0})
    told: list[Any] = []
    record = training.run(toy(steps=30), place, told.append)
    assert record.state == "done" and record.error is None
    assert record.accuracy is not None and record.accuracy > 0.9 > record.baselines["majority"]
    assert record.test_count == 48 and record.steps == 30 and record.best_step in {10, 20, 30}
    assert [row["step"] for row in record.curve] == [10, 20, 30]
    assert record.held_out == max(row["held_out"] for row in record.curve)
    assert record.seconds == record.curve[-1]["seconds"] and record.steps_per_second == 30 / (record.seconds or 1)
    assert record.parameters_ratio == 1 and record.flagged is None and record.memory_by == "resident"
    assert record.data["toy"] == 1 and record.data["length"] == 12
    assert record.options["shell"]["width"] == 16 and record.options["train"]["steps"] == 30
    assert record.machine["torch"] == torch.__version__ and "commit" in record.machine
    assert told[-1] == {"step": 30, "steps": 30, "held_out": record.curve[-1]["held_out"]}
    again = Record.read(json.loads(json.dumps(record.plain())))
    assert again.cell == record.cell and again.accuracy == record.accuracy


@pytest.mark.parametrize("name", arena_models.names())
def test_every_entrant_trains(name: str, place: DataFolders):
    record = training.run(toy(model=name, steps=2), place)
    assert record.state == "done" and record.accuracy is not None
    assert all(math.isfinite(row["loss"]) for row in record.curve)
    assert record.options["model"]["kind"] == arena_models.find(name).kind


@pytest.mark.parametrize("task", [{"texts": 2}, {"grid": True}])
@pytest.mark.parametrize("name", ["dense", "axial", "image_local", "retention", "lstm"])
def test_two_texts_and_images(name: str, task: Any, place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    with_preset(monkeypatch, task=task)
    assert training.run(toy(model=name, steps=2), place).state == "done"


@pytest.mark.parametrize("pretrain", [False, True])
def test_the_same_cell_gives_the_same(pretrain: bool, place: DataFolders):
    one, other = (training.run(toy(model="bigbird", pretrain=pretrain), place) for _ in range(2))
    kept = ("accuracy", "held_out", "best_step", "steps", "parameters", "baselines", "data", "flagged")
    assert all(getattr(one, name) == getattr(other, name) for name in kept)
    assert [row["loss"] for row in one.curve] == [row["loss"] for row in other.curve]
    third = training.run(toy(model="bigbird", pretrain=pretrain, seed=1), place)
    assert [row["loss"] for row in one.curve] != [row["loss"] for row in third.curve]
    assert one.data == third.data


def test_a_budget_in_seconds_is_repeated_by_its_steps(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    ticks = iter(range(1_000_000))
    with monkeypatch.context() as patched:
        patched.setattr(training, "clock", lambda: float(next(ticks)))
        record = training.run(toy(seconds=32.0), place)
    # By this clock each update takes a second: four are timed until a tenth is gone, and reading it takes another.
    assert record.steps == 32 - 5
    again = training.run(toy(steps=record.steps), place)
    assert (again.accuracy, again.best_step) == (record.accuracy, record.best_step)
    assert [row["loss"] for row in again.curve] == [row["loss"] for row in record.curve]


def test_self_pre_training_shares_the_budget(place: DataFolders):
    record = training.run(toy(steps=7, pretrain=True), place)
    before = record.options["pretraining"]
    assert record.steps == 7 and before["steps"] == 3 and record.options["train"]["steps"] == 4
    assert before["curve"][-1]["step"] == 3 and [row["step"] for row in record.curve] == [5, 7]
    assert before["hidden"] == 0.15 and 0 < before["best_loss"] < 5
    assert record.seconds == pytest.approx(before["seconds"] + record.curve[-1]["seconds"])
    assert record.parameters == training.run(toy(steps=2), place).parameters  # the mask does not count
    assert record.cell.key != toy().key


def test_a_share_of_the_real_tokens_is_hidden(tmp_path: Path):
    for task in ({}, {"texts": 2}, {"grid": True}):
        splits = Toy(Toy.Options(**task)).splits(DataFolders(None, tmp_path))
        rows = SequenceData(splits.train, 8, length=12, padded=splits.padded)
        data = HiddenRows(rows, 0.5, VOCABULARY)
        batch = data.load([3, 5, 9], 0)
        ids, hidden = batch["ids"], batch["hidden"]
        real = batch.get("key_mask", torch.ones_like(hidden))
        assert len(ids) == 3 * splits.train.texts and not (hidden & ~real).any()
        assert torch.equal(ids == VOCABULARY, hidden)
        assert torch.equal(torch.where(hidden, batch["original"], ids), batch["original"])
        assert ((hidden.sum(1) - 0.5 * real.sum(1)).abs() <= 0.5).all()
        assert torch.equal(data.load([9], 0)["hidden"][0, :4], hidden[2, :4])  # whatever batch it is in
        assert not torch.equal(data.load([3, 5, 9], 1)["hidden"], hidden)
    assert (share_of("image"), share_of("text"), share_of("listops")) == (0.5, 0.15, 0.1)


def test_pixels_are_guessed_by_their_value(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Toy, "pixels", True)
    with_preset(monkeypatch, task={"grid": True})
    before = training.run(toy(steps=8, pretrain=True), place).options["pretraining"]
    assert before["loss"] == "distance of pixel values" and before["best_loss"] < 1


def test_a_loss_that_is_no_number_fails_the_cell(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    with_preset(monkeypatch, training=replace(PRESET.training, rate=1e30, clip=0.0))
    record = process.attempt(toy(steps=30), place)
    assert record.state == "failed" and "the loss was nan at step" in (record.error or "")
    assert record.error is not None and "\n" not in record.error


@pytest.mark.parametrize(
    ("raised", "state", "said"),
    [
        (MemoryError(), "memory", "MemoryError"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), "memory", "can't allocate"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory", "out of memory"),
        (Unsupported("cannot\ndo this"), "failed", "cannot do this"),
        (KeyError("x"), "failed", "KeyError: 'x'"),
    ],
)
def test_failures_become_records(raised: Exception, state: str, said: str, place: DataFolders, monkeypatch: Any):
    def fail(*_: Any) -> None:
        raise raised

    monkeypatch.setattr(training, "run", fail)
    record = process.attempt(toy(), place)
    assert record.state == state and said in (record.error or "") and record.cell == toy()


def test_out_of_memory_says_the_length_and_the_batch(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(training._Bench, "train", fail)
    record = process.attempt(toy(), place)
    assert record.state == "memory" and record.error == (
        "out of memory: dense at length 12 with batch 8: RuntimeError: DefaultCPUAllocator: can't allocate memory: you "
        "tried to allocate 9 bytes"
    )


def test_mistakes_are_refused(place: DataFolders):
    with pytest.raises(InvalidOption, match="speed cells only"):
        training.run(toy(model="naive"), place)
    assert "did you mean 'performer'" in (process.attempt(toy(model="perfomer"), place).error or "")
    assert "of the kind" in (process.attempt(toy(kind="other"), place).error or "")


def test_a_process_reads_a_cell_and_writes_its_record(
    place: DataFolders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    given, out = tmp_path / "cell.json", tmp_path / "out.json"
    given.write_text(json.dumps(toy(steps=4).plain()))
    assert process.main([str(given), str(out)]) == 0
    record = Record.read(json.loads(out.read_text()))
    assert record.state == "done" and record.cell == toy(steps=4)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[-1]["step"] == lines[-1]["steps"] == 4 and lines[-1]["held_out"] == record.curve[-1]["held_out"]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["cell.json", "out.json"]
    given.write_text(json.dumps({**toy().plain(), "model": "none"}))
    assert process.main([str(given), str(out)]) == 1
    assert Record.read(json.loads(out.read_text())).state == "failed"


@pytest.mark.parametrize(
    ("text", "said"),
    [("{", "is not JSON"), ("[]", "is no cell"), ('{"task": "a", "model": "b", "sead": 1}', "no sead")],
)
def test_a_file_that_is_no_cell(text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    given = tmp_path / "cell.json"
    given.write_text(text)
    with pytest.raises(InvalidInput, match=said):
        process.read(given)
    assert process.main([str(given), str(tmp_path / "out.json")]) == 2
    assert said in capsys.readouterr().err
    assert process.main([]) == 2
    with pytest.raises(InvalidInput, match="cannot be read"):
        process.read(tmp_path / "nothing.json")


SMALL_PARITY = settings.ArenaSetting(
    {"trained_length": 4, "length": 8, "train": 10, "held_out": 4, "test": 6},
    settings.shell(1, 2, 16, 16, 16, dropout=0.0, attention_dropout=0.0, pool="each", position="rotary"),
    settings.Training(steps=6, batch=4, rate=1e-2, evaluations=2, enough=True),
)


@pytest.mark.parametrize("name", arena_models.names())
def test_labels_at_tokens_train_every_model(name: str, place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arena_tasks, "build", _build)  # not the toy
    monkeypatch.setitem(settings.SETTINGS["tiny"], "parity", SMALL_PARITY)
    record = training.run(Cell(task="parity", model=name, steps=1), place)
    assert record.state == "done" and record.test_count == 6  # sequences: tokens of one are not independent
    assert set(record.groups) == {"5–8"} and record.groups["5–8"] == record.accuracy
    assert record.data["labelled"] == {"train": 40, "held_out": 16, "test": 24}
    assert set(record.baselines) == {"majority", "last_bit", "table_of_counts"}


def test_a_grid_with_labels_at_tokens_resumes(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(arena_tasks, "build", _build)
    monkeypatch.setitem(settings.SETTINGS["tiny"], "parity", SMALL_PARITY)
    arguments = grid.Arguments(tasks=("parity",), models=("linear", "lstm"), seeds=1)
    folder = results.Folder(place.cache)
    cells = folder.begin(arguments, grid.plan(arguments))
    first = training.run(cells[0], place)
    folder.append(first)
    assert results.left(folder.begin(arguments, cells), folder.records()) == cells[1:]
    (kept,) = folder.records()
    assert (kept.groups, kept.grouped_by, kept.state_bytes) == (first.groups, first.grouped_by, first.state_bytes)
    assert training.run(replace(cells[0], steps=kept.steps), place).accuracy == kept.accuracy


def _build(name: str, options: Any) -> Any:
    task = arena_tasks.find(name)
    return task(task.Options(**options))


def test_a_budget_allows_no_more_steps_than_are_enough(place: DataFolders, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training._Bench, "affordable", lambda self, seconds, model: int(seconds))
    with_preset(monkeypatch, training=replace(PRESET.training, enough=True))
    assert training.run(toy(seconds=4.0), place).steps == 4
    assert training.run(toy(seconds=9.0), place).steps == PRESET.training.steps == 6
    assert training.run(toy(steps=9), place).steps == 9
    with_preset(monkeypatch)
    assert training.run(toy(seconds=9.0), place).steps == 9


def test_labels_at_tokens_are_counted_where_they_are():
    class Fixed(torch.nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(ids, 3).float() * 10

        def auxiliary_loss(self) -> None:
            return None

    ids, label = torch.tensor([[0, 1, 2], [2, 2, 0]]), torch.tensor([[-100, 1, 0], [2, -100, -100]])
    batch = {"ids": ids, "label": label, "group": torch.tensor([[0, 0, 1], [1, 0, 0]])}
    objective = training.Classes(3, ("near", "far"))
    assert objective.count(batch) == 3
    metrics, _ = objective.measure(Fixed(), batch)  # type: ignore[arg-type]
    other, _ = objective.measure(Fixed(), batch)  # type: ignore[arg-type]
    metrics.add(other)
    result = metrics.result()
    wrong, right = math.log(math.exp(10) + 2), math.log(1 + 2 * math.exp(-10))
    assert result["accuracy"] == pytest.approx(2 / 3) and result["loss"] == pytest.approx((wrong + 2 * right) / 3)
    assert result["accuracy near"] == 1.0 and result["accuracy far"] == 0.5
    loss = objective.loss(Fixed(), {name: batch[name] for name in ("ids", "label")}).total  # type: ignore[arg-type]
    assert float(loss) == pytest.approx(wrong + 2 * right, rel=1e-5)
