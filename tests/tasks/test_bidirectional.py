"""The task `bidirectional`, and ELMo's features in the tasks `classify` and `tag`."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from tests.tasks.small import pretrained, run

from longspan import hub
from longspan.data.text.word_sentences import WordTypes, count_words, split_sentences
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build
from longspan.models.classics.elmo import Elmo
from longspan.tasks.base import DataPaths
from longspan.tasks.bidirectional import BothDirections
from longspan.tasks.predict import predict
from longspan.tasks.registry import build as build_task
from longspan.train.fit import train
from longspan.train.recipe import Recipe, begin, resume

TINY = {"name": "elmo", "cells": 16, "projection": 8, "clip": 0, "filters": [4, 4, 6], "character_width": 4}
FAST = {"schedule": {"kind": "constant", "rate": 0.03}}
TEXT = "the cat sat on the mat .\nthe dog ran to the door .\n\nanna lives in paris .\nbob lives in rome .\n\n"


@pytest.fixture(scope="module")
def elmo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elmo")
    (folder / "text.txt").write_text(TEXT * 20)
    task = {"name": "bidirectional", "train": str(folder / "text.txt"), "characters": 10, "batch": 8}
    run(folder / "run", task, TINY, steps=60, **FAST, save_every=20, keep=9)
    return folder / "run"


@torch.no_grad()
def test_it_learns_both_directions(elmo: Path, tmp_path: Path):
    loaded = hub.load(elmo)
    assert isinstance(loaded.model, Elmo) and loaded.model.words.words[:3] == ("</S>", "<S>", "<UNK>")
    task = build_task("bidirectional", train=str(elmo.parent / "text.txt"), characters=10, batch=8)
    prepared = task.prepare(DataPaths(None, tmp_path))
    metrics, _ = BothDirections().measure(loaded.model, prepared.held_out.load(range(8), 0))
    unigram = prepared.facts["baselines"]["words by frequency"]["perplexity"]
    result = metrics.result()
    assert result["forward_perplexity"] < 0.6 * unigram and result["backward_perplexity"] < 0.6 * unigram
    assert result["bits_per_word"] == pytest.approx(result["loss"] / math.log(2))


def test_a_batch_and_its_count(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one two one\nthree\n\none four five six\n\nlast one\n")
    task = build_task("bidirectional", train=str(tmp_path / "a.txt"), share=0.3, min_count=2, length=3, characters=9)
    prepared = task.prepare(DataPaths(None, tmp_path))
    assert prepared.words.words == ("</S>", "<S>", "<UNK>", "one") and prepared.needs["vocabulary"] == 4
    numbers = [number for batch in prepared.train.batches(0) for number in batch]
    batch = prepared.train.load(sorted(numbers), 0)
    # Rows: "one two one", "three", and "one four five six" cut after three words.
    assert batch["ids"][0].tolist() == [1, 3, 2, 3, 0] and batch["ids"][1].tolist()[:3] == [1, 2, 0]
    assert batch["mask"].sum(1).tolist() == [5, 3, 5, 3]
    assert BothDirections().count(batch) == 2 * (4 + 2 + 4 + 2)
    assert prepared.facts["unknown"] == "33.3 %"  # "last", of "last one" and the end of the sentence


def test_words_beyond_the_vocabulary_keep_their_characters():
    types = WordTypes()
    sentences = list(split_sentences([["a bb a", "ccc a"]], 10))
    rows = [types.number(words) for words in sentences]
    vocabulary = count_words(sentences, 4, 1)
    assert vocabulary.words == ("</S>", "<S>", "<UNK>", "a")
    assert types.targets(vocabulary)[rows[1]].tolist() == [1, 2, 3, 0]
    codes = types.characters(8)
    assert not torch.equal(codes[rows[0][2]], codes[rows[1][1]])  # bb and ccc are both <UNK>, and spelt differently


def test_a_run_resumes_to_the_bit(elmo: Path, tmp_path: Path):
    """With dropout, whose masks come from the saved random state."""
    shutil.copytree(elmo, tmp_path / "part")
    shutil.rmtree(tmp_path / "part" / "model")
    for checkpoint in (tmp_path / "part" / "checkpoints").iterdir():
        if int(checkpoint.name) > 40:
            shutil.rmtree(checkpoint)
    again = resume(tmp_path / "part", data=None)
    train(again, resume=True)
    whole = hub.load(elmo).model.state_dict()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in again.model.state_dict().items())


def test_other_text_cannot_be_read_by_the_same_output_layer(elmo: Path, tmp_path: Path):
    (tmp_path / "other.txt").write_text(TEXT.replace("cat", "cow") * 20)
    task = {"name": "bidirectional", "train": str(tmp_path / "other.txt"), "characters": 10}
    with pytest.raises(InvalidInput, match=r"words of its own, and the text has .* others; train a new model on it"):
        begin(Recipe(task, {"from": str(elmo)}, {"steps": 1}, "test.toml"), tmp_path / "run", data=None)


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    rows = [("the good film", "yes"), ("a bad plot", "no"), ("very good", "yes"), ("the bad film", "no")] * 10
    (tmp_path / "a.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    return tmp_path / "a.csv"


@pytest.mark.parametrize("features", ["last", "mix"])
def test_frozen_elmo_classifies(elmo: Path, labels: Path, tmp_path: Path, features: str):
    head = {"pool": "max", "features": features, "recurrent": 8, "dropout": 0.0}
    model = {"from": str(elmo), "trained": "head", "head": head}
    result = run(
        tmp_path / "run", {"name": "classify", "train": str(labels), "length": 64, "batch": 8}, model, steps=60, **FAST
    )
    assert result["accuracy"] == 1
    before, after = hub.load(elmo).model.state_dict(), hub.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    answers = predict(hub.load(tmp_path / "run"), ["the good film", "a bad plot"])
    assert [answer["label"] for answer in answers] == ["yes", "no"]
    if features == "mix":
        mixed = hub.embed(hub.load(tmp_path / "run"), ["the good film"], combine="mix")
        assert mixed.shape == (1, 16)


def test_frozen_elmo_tags(elmo: Path, tmp_path: Path):
    lines = ["Anna B-PER", "lives O", "in O", "Paris B-LOC", "", "Bob B-PER", "ran O", ""]
    (tmp_path / "a.conll").write_text("\n".join(lines * 15))
    head = {"features": "concat", "depth": 2, "recurrent": 8, "dropout": 0.0}
    model = {"from": str(elmo), "trained": "head", "head": head}
    result = run(tmp_path / "run", {"name": "tag", "train": str(tmp_path / "a.conll")}, model, steps=60, **FAST)
    assert result["f1"] > 0.9
    assert predict(hub.load(tmp_path / "run"), ["Bob lives"])[0]["tags"] == ["B-PER", "O"]


@pytest.mark.parametrize("features", ["sum", "concat", "mix"])
@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_features_of_any_encoder(labels: Path, tmp_path: Path, features: str, kind: str):
    folder = pretrained(tmp_path / "body", kind)
    model = {"from": str(folder), "trained": "head", "head": {"features": features, "depth": 2, "pool": "mean"}}
    run(tmp_path / "run", {"name": "classify", "train": str(labels), "length": 16}, model, steps=2)
    before, after = hub.load(folder).model.state_dict(), hub.load(tmp_path / "run").model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_what_does_not_fit_is_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    with pytest.raises(InvalidInput, match="no word is in the text 2 times; lower min_count"):
        build_task("bidirectional", train=str(tmp_path / "a.txt"), share=0.5).prepare(DataPaths(None, tmp_path))
    task = build_task("bidirectional", train=str(tmp_path / "a.txt"), share=0.5, min_count=1)
    batch = task.prepare(DataPaths(None, tmp_path)).train.load([0], 0)
    with pytest.raises(Unsupported, match="the task 'bidirectional' needs two language models"):
        BothDirections().loss(build("decoder", vocabulary=8, width=8, layers=1, heads=1, hidden=8), batch)
