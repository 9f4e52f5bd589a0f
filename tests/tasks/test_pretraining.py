"""Masked language models, replaced-token detection and denoising: batches, losses, figures, and that they learn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from longspan.data.base import Batch
from longspan.errors import InvalidInput
from longspan.models import build
from longspan.models import folder as model_folder
from longspan.models.base import Model
from longspan.models.encoder import Encoder
from longspan.nn.loss import IGNORED
from longspan.tasks import registry
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared
from longspan.train import fit, recipe

SMALL = {"width": 32, "layers": 2, "heads": 2, "hidden": 64, "max_length": 48, "position": "learned", "dropout": 0.0,
         "norm_position": "pre", "scale": False, "init": "normal", "init_std": 0.1}  # fmt: skip
TOKENIZER = {"kind": "wordpiece", "size": 120}
NOUNS = ["dog", "cat", "horse", "sheep", "car", "train", "ship", "plane", "red", "blue", "green", "black"]


def grammar(path: Path, documents: int = 60, seed: int = 0) -> None:
    """Sentences whose verb agrees with their noun, in documents that are of one noun each."""
    generator = np.random.default_rng(seed)
    lines = []
    for number in range(documents):
        for _ in range(8):
            noun = NOUNS[number % len(NOUNS)]
            many = generator.random() < 0.5
            lines.append(f"the {noun}{'es' if many else ''} {'are' if many else 'is'} here .")
        lines.append("")
    path.write_text("\n".join(lines), encoding="utf-8")


def prepare(folder: Path, task: str, **options: Any) -> Prepared:
    grammar(folder / "text")
    given = {"train": str(folder / "text"), "tokenizer": TOKENIZER, "length": 40, "batch": 16, **options}
    return registry.build(task, **given).prepare(DataPaths(None, folder / "work"))


def model_for(prepared: Prepared, name: str, **options: Any) -> Model:
    torch.manual_seed(0)
    return build(name, **{**SMALL, **options, **prepared.needs})


def train(prepared: Prepared, model: Model, steps: int, rate: float = 3e-3) -> dict[str, float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    step = epoch = 0
    model.train()
    while step < steps:
        for numbers in prepared.train.batches(epoch):
            batch = prepared.train.load(numbers, epoch)
            loss = prepared.objective.loss(model, batch).total / prepared.objective.count(batch)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
        epoch += 1
    return measure(prepared, model)


@torch.no_grad()
def measure(prepared: Prepared, model: Model, rows: int | None = None) -> dict[str, float]:
    """The figures of what was held out, in pieces of so many rows."""
    model.eval()
    found: Metrics | None = None
    for numbers in prepared.held_out.batches(0):
        size = rows or len(numbers)
        for start in range(0, len(numbers), size):
            batch = prepared.held_out.load(list(numbers)[start : start + size], 0)
            figures, _ = prepared.objective.measure(model, batch)
            if found is None:
                found = figures
            else:
                found.add(figures)
    assert found is not None
    return found.result()


# Batches


def test_labels_are_the_originals_at_chosen_places(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "masked", masking={"mask": 0.0, "random": 0.0})
    batch = prepared.train.load(range(20), 0)
    chosen = batch["labels"] != IGNORED
    assert torch.equal(batch["labels"][chosen], batch["ids"][chosen])
    assert not (chosen & ~batch["real"]).any()
    special = [prepared.tokenizer.cls, prepared.tokenizer.sep] if prepared.tokenizer else []
    assert not torch.isin(batch["ids"], torch.tensor(special))[chosen].any()


def test_texts_are_two_spans_between_special_tokens(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "masked")
    tokenizer = prepared.tokenizer
    assert tokenizer is not None
    batch = prepared.train.load(range(20), 0)
    originals = torch.where(batch["labels"] != IGNORED, batch["labels"], batch["ids"])
    for ids, real, segments in zip(originals, batch["real"], batch["segments"]):
        own = ids[real].tolist()
        assert own[0] == tokenizer.cls and own[-1] == tokenizer.sep and own.count(tokenizer.sep) == 2
        middle = own.index(tokenizer.sep)
        assert segments[real].tolist() == [0] * (middle + 1) + [1] * (len(own) - middle - 1)
    assert prepared.facts["train negative pairs"] == pytest.approx(0.5, abs=0.15)


def test_masks_are_new_at_each_visit_or_repeat(tmp_path: Path) -> None:
    for dynamic in (True, False):
        masking = {"dynamic": dynamic, "copies": 2}
        data = prepare(tmp_path, "masked", pairs="none", masking=masking, short=0.0, length=100).train
        labels = [data.load(range(54), epoch)["labels"] for epoch in range(3)]
        differ = [float((labels[0] != other).any(1).float().mean()) for other in labels[1:]]
        assert differ[0] > 0.95
        assert differ[1] > 0.95 if dynamic else differ[1] == 0.0


def test_an_example_is_the_same_in_any_batch(tmp_path: Path) -> None:
    for task in ("masked", "denoise"):
        data = prepare(tmp_path, task).train
        together = data.load([3, 7, 9], 5)
        for row, number in enumerate([3, 7, 9]):
            alone = data.load([number], 5)
            for name, tensor in alone.items():
                width = tensor.shape[1] if tensor.dim() > 1 else None
                found = together[name][row, :width] if width else together[name][row]
                assert torch.equal(found, tensor[0]), name


@pytest.mark.parametrize("pairs", ["order", "none"])
def test_other_kinds_of_texts(tmp_path: Path, pairs: str) -> None:
    prepared = prepare(tmp_path, "masked", pairs=pairs)
    model = model_for(prepared, "encoder")
    figures = measure(prepared, model)
    assert ("pair_accuracy" in figures) == (pairs == "order")


def test_byte_level_words(tmp_path: Path) -> None:
    prepared = prepare(
        tmp_path,
        "masked",
        tokenizer={"kind": "bpe", "size": 290},
        masking={"whole_words": True, "mask": 1, "random": 0},
    )
    batch, tokenizer = prepared.train.load(range(30), 0), prepared.tokenizer
    assert tokenizer is not None
    for ids, labels in zip(batch["ids"], batch["labels"]):
        hidden = labels != IGNORED
        for place in range(1, len(ids) - 1):
            # A piece that does not begin with a space belongs to the word before it, here where words are letters.
            if labels[place] != IGNORED and tokenizer.token(int(labels[place])).isascii() and not hidden[place - 1]:
                before = tokenizer.token(int(ids[place - 1]))
                assert before in tokenizer.specials or not before.lstrip("Ġ").isalpha() or place == 1


# Losses


def parts_add_up(objective: Objective, model: Model, batch: Batch) -> None:
    model.double().eval()
    whole = objective.loss(model, batch)
    halves = [{name: tensor[rows] for name, tensor in batch.items()} for rows in (slice(0, 5), slice(5, None))]
    sums = sum(objective.loss(model, half).total for half in halves)
    assert torch.allclose(whole.total, torch.as_tensor(sums), rtol=1e-10)
    assert objective.count(batch) == sum(map(objective.count, halves))


def test_masked_losses_add_up_and_are_over_chosen_places_only(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "masked")
    model = model_for(prepared, "encoder")
    batch = prepared.train.load(range(12), 0)
    parts_add_up(prepared.objective, model, batch)
    chosen = batch["labels"] != IGNORED
    with torch.no_grad():
        logits = model.outputs(batch["ids"], key_mask=batch["real"], segments=batch["segments"])  # type: ignore
        masked = torch.nn.functional.cross_entropy(logits["masked"][chosen], batch["labels"][chosen])
        pair = torch.nn.functional.cross_entropy(logits["pair"], batch["pair"])
        loss = prepared.objective.loss(model, batch)
        figures = prepared.objective.measure(model, batch)[0].result()
    assert torch.allclose(loss.parts["masked"] / chosen.sum(), masked)
    assert torch.allclose(loss.parts["pair"] / chosen.sum(), pair, rtol=0.2)  # the constant is a mean over texts
    assert figures["pair_loss"] == pytest.approx(float(pair)) and figures["loss"] == pytest.approx(float(masked + pair))


def test_detection_losses_are_those_of_the_model(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "detect", short=0.0)
    model = model_for(prepared, "electra", generator_fraction=0.5, generator_heads=1, embedding_width=None).double()
    model.eval()
    batch = prepared.train.load(range(12), 0)
    torch.manual_seed(0)
    found = prepared.objective.loss(model, batch)
    torch.manual_seed(0)
    chosen = batch["labels"] != IGNORED
    ids = torch.where(chosen, batch["labels"], batch["ids"])
    means = model.loss(model(ids, batch["ids"], chosen, key_mask=batch["real"]))  # type: ignore[operator]
    count = prepared.objective.count(batch)
    assert torch.allclose(found.parts["masked"] / count, means.masked)
    assert torch.allclose(found.total / count, means.total, rtol=0.03)  # the share of chosen places is a constant


def test_detection_figures_do_not_depend_on_batches(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "detect")
    model = model_for(prepared, "electra", generator_fraction=0.5, generator_heads=1, embedding_width=None).double()
    whole, single = measure(prepared, model), measure(prepared, model, rows=1)
    assert whole == pytest.approx(single)
    with pytest.raises(InvalidInput, match="random must be 0"):
        prepare(tmp_path, "detect", masking={})


def test_denoising_targets_are_the_whole_text(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "denoise")
    same = DataPaths(None, tmp_path / "again")
    options = {"train": str(tmp_path / "text"), "length": 40, "noise": {"permute": 0.0, "infill": 0.0}}
    clean = registry.build("denoise", **options).prepare(same, prepared.tokenizer)
    noised, plain = prepared.train.load(range(10), 0), clean.train.load(range(10), 0)
    assert torch.equal(noised["targets"], plain["targets"])
    real = plain["targets"] != IGNORED
    assert torch.equal(plain["source"][plain["source_mask"]], plain["targets"][real])
    assert not torch.equal(noised["source"][noised["source_mask"]], plain["targets"][real])
    assert prepared.tokenizer is not None
    assert (noised["ids"][:, 0] == prepared.tokenizer.sep).all()  # the decoder starts with the end of a text
    assert torch.equal(noised["ids"][:, 1:][real[:, 1:]], noised["targets"][:, :-1][real[:, 1:]])
    parts_add_up(prepared.objective, model_for(prepared, "transformer"), noised)


# They learn


def test_an_untrained_model_knows_no_pairs(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "masked", share=0.5)
    assert abs(measure(prepared, model_for(prepared, "encoder"))["pair_accuracy"] - 0.5) < 0.2


@torch.no_grad()
def agreement(prepared: Prepared, model: Model) -> int:
    """Of five verbs that were hidden, how many are those that their nouns ask for."""
    assert prepared.tokenizer is not None and isinstance(model, Encoder)
    mask = prepared.tokenizer.special["mask"]
    right = 0
    for noun, verb in (("dog", "is"), ("doges", "are"), ("ship", "is"), ("shipes", "are"), ("blue", "is")):
        found = prepared.tokenizer.encode(f"the {noun} {mask} here .", allow=[mask]).ids
        place = found.index(prepared.tokenizer.id(mask) or 0)
        logits = model.outputs(torch.tensor([found]))["masked"][0, place]
        right += prepared.tokenizer.token(int(logits.argmax())) == verb
    return right


@pytest.mark.slow
def test_agreement_is_learned(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "masked", pairs="none", masking={"mask": 1.0, "random": 0.0}, length=12, batch=32)
    model = model_for(prepared, "encoder")
    train(prepared, model, 300)
    assert agreement(prepared, model) == 5


@pytest.mark.slow
def test_deleted_tokens_are_restored(tmp_path: Path) -> None:
    prepared = prepare(tmp_path, "denoise", noise={"permute": 0.0, "infill": 0.0, "delete": 0.2}, length=24)
    figures = train(prepared, model_for(prepared, "transformer"), 300)
    assert figures["accuracy"] > 0.8


def test_the_discriminator_is_saved_by_itself(tmp_path: Path) -> None:
    grammar(tmp_path / "text", documents=10)
    given = {"name": "detect", "train": str(tmp_path / "text"), "tokenizer": TOKENIZER, "length": 40, "batch": 8}
    sizes = {**SMALL, "name": "electra", "generator_fraction": 0.5, "generator_heads": 1, "embedding_width": 16}
    made = recipe.Recipe(given, sizes, {"steps": 2}, "test")
    trainer = recipe.begin(made, tmp_path / "run", data=None)
    figures = fit.train(trainer)
    assert {"detection_accuracy", "masked_accuracy"} <= set(figures)
    alone = model_folder.load(tmp_path / "run" / "discriminator")
    pair = model_folder.load(tmp_path / "run" / "model")
    assert isinstance(alone, Encoder)
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor, pair.state_dict()[f"discriminator.{name}"]), name
    assert (tmp_path / "run" / "discriminator" / "tokenizer.json").is_file()
