"""ALBERT here and there: shared layers, narrow tables, every head, padding on both sides, odd configurations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers import AlbertConfig
from transformers.models.albert import modeling_albert as theirs_albert

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build
from longspan.nn.recorder import recording

SMALL = {
    "vocab_size": 40,
    "embedding_size": 12,
    "hidden_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
# (class, attribute of their output, our task)
HEADS = [
    ("AlbertModel", "pooler_output", "pool"),
    ("AlbertForPreTraining", "prediction_logits", "masked"),
    ("AlbertForPreTraining", "sop_logits", "pair"),
    ("AlbertForMaskedLM", "logits", "masked"),
    ("AlbertForSequenceClassification", "logits", "classify"),
    ("AlbertForTokenClassification", "logits", "tag"),
]
ODD: list[dict[str, Any]] = [
    {"num_hidden_groups": 2},
    {"num_hidden_layers": 5, "num_hidden_groups": 3, "hidden_act": "relu", "layer_norm_eps": 1e-5},
    {"num_hidden_groups": 4, "embedding_size": 24},  # nothing shared; the projection is there all the same
    {"embedding_size": 36, "hidden_act": "gelu", "type_vocab_size": 3, "pad_token_id": 5},
    {"num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 7, "max_position_embeddings": 9},
]
SEGMENTS = torch.arange(9).expand(3, 9) // 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("odd", [{}, *ODD[:3]], ids=["plain", "groups", "uneven groups", "no sharing"])
def test_states_maps_and_pooler_equal_theirs(folder: Path, odd: dict[str, Any], side: str, dtype: torch.dtype) -> None:
    theirs = random_model(theirs_albert.AlbertModel, AlbertConfig(**{**SMALL, **odd}), dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(
            ids, attention_mask=mask, token_type_ids=SEGMENTS, output_hidden_states=True, output_attentions=True
        )
        with recording(found.model.stack) as seen:
            out = found.model(ids, key_mask=mask, segments=SEGMENTS)
    assert_close(out, expected.last_hidden_state, mask)
    count = found.model.options.layers
    assert len(seen.states) == len(expected.hidden_states) == count + 1 and len(seen.maps) == count
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions, strict=True):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)


@pytest.mark.parametrize("name,attribute,task", HEADS, ids=[f"{name}-{task}" for name, _, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, attribute: str, task: str
) -> None:
    cls = getattr(theirs_albert, name)
    labels = 2 if name == "AlbertForPreTraining" else 3  # they make as many scores of sentence order as labels
    theirs = random_model(cls, AlbertConfig(**SMALL, num_labels=labels))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = getattr(theirs(ids, attention_mask=mask, token_type_ids=SEGMENTS), attribute)
        own = found.model.outputs(ids, key_mask=mask, segments=SEGMENTS)[task]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_spans_and_choices(folder: Path, tmp_path: Path) -> None:
    ids, mask = padded(40)
    cls = theirs_albert.AlbertForQuestionAnswering
    theirs = random_model(cls, AlbertConfig(**SMALL))
    found = loaded(theirs, folder)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)["span"]
    assert_close(own, torch.stack([expected.start_logits, expected.end_logits], -1), mask)
    assert_round_trip(found, folder, cls, tmp_path / "back")

    chooser = random_model(theirs_albert.AlbertForMultipleChoice, AlbertConfig(**SMALL))
    found = loaded(chooser, tmp_path / "chooser")
    with torch.no_grad():
        expected = chooser(ids[None], attention_mask=mask[None]).logits
        own = found.model.outputs(ids, key_mask=mask)["choose"]
    assert_close(own[None], expected)
    assert_round_trip(found, tmp_path / "chooser", theirs_albert.AlbertForMultipleChoice, tmp_path / "chosen")


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("odd", ODD, ids=str)
def test_odd_configurations(folder: Path, tmp_path: Path, odd: dict[str, Any], tied: bool) -> None:
    cls = theirs_albert.AlbertForMaskedLM
    theirs = random_model(cls, AlbertConfig(**{**SMALL, **odd}, tie_word_embeddings=tied))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        own = found.model.outputs(ids, key_mask=mask)["masked"]
    assert_close(own, expected, mask)
    assert found.unused == ([] if tied else ["predictions.bias"])
    if not tied:  # that bias is dead there, and what is written for it is the one that counts
        with torch.no_grad():
            theirs.predictions.bias.copy_(theirs.predictions.decoder.bias)
        theirs.save_pretrained(folder)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_missing_keys_mean_their_defaults(folder: Path) -> None:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "albert", "architectures": ["AlbertModel"]}))
    options, theirs = hub.families.find("albert", "").options({"model_type": "albert"}), AlbertConfig()
    for each in hub.families.find("albert", "").fields:
        assert each.write(options[each.ours]) == getattr(theirs, each.theirs), each.theirs


def test_a_model_of_ours_is_read_by_theirs(tmp_path: Path) -> None:
    sizes = {"width": 24, "layers": 4, "heads": 4, "hidden": 40, "vocabulary": 40, "max_length": 20, "segments": 2}
    kind = {"position": "learned", "embedding_norm": True, "scale": False, "init": "normal", "activation": "gelu"}
    masked = [{"task": "masked", "activation": "gelu"}]
    alike = {**sizes, **kind, "embedding_projection": True, "eps": 1e-12, "tasks": masked}
    ids, mask = padded(40)
    for options in ({"groups": 2, "embedding_width": 12}, {}):
        ours = build("encoder", **alike, **options).eval()
        hub.save(ours, tmp_path, family="albert")
        theirs = theirs_albert.AlbertForMaskedLM.from_pretrained(tmp_path).eval()
        with torch.no_grad():
            assert_close(ours.outputs(ids, key_mask=mask)["masked"], theirs(ids, attention_mask=mask).logits, mask)
    with pytest.raises(Unsupported, match="share all of their weights or none, not share='attention'"):
        hub.save(build("encoder", **alike, groups=2, share="attention"), tmp_path, family="albert")
    with pytest.raises(Unsupported, match="build it with embedding_projection=True"):
        hub.save(build("encoder", **{**alike, "embedding_projection": False}), tmp_path, family="albert")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"inner_group_num": 2}, "inner_group_num is 2; for albert it can be 1"),
        ({"num_hidden_layers": 18, "num_hidden_groups": 14}, "num_hidden_groups is 14 for 18 layers"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any], words: str) -> None:
    random_model(theirs_albert.AlbertModel, AlbertConfig(**{**SMALL, **given})).save_pretrained(folder)
    with pytest.raises(Unsupported, match=words):
        hub.load(folder)


def test_scores_of_sentence_order_are_two(folder: Path) -> None:
    theirs = random_model(theirs_albert.AlbertForPreTraining, AlbertConfig(**SMALL, num_labels=3))
    with pytest.raises(InvalidInput, match=r"sop_classifier.classifier.weight: \(3, 24\) in the file, \(2, 24\)"):
        loaded(theirs, folder)
