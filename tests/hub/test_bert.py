"""BERT here and there: every head, padding on both sides, segments, odd configurations."""

from pathlib import Path

import pytest
import torch
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers import BertConfig
from transformers.models.bert import modeling_bert as theirs_bert

from longspan.nn.watch import watch

SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
# (class, attribute of their output, our task)
HEADS = [
    ("BertModel", "pooler_output", "pool"),
    ("BertForPreTraining", "prediction_logits", "masked"),
    ("BertForPreTraining", "seq_relationship_logits", "pair"),
    ("BertForMaskedLM", "logits", "masked"),
    ("BertForNextSentencePrediction", "logits", "pair"),
    ("BertForSequenceClassification", "logits", "classify"),
    ("BertForTokenClassification", "logits", "tag"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_states_maps_and_pooler_equal_theirs(folder: Path, side: str, dtype: torch.dtype) -> None:
    theirs = random_model(theirs_bert.BertModel, BertConfig(**SMALL), dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    segments = torch.arange(9).expand(3, 9) // 5
    with torch.no_grad():
        expected = theirs(
            ids, attention_mask=mask, token_type_ids=segments, output_hidden_states=True, output_attentions=True
        )
        with watch(found.model.stack) as seen:
            out = found.model(ids, key_mask=mask, segments=segments)
    assert_close(out, expected.last_hidden_state, mask)
    assert len(seen.states) == len(expected.hidden_states) == 4
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)


@pytest.mark.parametrize("name,attribute,task", HEADS, ids=[f"{name}-{task}" for name, _, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, attribute: str, task: str
) -> None:
    cls = getattr(theirs_bert, name)
    theirs = random_model(cls, BertConfig(**SMALL, num_labels=3))
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    segments = torch.arange(9).expand(3, 9) // 5
    with torch.no_grad():
        expected = getattr(theirs(ids, attention_mask=mask, token_type_ids=segments), attribute)
        own = found.model.outputs(ids, key_mask=mask, segments=segments)[task]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, cls, tmp_path / "back")
