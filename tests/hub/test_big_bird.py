"""Big Bird here and there: full attention, every head, as a decoder, and what is drawn and written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.hub.big_bird import (
    CAUSAL,
    FULL,
    PAD,
    PORTED,
    SEPARATOR,
    SHORT,
    SMALL,
    body,
    compare,
    texts,
)
from tests.hub.parity import assert_close, assert_round_trip, loaded, random_model
from transformers import BigBirdConfig
from transformers.models.big_bird import modeling_big_bird as theirs_big_bird

from longspan import config, hub
from longspan.decode import Beam, beam_search
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import families
from longspan.models import build
from longspan.models.body import mechanisms
from longspan.models.encoder import Encoder
from longspan.models.presets import find as find_preset
from longspan.nn.recorder import recording

CASES = [
    ("BigBirdModel", "pooler_output", "pool"),
    ("BigBirdForPreTraining", "prediction_logits", "masked"),
    ("BigBirdForPreTraining", "seq_relationship_logits", "pair"),
    ("BigBirdForMaskedLM", "logits", "masked"),
    ("BigBirdForSequenceClassification", "logits", "classify"),
    ("BigBirdForTokenClassification", "logits", "tag"),
]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_full_attention_equals_theirs(folder: Path, side: str, dtype: torch.dtype) -> None:
    ids, mask = texts(23, side)
    for own, other in zip(*compare(*body(FULL, folder, dtype), ids, mask)):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)


@pytest.mark.parametrize(
    "config",
    [
        {"use_bias": False, "rescale_embeddings": True, "hidden_act": "relu", "layer_norm_eps": 1e-5},
        {"num_attention_heads": 1, "num_hidden_layers": 1, "type_vocab_size": 3, "attention_type": "original_full"},
        {"num_random_blocks": 1, "block_size": 3, "random_plan": "hugging_face"},
    ],
    ids=["no biases, scaled", "one head", "other blocks"],
)
def test_odd_configurations(folder: Path, config: dict[str, Any]) -> None:
    ids, mask = texts(50)
    compare(*body({**PORTED, **config}, folder), ids, mask)


# Heads


@pytest.mark.parametrize("name,attribute,task", CASES, ids=[f"{name}-{task}" for name, _, task in CASES])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, attribute: str, task: str
) -> None:
    cls = getattr(theirs_big_bird, name)
    found = loaded(theirs := random_model(cls, BigBirdConfig(**PORTED, num_labels=3)), folder)
    ids, mask = texts(50)
    with torch.no_grad():
        expected = getattr(theirs(ids, attention_mask=mask.double()), attribute)
        own = found.model.outputs(ids, key_mask=mask)[task]
    assert_close(own, expected, mask if own.dim() == 3 else None)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@pytest.mark.parametrize("name", ["BigBirdForMaskedLM", "BigBirdForCausalLM"])
def test_a_table_of_its_own(folder: Path, tmp_path: Path, name: str) -> None:
    cls = getattr(theirs_big_bird, name)
    given = BigBirdConfig(**FULL, tie_word_embeddings=False, is_decoder=name == "BigBirdForCausalLM")
    found = loaded(theirs := random_model(cls, given), folder)
    ids, mask = texts(30)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long()).logits
        own = found.model.outputs(ids, key_mask=mask).get("masked")
        assert_close(found.model(ids, key_mask=mask) if own is None else own, expected, mask)
    hub.save(found, tmp_path / "back")
    again = cls.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        assert_close(again(ids, attention_mask=mask.long()).logits, expected, mask)


def test_choices(folder: Path, tmp_path: Path) -> None:
    cls = theirs_big_bird.BigBirdForMultipleChoice
    found = loaded(theirs := random_model(cls, BigBirdConfig(**PORTED)), folder)
    ids, mask = texts(50)
    with torch.no_grad():
        expected = theirs(ids[None], attention_mask=mask.double()[None]).logits[0]
        assert_close(found.model.outputs(ids, key_mask=mask)["choose"], expected)
    assert_round_trip(found, folder, cls, tmp_path / "back")


def test_answers_lie_behind_the_question(folder: Path, tmp_path: Path) -> None:
    """Segments are those of question and context, and no token of the question but the first is an answer."""
    cls = theirs_big_bird.BigBirdForQuestionAnswering
    found = loaded(theirs := random_model(cls, BigBirdConfig(**PORTED)), folder)
    ids, mask = texts(50)
    ids[:, 6], ids[:, 30] = SEPARATOR, SEPARATOR
    segments = torch.arange(50).expand_as(ids) % 2
    with torch.no_grad():
        for given, own in (({}, {}), ({"token_type_ids": segments}, {"segments": segments})):
            expected = theirs(ids, attention_mask=mask.double(), **given)
            out = found.model.outputs(ids, key_mask=mask, **own)["span"]
            assert_close(out, torch.stack([expected.start_logits, expected.end_logits], -1), mask)
    assert (out[:, 1:7] < -1e5).all() and (out[:, 0] > -1e5).all()
    assert_round_trip(found, folder, cls, tmp_path / "back")
    with pytest.raises(InvalidInput, match="text 0 has no separator"):
        found.model.outputs(ids.masked_fill(ids == SEPARATOR, 5), key_mask=mask)


def test_a_head_without_the_pooler_can_be_written(folder: Path, tmp_path: Path) -> None:
    body(PORTED, folder)
    found = hub.load(folder, tasks=["classify"])
    assert found.fresh and sorted(found.unused) == ["pooler.bias", "pooler.weight"]
    hub.save(found, tmp_path / "back")
    ids, mask = texts(50)
    theirs = theirs_big_bird.BigBirdForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.double()).logits
        assert_close(found.model.outputs(ids, key_mask=mask)["classify"], expected)


# As a decoder


@pytest.mark.parametrize(
    "config", [{**CAUSAL, "attention_type": "original_full"}, CAUSAL], ids=["full", "sparse, short"]
)
@pytest.mark.parametrize("side", ["right", "left"])
def test_the_decoder_equals_theirs(folder: Path, tmp_path: Path, side: str, config: dict[str, Any]) -> None:
    cls = theirs_big_bird.BigBirdForCausalLM
    found = loaded(theirs := random_model(cls, BigBirdConfig(**config)), folder)
    assert found.model.name == "decoder"
    ids, mask = texts(SHORT, side)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.long(), output_hidden_states=True, output_attentions=True)
        with recording(found.model.stack) as seen:
            out = found.model(ids, key_mask=mask)
    assert_close(out, expected.logits, mask)
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)
    assert_round_trip(found, folder, cls, tmp_path / "back")


@pytest.mark.parametrize("beams", [1, 4])
def test_generates_what_theirs_generates(folder: Path, beams: int) -> None:
    theirs = random_model(theirs_big_bird.BigBirdForCausalLM, BigBirdConfig(**CAUSAL))
    found = loaded(theirs, folder)
    ids, mask = texts(9, "left", missing=(0, 3, 6))
    theirs.generation_config.eos_token_id = None
    expected = theirs.generate(
        ids,
        attention_mask=mask.long(),
        max_new_tokens=8,
        num_beams=beams,
        do_sample=False,
        length_penalty=0.0,
        pad_token_id=PAD,
    )[:, 9:]
    prompts = [row[real].tolist() for row, real in zip(ids, mask)]
    options = Beam(beams=beams, length_penalty="none", max_new=8)
    made = [rows[0].tokens for rows in beam_search(found.model, prompts, options=options)]
    assert made == expected.tolist()


# What is drawn


def test_random_blocks_are_the_same_at_every_load_and_go_with_the_model(folder: Path, tmp_path: Path) -> None:
    _, found = body(SMALL, folder)
    ids, mask = texts(60)
    torch.manual_seed(1)
    again = hub.load(folder)
    trained = hub.load(folder)
    for mechanism in mechanisms(trained.model):
        mechanism.seed += 1
    hub.save(trained, tmp_path / "back")
    with torch.no_grad():
        out, same, other = (each.model(ids, key_mask=mask) for each in (found, again, trained))
        back = hub.load(tmp_path / "back").model(ids, key_mask=mask)
    assert torch.equal(out, same) and torch.equal(other, back)
    assert not torch.allclose(out, other)


def test_impossible_requests_are_refused(folder: Path, tmp_path: Path) -> None:
    body({**SMALL, "attention_type": "block_sparse"}, folder)
    path = folder / "config.json"
    path.write_text(path.read_text().replace('"block_size"', '"attention_type": "sliding", "block_size"'))
    with pytest.raises(Unsupported, match="attention_type is 'sliding'; it can be 'original_full' or 'block_sparse'"):
        hub.load(folder)


def test_saved_models_load_in_transformers(tmp_path: Path) -> None:
    sizes = {"vocabulary": 40, "width": 24, "heads": 4, "hidden": 40, "layers": 2, "max_length": 64}
    plan = {"name": "bigbird", "block": 3, "random": 1, "plan": "hugging_face"}
    torch.manual_seed(0)
    model = build("bigbird-base", **sizes, attention=plan, separator=2).double().eval()
    hub.save(model, tmp_path, family="big_bird")
    theirs = theirs_big_bird.BigBirdModel.from_pretrained(tmp_path, dtype=torch.float64).eval()
    ids, mask = texts(50)
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask.double()).last_hidden_state
        assert_close(model(ids, key_mask=mask), expected, mask)
    other = build("bigbird-base", **sizes, attention=["softmax", "window"])
    with pytest.raises(Unsupported, match="a configuration of big_bird cannot say attention"):
        hub.save(other, tmp_path, family="big_bird")


@pytest.mark.parametrize("name", ["bigbird-base", "bigbird-large"])
def test_presets_have_the_parameters_of_theirs(name: str) -> None:
    row = find_preset(name)
    written = families.find("big_bird", name).config(config.make(Encoder.Options, row.options, name))
    with torch.device("meta"):
        theirs = theirs_big_bird.BigBirdModel(BigBirdConfig(**written))
    assert sum(parameter.numel() for parameter in theirs.parameters()) == row.exact
