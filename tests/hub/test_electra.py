"""ELECTRA here and there: both halves, every head, padding on both sides, odd configurations; the pair goes out."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers import ElectraConfig
from transformers.models.electra import modeling_electra as theirs_electra

from longspan import hub
from longspan.errors import Unsupported
from longspan.hub import families
from longspan.models import build
from longspan.nn.recorder import recording

SMALL = {
    "vocab_size": 40,
    "embedding_size": 12,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
# (class, our task)
HEADS = [
    ("ElectraForPreTraining", "detect"),
    ("ElectraForMaskedLM", "masked"),
    ("ElectraForSequenceClassification", "classify"),
    ("ElectraForTokenClassification", "tag"),
]
ODD: list[dict[str, Any]] = [
    {"embedding_size": 24, "hidden_act": "relu"},  # no projection; the generator's own activation stays GELU
    {"embedding_size": 40, "layer_norm_eps": 1e-5, "type_vocab_size": 3},
    {"num_attention_heads": 1, "num_hidden_layers": 1, "intermediate_size": 7, "pad_token_id": 4},
]
SEGMENTS = torch.arange(9).expand(3, 9) // 5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("width", [12, 24], ids=["narrow tables", "wide tables"])
def test_states_and_maps_equal_theirs(folder: Path, tmp_path: Path, width: int, side: str, dtype: torch.dtype) -> None:
    cls = theirs_electra.ElectraModel
    theirs = random_model(cls, ElectraConfig(**{**SMALL, "embedding_size": width}), dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(
            ids, attention_mask=mask, token_type_ids=SEGMENTS, output_hidden_states=True, output_attentions=True
        )
        with recording(found.model.stack) as seen:
            out = found.model(ids, key_mask=mask, segments=SEGMENTS)
    assert_close(out, expected.last_hidden_state, mask)
    for own, other in zip(seen.states, expected.hidden_states, strict=True):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions, strict=True):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@pytest.mark.parametrize("odd", [{}, *ODD], ids=str)
@pytest.mark.parametrize("name,task", HEADS, ids=[task for _, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, task: str, odd: dict[str, Any]
) -> None:
    cls = getattr(theirs_electra, name)
    theirs = random_model(cls, ElectraConfig(**{**SMALL, **odd}, num_labels=3))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, token_type_ids=SEGMENTS).logits
        own = found.model.outputs(ids, key_mask=mask, segments=SEGMENTS)[task]
    assert_close(own, expected, None if task == "classify" else mask)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_spans(folder: Path, tmp_path: Path) -> None:
    cls = theirs_electra.ElectraForQuestionAnswering
    theirs = random_model(cls, ElectraConfig(**SMALL))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)["span"]
    assert_close(own, torch.stack([expected.start_logits, expected.end_logits], -1), mask)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@pytest.mark.parametrize("activation", ["gelu", "tanh"])
def test_choices(folder: Path, tmp_path: Path, activation: str) -> None:
    cls = theirs_electra.ElectraForMultipleChoice
    theirs = random_model(cls, ElectraConfig(**SMALL, summary_activation=activation, summary_last_dropout=0.3))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids[None], attention_mask=mask[None]).logits
        own = found.model.outputs(ids, key_mask=mask)["choose"]
    assert_close(own[None], expected)
    assert found.model.heads["choose"].dropout.p == 0.3
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_a_generator_that_is_not_tied(folder: Path, tmp_path: Path) -> None:
    cls = theirs_electra.ElectraForMaskedLM
    theirs = random_model(cls, ElectraConfig(**SMALL, tie_word_embeddings=False))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(found.model.outputs(ids, key_mask=mask)["masked"], theirs(ids, attention_mask=mask).logits, mask)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_a_discriminator_with_another_head(folder: Path) -> None:
    theirs = random_model(theirs_electra.ElectraForPreTraining, ElectraConfig(**SMALL))
    found = loaded(theirs, folder, tasks=["classify"])
    parts = [f"heads.classify.{part}.{leaf}" for part in ("dense", "out") for leaf in ("weight", "bias")]
    assert set(found.fresh) == set(parts)
    assert all(name.startswith("discriminator_predictions.") for name in found.unused) and len(found.unused) == 4


def test_missing_keys_mean_their_defaults() -> None:
    family, theirs = families.find("electra", ""), ElectraConfig()
    options = family.options({"model_type": "electra"})
    for each in family.fields:
        assert each.write(options[each.ours]) == getattr(theirs, each.theirs), each.theirs


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"summary_type": "last"}, "summary_type is 'last'"),
        ({"summary_use_proj": False}, "summary_use_proj is False"),
        ({"summary_activation": None}, "summary_activation is None; it can be gelu, "),
        ({"summary_first_dropout": 0.4}, "summary_first_dropout is 0.4; it can be 0 or the last one, 0.1"),
    ],
)
def test_choices_that_are_made_otherwise_are_refused_by_name(given: dict[str, Any], words: str) -> None:
    family = families.find("electra", "")
    record = {"model_type": "electra", "architectures": ["ElectraForMultipleChoice"], **given}
    with pytest.raises(Unsupported, match=words):
        family.options(record)
    family.options({**record, "architectures": ["ElectraForPreTraining"]})  # of no matter there
    with pytest.raises(Unsupported, match="is_decoder is True"):
        family.options({"is_decoder": True})


def test_each_half_of_the_pair_is_read_by_theirs(tmp_path: Path) -> None:
    pair = build(
        "electra",
        vocabulary=40,
        width=24,
        embedding_width=16,
        layers=2,
        heads=4,
        hidden=40,
        max_length=20,
        generator_fraction=0.5,
        mask=1,
    ).eval()
    hub.save(pair.discriminator, tmp_path / "discriminator", family="electra")
    hub.save(pair.generator, tmp_path / "generator", family="electra")
    detect = theirs_electra.ElectraForPreTraining.from_pretrained(tmp_path / "discriminator").eval()
    fill = theirs_electra.ElectraForMaskedLM.from_pretrained(tmp_path / "generator").eval()
    assert (fill.config.hidden_size, fill.config.embedding_size, fill.config.num_attention_heads) == (12, 16, 1)
    table = "electra.embeddings.word_embeddings.weight"
    assert torch.equal(fill.state_dict()[table], detect.state_dict()[table])
    ids, mask = padded(40)
    chosen = mask & (torch.arange(9) % 3 == 1)
    masked = ids.masked_fill(chosen, 1)
    with torch.no_grad():
        found = pair(ids, masked, chosen, key_mask=mask)
        assert_close(found.proposals, fill(masked, attention_mask=mask).logits[chosen])
        assert_close(found.detections, detect(found.ids, attention_mask=mask).logits, mask)
