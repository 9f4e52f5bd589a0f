"""BART, LED and T5 in the tasks that read texts: fine-tuned, with their own heads, and used."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import random_model
from tests.tasks.small import run, tokenizer
from transformers import BartConfig, LEDConfig, T5Config
from transformers.models.bart.modeling_bart import BartForConditionalGeneration, BartForSequenceClassification
from transformers.models.led.modeling_led import LEDForConditionalGeneration
from transformers.models.t5.modeling_t5 import T5ForConditionalGeneration

from longspan import hub
from longspan.errors import InvalidInput
from longspan.models import build
from longspan.models.base import shift_right
from longspan.tasks.predict import predict

SIZES: dict[str, Any] = {
    "d_model": 24,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}
PARTS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "bart": (BartForConditionalGeneration, BartConfig, {**SIZES, "max_position_embeddings": 64}),
    "led": (
        LEDForConditionalGeneration,
        LEDConfig,
        {
            **SIZES,
            "attention_window": 8,
            "max_encoder_position_embeddings": 64,
            "max_decoder_position_embeddings": 64,
        },
    ),
    "t5": (
        T5ForConditionalGeneration,
        T5Config,
        {"d_model": 24, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0},
    ),
}


def body(folder: Path, name: str) -> str:
    """A checkpoint of theirs with a tokenizer of ours."""
    own = tokenizer()
    cls, config, sizes = PARTS[name]
    random_model(cls, config(vocab_size=own.size, pad_token_id=own.pad, **sizes), torch.float32).save_pretrained(folder)
    own.save(folder)
    return str(folder)


def file_of(task: str, folder: Path) -> dict[str, Any]:
    """A small file for each task, and the options that name it."""
    path = folder / "rows.csv"
    rows = {
        "classify": ("text,label", ["good film,yes", "bad film,no"]),
        "choose": ("text,choice0,choice1,label", ["the film was,good,bad,0", "the plot was,good,bad,1"]),
        "tag": ("words,tags", ["Anna lives in Paris,B-PER O O B-LOC", "the film was very good,O O O O O"]),
        "answer": ("question,passage,answer", ["where lives Anna,Anna lives in Paris,Paris"]),
    }
    header, lines = rows[task]
    path.write_text("\n".join([header, *lines * 6]) + "\n")
    return {"name": task, "train": str(path), "held_out": str(path), "batch": 4, "length": 32}


LINES = {
    "classify": ("good film", "label"),
    "choose": ("the film was\tgood\tbad", "choice"),
    "tag": ("Anna lives in Paris", "tags"),
    "answer": ("where lives Anna\tAnna lives in Paris", "answer"),
}


@pytest.mark.parametrize("task", LINES)
@pytest.mark.parametrize("name", PARTS)
def test_every_task_tunes_every_body(tmp_path: Path, name: str, task: str) -> None:
    given, folder = file_of(task, tmp_path), body(tmp_path / "body", name)
    slow = {"schedule": {"kind": "constant", "rate": 1e-3}}
    before = run(tmp_path / "one", given, {"from": folder}, steps=1, **slow)
    after = run(tmp_path / "run", given, {"from": folder}, steps=12, **slow)
    assert after["loss"] < before["loss"]
    found = hub.load(tmp_path / "run" / "model")
    # T5 labels words by its encoder alone, as T5ForTokenClassification does.
    assert found.model.name == ("encoder" if (name, task) == ("t5", "tag") else "transformer")
    line, key = LINES[task]
    (alone,) = predict(found, [line])
    assert key in alone
    assert predict(found, [line, line + " the"])[0][key] == alone[key]  # whatever the padding is


def test_predictions_are_those_of_their_classifier(tmp_path: Path) -> None:
    own = tokenizer()
    ids = {"pad_token_id": own.pad, "eos_token_id": own.sep, "decoder_start_token_id": own.sep, "num_labels": 3}
    config = BartConfig(vocab_size=own.size, **SIZES, max_position_embeddings=64, **ids)
    theirs = random_model(BartForSequenceClassification, config, torch.float32)
    theirs.save_pretrained(tmp_path)
    own.save(tmp_path)
    texts = ["good film", "the plot was very bad"]
    found = predict(hub.load(tmp_path), texts)
    for text, one in zip(texts, found):
        with torch.no_grad():
            expected = theirs(torch.tensor([own.encode(text).ids])).logits.softmax(-1)[0]
        assert list(one["probabilities"].values()) == pytest.approx(expected.tolist(), abs=1e-5)


def test_a_new_encoder_decoder_starts_with_the_tokenizers_first_token(tmp_path: Path) -> None:
    sizes = {"layers": 1, "heads": 2, "width": 24, "hidden": 32, "dropout": 0.0}
    run(tmp_path / "run", file_of("classify", tmp_path), {"name": "transformer", **sizes}, steps=40)
    found = hub.load(tmp_path / "run" / "model")
    assert found.model.options.start == found.tokenizer.cls and found.model.options.tasks[0].pool == "last"
    assert [one["label"] for one in predict(found, ["good film", "bad film"])] == ["yes", "no"]


def test_what_a_decoder_cannot_read_is_refused() -> None:
    sizes = {"vocabulary": 20, "layers": 1, "heads": 2, "width": 16, "hidden": 16, "tasks": ("classify",)}
    ids = torch.arange(6).view(1, 6)
    with pytest.raises(InvalidInput, match="give its id as the option start"):
        build("transformer", **sizes).outputs(ids)
    model: Any = build("transformer", **sizes, start=1).eval()
    with pytest.raises(InvalidInput, match="padded on the right"):
        model.outputs(ids, key_mask=ids > 1)
    with pytest.raises(InvalidInput, match="key_mask is the mask of the text; leave out source_mask"):
        model.outputs(ids, source_mask=ids > 1)
    explicit = model.outputs(ids, shift_right(ids, 1))["classify"]
    assert torch.equal(model.outputs(ids)["classify"], explicit)
