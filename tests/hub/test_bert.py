"""BERT here and there: every head, padding on both sides, segments, odd configurations, the forms of old files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.hub.parity import add, assert_close, assert_round_trip, loaded, padded, random_model, rewrite
from transformers import BertConfig
from transformers.models.bert import modeling_bert as theirs_bert

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.models import build
from longspan.nn.heads import Head
from longspan.nn.recorder import recording

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
# (class, attributes of their output, our task)
HEADS = [
    ("BertModel", ("pooler_output",), "pool"),
    ("BertForPreTraining", ("prediction_logits",), "masked"),
    ("BertForPreTraining", ("seq_relationship_logits",), "pair"),
    ("BertForMaskedLM", ("logits",), "masked"),
    ("BertForNextSentencePrediction", ("logits",), "pair"),
    ("BertForSequenceClassification", ("logits",), "classify"),
    ("BertForTokenClassification", ("logits",), "tag"),
    ("BertForQuestionAnswering", ("start_logits", "end_logits"), "span"),
]
SEGMENTS = torch.arange(9).expand(3, 9) // 5


def bert(name: str = "BertModel", dtype: torch.dtype = torch.float64, **changes: Any) -> Any:
    return random_model(getattr(theirs_bert, name), BertConfig(**{**SMALL, **changes}), dtype)


def both(theirs: Any, found: hub.Pretrained, names: tuple[str, ...], task: str) -> None:
    """The same from the head of one and of the other, on padded pairs of sentences."""
    ids, mask = padded(40)
    with torch.no_grad():
        out = theirs(ids, attention_mask=mask, token_type_ids=SEGMENTS)
        own = found.model.outputs(ids, key_mask=mask, segments=SEGMENTS)[task]
    parts = [getattr(out, name) for name in names]
    assert_close(own, torch.stack(parts, -1) if len(parts) > 1 else parts[0], mask if own.dim() == 3 else None)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_states_maps_and_pooler_equal_theirs(folder: Path, side: str, dtype: torch.dtype) -> None:
    theirs = bert(dtype=dtype)
    found = loaded(theirs, folder)
    ids, mask = padded(40, side=side)
    with torch.no_grad():
        expected = theirs(
            ids, attention_mask=mask, token_type_ids=SEGMENTS, output_hidden_states=True, output_attentions=True
        )
        with recording(found.model.stack) as seen:
            out = found.model(ids, key_mask=mask, segments=SEGMENTS)
    assert_close(out, expected.last_hidden_state, mask)
    assert len(seen.states) == len(expected.hidden_states) == 4
    for own, other in zip(seen.states, expected.hidden_states):
        assert_close(own, other, mask)
    for own, other in zip(seen.maps, expected.attentions):
        assert_close(own.transpose(1, 2), other.transpose(1, 2), mask)


@pytest.mark.parametrize("name,attributes,task", HEADS, ids=[f"{name}-{task}" for name, _, task in HEADS])
def test_heads_equal_theirs_and_go_back_bit_for_bit(
    folder: Path, tmp_path: Path, name: str, attributes: tuple[str, ...], task: str
) -> None:
    theirs = bert(name, num_labels=2 if task == "span" else 3)
    found = loaded(theirs, folder)
    both(theirs, found, attributes, task)
    assert found.unused == found.fresh == []
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_choices(folder: Path, tmp_path: Path) -> None:
    theirs = bert("BertForMultipleChoice")
    found = loaded(theirs, folder)
    ids, mask = padded(40)
    choices, masks = torch.stack((ids, ids.flip(1)), 1), torch.stack((mask, mask), 1)
    segments = torch.stack((SEGMENTS, SEGMENTS), 1)
    with torch.no_grad():
        expected = theirs(choices, attention_mask=masks, token_type_ids=segments).logits
        own = found.model.choose(choices, key_mask=masks, segments=segments)
        other = found.model.choose(choices.flip(1), key_mask=masks, segments=segments)
    assert own.shape == (3, 2)
    assert_close(own, expected)
    assert_close(other.flip(1), expected)
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    with pytest.raises(InvalidInput, match=r"expected token ids \(batch, choices, length\), got \(3, 9\)"):
        found.model.choose(ids)
    with pytest.raises(Unsupported, match="no head for 'choose'; it has tag"):
        hub.load(folder, tasks=["tag"]).model.choose(choices)


def test_one_label_is_a_number_to_regress(folder: Path, tmp_path: Path) -> None:
    theirs = bert("BertForSequenceClassification", num_labels=1)
    found = loaded(theirs, folder)
    both(theirs, found, ("logits",), "regress")
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    assert json.loads((tmp_path / "back/config.json").read_text())["problem_type"] == "regression"


def test_embeddings_that_are_not_tied(folder: Path, tmp_path: Path) -> None:
    # There `cls.predictions.bias` is then in the file and never read; it is written as what is read instead.
    theirs = bert("BertForMaskedLM", tie_word_embeddings=False)
    found = loaded(theirs, folder)
    both(theirs, found, ("logits",), "masked")
    hub.save(found, tmp_path / "back")
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    dead, read = "cls.predictions.bias", "cls.predictions.decoder.bias"
    assert not torch.equal(first[dead], first[read]) and torch.equal(second[dead], second[read])
    assert set(first) == set(second)
    assert all(torch.equal(first[name], second[name]) for name in first if name != dead)
    again = type(theirs).from_pretrained(tmp_path / "back")
    assert not again.config.tie_word_embeddings
    both(again, found, ("logits",), "masked")


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "gelu_new"},
        {"hidden_act": "relu", "layer_norm_eps": 1e-3},
        {"hidden_act": "silu", "num_hidden_layers": 1},
        {"hidden_act": "quick_gelu", "num_attention_heads": 1},
        {"hidden_act": "gelu_fast", "num_attention_heads": 24},
        {"hidden_act": "gelu_pytorch_tanh", "type_vocab_size": 5, "pad_token_id": None},
        {"intermediate_size": 7, "max_position_embeddings": 9, "pad_token_id": 3},
    ],
    ids=lambda changes: next(iter(changes.values())),
)
def test_odd_configurations(folder: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    theirs = bert("BertForPreTraining", **changes)
    found = loaded(theirs, folder)
    both(theirs, found, ("prediction_logits",), "masked")
    both(theirs, found, ("seq_relationship_logits",), "pair")
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")


def test_a_body_without_its_pooler(folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    theirs = theirs_bert.BertModel(BertConfig(**SMALL), add_pooling_layer=False)
    found = loaded(theirs, folder)
    assert len(found.model.heads) == 0 and found.fresh == []
    hub.save(found, tmp_path / "back")
    first, second = load_file(folder / "model.safetensors"), load_file(tmp_path / "back/model.safetensors")
    assert set(first) == set(second) and all(torch.equal(first[name], second[name]) for name in first)


def test_texts_padded_on_the_left_are_read_at_their_first_token(folder: Path) -> None:
    # There the pooler reads column 0, which is padding, whatever the mask says.
    theirs = bert()
    found = loaded(theirs, folder)
    ids, mask = padded(40, side="left")
    with torch.no_grad():
        expected = theirs(ids, attention_mask=mask)
        own = found.model.outputs(ids, key_mask=mask)["pool"]
        first = expected.last_hidden_state[torch.arange(3), mask.int().argmax(1)]
        assert_close(own, theirs.pooler(first[:, None]))
    assert (own - expected.pooler_output).abs()[1:].max() > 0.1  # the first row has no padding
    assert_close(own[:1], expected.pooler_output[:1])


def test_segments_and_their_order_count(folder: Path) -> None:
    model = loaded(bert(), folder).model
    ids, _ = padded(40)
    with torch.no_grad():
        plain, pair, turned = model(ids), model(ids, segments=SEGMENTS), model(ids, segments=1 - SEGMENTS)
    assert (plain - pair).abs().max() > 0.01 and (pair - turned).abs().max() > 0.01


# The forms of old files


def test_gamma_and_beta_positions_and_tied_copies_of_old_files(folder: Path) -> None:
    theirs = bert("BertForPreTraining")
    theirs.save_pretrained(folder)
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    rewrite(folder, lambda name: next((name.replace(new, first) for new, first in old.items() if new in name), name))
    add(
        folder,
        {
            "bert.embeddings.position_ids": torch.arange(20)[None],
            "cls.predictions.decoder.weight": theirs.bert.embeddings.word_embeddings.weight.detach().clone(),
            "cls.predictions.decoder.bias": theirs.cls.predictions.bias.detach().clone(),
        },
    )
    found = hub.load(folder)
    assert found.unused == found.fresh == []
    both(theirs, found, ("prediction_logits",), "masked")


@pytest.mark.parametrize("kept", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_of_a_tied_pair_either_name_may_be_in_the_file(folder: Path, kept: str) -> None:
    theirs = bert("BertForMaskedLM")
    theirs.save_pretrained(folder)
    pairs = {
        "bert.embeddings.word_embeddings.weight": "cls.predictions.decoder.weight",
        "cls.predictions.bias": "cls.predictions.decoder.bias",
    }
    rewrite(folder, lambda name: kept if pairs.get(name) == kept else name)
    both(theirs, hub.load(folder), ("logits",), "masked")


@pytest.mark.parametrize("name", ["BertModel", "BertForSequenceClassification"])
def test_the_prefix_of_the_body_is_optional(folder: Path, name: str) -> None:
    theirs = bert(name)
    theirs.save_pretrained(folder)
    rewrite(folder, lambda name: name.removeprefix("bert.") if name.startswith("bert.") else f"bert.{name}")
    if name != "BertModel":
        rewrite(folder, lambda name: name.replace("bert.classifier", "classifier"))
    attribute, task = ("pooler_output", "pool") if name == "BertModel" else ("logits", "classify")
    both(theirs, hub.load(folder), (attribute,), task)


# Heads that are asked for


def test_heads_of_the_file_that_are_not_asked_for_are_named(folder: Path) -> None:
    theirs = bert("BertForPreTraining")
    found = loaded(theirs, folder, tasks=["masked"])
    assert sorted(found.unused) == [
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "cls.seq_relationship.bias",
        "cls.seq_relationship.weight",
    ]
    both(theirs, found, ("prediction_logits",), "masked")
    assert len(hub.load(folder, tasks=()).unused) == 9


def test_a_new_head_is_drawn_and_named_and_keeps_the_pooler(folder: Path) -> None:
    theirs = bert(hidden_size=120, initializer_range=0.05)
    found = loaded(theirs, folder, tasks=[Head(task="classify", labels=50, activation="tanh"), "masked"])
    assert sorted(found.fresh) == [
        "heads.classify.out.bias",
        "heads.classify.out.weight",
        "heads.masked.bias",
        "heads.masked.dense.bias",
        "heads.masked.dense.weight",
        "heads.masked.norm.bias",
        "heads.masked.norm.weight",
    ]
    heads = found.model.heads
    assert torch.equal(heads["classify"].dense.weight, theirs.pooler.dense.weight)
    for weight in (heads["classify"].out.weight, heads["masked"].dense.weight):
        assert weight.std().item() == pytest.approx(0.05, rel=0.05) and abs(weight.mean().item()) < 0.005
    assert not heads["classify"].out.bias.any() and not heads["masked"].bias.any()
    assert bool((heads["masked"].norm.weight == 1).all()) and heads["classify"].out.weight.dtype == torch.float64


def test_one_name_of_two_heads_is_not_taken_for_the_other(folder: Path) -> None:
    # `classifier` is what they call the last layer of three tasks; their shapes may agree.
    loaded(bert("BertForSequenceClassification", num_labels=3), folder)
    found = hub.load(folder, tasks=["tag"])
    assert found.fresh == ["heads.tag.out.weight", "heads.tag.out.bias"]
    assert {"classifier.weight", "classifier.bias"} <= {*found.unused}
    other = hub.load(folder, tasks=[Head(task="classify", labels=7, activation="tanh")])
    assert other.fresh == ["heads.classify.out.weight", "heads.classify.out.bias"] and other.labels == []
    same = hub.load(folder, tasks=["classify"])
    assert same.fresh == [] and same.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_heads_of_another_make_are_new_and_cannot_be_written(folder: Path, tmp_path: Path) -> None:
    found = loaded(bert(), folder, tasks=["pool", Head(task="tag", activation="relu"), Head(task="detect")])
    assert {"heads.tag.dense.weight", "heads.detect.out.weight"} <= {*found.fresh}
    with pytest.raises(Unsupported, match="no bert there has heads for detect, pool, tag at once"):
        hub.save(found, tmp_path / "back")
    found = hub.load(folder, tasks=[Head(task="tag", activation="relu")])
    with pytest.raises(Unsupported, match="the head of a bert there is Head"):
        hub.save(found, tmp_path / "back")
    with pytest.raises(Unsupported, match="bert has no head for 'detect'; it has them for pool, masked"):
        hub.load(folder, tasks=["detect"])


def test_two_heads_on_one_pooler_are_trained_apart(folder: Path) -> None:
    found = loaded(bert("BertForSequenceClassification"), folder, tasks=["pool", "classify"])
    first, second = (found.model.heads[task].dense.weight for task in ("pool", "classify"))
    assert torch.equal(first, second)
    with torch.no_grad():
        first.zero_()
    assert second.abs().max() > 0


# Precision and writing


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_half_precision_files(folder: Path, tmp_path: Path, kind: torch.dtype) -> None:
    theirs = bert("BertForMaskedLM", dtype=kind)
    found = loaded(theirs, folder)
    assert found.model.dtype == kind
    assert_round_trip(found, folder, type(theirs), tmp_path / "back")
    wide = hub.load(folder, dtype=torch.float32)
    assert {parameter.dtype for parameter in wide.model.parameters()} == {torch.float32}
    both(theirs.float(), wide, ("logits",), "masked")


def test_a_model_of_ours_is_written_as_bert(tmp_path: Path) -> None:
    sizes = {"vocabulary": 40, "width": 24, "layers": 2, "heads": 4, "hidden": 40, "max_length": 20}
    head = {"task": "classify", "labels": 4, "activation": "tanh", "dropout": 0.3}
    model = build("bert-base", **sizes, tasks=[head]).double().eval()
    hub.save(model, tmp_path, family="bert")
    theirs = theirs_bert.BertForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert theirs.config.num_labels == 4 and theirs.dropout.p == 0.3
    both(theirs, hub.Pretrained(model), ("logits",), "classify")
    masked = build("bert-base", **sizes, tasks=[{"task": "masked", "activation": "gelu", "tied": False}]).eval()
    hub.save(masked, tmp_path / "masked", family="bert")
    theirs = theirs_bert.BertForMaskedLM.from_pretrained(tmp_path / "masked").eval()
    both(theirs, hub.Pretrained(masked), ("logits",), "masked")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"norm_position": "pre"}, "cannot say norm_position = 'pre'; it would be read as 'post'"),
        ({"embedding_width": 8}, "cannot say embedding_width = 8; it would be read as 24"),
        ({"attention": ["linear"]}, "a configuration of bert cannot say attention = "),
        ({"tasks": [{"task": "pool"}]}, "the head of a bert there is"),
        ({"activation": "swiglu"}, "this family's hidden_act cannot say activation = 'swiglu'"),
        ({"tasks": ["tag", "span"]}, "no bert there has heads for span, tag at once"),
    ],
)
def test_a_model_that_is_no_bert_is_not_written_as_one(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    small = {"vocabulary": 40, "width": 24, "layers": 1, "heads": 4, "hidden": 40, "max_length": 20}
    with pytest.raises(Unsupported, match=said):
        hub.save(build("bert-base", **{**small, **changes}), tmp_path / "new", family="bert")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("position_embedding_type", "relative_key", "position_embedding_type is 'relative_key'.*can be 'absolute'"),
        ("is_decoder", True, "is_decoder is True"),
        ("add_cross_attention", True, "add_cross_attention is True"),
        ("hidden_act", "mish", "hidden_act is 'mish'"),
        ("hidden_act", ["gelu"], r"hidden_act is \['gelu'\]"),
        ("quantization_config", {"bits": 4}, "weights with a quantization_config are not read"),
    ],
)
def test_what_we_cannot_do_is_refused_by_name(folder: Path, key: str, value: Any, said: str) -> None:
    bert().save_pretrained(folder)
    record = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**record, key: value}))
    with pytest.raises(Unsupported, match=said):
        hub.load(folder)
