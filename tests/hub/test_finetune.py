"""Pretrained models with heads for other tasks, and what of them is trained."""

from pathlib import Path

import pytest
import torch
from tests.tasks.small import pretrained, run

from longspan import hub
from longspan.adapt.quantize import quantize
from longspan.errors import InvalidOption, Unsupported
from longspan.hub.finetune import freeze, on_frozen_features, tune
from longspan.models import build
from longspan.models.base import ReplacedTokenPair
from longspan.nn.heads import Head
from longspan.train.optim import Optimizer

HEAD = Head(task="classify", labels=3, names=("a", "b", "c"))


def test_the_body_is_unchanged_and_the_head_is_new(tmp_path: Path) -> None:
    before = hub.load(pretrained(tmp_path)).model.state_dict()
    found = tune(tmp_path, [HEAD])
    after = found.model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert found.fresh == ["heads.classify.out.weight", "heads.classify.out.bias"]
    assert found.model.options.tasks[0].names == ("a", "b", "c")


def test_a_trained_head_is_kept_if_requested_again(tmp_path: Path) -> None:
    first = tune(pretrained(tmp_path / "body"), [HEAD]).model
    first.save(tmp_path / "tuned")
    again, other = tune(tmp_path / "tuned", [HEAD]), tune(tmp_path / "tuned", [Head(task="classify", labels=2)])
    assert again.fresh == [] and other.fresh
    assert torch.equal(again.model.heads["classify"].out.weight, first.heads["classify"].out.weight)


def test_of_a_generator_and_a_discriminator_the_discriminator_is_tuned(tmp_path: Path) -> None:
    pair = build("electra", width=32, layers=1, heads=2, hidden=64, vocabulary=50, generator_fraction=0.5)
    assert isinstance(pair, ReplacedTokenPair)
    pair.save(tmp_path)
    found = tune(tmp_path, [HEAD])
    assert not isinstance(found.model, ReplacedTokenPair)
    assert torch.equal(
        found.model.get_parameter("embedding.weight"), pair.discriminator.get_parameter("embedding.weight")
    )


def test_labels_are_saved_in_folders_of_hugging_face(tmp_path: Path) -> None:
    model = build("bert-base", width=32, layers=1, heads=2, hidden=64, vocabulary=50, tasks=None)
    hub.save(model, tmp_path / "body", family="bert")
    found = tune(tmp_path / "body", [HEAD])
    hub.save(found, tmp_path / "tuned")
    assert hub.load(tmp_path / "tuned").labels == ["a", "b", "c"]


@pytest.mark.parametrize(("trained", "blocks"), [("head", []), (1, [1]), (2, [0, 1])])
def test_frozen_parameters_are_in_no_group(tmp_path: Path, trained: str | int, blocks: list[int]) -> None:
    model = tune(pretrained(tmp_path), [HEAD]).model
    freeze(model, trained)
    names = [name for named, _, _ in Optimizer().groups(model).values() for name, _ in named]
    assert {int(name.split(".")[2]) for name in names if name.startswith("stack.blocks")} == {*blocks}
    assert all(name.startswith(("heads.", "stack.blocks.")) for name in names) and "heads.classify.out.weight" in names


def test_training_the_head_alone_leaves_the_body_bit_identical(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "good film\tx\nbad film\ty\n" * 10)
    body = hub.load(pretrained(tmp_path / "body")).model.state_dict()
    task = {"name": "classify", "train": str(tmp_path / "a.tsv")}
    run(tmp_path / "run", task, {"from": str(tmp_path / "body"), "trained": "head"}, steps=5)
    after = hub.load(tmp_path / "run" / "model").model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in body.items())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
@pytest.mark.parametrize("features", ["last", "mix"])
def test_frozen_features_leave_the_body_bit_identical(tmp_path: Path, kind: str, features: str) -> None:
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "good film\tx\nbad film\ty\n" * 10)
    body = hub.load(pretrained(tmp_path / "body", kind)).model.state_dict()
    task = {"name": "classify", "train": str(tmp_path / "a.tsv")}
    run(tmp_path / "run", task, {"from": str(tmp_path / "body"), "features": features}, steps=3)
    after = hub.load(tmp_path / "run" / "model").model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in body.items())


def test_frozen_features_are_a_frozen_body_and_options_of_the_head() -> None:
    table = {"features": "concat4", "head": {"pool": "mean"}}
    on_frozen_features(table)
    assert table == {"trained": "head", "head": {"pool": "mean", "features": "concat", "depth": 4}}
    with pytest.raises(InvalidOption, match="features must be one of last, sum4, concat4, mix, not 'sum'"):
        on_frozen_features({"features": "sum"})
    with pytest.raises(InvalidOption, match="of a frozen body: leave out trained, which is 'all'"):
        on_frozen_features({"features": "mix", "trained": "all"})
    with pytest.raises(InvalidOption, match="features are given twice"):
        on_frozen_features({"features": "mix", "head": {"features": "sum"}})


def test_a_quantised_model_is_not_trained(tmp_path: Path) -> None:
    quantize(build("decoder", width=32, layers=1, heads=2, vocabulary=64), 8).model.save(tmp_path)
    with pytest.raises(Unsupported, match=r"is quantised \(bits 8\): change or train the original"):
        tune(tmp_path, [])


def test_impossible_requests_are_refused(tmp_path: Path) -> None:
    model = tune(pretrained(tmp_path), [HEAD]).model
    with pytest.raises(InvalidOption, match="2 blocks, fewer than the 3"):
        freeze(model, 3)
    with pytest.raises(InvalidOption, match="trained must be"):
        freeze(model, "some")
    with pytest.raises(InvalidOption, match="expected 3 names, one per label, got 2"):
        Head(labels=3, names=("a", "b"))
