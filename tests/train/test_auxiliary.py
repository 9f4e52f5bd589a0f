"""Auxiliary losses in training: of the model, whatever the objective, and of heads that agree."""

from pathlib import Path

import pytest
import torch
from tests.train.toy import Counting, NextToken, trainer

from longspan.errors import InvalidOption
from longspan.models import build
from longspan.nn.disagreement import cosine_agreement
from longspan.train.loop import Trainer
from longspan.train.options import TrainOptions
from longspan.train.run import Run


def losses(training: Trainer, steps: int = 4) -> list[dict[str, float]]:
    rows = []
    for row in training.updates():
        rows.append(dict(row))
        if len(rows) == steps:
            return rows
    return rows


def test_disagreement_is_added_and_logged(tmp_path: Path):
    training = trainer(tmp_path / "run", dropout=0.0, disagreement="outputs", disagreement_weight=0.25)
    seen = []
    hooks = [
        block.mixer.mechanism.register_forward_hook(
            lambda module, heads, out: seen.append(cosine_agreement(out).item())
        )
        for block in training.model.stack.blocks
    ]
    (row,) = losses(training, 1)
    for hook in hooks:
        hook.remove()
    assert row["auxiliary"] == pytest.approx(0.25 * sum(seen) / len(seen), abs=1e-6)
    assert row["loss"] == pytest.approx(row["task"] + row["auxiliary"], abs=1e-6)
    plain = trainer(tmp_path / "plain", dropout=0.0)
    (expected,) = losses(plain, 1)
    assert row["task"] == pytest.approx(expected["loss"], abs=1e-6) and "auxiliary" not in expected


def test_recomputed_and_compiled_passes_learn_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compile_model = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda self: compile_model(self, backend="eager"))
    given = {"dropout": 0.0, "disagreement": ("values", "positions", "outputs")}
    expected = losses(trainer(tmp_path / "plain", **given))
    for way in ({"recompute": True}, {"compile": True}):
        rows = losses(trainer(tmp_path / str(way), **given, **way))
        assert [row["loss"] for row in rows] == pytest.approx([row["loss"] for row in expected], abs=1e-5)


def test_heads_come_to_differ(tmp_path: Path):
    training = trainer(tmp_path / "run", dropout=0.0, steps=60, disagreement=("outputs",), disagreement_weight=10.0)
    rows = losses(training, 60)
    assert rows[-1]["auxiliary"] < 0.8 * rows[0]["auxiliary"]


def test_an_unknown_kind_is_refused_before_training(tmp_path: Path):
    with pytest.raises(InvalidOption, match="disagreement must be of values, positions, outputs, not subspace"):
        trainer(tmp_path / "run", disagreement="subspace")


def test_the_losses_of_a_mechanism_count_with_any_objective(tmp_path: Path):
    """Routing's commitment loss used to be ignored by objectives that did not ask for it, such as classification."""
    torch.manual_seed(0)
    routing = {"name": "routing", "clusters": 2, "window": 3, "commitment": 1.0}
    model = build("decoder", vocabulary=11, width=16, layers=1, heads=2, hidden=8, attention=routing)
    training = Trainer(Run(tmp_path / "run"), model, Counting(), NextToken(), TrainOptions(steps=2))
    (row, _) = losses(training, 2)
    assert row["auxiliary"] > 0 and row["loss"] == pytest.approx(row["task"] + row["auxiliary"], rel=1e-5)
