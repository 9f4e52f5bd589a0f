"""RoBERTa, CamemBERT and XLM-R here and there: positions that do not count padding, and heads of their own."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.parity import add, assert_close, assert_round_trip, loaded, padded, random_model
from torch import Tensor
from transformers import CamembertConfig, RobertaConfig, XLMRobertaConfig
from transformers.models.camembert import modeling_camembert
from transformers.models.roberta import modeling_roberta
from transformers.models.xlm_roberta import modeling_xlm_roberta

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 14,
    "layer_norm_eps": 1e-5,
}
FAMILIES = {
    "roberta": (modeling_roberta, RobertaConfig, "Roberta"),
    "camembert": (modeling_camembert, CamembertConfig, "Camembert"),
    "xlm-roberta": (modeling_xlm_roberta, XLMRobertaConfig, "XLMRoberta"),
}
# (end of the class name, attributes of their output, our task)
HEADS = [
    ("Model", ("pooler_output",), "pool"),
    ("ForMaskedLM", ("logits",), "masked"),
    ("ForSequenceClassification", ("logits",), "classify"),
    ("ForTokenClassification", ("logits",), "tag"),
    ("ForQuestionAnswering", ("start_logits", "end_logits"), "span"),
]


def model(end: str = "Model", family: str = "roberta", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    module, config, start = FAMILIES[family]
    return random_model(getattr(module, start + end), config(**{**SMALL, **changes}), dtype)


def texts(pad: int = 1, side: str = "right") -> tuple[Tensor, Tensor]:
    """Ids with padding where it belongs, since positions are counted by it."""
    ids, mask = padded(40, side=side, low=4)
    return ids.masked_fill(~mask, pad), mask


def both(theirs: Any, found: hub.Pretrained, names: tuple[str, ...], task: str, pad: int = 1) -> None:
    ids, mask = texts(pad)
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)[task]
    parts = [getattr(out, name) for name in names]
    assert_close(own, torch.stack(parts, -1) if len(parts) > 1 else parts[0], mask if own.dim() == 3 else None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_states_and_maps_equal_theirs(folder: Path, side: str, dtype: torch.dtype) -> None:
    theirs = model(dtype=dtype)
    found = loaded(theirs, folder)
    ids, mask = texts(side=side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            found.model(ids, key_mask=mask)
    assert len(seen.states) == len(expected.hidden_states) == 3
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)


def test_padding_on_either_side_changes_nothing(folder: Path) -> None:
    own = loaded(model(), folder).model
    (right, after), (left, before) = texts(), texts(side="left")
    left[before], right = right[after], right
    with torch.no_grad():
        assert_close(own(right, key_mask=after)[after], own(left, key_mask=before)[before])
        first, second = own.outputs(right, key_mask=after), own.outputs(left, key_mask=before)
    assert_close(first["pool"], second["pool"])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("end,attributes,task", HEADS, ids=[task for *_, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, family: str, end: str, attributes: tuple[str, ...], task: str
) -> None:
    theirs = model(end, family, num_labels=2 if task == "span" else 3)
    found = loaded(theirs, folder)
    both(theirs, found, attributes, task)
    assert found.family == family and found.unused == found.fresh == []
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("family", FAMILIES)
def test_choices(folder: Path, tmp_path: Path, family: str) -> None:
    theirs = model("ForMultipleChoice", family)
    found = loaded(theirs, folder)
    ids, mask = texts()
    choices, masks = ids.view(1, 3, 9), mask.view(1, 3, 9)
    with torch.no_grad():
        assert_close(found.model.choose(choices, key_mask=masks), theirs(choices, attention_mask=masks).logits)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "changes",
    [
        {"pad_token_id": 0, "max_position_embeddings": 10},
        {"pad_token_id": 3, "type_vocab_size": 1},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3, "num_attention_heads": 3},
    ],
    ids=["pad 0", "pad 3", "relu"],
)
def test_odd_configurations(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    # Their head for masked tokens has GELU whatever `hidden_act` is.
    theirs = model("ForMaskedLM", **changes)
    found = loaded(theirs, folder)
    both(theirs, found, ("logits",), "masked", changes.get("pad_token_id", 1))
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_regression_and_untied_embeddings(folder: Path, tmp_path: Path) -> None:
    theirs = model("ForSequenceClassification", num_labels=1)
    found = loaded(theirs, folder)
    both(theirs, found, ("logits",), "regress")
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    theirs = model("ForMaskedLM", tie_word_embeddings=False)
    found = loaded(theirs, tmp_path / "untied")
    both(theirs, found, ("logits",), "masked")
    hub.save(found, tmp_path / "again")
    both(type(theirs).from_pretrained(tmp_path / "again"), found, ("logits",), "masked")


def test_rows_before_the_first_position_and_the_longest_text(folder: Path) -> None:
    found = loaded(model("ForMaskedLM"), folder)
    options = found.model.options
    assert (options.max_length, options.position_offset) == (12, 2)
    assert found.model.embedding.position.weight.shape[0] == 14
    ids = torch.full((1, 12), 5)
    assert found.model(ids).shape == (1, 12, 24)
    with pytest.raises(InvalidInput, match=r"expected positions in -2..11 \(a table of 12\), got position 12"):
        found.model(torch.full((1, 13), 5))
    # Padding is not counted, so that more of it fits.
    assert found.model(torch.cat((ids, torch.ones(1, 3, dtype=torch.long)), 1)).shape == (1, 15, 24)


def test_old_files(folder: Path) -> None:
    theirs = model("ForMaskedLM")
    theirs.save_pretrained(folder)
    tied = {"lm_head.decoder.weight": theirs.roberta.embeddings.word_embeddings.weight.detach().clone()}
    pooler = {"roberta.pooler.dense.weight": torch.zeros(24, 24).double()}
    add(folder, {"roberta.embeddings.position_ids": torch.arange(14)[None], **tied, **pooler})
    found = hub.load(folder)
    assert found.unused == ["roberta.pooler.dense.weight"]
    both(theirs, found, ("logits",), "masked")


def test_impossible_requests_are_refused(folder: Path, tmp_path: Path) -> None:
    theirs = model()
    theirs.config.pad_token_id = None
    theirs.save_pretrained(folder)
    with pytest.raises(Unsupported, match="pad_token_id is null, and it is where positions begin"):
        hub.load(folder)
    small = {"vocabulary": 40, "width": 24, "layers": 1, "heads": 4, "hidden": 40, "max_length": 12}
    with pytest.raises(Unsupported, match="cannot say position_offset = 3; it would be read as 2"):
        hub.save(build("roberta-base", **small, position_offset=3), tmp_path, family="roberta")
    with pytest.raises(Unsupported, match="cannot say count_real = False; it would be read as True"):
        hub.save(build("roberta-base", **small, count_real=False), tmp_path, family="roberta")


def test_a_model_of_ours_is_written_as_camembert(tmp_path: Path) -> None:
    small = {"vocabulary": 40, "width": 24, "layers": 1, "heads": 4, "hidden": 40, "max_length": 12}
    own = build("camembert-base", **small).eval()
    hub.save(own, tmp_path, family="camembert")
    theirs = modeling_camembert.CamembertModel.from_pretrained(tmp_path).eval()
    assert theirs.config.max_position_embeddings == 14
    both(theirs, hub.Pretrained(own), ("pooler_output",), "pool")
