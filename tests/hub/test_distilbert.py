"""DistilBERT here and there: no segments, no pooler, heads with a layer of their own."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import add, assert_close, assert_round_trip, loaded, padded, random_model
from transformers import DistilBertConfig
from transformers.models.distilbert import modeling_distilbert as theirs_distilbert

from longspan import hub
from longspan.errors import InvalidInput
from longspan.models import build
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 40,
    "max_position_embeddings": 12,
}
HEADS = [
    ("ForMaskedLM", ("logits",), "masked"),
    ("ForSequenceClassification", ("logits",), "classify"),
    ("ForTokenClassification", ("logits",), "tag"),
    ("ForQuestionAnswering", ("start_logits", "end_logits"), "span"),
]


def model(end: str = "Model", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    return random_model(getattr(theirs_distilbert, f"DistilBert{end}"), DistilBertConfig(**{**SMALL, **changes}), dtype)


def both(theirs: Any, found: hub.Pretrained, names: tuple[str, ...], task: str) -> None:
    ids, mask = padded(40)
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)[task]
    parts = [getattr(out, name) for name in names]
    assert_close(own, torch.stack(parts, -1) if len(parts) > 1 else parts[0], mask if own.dim() == 3 else None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_states_and_maps_equal_theirs(folder: Path, tmp_path: Path, side: str, dtype: torch.dtype) -> None:
    theirs = model(dtype=dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            found.model(ids, key_mask=mask)
    assert len(seen.states) == len(expected.hidden_states) == 3
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("end,attributes,task", HEADS, ids=[task for *_, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, end: str, attributes: tuple[str, ...], task: str
) -> None:
    theirs = model(end, num_labels=2 if task == "span" else 3)
    found = loaded(theirs, folder)
    both(theirs, found, attributes, task)
    assert found.unused == found.fresh == []
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_choices_and_regression(folder: Path, tmp_path: Path) -> None:
    theirs = model("ForMultipleChoice")
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    choices, masks = ids.view(1, 3, 9), mask.view(1, 3, 9)
    with torch.no_grad():
        assert_close(found.model.choose(choices, key_mask=masks), theirs(choices, attention_mask=masks).logits)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    theirs = model("ForSequenceClassification", num_labels=1)
    both(theirs, loaded(theirs, tmp_path / "one"), ("logits",), "regress")


@pytest.mark.parametrize(
    "changes",
    [
        {"activation": "relu", "tie_word_embeddings": False},
        {"activation": "gelu_new", "sinusoidal_pos_embds": True, "n_heads": 1},
        {"n_layers": 1, "hidden_dim": 5, "pad_token_id": 3},
    ],
    ids=["untied", "sinusoidal", "small"],
)
def test_odd_configurations(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs = model("ForMaskedLM", **changes)
    found = loaded(theirs, folder)
    both(theirs, found, ("logits",), "masked")
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_the_dropout_of_heads_is_theirs(folder: Path) -> None:
    rates = {"qa_dropout": 0.35, "seq_classif_dropout": 0.25, "dropout": 0.15}
    found = loaded(model(**rates), folder, tasks=["span", "classify", "tag"])
    heads = found.model.heads
    assert [heads[task].dropout.p for task in ("span", "classify", "tag")] == [0.35, 0.25, 0.15]


def test_a_configuration_may_use_the_words_of_other_families(folder: Path) -> None:
    theirs = model("ForMaskedLM")
    theirs.save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    words = {"dim": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads"}
    (folder / "config.json").write_text(json.dumps({words.get(key, key): value for key, value in record.items()}))
    both(theirs, hub.load(folder), ("logits",), "masked")


def test_it_has_no_segments(folder: Path) -> None:
    theirs = model("ForMaskedLM")
    theirs.save_pretrained(folder)
    tied = theirs.distilbert.embeddings.word_embeddings.weight.detach().clone()
    add(folder, {"vocab_projector.weight": tied, "distilbert.embeddings.position_ids": torch.arange(12)[None]})
    found = hub.load(folder)
    assert found.unused == []
    ids, _ = padded(40)
    with pytest.raises(InvalidInput, match="this model has no segment embeddings"):
        found.model(ids, segments=torch.zeros_like(ids))


def test_a_model_of_ours_is_written_as_distilbert(tmp_path: Path) -> None:
    own = build("distilbert", vocabulary=40, width=24, layers=1, heads=4, hidden=40, max_length=12).eval()
    hub.save(own, tmp_path, family="distilbert")
    theirs = theirs_distilbert.DistilBertModel.from_pretrained(tmp_path).eval()
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(own(ids, key_mask=mask), theirs(ids, attention_mask=mask).last_hidden_state, mask)
