"""What the two stages train, and that layers, windows and adapters do what they should."""

from pathlib import Path

import pytest
import torch
from tests.adapt.heal.small import HYBRID, write_all, write_swapped, write_teacher
from torch import Tensor

from longspan.adapt.heal.options import HealOptions
from longspan.adapt.heal.pair import Pair, read_pair, weights_hash
from longspan.adapt.heal.schedule import draw_width, rate, window_off
from longspan.adapt.heal.stage1 import Transfer, balance
from longspan.adapt.heal.stage2 import Distillation, held_out_loss
from longspan.adapt.heal.texts import Texts
from longspan.errors import Unsupported

OPTIONS = HealOptions(length=24, batch=2, held_out=2)


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    swapped, teacher, _ = write_all(tmp_path)
    return read_pair(swapped, teacher)


def ids_of(pair: Pair) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, pair.student.options.vocabulary, (2, 24), generator=generator)


def trained(stage: Transfer, ids: Tensor, steps: int = 4) -> dict[str, Tensor]:
    for parameter in stage.parameters().values():
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(stage.parameters().values(), lr=1e-2, weight_decay=0.0)
    for step in range(steps):
        optimizer.zero_grad()
        stage.step(ids, step, steps)
        optimizer.step()
    return {name: parameter.detach().clone() for name, parameter in stage.parameters().items()}


@pytest.mark.parametrize("loss", ["weights", "outputs"])
def test_stage_1_gives_gradients_to_features_and_mixes_only(pair: Pair, loss: str) -> None:
    stage = Transfer(pair, HealOptions(length=24, batch=2, loss=loss, window_dropout=False))
    pair.student.requires_grad_(True)
    before = weights_hash(pair.teacher)
    stage.step(ids_of(pair), 0, 10)
    found = {name for name, parameter in pair.student.named_parameters() if parameter.grad is not None}
    own = {f"stack.blocks.{i}.mixer.mechanism.{leaf}" for i in (0, 1) for leaf in ("query_map", "key_map", "mix")}
    assert found == own == set(stage.parameters())
    assert all(parameter.grad is None for parameter in pair.teacher.parameters())
    assert weights_hash(pair.teacher) == before == pair.teacher_hash


def test_layers_one_by_one_equal_layers_together(tmp_path: Path) -> None:
    swapped, teacher, _ = write_all(tmp_path)
    together = read_pair(swapped, teacher)
    joint = trained(Transfer(together, OPTIONS), ids_of(together))
    single: dict[str, Tensor] = {}
    for layer in (0, 1):
        alone = read_pair(swapped, teacher)
        single |= trained(Transfer(alone, OPTIONS, [layer]), ids_of(alone))
    assert joint.keys() == single.keys()
    for name, tensor in joint.items():
        torch.testing.assert_close(tensor, single[name], rtol=0, atol=1e-6)


def test_window_dropout_always_trains_the_pure_linear_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_all(tmp_path)
    teacher = read_pair(tmp_path / "swapped", tmp_path / "teacher").teacher
    write_swapped(teacher, tmp_path / "linear", [{"name": "hedgehog"}])
    monkeypatch.setattr("longspan.adapt.heal.stage1.window_off", lambda step, steps: 1.0)
    hybrid = read_pair(tmp_path / "swapped", tmp_path / "teacher")
    linear = read_pair(tmp_path / "linear", tmp_path / "teacher")
    ids = ids_of(hybrid)
    ours, theirs = Transfer(hybrid, OPTIONS), Transfer(linear, OPTIONS)
    for parameter in [*ours.parameters().values(), *theirs.parameters().values()]:
        parameter.requires_grad_(True)
    assert ours.step(ids, 0, 1) == pytest.approx(theirs.step(ids, 0, 1), abs=1e-5)
    first = trained(ours, ids)
    mixes = [name for name in first if name.endswith("mix")]
    fresh = read_pair(tmp_path / "swapped", tmp_path / "teacher").student.state_dict()
    assert mixes and all(torch.equal(first[name], fresh[name]) for name in mixes)  # the window's share has no part


def test_a_student_that_can_reproduce_two_keys_does(tmp_path: Path) -> None:
    """On texts of two tokens a row compares two keys, which learned features can do exactly."""
    teacher = write_teacher(tmp_path / "teacher", layers=1)
    write_swapped(teacher, tmp_path / "swapped", [{"name": "hedgehog", "features": 16}])
    pair = read_pair(tmp_path / "swapped", tmp_path / "teacher")
    stage = Transfer(pair, HealOptions(length=2, batch=32))
    ids = torch.tensor([[0, 1], [1, 0], [0, 0], [1, 1]])
    before = stage.measure(ids)
    trained(stage, ids, steps=300)
    assert stage.measure(ids) < 1e-4 < before


def test_stage_2_trains_adapters_and_features_and_merging_changes_nothing(pair: Pair) -> None:
    ids = ids_of(pair)
    for model in (pair.student, pair.teacher):
        model.double()
    start = {name: tensor.clone() for name, tensor in pair.student.state_dict().items()}
    plain = pair.student(ids)
    stage = Distillation(pair, OPTIONS)
    assert torch.equal(pair.student(ids), plain)  # B is 0
    assert len(stage.adapters.parameters()) == 2 * 2 * 4  # type: ignore[union-attr]
    for parameter in stage.parameters().values():
        parameter.requires_grad_(True)
    optimizer = torch.optim.AdamW(stage.parameters().values(), lr=1e-2, weight_decay=0.0)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        losses.append(stage.step(ids, step, 20))
        optimizer.step()
    assert losses[-1] < losses[0]
    adapted = pair.student(ids).detach()
    stage.finish()
    torch.testing.assert_close(pair.student(ids).detach(), adapted, rtol=0, atol=1e-10)
    changed = {name for name, tensor in pair.student.state_dict().items() if not torch.equal(tensor, start[name])}
    assert {name.split("mixer.")[1].split(".")[0] for name in changed} == {"project", "out", "mechanism"}


def test_the_loss_in_pieces_equals_the_loss_of_all_logits(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = ids_of(pair)
    stage = Distillation(pair, HealOptions(length=24, batch=2, full=True))
    for parameter in stage.parameters().values():
        parameter.requires_grad_(True)
    ours, theirs = pair.student(ids)[:, :-1].log_softmax(-1), pair.teacher(ids)[:, :-1].log_softmax(-1)
    following = -ours.gather(-1, ids[:, 1:, None]).mean()
    expected = (theirs.exp() * (theirs - ours)).sum(-1).mean() + 0.1 * following
    slopes = torch.autograd.grad(expected, list(stage.parameters().values()), allow_unused=True)
    monkeypatch.setattr("longspan.adapt.heal.stage2.FEW", 5 * 2 * pair.student.options.vocabulary)
    assert stage.step(ids, 0, 1) == pytest.approx(float(expected.detach()), rel=1e-5)
    for slope, (name, parameter) in zip(slopes, stage.parameters().items()):
        if slope is not None:
            torch.testing.assert_close(parameter.grad, slope, rtol=1e-3, atol=1e-5, msg=name)
    assert held_out_loss(pair, ids) == pytest.approx(float(following.detach()), rel=1e-5)


def test_an_encoder_learns_its_teachers_states(tmp_path: Path) -> None:
    from longspan.data.tokenizers.learn import TokenizerOptions, learn
    from longspan.models import build

    tokenizer = learn(TokenizerOptions(kind="bytes"), ["a"])
    torch.manual_seed(0)
    sizes = {"width": 16, "layers": 1, "heads": 2, "hidden": 16, "max_length": 32}
    teacher = build("encoder", vocabulary=tokenizer.size, tasks=[{"task": "masked"}], **sizes)
    teacher.save(tmp_path / "teacher", tokenizer=tokenizer.to_json())
    write_swapped(teacher, tmp_path / "swapped", [{"name": "window", "window": 2}], tokenizer.to_json())
    pair = read_pair(tmp_path / "swapped", tmp_path / "teacher")
    stage = Distillation(pair, HealOptions(length=16, batch=2))
    ids = torch.randint(5, 200, (2, 16), generator=torch.Generator().manual_seed(0))
    for parameter in stage.parameters().values():
        parameter.requires_grad_(True)
    before = stage.measure(ids)
    assert before > 0
    optimizer = torch.optim.AdamW(stage.parameters().values(), lr=1e-2, weight_decay=0.0)
    for step in range(10):
        optimizer.zero_grad()
        stage.step(ids, step, 10)
        optimizer.step()
    assert stage.measure(ids) < before


def test_stage_1_refuses_weights_that_are_not_the_teachers(tmp_path: Path) -> None:
    teacher = write_teacher(tmp_path / "teacher")
    changed = write_teacher(tmp_path / "other", seed=1)
    write_swapped(changed, tmp_path / "swapped", [HYBRID])
    assert teacher.options == changed.options
    with pytest.raises(Unsupported, match="layer 0: stage 1 starts from the teacher's weights"):
        Transfer(read_pair(tmp_path / "swapped", tmp_path / "teacher"), OPTIONS)


def test_the_schedules() -> None:
    assert [window_off(step, 100) for step in (0, 25, 50, 99)] == [0.9, 0.7, 0.25, 0.25]
    assert {draw_width(32, 0.0, step=step, layer=1, seed=0) for step in range(60)} == {0, 8, 16, 32}
    assert {draw_width(32, 1.0, step=step, layer=1, seed=0) for step in range(60)} == {0}
    assert rate(0, 100) == 0.2 and rate(4, 100) == 1.0 and rate(99, 100) == pytest.approx(0.1, abs=1e-3)


def test_texts_depend_on_the_step_alone_and_hold_out_their_end(tmp_path: Path) -> None:
    _, _, text = write_all(tmp_path)
    pair = read_pair(tmp_path / "swapped", tmp_path / "teacher")
    texts = Texts(text, pair.tokenizer, length=20, held_out=3, seed=1)
    again = Texts(text, pair.tokenizer, length=20, held_out=3, seed=1)
    assert torch.equal(texts.batch(7, 4), again.batch(7, 4))
    count = len(texts.train)
    epoch = torch.cat([texts.batch(step, 1) for step in range(count)])
    assert sorted(epoch.tolist()) == sorted(texts.train.tolist())
    assert bytes(texts.held_out[-1].tolist()).decode() in text.read_text()


def test_the_factor_that_gives_a_share() -> None:
    odds = torch.tensor([[[1.0, 1.0], [0.5, 3.0]]], dtype=torch.float64)
    wanted = torch.tensor([[[0.2, 0.2], [0.4, 0.3]]], dtype=torch.float64)
    factor = balance(odds, wanted)
    scaled = odds * factor[:, None]
    torch.testing.assert_close((scaled / (1 + scaled)).mean((0, 2)), wanted.mean((0, 2)), rtol=0, atol=1e-9)
    assert float(factor[0]) == pytest.approx(0.25)  # x / (1 + x) = 0.2


def test_a_hybrid_starts_with_the_teachers_share_beyond_the_window(tmp_path: Path) -> None:
    teacher = write_teacher(tmp_path / "teacher")
    write_swapped(teacher, tmp_path / "swapped", [{**HYBRID, "affine": True}])
    pair = read_pair(tmp_path / "swapped", tmp_path / "teacher")
    stage, ids = Transfer(pair, OPTIONS), ids_of(pair)
    before = stage.measure(ids)
    stage.prepare(ids)
    assert stage.measure(ids) < before
    position = torch.arange(ids.shape[1])
    far = position[:, None] - position > HYBRID["window"]
    heard = stage._listen(ids)
    for layer in (0, 1):
        theirs, ours = stage._weights(pair.mixers(pair.student)[layer].mechanism, layer, heard[layer])
        shares = [(weights * far).sum(-1).mean((0, 2)).detach() for weights in (theirs, ours)]
        torch.testing.assert_close(*shares, rtol=0, atol=1e-3)


def test_stage_1_in_parts_equals_the_whole_batch(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, ids = Transfer(pair, OPTIONS), ids_of(pair)
    found = []
    for pairs in (1, 2**21):
        monkeypatch.setattr("longspan.adapt.heal.stage1.PAIRS", pairs)
        for parameter in stage.parameters().values():
            parameter.requires_grad_(True)
            parameter.grad = None
        loss = stage.step(ids, 3, 10)
        found.append([torch.tensor(loss), *(p.grad for p in stage.parameters().values() if p.grad is not None)])
    assert len(found[0]) == len(found[1]) > 1
    for one, other in zip(*found):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_documents_start_with_the_first_token(tmp_path: Path) -> None:
    from longspan.data.tokenizers.learn import TokenizerOptions, learn

    tokenizer = learn(TokenizerOptions(kind="bytes"), ["a"])
    (tmp_path / "text.txt").write_text("one\ntwo\n\nthree\n\nfour\n")
    texts = Texts(tmp_path / "text.txt", tokenizer, length=3, held_out=1, documents=True)
    ids = [*texts.train.flatten().tolist(), *texts.held_out.flatten().tolist()]
    assert tokenizer.bos is not None and ids[0] == tokenizer.bos and ids.count(tokenizer.bos) == 3
