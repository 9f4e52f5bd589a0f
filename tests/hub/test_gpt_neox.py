"""GPT-NeoX here and there: interleaved queries, keys and values, part of a head rotated, parallel residuals."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.generation import assert_same_texts
from tests.hub.parity import add, assert_close, assert_round_trip, in_double, loaded, padded, random_model
from transformers import GPTNeoXConfig, modeling_rope_utils
from transformers.models.gpt_neox import modeling_gpt_neox

from longspan import hub
from longspan.errors import Unsupported
from longspan.hub.formats import gguf
from longspan.hub.formats.gguf_file import GgufFile
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 20,
    "max_position_embeddings": 30,
    "pad_token_id": 0,
}


def rope(share: float, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": share, **more}}


ODD: dict[str, dict[str, Any]] = {
    "in-turn": {"use_parallel_residual": False},
    "half": rope(0.5),
    "all": rope(1.0),
    "no-biases": {"attention_bias": False, "tie_word_embeddings": True},
    "scaled": {**rope(0.5, rope_type="linear", factor=2.0), "hidden_act": "gelu_new"},
}


@pytest.fixture(autouse=True)
def precise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "float32" not in request.node.name:
        in_double(monkeypatch, modeling_gpt_neox, modeling_rope_utils)


def neox(end: str = "ForCausalLM", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    return random_model(getattr(modeling_gpt_neox, f"GPTNeoX{end}"), GPTNeoXConfig(**{**SMALL, **given}), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_states_and_maps_equal_theirs(folder: Path, tmp_path: Path, side: str, dtype: torch.dtype) -> None:
    theirs = neox(dtype=dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            logits = found.model(ids, key_mask=mask)
    assert_close(logits, expected.logits, mask)
    assert len(seen.states) == len(expected.hidden_states) == 3
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2).to(dtype), mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("given", ODD.values(), ids=ODD)
def test_odd_configurations(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = neox(**given)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize(
    "end,task",
    [
        ("Model", None),
        ("ForSequenceClassification", "classify"),
        ("ForTokenClassification", "tag"),
        ("ForQuestionAnswering", "span"),
    ],
)
def test_other_classes_equal_theirs(folder: Path, tmp_path: Path, end: str, task: str | None) -> None:
    theirs = neox(end, num_labels=2 if task == "span" else 3)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    ids = ids * mask
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        own = found.model.hidden(ids, key_mask=mask) if task is None else found.model.outputs(ids, key_mask=mask)[task]
    expected = torch.stack([out.start_logits, out.end_logits], -1) if task == "span" else out[0]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("beams", [1, 3])
def test_generation_equals_theirs(folder: Path, beams: int) -> None:
    theirs = neox()
    assert_same_texts(loaded(theirs, folder), theirs, beams=beams, new=8)


def test_cached_decoding_equals_the_whole_pass(folder: Path) -> None:
    model: Any = loaded(neox(), folder).model
    ids, _ = padded(40)
    with torch.no_grad():
        state, steps = model.start(3), []
        for piece in ids.split([4, 1, 4], 1):
            logits, state = model.extend(piece, state)
            steps.append(logits)
        assert_close(torch.cat(steps, 1), model(ids))


def test_old_keys_and_files_are_read(folder: Path) -> None:
    theirs = neox(**rope(0.5))
    theirs.save_pretrained(folder)
    path = folder / "config.json"
    record = json.loads(path.read_text())
    del record["rope_parameters"]
    path.write_text(json.dumps({**record, "rotary_pct": 0.5, "rotary_emb_base": 500}))
    masks = {f"gpt_neox.layers.{layer}.attention.bias": torch.ones(1, 1, 30, 30).tril() for layer in range(2)}
    add(folder, {**masks, "gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e9)})
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(hub.load(folder).model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)


@pytest.mark.parametrize(
    "given", [{}, ODD["in-turn"], ODD["all"], ODD["no-biases"]], ids=["plain", "turn", "all", "tied"]
)
def test_a_gguf_file_is_the_same_model(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = neox(dtype=torch.float32, **given)
    found, path = loaded(theirs, folder), tmp_path / "small.gguf"
    gguf.write(found, path)
    again = hub.load(path)
    first, second = found.model.state_dict(), again.model.state_dict()
    assert list(first) == list(second) and all(torch.equal(second[name], tensor) for name, tensor in first.items())
    # Queries, keys and values lie behind each other, as in llama.cpp.
    weight = theirs.state_dict()["gpt_neox.layers.0.attention.query_key_value.weight"].view(4, 3, 8, 32)
    assert torch.equal(GgufFile(path)["blk.0.attn_qkv.weight"], weight.transpose(0, 1).reshape(96, 32))


def test_a_gguf_file_cannot_say_every_activation(folder: Path, tmp_path: Path) -> None:
    found = loaded(neox(dtype=torch.float32, hidden_act="relu"), folder)
    with pytest.raises(Unsupported, match="a GGUF file of gptneox cannot say activation = 'relu'"):
        gguf.write(found, tmp_path / "small.gguf")
    assert not list(tmp_path.glob("*.gguf*"))


@pytest.mark.parametrize(
    "given,said", [({"hidden_act": "mish"}, "hidden_act"), (rope(0.5, rope_type="dynamic"), "rope_type is 'dynamic'")]
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any], said: str) -> None:
    neox().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(Unsupported, match=said):
        hub.load(folder)
