"""OPT here and there: pre-norm and, as the one of 350M, post-norm with narrow tokens; generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.generation import assert_same_texts
from tests.hub.parity import assert_close, assert_round_trip, in_double, loaded, padded, random_model
from torch import Tensor
from transformers import OPTConfig
from transformers.models.opt import modeling_opt

from longspan import hub
from longspan.errors import Unsupported
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "ffn_dim": 20,
    "max_position_embeddings": 30,
    "pad_token_id": 1,
    "bos_token_id": 2,
}
OF_350M: dict[str, Any] = {"do_layer_norm_before": False, "word_embed_proj_dim": 10}


@pytest.fixture(autouse=True)
def precise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "float32" not in request.node.name:
        in_double(monkeypatch, modeling_opt)


def opt(end: str = "ForCausalLM", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    return random_model(getattr(modeling_opt, f"OPT{end}"), OPTConfig(**{**SMALL, **given}), dtype)


def counted(mask: Tensor) -> Tensor:
    """Their positions count the real tokens; ours are given, as `generate` gives them."""
    return mask.cumsum(1) * mask - 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("given", [{}, OF_350M], ids=["plain", "350m"])
def test_logits_states_and_maps_equal_theirs(
    folder: Path, tmp_path: Path, given: dict[str, Any], side: str, dtype: torch.dtype
) -> None:
    theirs = opt(dtype=dtype, **given)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            logits = found.model(ids, key_mask=mask, positions=counted(mask))
    assert_close(logits, expected.logits, mask)
    for own, other in zip(seen.states[:-1], expected.hidden_states[:-1]):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2).to(dtype), mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("given", [{}, OF_350M], ids=["plain", "350m"])
@pytest.mark.parametrize("end,task", [("Model", None), ("ForSequenceClassification", "classify")])
def test_body_and_classifier_equal_theirs(
    folder: Path, tmp_path: Path, end: str, task: str | None, given: dict[str, Any]
) -> None:
    theirs = opt(end, num_labels=3, **given)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    ids = ids.masked_fill(~mask, 1)  # they look for the last token that is not padding
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        own = found.model.hidden(ids, key_mask=mask) if task is None else found.model.outputs(ids, key_mask=mask)[task]
    assert_close(own, out.last_hidden_state if task is None else out.logits, mask if task is None else None)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_answers_start_and_end_where_theirs_do(folder: Path, tmp_path: Path) -> None:
    theirs = opt("ForQuestionAnswering", **OF_350M)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)["span"]
    assert_close(own, torch.stack([out.start_logits, out.end_logits], -1), mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "given",
    [{"tie_word_embeddings": False, "enable_bias": False}, {**OF_350M, "tie_word_embeddings": False}],
    ids=["no-biases", "350m-untied"],
)
def test_odd_configurations(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = opt(**given)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("given", [{}, OF_350M], ids=["plain", "350m"])
def test_generation_equals_theirs(folder: Path, given: dict[str, Any], beams: int) -> None:
    theirs = opt(**given)
    assert_same_texts(loaded(theirs, folder), theirs, beams=beams, new=8)


def test_cached_decoding_equals_the_whole_pass(folder: Path) -> None:
    model: Any = loaded(opt(**OF_350M), folder).model
    ids, _ = padded(40)
    with torch.no_grad():
        state, steps = model.start(3), []
        for piece in ids.split([4, 1, 4], 1):
            logits, state = model.extend(piece, state)
            steps.append(logits)
        assert_close(torch.cat(steps, 1), model(ids))


@pytest.mark.parametrize(
    "given",
    [{"layer_norm_elementwise_affine": False}, {"_remove_final_layer_norm": True}, {"activation_function": "mish"}],
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any]) -> None:
    opt().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(Unsupported, match=next(iter(given))):
        hub.load(folder)
