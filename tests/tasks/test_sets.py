"""The task `sets`: what is drawn, losses by hand, and that a model learns."""

import math
from pathlib import Path

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal
from torch.nn.functional import softplus

from longspan.errors import InvalidOption, Unsupported
from longspan.models import build as build_model
from longspan.tasks.base import DataPaths
from longspan.tasks.registry import build
from longspan.tasks.sets import mixture_log_likelihood
from longspan.train import recipe
from longspan.train.fit import train


def folders(tmp_path: Path) -> DataPaths:
    return DataPaths(None, tmp_path, 0)


def test_what_is_drawn(tmp_path: Path):
    prepared = build("sets", largest=6, examples=40).prepare(folders(tmp_path))
    batch = prepared.train.load(range(40), 0)
    sizes = batch["mask"].sum(1)
    assert set(sizes.tolist()) == {1, 2, 3, 4, 5, 6}
    assert torch.equal(batch["elements"][..., 0].amax(1), batch["target"])
    one = prepared.train.load([7], 0)["elements"][0]
    assert torch.equal(batch["elements"][7, : len(one)], one)  # whatever the batch
    assert not torch.equal(prepared.train.load([7], 1)["target"], batch["target"][7:8])
    held_out = [prepared.held_out.load([3], epoch)["target"] for epoch in (0, 1)]
    assert torch.equal(*held_out)


def test_the_likelihood_is_that_of_a_mixture_of_gaussians(tmp_path: Path):
    torch.manual_seed(0)
    out, points = torch.randn(2, 4, 5, dtype=torch.float64), torch.randn(2, 7, 2, dtype=torch.float64)
    mask = torch.arange(7) < torch.tensor([[7], [4]])
    for row in range(2):
        scales = softplus(out[row, :, 3:]) + 1e-3
        mixture = MixtureSameFamily(
            Categorical(logits=out[row, :, 0]), Independent(Normal(out[row, :, 1:3], scales), 1)
        )
        expected = mixture.log_prob(points[row][mask[row]]).mean()
        torch.testing.assert_close(mixture_log_likelihood(out, points, mask)[row], expected)


def test_the_truth_is_scored_by_its_own_mixture(tmp_path: Path):
    """With many points the mean log-likelihood nears minus the entropy of separate clusters."""
    prepared = build("sets", problem="clusters", clusters=1, smallest=4000, largest=4000, examples=2).prepare(
        folders(tmp_path)
    )
    expected = -math.log(2 * math.pi * math.e * 0.3**2)
    assert prepared.train.load([0], 0)["target"].item() == pytest.approx(expected, abs=0.05)


def test_clusters_are_learned(tmp_path: Path):
    task = {"name": "sets", "problem": "clusters", "smallest": 3, "largest": 8, "held_out_examples": 64}
    model = {"name": "set_transformer", "width": 16, "heads": 2, "points": 4}
    options = {"steps": 60, "schedule": {"kind": "constant", "rate": 1e-2}}
    trainer = recipe.begin(recipe.Recipe(task, model, options, "here"), tmp_path / "run", data=None)
    untrained, _ = trainer.objective.measure(trainer.model.eval(), trainer.data.load(range(64), 0))
    assert train(trainer)["log_likelihood"] > untrained.result()["log_likelihood"] + 1


def test_what_does_not_fit_is_refused(tmp_path: Path):
    with pytest.raises(InvalidOption, match="largest must be at least smallest, 5, not 2"):
        build("sets", smallest=5, largest=2).prepare(folders(tmp_path))
    prepared = build("sets").prepare(folders(tmp_path))
    with pytest.raises(Unsupported, match="the task 'sets' needs a model of sets of numbers"):
        model = build_model("decoder", vocabulary=5, width=8, layers=1, heads=1, hidden=8)
        prepared.objective.loss(model, prepared.train.load([0], 0))
