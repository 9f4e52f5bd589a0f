"""GPT and GPT-2 here and there: every head, padding on both sides, odd configurations, generation token for token."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.generation import assert_same_texts
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from transformers import GPT2Config, LlamaForCausalLM, OpenAIGPTConfig
from transformers.models.gpt2 import modeling_gpt2
from transformers.models.openai import modeling_openai

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build, presets
from longspan.models.presets import shrink
from longspan.nn.recorder import recording

SMALL = {"vocab_size": 40, "n_embd": 24, "n_layer": 3, "n_head": 4, "n_positions": 24, "pad_token_id": 0}
HEADS = [
    (modeling_gpt2, "GPT2ForSequenceClassification", "classify"),
    (modeling_gpt2, "GPT2ForTokenClassification", "tag"),
    (modeling_openai, "OpenAIGPTForSequenceClassification", "classify"),
]
ODD = {
    "narrow": {"n_inner": 10, "activation_function": "relu"},
    "other-eps": {"layer_norm_epsilon": 0.1, "activation_function": "silu"},
    "exact-gelu": {"activation_function": "gelu", "n_head": 1},
    "untied": {"tie_word_embeddings": False, "n_layer": 1},
    "by-layer": {"scale_attn_by_inverse_layer_idx": True},
    "unscaled": {"scale_attn_weights": False},
    "upcast": {"reorder_and_upcast_attn": True, "scale_attn_by_inverse_layer_idx": True},
}


def gpt2(dtype: torch.dtype = torch.float64, cls: str = "GPT2LMHeadModel", **given: Any) -> Any:
    return random_model(getattr(modeling_gpt2, cls), GPT2Config(**{**SMALL, **given}), dtype)


def gpt(dtype: torch.dtype = torch.float64, cls: str = "OpenAIGPTLMHeadModel", **given: Any) -> Any:
    return random_model(getattr(modeling_openai, cls), OpenAIGPTConfig(**{**SMALL, **given}), dtype)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("made", [gpt, gpt2], ids=["gpt", "gpt2"])
def test_logits_states_and_maps_equal_theirs(folder: Path, made: Any, side: str, dtype: torch.dtype) -> None:
    theirs = made(dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask, output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            logits = found.model(ids, key_mask=mask)
    assert_close(logits, expected.logits, mask)
    assert len(seen.states) == len(expected.hidden_states) == 4
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)


@pytest.mark.parametrize("module,name,task", HEADS, ids=[name for _, name, _ in HEADS])
@pytest.mark.parametrize("side", ["right", "left"])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, module: Any, name: str, task: str, side: str
) -> None:
    theirs = (gpt if module is modeling_openai else gpt2)(cls=name, num_labels=3)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    ids = ids * mask  # they look for the last token that is not padding
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        own = found.model.outputs(ids, key_mask=mask)[task]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, getattr(module, name), tmp_path / "back")


def test_answers_start_and_end_where_theirs_do(folder: Path, tmp_path: Path) -> None:
    theirs = gpt2(cls="GPT2ForQuestionAnswering")
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        start, end = found.model.outputs(ids, key_mask=mask)["span"].unbind(-1)
    assert_close(start, expected.start_logits, mask)
    assert_close(end, expected.end_logits, mask)
    assert_round_trip(found, folder, modeling_gpt2.GPT2ForQuestionAnswering, tmp_path / "back")


@pytest.mark.parametrize("name,made", [("OpenAIGPTDoubleHeadsModel", gpt), ("GPT2DoubleHeadsModel", gpt2)])
def test_choices_are_scored_as_theirs_are(folder: Path, tmp_path: Path, name: str, made: Any) -> None:
    theirs = made(cls=name)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids[None], attention_mask=None, mc_token_ids=mask.sum(1)[None] - 1)
        own = found.model.outputs(ids, key_mask=mask)["choose"]
        logits = found.model(ids)
    assert_close(own, expected.mc_logits.view(-1))
    assert_close(logits, expected.logits[0])
    if made is gpt:  # GPT's file has the output layer where all others have the embedding; we write the embedding
        tensors = load_file(folder / "model.safetensors")
        tensors["transformer.tokens_embed.weight"] = tensors.pop("lm_head.weight")
        save_file(tensors, folder / "model.safetensors")
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("given", ODD.values(), ids=ODD)
def test_odd_configurations(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    # Upcasting is to float32: what it would do to float64 is no part of the model.
    theirs = gpt2(torch.float32 if "reorder_and_upcast_attn" in given else torch.float64, **given)
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    with torch.no_grad():
        assert_close(found.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)
    assert_round_trip(found, folder, modeling_gpt2.GPT2LMHeadModel, tmp_path / "back")


def test_every_missing_key_means_their_default(folder: Path) -> None:
    gpt2().save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    for key in ("layer_norm_epsilon", "activation_function", "n_inner", "tie_word_embeddings", "architectures"):
        record.pop(key, None)
    (folder / "config.json").write_text(json.dumps(record))
    options = hub.load(folder).model.options
    assert (options.eps, options.activation, options.hidden, options.tied) == (1e-5, "gelu_tanh", 96, True)


@pytest.mark.parametrize("made,name", [(gpt, "OpenAIGPTModel"), (gpt2, "GPT2Model")])
def test_a_body_alone_has_bare_names_and_goes_back_to_them(folder: Path, tmp_path: Path, made: Any, name: str) -> None:
    theirs = made(cls=name)
    found = loaded(theirs, folder)
    ids, _ = padded(40)
    with torch.no_grad():
        assert_close(found.model.hidden(ids), theirs(ids).last_hidden_state)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_old_files_with_masks_and_either_prefix_are_read(folder: Path, tmp_path: Path) -> None:
    theirs = gpt2()
    theirs.save_pretrained(folder)
    tensors = {
        name.removeprefix("transformer."): each for name, each in load_file(folder / "model.safetensors").items()
    }
    tensors["h.0.attn.bias"] = torch.ones(24, 24).tril().bool()[None, None]
    tensors["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    found = hub.load(folder)
    assert not found.unused
    ids, _ = padded(40)
    with torch.no_grad():
        assert_close(found.model(ids), theirs(ids).logits)


def test_a_square_matrix_left_unturned_is_seen_in_the_logits(folder: Path) -> None:
    """attn.c_proj fits either way, so that no check of shapes finds it: the parity of logits must."""
    theirs = gpt2()
    found = loaded(theirs, folder)
    ids, _ = padded(40)
    with torch.no_grad():
        expected = theirs(ids).logits
        assert_close(found.model(ids), expected)
        weight = found.model.stack.blocks[0].mixer.out.weight
        weight.data = weight.data.t()
        with pytest.raises(AssertionError):
            assert_close(found.model(ids), expected)


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("made", [gpt, gpt2], ids=["gpt", "gpt2"])
def test_generation_is_theirs_token_for_token(folder: Path, made: Any, beams: int) -> None:
    theirs = made(torch.float32)
    assert_same_texts(loaded(theirs, folder), theirs, beams=beams, new=12)


def test_ties_that_disagree_and_tensors_that_lack_are_named(folder: Path) -> None:
    gpt2().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "lm_head.weight": tensors["transformer.wte.weight"] + 1}, folder / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"lm_head\.weight and transformer\.wte\.weight differ"):
        hub.load(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, "tie_word_embeddings": False}))
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(InvalidInput, match=r"lacks lm_head\.weight"):
        hub.load(folder)


def test_options_that_gpt2_cannot_express_are_refused(folder: Path, tmp_path: Path) -> None:
    gpt2().save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, "add_cross_attention": True}))
    with pytest.raises(Unsupported, match="add_cross_attention is True"):
        hub.load(folder)
    banded = build("decoder", width=8, heads=2, layers=2, attention=["softmax", {"name": "window", "window": 2}])
    with pytest.raises(Unsupported, match="dense attention"):
        hub.save(banded, tmp_path / "back", family="gpt2")
    with pytest.raises(Unsupported, match="cannot say norm_position = 'post'; it would be read as 'pre'"):
        hub.save(build("decoder", width=8, heads=2, layers=2, max_length=8), tmp_path / "back", family="gpt2")


@pytest.mark.parametrize(
    "preset,family,cls",
    [
        ("gpt", "openai-gpt", modeling_openai.OpenAIGPTLMHeadModel),
        ("gpt2", "gpt2", modeling_gpt2.GPT2LMHeadModel),
        ("stories260k", "llama", LlamaForCausalLM),
        ("llama3.1-8b", "llama", LlamaForCausalLM),
    ],
)
def test_a_saved_model_loads_in_transformers(tmp_path: Path, preset: str, family: str, cls: Any) -> None:
    row = shrink(presets.find(preset))
    model = build(row.model, **{**row.options, "hidden": 4 * row.options["width"]}).eval()
    hub.save(model, tmp_path, family=family)
    theirs = cls.from_pretrained(tmp_path).eval()
    ids, _ = padded(11)
    with torch.no_grad():
        assert_close(model(ids), theirs(ids).logits)
