"""ETC's pre-training: sentences that are masked whole, and the loss that tells them apart."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.tasks.small import run, tokenizer
from tests.tasks.test_answer import squad
from tests.tasks.test_pretraining import grammar, prepare
from torch.nn.functional import log_softmax

from longspan import hub
from longspan.errors import InvalidOption, Unsupported
from longspan.models import build
from longspan.nn.loss import IGNORED
from longspan.tasks.base import Prepared
from longspan.tasks.predict import predict

ETC = {"width": 32, "layers": 2, "heads": 2, "hidden": 64, "dropout": 0.0, "radius": 4, "labels": 2, "types": 2}


def sentences(folder: Path, **options: Any) -> Prepared:
    return prepare(folder, "masked", **{"pairs": "none", "sentence_weight": 0.2, "short": 0.0, **options})


def etc(ready: Prepared, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"label_vocabulary": 7, "global_tokens": 12, "init_std": 0.3}
    return build("etc_model", **ETC, **sizes, **options, **ready.needs).double()


def test_masked_sentences_keep_nothing_of_their_text(tmp_path: Path) -> None:
    ready = sentences(tmp_path, hidden_sentences=0.5)
    tokenizer, batch = ready.tokenizer, ready.train.load([0, 1, 2], 0)
    assert len(batch["hidden_row"]) == len(batch["alone_ids"]) > 3
    for row, number, alone, real in zip(
        batch["hidden_row"].tolist(), batch["hidden_sentence"].tolist(), batch["alone_ids"], batch["alone_real"]
    ):
        special = torch.tensor([tokenizer.cls, tokenizer.sep])
        inside = (batch["sentences"][row] == number) & ~torch.isin(batch["ids"][row], special)
        assert batch["ids"][row][inside].eq(tokenizer.mask).all() and batch["labels"][row][inside].eq(IGNORED).all()
        text = alone[real].tolist()
        assert (text[0], text[-1]) == (tokenizer.cls, tokenizer.sep)
        assert len(text) - 2 == int(inside.sum()) and tokenizer.mask not in text
        assert tokenizer.decode(text).startswith("the ") and tokenizer.decode(text).endswith("here.")
    for row in range(3):  # never all sentences of a text, and masked tokens in the others
        hidden = set(batch["hidden_sentence"][batch["hidden_row"] == row].tolist())
        assert len(hidden) < int(batch["sentences"][row].max()) + 1
        assert (batch["labels"][row] != IGNORED).any()
    assert batch["sentences"][batch["real"]].min() == 0 and (batch["sentences"][~batch["real"]] == -1).all()


def test_a_tenth_of_the_sentences_is_masked(tmp_path: Path) -> None:
    data = sentences(tmp_path).train
    hidden = total = 0
    for epoch in range(8):
        for numbers in data.batches(epoch):
            batch = data.load(numbers, epoch)
            hidden += len(batch["hidden_row"])
            total += int((batch["sentences"].amax(1) + 1).sum())
    assert hidden / total == pytest.approx(0.1, abs=0.015)


def test_the_loss_by_hand(tmp_path: Path) -> None:
    """Each sentence is read alone in a pass of its own; the softmax is over all masked sentences of the batch."""
    ready = sentences(tmp_path, hidden_sentences=0.4)
    model, batch = etc(ready), ready.train.load([0, 1, 4], 0)
    objective = ready.objective
    states = model.read_sentences(batch["ids"], key_mask=batch["real"], sentences=batch["sentences"])
    alone = []
    for ids, real in zip(batch["alone_ids"], batch["alone_real"]):
        ids = ids[real][None]
        _, short = model(
            ids,
            torch.full((1, 2), model.options.global_id),
            segments=torch.zeros_like(ids),
            global_segments=torch.tensor([[-1, 0]]),
        )
        alone.append(short[0, 1])
    sentence_loss = 0.0
    for index, (row, number) in enumerate(zip(batch["hidden_row"], batch["hidden_sentence"])):
        context = states.sentences[row, number]
        scores = torch.stack([context @ other for other in alone]) / 32**0.5
        sentence_loss = sentence_loss - log_softmax(scores, 0)[index]
    chosen = batch["labels"] != IGNORED
    chances = log_softmax(model.heads["masked"](states.tokens[chosen], model.table), -1)
    token_loss = -chances.gather(1, batch["labels"][chosen][:, None]).sum()
    expected = 0.8 * token_loss + 0.2 * objective.tokens_per_sentence * sentence_loss
    torch.testing.assert_close(objective.loss(model, batch).total, expected, rtol=1e-10, atol=0)
    with torch.no_grad():
        metrics, _ = objective.measure(model, batch)
    result = metrics.result()
    assert result["sentence_loss"] == pytest.approx(float(sentence_loss.detach()) / len(alone))
    assert result["loss"] == pytest.approx(0.8 * result["masked_loss"] + 0.2 * result["sentence_loss"])


def test_a_batch_without_masked_sentences_has_the_loss_of_tokens(tmp_path: Path) -> None:
    ready = sentences(tmp_path)
    model = etc(ready)
    number = next(n for n in range(50) if not len(ready.train.load([n], 0)["hidden_row"]))
    loss = ready.objective.loss(model, ready.train.load([number], 0))
    torch.testing.assert_close(loss.total, 0.8 * loss.parts["masked"])
    loss.total.backward()


def test_a_run_is_pretrained_then_classifies_and_tags(tmp_path: Path) -> None:
    """The command line's way: etc_model gets the sentence tokens from the task's tokenizer, and keeps them."""
    grammar(tmp_path / "text")
    task = {"name": "masked", "train": str(tmp_path / "text"), "pairs": "none", "sentence_weight": 0.2}
    task |= {"length": 40, "batch": 8, "short": 0.0, "tokenizer": {"kind": "wordpiece", "size": 120}}
    model = {"name": "etc_model", **ETC, "label_vocabulary": 7, "global_tokens": 12, "init_std": 0.1}
    metrics = run(tmp_path / "run", task, model, steps=20)
    assert {"loss", "masked_loss", "sentence_loss", "sentence_accuracy"} <= set(metrics)
    loaded = hub.load(tmp_path / "run" / "model")
    assert loaded.model.options.sentence_ends == (loaded.tokenizer.id("."),)
    assert loaded.model.options.global_id == loaded.tokenizer.cls

    rows = ["the dog is here. the dog is red.\tdog", "the cat is here. the cat is red. the cat is blue.\tcat"] * 12
    (tmp_path / "a.tsv").write_text("text\tlabel\n" + "\n".join(rows) + "\n")
    classify = {"name": "classify", "train": str(tmp_path / "a.tsv"), "batch": 8}
    origin = {"from": str(tmp_path / "run" / "model")}
    assert run(tmp_path / "labels", classify, origin, steps=20)["accuracy"] == 1.0
    tuned = hub.load(tmp_path / "labels" / "model")
    assert [each["label"] for each in predict(tuned, ["the dog is here.", "the cat is here. " * 30])] == ["dog", "cat"]

    (tmp_path / "a.conll").write_text("the\tO\ndog\tB-animal\nis\tO\nhere\tO\n\nthe\tO\ncat\tB-animal\n\n" * 8)
    tag = {"name": "tag", "train": str(tmp_path / "a.conll"), "batch": 4, "length": 32}
    assert run(tmp_path / "tags", tag, origin, steps=30)["f1"] > 0.9
    assert predict(hub.load(tmp_path / "tags" / "model"), ["the dog is here"])[0]["tags"][1] == "B-animal"


def test_answers_are_spans_of_the_long_input(tmp_path: Path) -> None:
    own = tokenizer()
    sizes = {**ETC, "label_vocabulary": 7, "global_tokens": 6, "vocabulary": own.size, "segment_length": 16}
    build("etc_model", **sizes).save(tmp_path / "body", tokenizer=own.to_json())
    task = {"name": "answer", "train": str(squad(tmp_path / "a.json")), "length": 48, "step": 16, "batch": 4}
    assert "f1" in run(tmp_path / "run", task, {"from": str(tmp_path / "body")}, steps=2)
    passage = "the film was very good Anna lives in Paris"
    (answer,) = predict(hub.load(tmp_path / "run" / "model"), [f"where lives Anna\t{passage}"])
    assert answer["answer"] in passage


def test_what_cannot_predict_sentences_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match='sentence_weight is for texts of one span; give pairs = "none"'):
        sentences(tmp_path, pairs="next")
    ready = sentences(tmp_path)
    encoder = build("encoder", width=16, layers=1, heads=2, hidden=16, **ready.needs)
    with pytest.raises(Unsupported, match="the task 'masked' needs a model with a global token for each sentence"):
        ready.objective.loss(encoder, ready.train.load([0], 0))
