"""T5 here and there: v1.0 and v1.1, tied and not, heads wider than the model, every class, generation."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import assert_close, assert_round_trip, in_double, loaded, padded, random_model
from torch import Tensor
from transformers import T5Config
from transformers.models.t5 import modeling_t5

from longspan import hub
from longspan.decode import Beam, search_many
from longspan.errors import Unsupported
from longspan.models.base import shift_right
from longspan.nn.recorder import recording

# d_kv · heads is not d_model, and buckets end before the longest distance.
SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "d_model": 24,
    "d_kv": 10,
    "d_ff": 40,
    "num_layers": 3,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 6,
    "decoder_start_token_id": 0,
}
V11: dict[str, Any] = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}


@pytest.fixture(autouse=True)
def precise(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "float32" not in request.node.name:
        in_double(monkeypatch, modeling_t5)


def t5(end: str = "ForConditionalGeneration", dtype: torch.dtype = torch.float64, **given: Any) -> Any:
    model = random_model(getattr(modeling_t5, f"T5{end}"), T5Config(**{**SMALL, **given}), dtype)
    if given.get("tie_word_embeddings") is False and hasattr(model, "lm_head"):
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model


def sides(side: str = "right") -> tuple[Tensor, Tensor, Tensor]:
    source, mask = padded(40, side=side, length=12)
    return source, mask, torch.arange(3, 27).view(3, 8) % 37 + 3


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("given", [{}, V11], ids=["v1.0", "v1.1"])
def test_logits_states_and_maps_equal_theirs(
    folder: Path, tmp_path: Path, given: dict[str, Any], side: str, dtype: torch.dtype
) -> None:
    theirs = t5(dtype=dtype, **given)
    found = loaded(theirs, folder)
    model: Any = found.model
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
            logits = model(source, ids, source_mask=mask, key_mask=target_mask)
    assert (model.head is None) == (given == {})
    assert_close(logits, expected.logits, target_mask)
    for seen, others, real in (
        (read.states, expected.encoder_hidden_states, mask),
        (written.states, expected.decoder_hidden_states, target_mask),
    ):
        assert len(seen) == len(others)
        for own, other in zip(seen, others):
            assert_close(own, other, real)
    for seen, others, real in (
        (read.maps, expected.encoder_attentions, mask),
        (written.maps, expected.decoder_attentions, target_mask),
        (written.cross_maps, expected.cross_attentions, target_mask),
    ):
        assert len(seen) == len(others)
        for own, other in zip(seen, others):
            assert_close(own.transpose(1, 2), other.transpose(1, 2), real)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    again = type(theirs).from_pretrained(tmp_path / "back", attn_implementation="eager").to(dtype)
    with torch.no_grad():
        assert_close(again(source, attention_mask=mask, decoder_input_ids=ids).logits[0], logits_of(theirs, 0))


def logits_of(theirs: Any, row: int) -> Tensor:
    source, mask, ids = sides()
    found: Tensor = theirs(source, attention_mask=mask, decoder_input_ids=ids).logits[row]
    return found


@pytest.mark.parametrize(
    "given",
    [
        {"feed_forward_proj": "gated-silu", "num_decoder_layers": None},
        {"d_kv": 6, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128},
        {"scale_decoder_outputs": False},
    ],
    ids=["swiglu", "plain-width", "tied-unscaled"],
)
def test_odd_configurations(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    theirs = t5(**given)
    found = loaded(theirs, folder)
    source, mask, ids = sides()
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask, decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, source_mask=mask), expected)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("given", [{}, V11], ids=["v1.0", "v1.1"])
def test_generation_equals_theirs(folder: Path, given: dict[str, Any], beams: int) -> None:
    theirs = t5(**given)
    found = loaded(theirs, folder)
    source, mask, _ = sides()
    source = source * mask
    with torch.no_grad():
        expected = theirs.generate(
            source, attention_mask=mask, max_new_tokens=7, num_beams=beams, do_sample=False, length_penalty=0.0
        ).tolist()
    sources = [row[real].tolist() for row, real in zip(source, mask)]
    options = Beam(beams=beams, length_penalty="none", max_new=7)
    texts = [best.tokens for best, *_ in search_many(found.model, sources, [0], 1, options=options)]
    for text, row in zip(texts, expected):  # theirs: the start token, the text, and the end with padding
        assert row[1:] in ([*text, 1] + [0] * (6 - len(text)), text)


def test_cached_decoding_equals_the_whole_pass(folder: Path) -> None:
    model: Any = loaded(t5(**V11), folder).model
    source, mask, ids = sides("left")
    with torch.no_grad():
        whole = model(source, ids, source_mask=mask)
        state = model.start(3, source=source, source_mask=mask)
        steps = []
        for piece in ids.split([3, 1, 4], 1):
            logits, state = model.extend(piece, state)
            steps.append(logits)
    assert_close(torch.cat(steps, 1), whole)


@pytest.mark.parametrize("end,task", [("EncoderModel", None), ("ForTokenClassification", "tag")])
def test_the_encoder_alone_is_an_encoder(folder: Path, tmp_path: Path, end: str, task: str | None) -> None:
    theirs = t5(end, num_labels=3)
    found = loaded(theirs, folder)
    assert found.model.name == "encoder" and not found.fresh and not found.unused
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        own = found.model(ids, key_mask=mask) if task is None else found.model.outputs(ids, key_mask=mask)[task]
    assert_close(own, expected.last_hidden_state if task is None else expected.logits, mask)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


@pytest.mark.parametrize("end,task", [("ForSequenceClassification", "classify"), ("ForQuestionAnswering", "span")])
def test_heads_read_the_decoder_as_theirs_do(folder: Path, tmp_path: Path, end: str, task: str) -> None:
    theirs = t5(end, num_labels=2 if task == "span" else 3)
    found = loaded(theirs, folder)
    model: Any = found.model
    ids, mask = padded(40)
    ids = torch.where(mask.cumsum(1) == mask.sum(1, keepdim=True), 1, ids) * mask  # they look for </s>
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask)
        own = model.outputs(ids, key_mask=mask)[task]
        explicit = model.outputs(ids, shift_right(ids, 0), source_mask=mask, key_mask=mask)[task]
    expected = torch.stack([out.start_logits, out.end_logits], -1) if task == "span" else out.logits
    assert_close(own, expected, mask if task == "span" else None)
    assert_close(own, explicit, mask if task == "span" else None)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_tags_are_read_from_the_encoder_of_a_whole_checkpoint(folder: Path) -> None:
    theirs = t5()
    found = loaded(theirs, folder, tasks=["tag"])
    assert found.model.name == "encoder" and found.fresh == ["heads.tag.out.weight", "heads.tag.out.bias"]
    ids, mask = padded(40)
    with torch.no_grad():
        expected = theirs.encoder(ids, attention_mask=mask).last_hidden_state
        assert_close(found.model(ids, key_mask=mask), expected, mask)


def test_old_files_say_by_their_ties_whether_outputs_are_scaled(folder: Path) -> None:
    theirs = t5(**V11)
    theirs.save_pretrained(folder)
    path, weights = folder / "config.json", folder / "model.safetensors"
    record = json.loads(path.read_text())
    del record["scale_decoder_outputs"]
    words = {"d_model": "hidden_size", "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}
    record = {words.get(key, key): value for key, value in record.items()}
    path.write_text(json.dumps({**record, "tie_word_embeddings": False}))
    tensors = load_file(weights)
    for side in ("encoder", "decoder"):
        tensors[f"{side}.embed_tokens.weight"] = tensors["shared.weight"].clone()
    bias = torch.zeros(8, 4, dtype=torch.float64)
    tensors["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"] = bias
    save_file(tensors, weights, metadata={"format": "pt"})
    found = hub.load(folder)
    assert found.model.options.scale_output is False and not found.model.options.tied
    source, mask, ids = sides()
    with torch.no_grad():
        expected = theirs(source, attention_mask=mask, decoder_input_ids=ids).logits
        assert_close(found.model(source, ids, source_mask=mask), expected)


@pytest.mark.parametrize(
    "given,said",
    [
        ({"feed_forward_proj": "gated-mish"}, "feed_forward_proj is 'gated-mish'"),
        ({"is_decoder": True}, "is_decoder is True; for t5 it can be False"),
        ({"architectures": ["T5ForCausalLM"]}, "no t5 is called 'T5ForCausalLM'"),
    ],
)
def test_unsupported_settings_are_refused_by_name(folder: Path, given: dict[str, Any], said: str) -> None:
    t5().save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **given}))
    with pytest.raises(Unsupported, match=said):
        hub.load(folder)
