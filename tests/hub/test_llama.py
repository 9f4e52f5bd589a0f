"""Llama here and there: every head, grouped queries, biases, ties, and every kind of rotary scaling."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.generation import assert_same_texts
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers import LlamaConfig, modeling_rope_utils
from transformers.models.llama import modeling_llama

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.nn.recorder import recording

SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
}
ODD = {
    "one-key-head": {"num_key_value_heads": 1},
    "all-key-heads": {"num_key_value_heads": None},
    "narrow-heads": {"head_dim": 4},
    "wide-heads": {"head_dim": 10, "attention_bias": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "tied": {"tie_word_embeddings": True},
    "gelu": {"hidden_act": "gelu_pytorch_tanh", "num_hidden_layers": 1},
    "other-eps": {"rms_norm_eps": 0.1, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
}
SCALINGS = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "yarn-told": {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 512,
        "attention_factor": 1.5,
        "beta_fast": 20.0,
        "beta_slow": 2.0,
        "truncate": False,
    },
    "yarn-scales": {
        "rope_type": "yarn",
        "factor": 8.0,
        "original_max_position_embeddings": 256,
        "mscale": 0.7,
        "mscale_all_dim": 1.1,
    },
}


@pytest.fixture
def precise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Theirs goes through float32 in norms, softmax and rotations; what it computes is seen in float64 alone."""
    double = {"float32": torch.float64, "float": torch.float64}
    shown = SimpleNamespace(**{name: getattr(torch, name) for name in dir(torch)} | double)
    monkeypatch.setattr(modeling_llama, "torch", shown)
    monkeypatch.setattr(modeling_rope_utils, "torch", shown)


def llama(dtype: torch.dtype = torch.float64, cls: str = "LlamaForCausalLM", **given: Any) -> Any:
    return random_model(getattr(modeling_llama, cls), LlamaConfig(**{**SMALL, **given}), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_logits_states_and_maps_equal_theirs(folder: Path, precise: None, side: str, dtype: torch.dtype) -> None:
    theirs = llama(dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            logits = found.model(ids, key_mask=mask)
    assert_close(logits, expected.logits.to(dtype), mask)
    assert len(seen.states) == len(expected.hidden_states) == 4
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other.to(dtype), mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2).to(dtype), mask)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "name,task", [("LlamaForSequenceClassification", "classify"), ("LlamaForTokenClassification", "tag")]
)
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, precise: None, name: str, task: str, side: str
) -> None:
    theirs = llama(cls=name, num_labels=3)
    found = loaded(theirs, folder)
    assert found.model.head is None and not found.fresh
    ids, mask = padded(40, side=side)
    ids = ids * mask  # they look for the last token that is not padding
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        own = found.model.outputs(ids, key_mask=mask)[task]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_answers_start_and_end_where_theirs_do(folder: Path, tmp_path: Path, precise: None) -> None:
    theirs = llama(cls="LlamaForQuestionAnswering")
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        start, end = found.model.outputs(ids, key_mask=mask)["span"].unbind(-1)
    assert_close(start, expected.start_logits, mask)
    assert_close(end, expected.end_logits, mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("given", ODD.values(), ids=ODD)
def test_odd_configurations(folder: Path, tmp_path: Path, precise: None, given: dict[str, Any]) -> None:
    theirs = llama(**given)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("rope", SCALINGS.values(), ids=SCALINGS)
def test_rotary_tables_are_theirs_for_every_scaling(
    folder: Path, tmp_path: Path, precise: None, rope: dict[str, Any]
) -> None:
    theirs = llama(head_dim=16, max_position_embeddings=200, rope_parameters={"rope_theta": 500.0, **rope})
    found = loaded(theirs, folder)
    places = torch.arange(150)
    cosine, sine = theirs.model.rotary_emb(torch.zeros(1, dtype=torch.float64), places[None])
    rotary = found.model.stack.blocks[0].mixer.position
    own = rotary._waves(150, 0, None, torch.device("cpu"), torch.float64)
    cosine, sine = cosine[0, :, :8], sine[0, :, :8]
    assert_close(own, torch.cat((cosine, cosine, -sine, sine), -1))
    ids = torch.randint(1, 40, (1, 150))
    with torch.no_grad():
        assert_close(found.model(ids), theirs(ids).logits)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    assert hub.load(tmp_path / "back").model.options.rotary_scaling == found.model.options.rotary_scaling


def test_rotary_of_old_configurations(folder: Path) -> None:
    llama().save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    record.pop("rope_parameters", None)
    scaling = {"type": "linear", "factor": 2.0}
    (folder / "config.json").write_text(json.dumps({**record, "rope_theta": 1e6, "rope_scaling": scaling}))
    options = hub.load(folder).model.options
    assert options.rotary_base == 1e6 and options.rotary_scaling.factor == 2.0
    (folder / "config.json").write_text(json.dumps({**record, "rope_scaling": None}))
    options = hub.load(folder).model.options
    assert options.rotary_base == 1e4 and options.rotary_scaling is None


@pytest.mark.parametrize(
    "given,said",
    [
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type is 'dynamic'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2.0}}, "lacks its low_freq_factor"),
        ({"rope_scaling": {"rope_type": "linear"}}, "lacks its factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"hidden_act": "mish"}, "hidden_act is 'mish'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any], said: str) -> None:
    llama().save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, **given}))
    with pytest.raises((InvalidInput, Unsupported), match=said):
        hub.load(folder)


def test_a_body_alone_lacks_its_output_layer_and_says_so(folder: Path, tmp_path: Path) -> None:
    theirs = llama(cls="LlamaModel")
    found = loaded(theirs, folder)
    assert found.fresh == ["head.weight"]
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_an_output_layer_that_should_be_there_is_named(folder: Path) -> None:
    llama().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"lacks lm_head\.weight"):
        hub.load(folder)


def test_weights_stay_in_the_file_gate_and_up_as_one(folder: Path) -> None:
    model = loaded(llama(), folder).model
    memory = model.embedding.weight.untyped_storage()
    assert memory.nbytes() == (folder / "model.safetensors").stat().st_size
    assert all(each.untyped_storage().data_ptr() == memory.data_ptr() for each in model.parameters())


def test_gate_and_up_that_lie_apart_are_joined(folder: Path, precise: None) -> None:
    theirs = llama()
    theirs.save_pretrained(folder, max_shard_size="4KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 3
    ids, _ = padded(40)
    with torch.no_grad():
        assert_close(hub.load(folder).model(ids), theirs(ids).logits)


def test_another_task_on_the_same_body(folder: Path, tmp_path: Path) -> None:
    found = loaded(llama(), folder, tasks=["classify"])
    assert found.fresh == ["heads.classify.out.weight"] and found.model.head is not None
    hub.save(found, tmp_path / "back")
    again = hub.load(tmp_path / "back")
    assert again.config["architectures"] == ["LlamaForSequenceClassification"] and not again.fresh


@pytest.mark.parametrize("beams", [1, 4])
def test_generation_is_theirs_token_for_token(folder: Path, beams: int) -> None:
    theirs = llama(torch.float32)
    assert_same_texts(loaded(theirs, folder), theirs, beams=beams, new=12)
