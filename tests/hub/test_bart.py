"""BART and mBART here and there: both sides' states and maps, every head, padding on both sides, odd configurations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import assert_close, assert_round_trip, loaded, padded, random_model
from torch import Tensor
from transformers import BartConfig, MBartConfig
from transformers.models.bart import modeling_bart as theirs_bart
from transformers.models.mbart import modeling_mbart as theirs_mbart

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import shift_right
from longspan.nn.recorder import recording

# The two sides differ in everything that they can differ in.
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 3,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 30,
    "max_position_embeddings": 20,
}
ODD: list[dict[str, Any]] = [
    {"scale_embedding": True, "activation_function": "gelu_new"},
    {"activation_function": "relu", "pad_token_id": 0, "decoder_start_token_id": 0},
    {"encoder_layers": 1, "decoder_layers": 4, "decoder_ffn_dim": 52, "max_position_embeddings": 11},
]


def sides(side: str) -> tuple[Tensor, Tensor, Tensor]:
    """A source with its mask, and what the decoder reads."""
    source, mask = padded(40, side=side)
    return source, mask, torch.arange(3, 21).view(3, 6) % 37 + 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize(
    "cls,config", [(theirs_bart.BartModel, BartConfig), (theirs_mbart.MBartModel, MBartConfig)], ids=["bart", "mbart"]
)
def test_states_and_maps_of_both_sides_equal_theirs(
    folder: Path, cls: Any, config: Any, side: str, dtype: torch.dtype
) -> None:
    theirs = random_model(cls, config(**SMALL), dtype)
    model: Any = loaded(theirs, folder).model
    source, mask, ids = sides(side)
    target_mask = torch.ones_like(ids, dtype=torch.bool)
    target_mask[1, :2] = False
    with torch.no_grad():
        expected = theirs(
            source,
            attention_mask=mask,
            decoder_input_ids=ids,
            decoder_attention_mask=target_mask,
            output_hidden_states=True,
            output_attentions=True,
        )
        with recording(model.encoder) as read, recording(model.decoder) as written:
            out = model.hidden(source, ids, source_mask=mask, key_mask=target_mask)
    assert_close(out, expected.last_hidden_state, target_mask)
    assert len(read.states) == len(expected.encoder_hidden_states) == 4
    for own, other in zip(read.states, expected.encoder_hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(read.maps, expected.encoder_attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)
    assert len(written.states) == len(expected.decoder_hidden_states) == 3
    for own, other in zip(written.states, expected.decoder_hidden_states):
        assert_close(own, other, target_mask)
    for seen, others in (
        (written.maps, expected.decoder_attentions),
        (written.cross_maps, expected.cross_attentions),
    ):
        assert len(seen) == len(others) == 2
        for own, other in zip(seen, others):
            assert_close(own.transpose(1, 2), other.transpose(1, 2), target_mask)


@pytest.mark.parametrize("given", [{}, *ODD], ids=["plain", "scaled", "relu", "deep"])
def test_logits_equal_theirs_and_go_back_bit_for_bit(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = random_model(theirs_bart.BartForConditionalGeneration, BartConfig(**{**SMALL, **given}))
    theirs.final_logits_bias.copy_(torch.randn(1, 40))
    found = loaded(theirs, folder)
    source, mask, ids = sides("right")
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask, decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, source_mask=mask), expected)
    assert_round_trip(found, folder, theirs_bart.BartForConditionalGeneration, tmp_path / "back")


def test_mbart_goes_back_bit_for_bit(folder: Path, tmp_path: Path) -> None:
    theirs = random_model(theirs_mbart.MBartForConditionalGeneration, MBartConfig(**SMALL, scale_embedding=True))
    found = loaded(theirs, folder)
    source, mask, ids = sides("left")
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask, decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, source_mask=mask), expected)
    assert_round_trip(found, folder, theirs_mbart.MBartForConditionalGeneration, tmp_path / "back")


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("labels", [3, 1, 5])
def test_the_classifier_reads_the_decoder_where_the_text_ends(
    folder: Path, tmp_path: Path, side: str, labels: int
) -> None:
    cls = theirs_bart.BartForSequenceClassification
    theirs = random_model(cls, BartConfig(**SMALL, num_labels=labels))
    found = loaded(theirs, folder)
    model: Any = found.model
    ids, mask = padded(40, side=side)
    ids.masked_fill_(~mask, 1)
    ends = mask.long().cumsum(1).argmax(1) if side == "right" else torch.full((3,), 8)
    ids[torch.arange(3), ends] = 2
    shifted = shift_right(ids, 2)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask).logits
        # They give the decoder no mask, which with padding on the left makes a difference.
        own = model.read(model.hidden(ids, shifted, source_mask=mask), mask)
        masked = theirs(ids, attention_mask=mask, decoder_attention_mask=mask).logits
        direct = model.outputs(ids, shifted, source_mask=mask, key_mask=mask)
    (task,) = own
    assert task == ("regress" if labels == 1 else "classify")
    assert_close(own[task], expected)
    assert_close(direct[task], masked)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_a_generator_becomes_a_classifier_that_they_read(folder: Path, tmp_path: Path) -> None:
    random_model(theirs_bart.BartForConditionalGeneration, BartConfig(**SMALL)).save_pretrained(folder)
    found = hub.load(folder, tasks=["classify"])
    assert found.unused == ["final_logits_bias"] and all(name.startswith("heads.classify") for name in found.fresh)
    hub.save(found, tmp_path / "back")
    cls = theirs_bart.BartForSequenceClassification
    theirs, report = cls.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    ids, _ = padded(40)
    ids[:, -1] = 2
    model: Any = found.model
    with torch.no_grad():
        assert_close(model.outputs(ids, shift_right(ids, 2))["classify"], theirs(ids).logits)


def test_a_generator_keeps_its_class(folder: Path, tmp_path: Path) -> None:
    random_model(theirs_bart.BartForConditionalGeneration, BartConfig(**SMALL)).save_pretrained(folder)
    hub.save(hub.load(folder), tmp_path / "back")
    record = json.loads((tmp_path / "back" / "config.json").read_text())
    assert record["architectures"] == ["BartForConditionalGeneration"]
    hub.load(tmp_path / "back")


def test_answers_are_read_at_every_token(folder: Path, tmp_path: Path) -> None:
    cls = theirs_bart.BartForQuestionAnswering
    theirs = random_model(cls, BartConfig(**SMALL))
    found = loaded(theirs, folder)
    model: Any = found.model
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        own = model.outputs(ids, shift_right(ids, 2), source_mask=mask)["span"]
    assert_close(own, torch.stack([expected.start_logits, expected.end_logits], -1))
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_a_body_goes_back_and_writes_texts(folder: Path, tmp_path: Path) -> None:
    theirs = random_model(theirs_bart.BartModel, BartConfig(**SMALL))
    found = loaded(theirs, folder)
    model: Any = found.model
    source, mask, ids = sides("right")
    with torch.no_grad():
        states = theirs(source, attention_mask=mask, decoder_input_ids=ids).last_hidden_state
        assert_close(model(source, ids, source_mask=mask), states @ theirs.shared.weight.t())
    assert_round_trip(found, folder, theirs_bart.BartModel, tmp_path / "back")


def test_missing_keys_mean_their_defaults(folder: Path) -> None:
    sizes = {key: SMALL[key] for key in ("vocab_size", "encoder_layers", "decoder_layers")}
    small = {**sizes, "d_model": 32, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16}
    theirs = random_model(theirs_bart.BartForSequenceClassification, BartConfig(**small), torch.float32)
    theirs.save_pretrained(folder)
    kept = {**small, "model_type": "bart", "architectures": ["BartForSequenceClassification"]}
    (folder / "config.json").write_text(json.dumps(kept))
    model: Any = hub.load(folder).model
    ids, _ = padded(40)
    ids[:, -1] = 2
    with torch.no_grad():
        assert_close(model.outputs(ids, shift_right(ids, 2))["classify"], theirs(ids).logits)


def test_old_files_with_every_tie_and_no_bias_are_read(folder: Path) -> None:
    theirs = random_model(theirs_bart.BartForConditionalGeneration, BartConfig(**SMALL))
    theirs.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = load_file(path)
    shared = tensors["model.shared.weight"]
    for name in ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight", "lm_head.weight"):
        tensors[name] = shared.clone()
    tensors["model.encoder.version"] = torch.tensor([3.0])
    del tensors["final_logits_bias"]
    save_file(tensors, path, metadata={"format": "pt"})
    found = hub.load(folder)
    assert found.fresh == ["logit_bias"]
    source, mask, ids = sides("right")
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask, decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, source_mask=mask), expected)
    tensors["lm_head.weight"] = shared + 1
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(InvalidInput, match=r"lm_head.weight and model.shared.weight differ"):
        hub.load(folder)


@pytest.mark.parametrize(
    "given,said",
    [
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
        ({"is_encoder_decoder": False}, "is_encoder_decoder is False"),
        ({"activation_function": "mish"}, "activation_function is 'mish'"),
        ({"architectures": ["BartForCausalLM"]}, "BartForCausalLM"),
    ],
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any], said: str) -> None:
    random_model(theirs_bart.BartModel, BartConfig(**SMALL)).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(Unsupported, match=said):
        hub.load(folder)


def test_options_that_bart_cannot_express_are_refused(folder: Path, tmp_path: Path) -> None:
    random_model(theirs_bart.BartModel, BartConfig(**SMALL)).save_pretrained(folder)
    model = hub.load(folder).model
    cls: Any = type(model)
    for given, said in (
        ({"norm_position": "pre"}, "cannot say norm_position = 'pre'; it would be read as 'post'"),
        ({"source_length": 30}, "cannot say max_length = 20; it would be read as 30"),
        ({"encoder_attention": [{"name": "window", "window": 4}]}, "cannot say encoder_attention"),
        ({"source_length": None}, "a bart has separate positions for source and target"),
        ({"tied": False}, "tie_word_embeddings is False"),
    ):
        other = cls.build(**{**vars(model.options), **given})
        with pytest.raises(Unsupported, match=said):
            hub.save(other, tmp_path / "no", family="bart")


def test_targets_are_shifted_right_as_theirs_are() -> None:
    targets = torch.tensor([[5, 6, 2, -100], [7, 2, -100, -100]])
    assert torch.equal(shift_right(targets, 2, padding=1), theirs_bart.shift_tokens_right(targets, 1, 2))
    with pytest.raises(InvalidInput, match="padding"):
        shift_right(targets, 2)
