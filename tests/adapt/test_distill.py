"""Distillation: the losses against their formulas, the first weights, and runs that learn from a teacher."""

from pathlib import Path

import pytest
import torch

import longspan
from longspan.adapt.distill.layers import compared, spread, start_from
from longspan.adapt.distill.losses import cosine_loss, hard_loss, soft_loss, state_loss
from longspan.adapt.distill.table import Distill, DistillObjective
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import Model
from longspan.tasks.language import NextToken
from longspan.train import fit, recipe
from longspan.train.extensions import to_toml


def encoder(layers: int, **options: object) -> Model:
    return longspan.create_model(
        "encoder", **{"vocabulary": 40, "width": 16, "heads": 2, "layers": layers, "max_length": 32, **options}
    )


def decoder(layers: int = 2, **options: object) -> Model:
    return longspan.create_model(
        "decoder", **{"vocabulary": 40, "width": 16, "heads": 2, "layers": layers, "max_length": 32, **options}
    )


def gradient(temperature: float, squared: bool) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    student = torch.randn(64, 100, generator=generator, dtype=torch.float64, requires_grad=True)
    teacher = torch.randn(64, 100, generator=generator, dtype=torch.float64)
    loss = soft_loss(student, teacher, temperature) / (1 if squared else temperature**2)
    (found,) = torch.autograd.grad(loss, student)
    return found


def test_soft_loss_is_zero_for_logits_that_differ_by_a_constant() -> None:
    logits = torch.randn(5, 7, dtype=torch.float64)
    assert float(soft_loss(logits + 3, logits, 2.0)) == pytest.approx(0, abs=1e-12)
    assert float(soft_loss(torch.randn(5, 7), torch.randn(5, 7), 2.0)) > 0


def test_temperature_squared_keeps_the_size_of_gradients() -> None:
    four, eight = gradient(4, True).norm(), gradient(8, True).norm()
    assert float(four / eight) == pytest.approx(1, abs=0.05)
    assert float(gradient(4, False).norm() / gradient(8, False).norm()) == pytest.approx(4, rel=0.05)
    generator = torch.Generator().manual_seed(0)
    student, teacher = (torch.randn(64, 100, generator=generator, dtype=torch.float64) for _ in range(2))
    limit = ((student - student.mean(1, True)) - (teacher - teacher.mean(1, True))) / 100
    torch.testing.assert_close(gradient(1000, True), limit, rtol=0.02, atol=1e-4)


def test_soft_loss_by_hand() -> None:
    student, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    p, q = (teacher / 2).softmax(-1), (student / 2).softmax(-1)
    assert float(soft_loss(student, teacher, 2.0)) == pytest.approx(float(4 * (p * (p / q).log()).sum()), rel=1e-5)


def test_other_losses_by_hand() -> None:
    student, teacher = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    expected = float(torch.tensor([1.0, 0.0]).exp().sum().log())
    assert float(hard_loss(student, teacher)) == pytest.approx(expected)
    assert float(cosine_loss(student, teacher)) == 1.0
    assert float(cosine_loss(teacher, 3 * teacher)) == 0.0
    assert float(state_loss(student, teacher)) == 2.5
    assert float(soft_loss(torch.tensor([1.0, 2.0]), torch.tensor([0.0, 4.0]), 2.0)) == 5.0  # predicted numbers


def test_spread_layers() -> None:
    assert spread(6, 12) == (0, 2, 4, 7, 9, 11)
    assert spread(3, 6) == (0, 2, 5)
    assert spread(1, 6) == (0,)
    assert compared(3, 6) == (2, 4, 6)
    with pytest.raises(InvalidOption, match=r"the student has 7 layers, more than the teacher's 6; give layers"):
        spread(7, 6)


def test_a_student_starts_with_the_teachers_layers_bit_for_bit() -> None:
    teacher, student = encoder(12), encoder(6)
    start_from(student, teacher)
    theirs = teacher.state_dict()
    for name, tensor in student.state_dict().items():
        known = name
        if name.startswith("stack.blocks."):
            layer = int(name.split(".")[2])
            known = name.replace(f"blocks.{layer}.", f"blocks.{(0, 2, 4, 7, 9, 11)[layer]}.")
        assert torch.equal(tensor, theirs[known]), name


def test_a_student_with_another_mechanism_or_shared_layers_starts_from_what_fits() -> None:
    teacher, student, shared = decoder(4), decoder(2, attention="linear"), decoder(4, groups=2)
    assert "stack.blocks.1.mixer.project.q.weight" in start_from(student, teacher)
    start_from(shared, teacher)
    assert len(shared.stack.blocks) == 2
    weight = "mixer.project.q.weight"
    assert torch.equal(
        shared.state_dict()[f"stack.blocks.1.{weight}"], teacher.state_dict()[f"stack.blocks.2.{weight}"]
    )
    with pytest.raises(Unsupported, match=r"no weight of the teacher's layers fits the student"):
        start_from(decoder(2, width=12, heads=2, hidden=20), teacher)


def objective(teacher: Model, **options: object) -> DistillObjective:
    return DistillObjective(NextToken(), teacher, Distill.Options(teacher="x", **options))


def tokens() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1))
    return {"ids": ids[:, :-1], "targets": ids[:, 1:]}


def test_a_teacher_of_itself_has_no_divergence_and_no_angle() -> None:
    teacher = decoder().eval()
    loss = objective(teacher, kind="triple", temperature=1.0).loss(teacher, tokens())
    task = float(loss.parts["task"])
    assert float(loss.parts["teacher"]) == pytest.approx(0, abs=1e-4)
    assert float(loss.parts["cosine"]) == pytest.approx(0, abs=1e-4)
    assert float(loss.total) == pytest.approx(2 * task, abs=1e-3)


def test_triple_loss_is_five_two_one_and_hidden_states_are_compared() -> None:
    student, teacher = decoder(2).eval(), decoder(4).eval()
    loss = objective(teacher, kind="triple", hidden=3.0).loss(student, tokens())
    parts = {name: float(value) for name, value in loss.parts.items()}
    whole = 5 * parts["teacher"] + 2 * parts["task"] + parts["cosine"] + 3 * parts["hidden"]
    assert float(loss.total.detach()) == pytest.approx(whole, rel=1e-5)
    with torch.no_grad():
        mine, theirs = student(tokens()["ids"]), teacher(tokens()["ids"])
    assert parts["teacher"] == pytest.approx(float(soft_loss(mine.flatten(0, 1), theirs.flatten(0, 1), 2.0)), rel=1e-5)


def test_the_teacher_gets_no_gradient_and_widths_must_agree() -> None:
    student, teacher = decoder(), decoder()
    torch.autograd.backward(objective(teacher, hidden=1.0).loss(student, tokens()).total)
    assert all(parameter.grad is None for parameter in teacher.parameters())
    assert not teacher.training
    with pytest.raises(Unsupported, match=r"compared at one width; the teacher has 32, the student 16"):
        objective(decoder(width=32), hidden=1.0).loss(student, tokens())


def test_bad_options() -> None:
    with pytest.raises(InvalidOption, match=r"name the teacher: a folder, a run, or package:NAME"):
        Distill.Options()
    with pytest.raises(InvalidOption, match=r'weights are three numbers of at least 0, for kind = "triple"'):
        Distill.Options(teacher="x", weights=(1.0,), kind="triple")


# Runs


def write(tmp_path: Path, name: str, **tables: object) -> Path:
    (tmp_path / "text.txt").write_text("the cat sat on the mat and the dog sat on the log\n" * 60)
    content = {
        "task": {"name": "language", "train": str(tmp_path / "text.txt"), "length": 16, "batch": 4},
        "model": {"name": "decoder", "width": 16, "layers": 2, "heads": 2, "max_length": 16, "dropout": 0.1},
        "train": {"steps": 6, "save_every": 3, "keep": 9, "schedule": {"rate": 1e-3}},
    }
    content["task"]["tokenizer"] = {"kind": "characters"}
    path = tmp_path / f"{name}.toml"
    path.write_text(to_toml({**content, **tables}))
    return path


def train(tmp_path: Path, name: str, overrides: dict[str, object] | None = None, **tables: object) -> Path:
    plan = recipe.read(write(tmp_path, name, **tables), overrides)
    fit.train(recipe.begin(plan, tmp_path / name, data=None))
    return tmp_path / name


def weights(run: Path) -> bytes:
    return (run / "model" / "model.safetensors").read_bytes()


def test_runs_with_a_teacher_resume_to_the_bit_and_leave_it_unchanged(tmp_path: Path) -> None:
    teacher = train(tmp_path, "teacher")
    before = weights(teacher)
    table = {"teacher": str(teacher), "kind": "triple", "hidden": 0.5}
    model = {"name": "decoder", "width": 16, "layers": 1, "heads": 2, "max_length": 16, "dropout": 0.1}
    whole = train(tmp_path, "whole", model=model, distill=table)
    half = recipe.begin(recipe.read(write(tmp_path, "half", model=model, distill=table)), tmp_path / "half", data=None)
    updates = half.updates()
    for _ in range(3):
        next(updates)
    from longspan.train import saving

    saving.save(half)
    fit.train(recipe.resume(tmp_path / "half", data=None), resume=True)
    assert weights(tmp_path / "half") == weights(whole)
    assert weights(teacher) == before


def test_weight_zero_is_plain_training_to_the_bit(tmp_path: Path) -> None:
    teacher = train(tmp_path, "teacher", {"train.seed": 5})
    table = {"teacher": str(teacher), "weight": 0.0, "initialise": False}
    assert weights(train(tmp_path, "with", distill=table)) == weights(train(tmp_path, "without"))


def test_a_teacher_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    longspan.create_model("decoder", vocabulary=99, width=16, layers=1, heads=2).save(tmp_path / "other")
    plan = recipe.read(write(tmp_path, "run", distill={"teacher": str(tmp_path / "other")}))
    with pytest.raises(InvalidInput, match=r"has 99 tokens and the student .*; they need one tokenizer"):
        recipe.begin(plan, tmp_path / "run", data=None)
