"""The task `words`: skip-gram and CBOW by the ordinary training loop."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.data.text.word_windows import BLOCK, WordIds, WordWindows, sentences
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build
from longspan.models.classics.vocabulary import Vocabulary
from longspan.models.classics.word2vec import Word2Vec
from longspan.models.folder import load
from longspan.tasks.base import DataPaths
from longspan.tasks.registry import build as build_task
from longspan.tasks.words import AroundWords
from longspan.train.fit import train
from longspan.train.recipe import Recipe, begin, resume

ADAGRAD = {"kind": "adagrad", "decay": 0}


def write_planted(path: Path) -> Path:
    """Words of one topic stand together: a and b words never meet."""
    draw = np.random.default_rng(0)
    lines = []
    for number in range(300):
        topic = "ab"[number % 2]
        lines.append(" ".join(f"{topic}{index}" for index in draw.integers(0, 5, 12)))
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe(tmp_path: Path, task: dict[str, object], **options: object) -> Recipe:
    given = {"epochs": 6, "clip": 0, "schedule": {"kind": "linear", "rate": 0.3, "final": 1e-4}, "optimizer": ADAGRAD}
    text = write_planted(tmp_path / "text.txt")
    table = {"name": "words", "train": str(text), "share": 0.1, "subsample": "none", **task}
    return Recipe(table, {"name": "word2vec", "dim": 8}, {**given, **options}, "test.toml")


@pytest.mark.parametrize("mode", ["skip-gram", "cbow"])
@pytest.mark.parametrize("output", ["negative", "hierarchical"])
def test_words_of_a_topic_are_near_each_other(tmp_path: Path, mode: str, output: str):
    trainer = begin(recipe(tmp_path, {"mode": mode, "output": output, "window": 3}), tmp_path / "run", data=None)
    start = trainer.evaluate(trainer.held_out)["loss"]
    assert train(trainer)["loss"] < 0.9 * start
    model = load(tmp_path / "run" / "model")
    assert isinstance(model, Word2Vec) and model.options.mode == mode and len(model.words) == 10
    for word in ("a0", "b3"):
        assert {near[0] for near, _ in model.neighbours(word, 4)} == {word[0]}


def test_a_run_resumes_to_the_bit(tmp_path: Path):
    """From the checkpoint of the second of six updates, with the sums of Adagrad."""
    whole = begin(recipe(tmp_path, {}, epochs=2, save_every=2, keep=9), tmp_path / "whole", data=None)
    train(whole)
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "model")
    for checkpoint in (tmp_path / "part" / "checkpoints").iterdir():
        if int(checkpoint.name) > 2:
            shutil.rmtree(checkpoint)
    again = resume(tmp_path / "part", data=None)
    train(again, resume=True)
    assert whole.progress.step > 4
    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name


def test_the_loss_by_hand():
    """-log σ(u·x) for the centre, -log σ(-u·x) for negatives; one that is the centre itself is left out."""
    torch.manual_seed(0)
    model = Word2Vec.of(Vocabulary(list("abcd"), [4, 3, 2, 1]), dim=3).double()
    model.outputs.data.normal_()
    contexts, centres = torch.tensor([[1, 2]]), torch.tensor([0])
    mask, negatives = torch.tensor([[True, True]]), torch.tensor([[3, 0]])
    x, u = model.inputs, model.outputs
    sigma = torch.sigmoid
    wanted = -sum(sigma(u[0] @ x[word]).log() + sigma(-u[3] @ x[word]).log() for word in (1, 2))
    torch.testing.assert_close(model.loss(contexts, centres, mask, negatives), wanted)
    one = model.loss(contexts, centres, torch.tensor([[True, False]]), negatives)
    torch.testing.assert_close(one, -(sigma(u[0] @ x[1]).log() + sigma(-u[3] @ x[1]).log()))
    cbow = Word2Vec.of(model.words, dim=3, mode="cbow").double()
    cbow.load_state_dict(model.state_dict())
    mean = (x[1] + x[2]) / 2
    torch.testing.assert_close(
        cbow.loss(contexts, centres, mask, negatives), -(sigma(u[0] @ mean).log() + sigma(-u[3] @ mean).log())
    )


def test_the_probabilities_of_a_hierarchical_softmax_sum_to_one():
    torch.manual_seed(0)
    model = Word2Vec.of(Vocabulary(list("abcde"), [9, 4, 2, 2, 1]), dim=3, output="hierarchical").double()
    model.outputs.data.normal_()
    none = torch.zeros(1, 0, dtype=torch.long)
    losses = [model.loss(torch.tensor([[0]]), torch.tensor([word]), torch.tensor([[True]]), none) for word in range(5)]
    assert float(sum(loss.detach().neg().exp() for loss in losses)) == pytest.approx(1)


def test_gradients_are_of_the_rows_that_were_touched():
    model = Word2Vec.of(Vocabulary(list("abcdef"), [1] * 6), dim=3)
    model.loss(torch.tensor([[1, 2]]), torch.tensor([0]), torch.tensor([[True, True]]), torch.tensor([[5]])).backward()
    assert sorted(model.inputs.grad.coalesce().indices()[0].tolist()) == [1, 2]
    assert sorted(model.outputs.grad.coalesce().indices()[0].tolist()) == [0, 5]


def windows(text: str, **options: object) -> WordWindows:
    words = [line.split() for line in text.split("\n")]
    vocabulary = Vocabulary.count(words)
    return WordWindows(WordIds.read(words, vocabulary), vocabulary.counts, 1, **{"subsample": "none", **options})


def test_windows_stay_within_a_line_and_a_radius():
    data = windows("a b c d\ne f", window=2)
    batch = data.load([0], 0)
    lines = {0: 0, 1: 0, 2: 0, 3: 0, 4: 1, 5: 1}
    for row, centre in enumerate(batch["centres"].tolist()):
        around = batch["contexts"][row][batch["mask"][row]].tolist()
        assert around and all(lines[word] == lines[centre] and 0 < abs(word - centre) <= 2 for word in around)
    assert len(batch["centres"]) == 6 and batch["negatives"].shape == (6, 5)
    sizes = {tuple(data.load([0], epoch)["mask"].sum(1).tolist()) for epoch in range(8)}
    assert len(sizes) > 1  # another radius in another epoch
    again = data.load([0], 3)
    assert all(torch.equal(tensor, data.load([0], 3)[name]) for name, tensor in again.items())


def test_dropped_words_leave_no_gap_or_one():
    text = " ".join(["the", "x", "the", "y", "the", "z"] * 50)
    wide = windows(text, window=1, subsample="paper", threshold=1e-9)
    wide.keep = np.array([0.0 if word == "the" else 1.0 for word in ("the", "x", "y", "z")])
    assert bool(wide.load([0], 0)["mask"].any())
    narrow = windows(text, window=1, widen=False)
    narrow.keep = wide.keep
    assert not bool(narrow.load([0], 0)["mask"].any()) and len(narrow.load([0], 0)["centres"]) == 150


def test_blocks_cover_the_text_once():
    data = windows(" ".join(f"w{number}" for number in range(2 * BLOCK + 7)))
    seen = torch.cat([data.load(batch, 1)["centres"] for batch in data.batches(1)])
    assert len(data.batches(1)) == 3 and sorted(seen.tolist()) == list(range(2 * BLOCK + 7))


def test_negatives_follow_the_counts():
    data = windows(" ".join(["a"] * 81 + ["b"] * 16 + ["c"]))
    drawn = torch.cat([data.load([0], epoch)["negatives"].flatten() for epoch in range(40)]).bincount() / (40 * 98 * 5)
    weights = torch.tensor([27.0, 8.0, 1.0])
    torch.testing.assert_close(drawn, weights / weights.sum(), atol=0.01, rtol=0)


def test_lines_of_any_length_are_read(tmp_path: Path):
    path = tmp_path / "long.txt"
    path.write_text("one two\n" + "word " * 500_000 + "\nlast, words!")
    lines = list(sentences(path, "spaces", False))
    assert sum(map(len, lines)) == 500_004 and lines[0] == ["one", "two"] and lines[-1] == ["last,", "words!"]
    assert list(sentences(path, "words", True))[-1] == ["last", "words"]


def prepare(tmp_path: Path, **options: object) -> object:
    return build_task("words", **options).prepare(DataPaths(None, tmp_path / "work"))


def test_what_does_not_fit_is_refused(tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("a b c d\n")
    with pytest.raises(InvalidInput, match=r"text.txt: no word is in the corpus 5 times; it has 4 .*; lower min_count"):
        prepare(tmp_path, train=str(text))
    with pytest.raises(InvalidInput, match="4 known words, too few to hold some out"):
        prepare(tmp_path, train=str(text), min_count=1)
    text.write_text("")
    with pytest.raises(InvalidInput, match=r"text.txt: .*is empty"):
        prepare(tmp_path, train=str(text))
    with pytest.raises(InvalidOption, match="names a set, or a file"):
        prepare(tmp_path)
    with pytest.raises(InvalidOption, match="the set 'sst2' is for the task 'classify'"):
        prepare(tmp_path, set="sst2")
    batch = windows("a b c d").load([0], 0)
    with pytest.raises(Unsupported, match="the task 'words' needs a table of word vectors"):
        AroundWords("cbow").loss(build("decoder", vocabulary=8, width=8, layers=1, heads=1, hidden=8), batch)
    plan = recipe(tmp_path, {}, optimizer={})
    with pytest.raises(InvalidOption, match="adamw takes no sparse gradients"):
        begin(plan, tmp_path / "run", data=None)
    plan = recipe(tmp_path, {}, optimizer={"kind": "sgd"})
    with pytest.raises(InvalidOption, match="sparse gradients allow no weight decay and no momentum; give decay = 0"):
        begin(plan, tmp_path / "run2", data=None)


def test_the_options_of_the_text_are_those_of_the_model(tmp_path: Path):
    plan = recipe(tmp_path, {"lowercase": True, "split": "words", "window": 2}, epochs=0.2)
    train(begin(plan, tmp_path / "run", data=None))
    options = json.loads((tmp_path / "run" / "model" / "config.json").read_text())["options"]
    assert (options["lowercase"], options["split"], options["window"]) == (True, "words", 2)
    wrong = Recipe(plan.task, {"name": "word2vec", "window": 9}, plan.train, "test.toml")
    with pytest.raises(InvalidOption, match="window is 9, but the task needs 2; leave it out"):
        begin(wrong, tmp_path / "other", data=None)
