"""The task on images: what it prepares, that it is learned, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest
import torch

import longspan
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build as build_model
from longspan.models.image_base import ImageHeads
from longspan.tasks.base import DataPaths
from longspan.tasks.images import Teacher
from longspan.tasks.registry import build
from longspan.train import recipe
from longspan.train.fit import train

RECIPES = Path(longspan.__file__).parent / "recipes"
SMALL = {"name": "vit", "patch_size": 4, "layers": 2, "heads": 2, "width": 32, "hidden": 64, "dropout": 0.0}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataPaths:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    return DataPaths(None, tmp_path / "work", 0)


def test_what_is_prepared_says_what_the_model_needs(place: DataPaths) -> None:
    found = build("images", set="generated-images", limit=100).prepare(place)
    assert found.needs["image_size"] == (16, 16) and found.needs["channels"] == 1
    assert found.needs["tasks"][0].labels == 4 and found.objective.unit == "images"
    assert found.facts["train images"] == 100 and found.facts["test images"] == 200
    assert found.facts["labels"] == ("square", "cross", "stripes", "circle")


def test_shapes_are_learned(tmp_path: Path) -> None:
    made = recipe.Recipe(
        {"name": "images", "set": "generated-images", "batch": 64},
        SMALL,
        {"steps": 60, "schedule": {"rate": 3e-3, "warmup": 10}},
        "here",
    )
    figures = train(recipe.begin(made, tmp_path / "run", data=None))
    assert figures["accuracy"] > 0.8


@torch.no_grad()
def test_losses_are_sums_that_add_up(place: DataPaths) -> None:
    found = build("images", set="generated-images").prepare(place)
    torch.manual_seed(0)
    model = build_model("vit", **{key: value for key, value in SMALL.items() if key != "name"}, **found.needs)
    model = model.double().eval()

    def load(numbers: list[int]) -> dict[str, torch.Tensor]:
        batch = found.held_out.load(numbers, 0)
        return {"images": batch["images"].double(), "labels": batch["labels"]}

    whole, parts = load([0, 1, 2, 3, 4]), [load([0, 1]), load([2, 3, 4])]
    losses = [found.objective.loss(model, part).total for part in parts]
    torch.testing.assert_close(found.objective.loss(model, whole).total, losses[0] + losses[1], rtol=1e-12, atol=1e-12)
    assert found.objective.count(whole) == 5
    first, _ = found.objective.measure(model, parts[0])
    first.add(found.objective.measure(model, parts[1])[0])
    assert first.result()["accuracy"] == found.objective.measure(model, whole)[0].result()["accuracy"]


def test_part_of_the_images_is_held_out_where_there_is_one_file(place: DataPaths, tmp_path: Path) -> None:
    drawn = np.random.default_rng(0).integers(256, size=(50, 4, 4, 3)).astype(np.uint8)
    drawn[:, 0, 0, 0] = np.arange(50)  # so that each can be told
    np.savez(tmp_path / "a.npz", x=drawn, y=np.arange(50) % 3)
    found = build("images", train=str(tmp_path / "a.npz"), share=0.2).prepare(place)
    own, held = found.train.pictures.pixels[:, 0, 0, 0], found.held_out.pictures.pixels[:, 0, 0, 0]
    assert len(own) == 40 and len(held) == 10 and sorted([*own, *held]) == list(range(50))


def test_what_does_not_fit_is_said(place: DataPaths, tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="one of the two"):
        build("images").prepare(place)
    with pytest.raises(InvalidOption, match="generated has no images"):
        build("images", set="generated").prepare(place)
    for name, side in (("a", 4), ("b", 5)):
        np.savez(tmp_path / f"{name}.npz", x=np.zeros((4, side, side), np.uint8), y=np.arange(4) % 2)
    one, other = str(tmp_path / "a.npz"), str(tmp_path / "b.npz")
    with pytest.raises(InvalidInput, match=r"b\.npz has images of 5 × 5 × 1"):
        build("images", train=one, held_out=other).prepare(place)
    with pytest.raises(InvalidInput, match="too few to hold some out"):
        build("images", train=one, share=0.0).prepare(place)
    found = build("images", train=one, share=0.5).prepare(place)
    with pytest.raises(Unsupported, match="needs a model of images"):
        model = build_model("decoder", vocabulary=5, width=8, layers=1, heads=1, hidden=8)
        found.objective.loss(model, found.train.load([0], 0))


def test_the_recipe_can_be_built(place: DataPaths) -> None:
    found = recipe.read(RECIPES / "mnist-vit.toml")
    assert found.options().epochs == 3 and found.build_task().name == "images"
    needs = {"image_size": (28, 28), "channels": 1}
    assert found.build_model(needs).name == "vit"


# Mixing and teachers


def mixed_batch(place: DataPaths, numbers: list[int], epoch: int = 0, **options: float) -> dict[str, torch.Tensor]:
    return build("images", set="generated-images", **options).prepare(place).train.load(numbers, epoch)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixed_images_are_shares_of_two(place: DataPaths, kind: str) -> None:
    plain = build("images", set="generated-images").prepare(place).train
    batch = mixed_batch(place, [3, 7, 9, 11], **{kind: 1.0})
    for row, number in enumerate([3, 7, 9, 11]):
        image, share = batch["images"][row], float(batch["share"][row])
        first = plain.load([number], 0)["images"][0]
        others = plain.load(range(len(plain.pictures)), 0)
        other = others["images"][others["labels"] == batch["other_labels"][row]]
        if kind == "mixup":
            blends = share * first + (1 - share) * other
            assert (blends - image).abs().amax((1, 2, 3)).min() < 1e-4
        else:
            changed = (image != first).any(0)
            assert ((image == other) | ~changed).flatten(1).all(1).any()
            assert changed.double().mean() <= 1 - share + 1e-6


def test_what_is_mixed_does_not_depend_on_the_batch(place: DataPaths) -> None:
    options = {"mixup": 0.8, "cutmix": 1.0, "erase": 0.25, "crop": 2, "flip": True}
    whole, part = mixed_batch(place, [1, 2, 3], **options), mixed_batch(place, [3], **options)
    assert all(torch.equal(whole[name][2:], part[name]) for name in whole)
    assert not torch.equal(mixed_batch(place, [3], 1, **options)["images"], part["images"])


def test_the_loss_of_a_mixed_image_is_shared(place: DataPaths) -> None:
    prepared = build("images", set="generated-images", mixup=1.0, smoothing=0.1).prepare(place)
    model = build_model("vit", **{k: v for k, v in SMALL.items() if k != "name"}, **prepared.needs).eval()
    batch = prepared.train.load([0, 1, 2], 0)
    logits = model.outputs(batch["images"])["classify"].detach().log_softmax(-1)
    expected = 0.0
    for row in range(3):
        for label, weight in (
            (batch["labels"][row], batch["share"][row]),
            (batch["other_labels"][row], 1 - batch["share"][row]),
        ):
            target = torch.full((4,), 0.1 / 4)
            target[label] += 0.9
            expected += float(-weight * (target * logits[row]).sum())
    assert prepared.objective.loss(model, batch).total.item() == pytest.approx(expected, rel=1e-5)


def test_a_student_learns_from_a_run(tmp_path: Path) -> None:
    """Hard: the label's head never sees the teacher. Soft: a student that equals its teacher learns nothing from it."""
    teacher = recipe.Recipe({"name": "images", "set": "generated-images", "limit": 64}, SMALL, {"steps": 2}, "here")
    train(recipe.begin(teacher, tmp_path / "teacher", data=None))
    options = {"set": "generated-images", "limit": 64, "teacher": str(tmp_path / "teacher")}
    folders = DataPaths(None, tmp_path / "work", 0)
    prepared = build("images", **options).prepare(folders)
    sizes = {key: value for key, value in SMALL.items() if key != "name"}
    student = build_model("vit", **sizes, **prepared.needs, distillation=True).eval()
    batch = prepared.train.load([0, 1, 2], 0)
    found = prepared.objective.loss(student, batch)
    label, logits = student.student_logits(batch["images"], "classify")
    with torch.no_grad():
        chosen = prepared.objective.teacher.model.outputs(batch["images"])["classify"].argmax(-1)
    expected = [
        torch.nn.functional.cross_entropy(*pair, reduction="sum")
        for pair in ((label, batch["labels"]), (logits, chosen))
    ]
    torch.testing.assert_close(found.total, 0.5 * expected[0] + 0.5 * expected[1])
    gradient = torch.autograd.grad(
        prepared.objective.teacher.loss(logits, batch["images"]),
        student.heads["classify"].out.weight,
        allow_unused=True,
    )
    assert gradient == (None,)
    same = build("images", **options, distill="soft").prepare(folders).objective.teacher
    logits = same.model.outputs(batch["images"])["classify"].detach().requires_grad_()
    loss = same.loss(logits, batch["images"])
    assert loss.item() == pytest.approx(0, abs=1e-6) and torch.autograd.grad(loss, logits)[0].abs().max() < 1e-6


class FixedTeacher(ImageHeads):
    """The same logits for every image."""

    name = "fixed"

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__(None)
        self.logits = logits

    def outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"classify": self.logits}


def test_the_square_of_the_temperature_keeps_the_size_of_gradients() -> None:
    """At high temperatures the gradient tends to the difference of the centred logits over their number."""
    torch.manual_seed(0)
    student, given = torch.randn(3, 7, dtype=torch.float64, requires_grad=True), torch.randn(3, 7, dtype=torch.float64)
    slopes = []
    for temperature in (20.0, 40.0, 80.0):
        teacher = Teacher(FixedTeacher(given), "soft", temperature=temperature)
        slopes.append(torch.autograd.grad(teacher.loss(student, torch.zeros(3)), student)[0])
    limit = (student - student.mean(-1, keepdim=True) - given + given.mean(-1, keepdim=True)).detach() / 7
    gaps = [float((slope - limit).norm() / limit.norm()) for slope in slopes]
    assert gaps[0] > gaps[1] > gaps[2] and gaps[2] < 0.02 and gaps[0] < 0.1


def test_a_teacher_of_other_labels_is_refused(tmp_path: Path) -> None:
    build_model(
        "vit",
        image_size=16,
        channels=1,
        patch_size=4,
        layers=1,
        heads=2,
        width=8,
        hidden=8,
        tasks=[{"task": "classify", "labels": 7}],
    ).save(tmp_path / "seven")
    prepared = build("images", set="generated-images", teacher=str(tmp_path / "seven")).prepare(
        DataPaths(None, tmp_path, 0)
    )
    student = build_model("vit", **{k: v for k, v in SMALL.items() if k != "name"}, **prepared.needs)
    with pytest.raises(InvalidInput, match="the teacher knows 7 labels, and the student 4"):
        prepared.objective.loss(student, prepared.train.load([0], 0))
    build_model("decoder", vocabulary=8, width=8, layers=1, heads=2, hidden=8).save(tmp_path / "text")
    with pytest.raises(Unsupported, match="'images: teacher' needs a model of images"):
        build("images", set="generated-images", teacher=str(tmp_path / "text")).prepare(DataPaths(None, tmp_path, 0))
