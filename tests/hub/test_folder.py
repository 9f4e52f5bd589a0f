"""Folders that cannot be read, each refused by the name of the tensor, file, key or number."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.hub.parity import add, random_model, rewrite
from transformers import AutoConfig, BertConfig, BertForMaskedLM, BertModel, RobertaConfig, RobertaForMaskedLM

from longspan import hub
from longspan.errors import InvalidInput, InvalidOption, LongspanError, UnknownName, Unsupported
from longspan.hub import families
from longspan.models import build
from longspan.models.encoder import Encoder

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}
Say = Callable[..., None]


@pytest.fixture
def masked(folder: Path) -> Path:
    random_model(BertForMaskedLM, BertConfig(**SMALL), torch.float32).save_pretrained(folder)
    return folder


def say(folder: Path, **changes: Any) -> None:
    """Changes what config.json says; None takes a key out."""
    record = {**json.loads((folder / "config.json").read_text()), **changes}
    (folder / "config.json").write_text(json.dumps({key: value for key, value in record.items() if value is not None}))


def refused(folder: Path, said: str, kind: type[LongspanError] = InvalidInput, **given: Any) -> None:
    """Loading fails in one line that says so and names the folder."""
    with pytest.raises(kind, match=said) as caught:
        hub.load(folder, **given)
    assert str(folder) in str(caught.value) and "\n" not in str(caught.value)


# What a missing key means


@pytest.mark.parametrize("name", families.names())
def test_missing_keys_mean_their_defaults(name: str) -> None:
    theirs = AutoConfig.for_model(name)
    family = families.find(name, "")
    for each in family.fields:
        # None: it follows from other keys, as the number of key heads does.
        assert each.default in (None, getattr(theirs, each.theirs, None)), each.theirs


# A bug of ours


@pytest.mark.parametrize("bug", [AttributeError, TypeError, KeyError, AssertionError])
def test_a_bug_in_a_model_is_not_blamed_on_its_folder(
    masked: Path, monkeypatch: pytest.MonkeyPatch, bug: type[Exception]
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise bug("ours")

    monkeypatch.setattr(Encoder, "_stack", staticmethod(broken))
    with pytest.raises(bug, match="ours"):
        hub.load(masked)


# Another family


def test_a_family_that_we_do_not_know(masked: Path) -> None:
    say(masked, model_type="wav2vec2")
    refused(masked, "models of the type 'wav2vec2' are not supported; these are: albert, bart, bert, ", UnknownName)
    say(masked, model_type="qwen4")
    refused(masked, "'qwen4' are not supported; the nearest is 'qwen3'; these are: albert, ", UnknownName)


def test_an_architecture_of_another_family(masked: Path) -> None:
    say(masked, architectures=["RobertaForMaskedLM"])
    refused(masked, "no bert is called 'RobertaForMaskedLM'", Unsupported)


def test_tensors_of_another_family(masked: Path, tmp_path: Path) -> None:
    random_model(RobertaForMaskedLM, RobertaConfig(**SMALL), torch.float32).save_pretrained(tmp_path / "roberta")
    say(tmp_path / "roberta", model_type="bert", architectures=["BertForMaskedLM"])
    refused(
        tmp_path / "roberta",
        r"lacks embeddings.word_embeddings.weight, .* and \d+ more and has unknown lm_head.bias, .* and \d+ more; "
        "it is of another architecture than config.json says",
    )
    # The other way round, where the body's names are the same but for their prefix.
    say(masked, model_type="roberta", architectures=["RobertaForMaskedLM"], pad_token_id=1)
    refused(masked, "has unknown bert.embeddings.LayerNorm.bias")


def test_a_folder_of_a_family_that_is_of_another_model_of_ours(masked: Path, tmp_path: Path) -> None:
    decoder = build("decoder", width=16, heads=2, hidden=16, layers=1)
    with pytest.raises(Unsupported, match="a bert is written from a model 'encoder', and this is 'decoder'"):
        hub.save(decoder, tmp_path / "new", family="bert")
    with pytest.raises(UnknownName, match="models of the type 'brt' are not supported"):
        hub.save(hub.load(masked).model, tmp_path / "new", family="brt")
    with pytest.raises(InvalidInput, match="say as which family the model is to be written"):
        hub.save(decoder, tmp_path / "new")


# Tensors


def test_missing_tensors(masked: Path) -> None:
    rewrite(masked, lambda name: None if name.endswith("layer.1.attention.self.key.weight") else name)
    refused(masked, "the file lacks encoder.layer.1.attention.self.key.weight; it is of another")


def test_a_missing_head(folder: Path) -> None:
    random_model(BertModel, BertConfig(**SMALL), torch.float32).save_pretrained(folder)
    say(folder, architectures=["BertForTokenClassification"])
    refused(folder, "the file lacks classifier.weight, classifier.bias")
    assert hub.load(folder, tasks=["tag"]).fresh == ["heads.tag.out.weight", "heads.tag.out.bias"]


def test_extra_tensors(masked: Path) -> None:
    add(masked, {"bert.encoder.layer.0.attention.self.distance_embedding.weight": torch.zeros(3, 4)})
    refused(masked, "has unknown bert.encoder.layer.0.attention.self.distance_embedding.weight")


def test_a_renamed_tensor(masked: Path) -> None:
    rewrite(masked, lambda name: name.replace("layer.1.output.dense.bias", "layer.1.output.dense.offset"))
    refused(masked, r"lacks encoder.layer.1.output.dense.bias and has unknown bert.*layer.1.output.dense.offset")


def test_more_layers_than_the_configuration_says(masked: Path) -> None:
    say(masked, num_hidden_layers=1)
    refused(masked, r"has unknown bert.encoder.layer.1.attention.output.LayerNorm.bias, .* and 12 more")


def test_fewer_layers_than_the_configuration_says(masked: Path) -> None:
    say(masked, num_hidden_layers=3)
    refused(masked, r"lacks encoder.layer.2.attention.self.query.weight, .* and 12 more")


@pytest.mark.parametrize("name", ["cls.predictions.decoder.weight", "cls.predictions.decoder.bias"])
def test_ties_that_disagree(masked: Path, name: str) -> None:
    of = "bert.embeddings.word_embeddings.weight" if name.endswith("weight") else "cls.predictions.bias"
    other = load_file(masked / "model.safetensors")[of].clone()
    add(masked, {name: other})
    assert hub.load(masked).unused == []
    other[3] += 1e-6
    add(masked, {name: other})
    refused(masked, f"{name} and {of} differ, and by tie_word_embeddings they are one")


def test_a_vocabulary_of_another_size(masked: Path) -> None:
    say(masked, vocab_size=41)
    refused(masked, r"embeddings.word_embeddings.weight: \(40, 24\) in the file, \(41, 24\) by its configuration")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"intermediate_size": 41}, r"encoder.layer.0.intermediate.dense.weight: \(40, 24\) in the file, \(41, 24\)"),
        ({"max_position_embeddings": 19}, r"embeddings.position_embeddings.weight: \(20, 24\) in the file, \(19, 24\)"),
        ({"type_vocab_size": 1}, r"embeddings.token_type_embeddings.weight: \(2, 24\) in the file, \(1, 24\)"),
        ({"hidden_size": 32}, r"embeddings.word_embeddings.weight: \(40, 24\) in the file, \(40, 32\)"),
    ],
)
def test_shapes_that_disagree(masked: Path, changes: dict[str, int], said: str) -> None:
    say(masked, **changes)
    refused(masked, said)


def test_weights_that_are_no_floating_numbers(masked: Path) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    held = load_file(masked / "model.safetensors")[name]
    add(masked, {name: held.to(torch.int8)})
    refused(masked, f"{name}: weights of torch.int8 are not read", Unsupported)
    add(masked, {name: held.to(torch.float8_e4m3fn)})
    refused(masked, f"{name}: weights of torch.float8_e4m3fn are not read", Unsupported)


def test_a_file_of_several_types_is_read_in_the_one_that_holds_all(masked: Path) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    held = load_file(masked / "model.safetensors")[name]
    add(masked, {name: held.double()})
    assert hub.load(masked).model.dtype == torch.float64
    add(masked, {name: held.half()})
    assert {parameter.dtype for parameter in hub.load(masked).model.parameters()} == {torch.float32}


def test_a_type_that_models_cannot_have(masked: Path) -> None:
    with pytest.raises(InvalidInput, match=r"dtype must be one of torch.float16, .*, not torch.int8"):
        hub.load(masked, dtype=torch.int8)


# config.json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "config.json is not JSON"),
        ("\udce4", "config.json is not UTF-8"),
        ("[]", "config.json must be a table, not list"),
        ('"bert"', "config.json must be a table, not str"),
        ('{"hidden_size": 24}', r"says neither model_type \(Hugging Face's\) nor model \(longspan's\)"),
    ],
)
def test_no_configuration(masked: Path, text: str, said: str) -> None:
    (masked / "config.json").write_bytes(text.encode(errors="surrogateescape"))
    refused(masked, said)


def test_no_folder(tmp_path: Path) -> None:
    refused(tmp_path / "nowhere", "there is no ")
    refused(tmp_path, "is no model: it has no config.json")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"hidden_size": "24"}, "hidden_size: option width must be int, not '24'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: option layers must be at least 1, not 0"),
        ({"layer_norm_eps": "small"}, "layer_norm_eps: option eps must be float"),
        ({"num_attention_heads": 5}, "5 heads do not divide the width 24"),
        ({"pad_token_id": 40}, r"padding must be a token id in 0..39, got 40"),
    ],
)
def test_values_that_cannot_be(masked: Path, changes: dict[str, Any], said: str) -> None:
    say(masked, **changes)
    refused(masked, said, InvalidOption)


@pytest.mark.parametrize("labels", [{"first": "no"}, ["no", "yes"], "yes"])
def test_labels_that_are_not_numbered(masked: Path, labels: Any) -> None:
    say(masked, id2label=labels)
    refused(masked, "id2label must go from numbers to names")


def test_without_an_architecture_it_is_the_body(folder: Path) -> None:
    random_model(BertModel, BertConfig(**SMALL), torch.float32).save_pretrained(folder)
    say(folder, architectures=None)
    assert [*hub.load(folder).model.heads] == ["pool"]


# Folders of ours


def test_a_folder_of_ours(tmp_path: Path) -> None:
    model = build("encoder", width=16, heads=2, hidden=16, layers=1).eval()
    model.save(tmp_path)
    found = hub.load(tmp_path, dtype=torch.float64)
    assert found.family is None and found.model.dtype == torch.float64
    with pytest.raises(Unsupported, match="tasks can be chosen for folders of Hugging Face's"):
        hub.load(tmp_path, tasks=["tag"])


def test_unused_keys_are_written_back(masked: Path, tmp_path: Path) -> None:
    say(masked, task_specific_params={"a": 1}, torch_dtype="float16", num_labels=5)
    hub.save(hub.load(masked, dtype=torch.float64), tmp_path / "back")
    record = json.loads((tmp_path / "back/config.json").read_text())
    assert record["task_specific_params"] == {"a": 1} and record["dtype"] == "float64"
    assert "torch_dtype" not in record and "num_labels" not in record


def test_names_of_labels_are_kept(folder: Path, tmp_path: Path) -> None:
    from transformers import BertForSequenceClassification

    names = {0: "bad", 1: "fair", 2: "good"}
    config = BertConfig(**SMALL, id2label=names, label2id={name: number for number, name in names.items()})
    random_model(BertForSequenceClassification, config, torch.float32).save_pretrained(folder)
    found = hub.load(folder)
    assert found.labels == ["bad", "fair", "good"]
    hub.save(found, tmp_path / "back")
    again = BertConfig.from_pretrained(tmp_path / "back")
    assert again.id2label == names and again.label2id["good"] == 2


def test_a_head_given_as_a_table_is_as_the_family_has_it(masked: Path) -> None:
    found = hub.load(masked, tasks=["masked", {"task": "classify", "labels": 5}])
    own, other = found.model.options.tasks
    assert own.activation == found.model.options.activation
    assert (other.labels, other.activation, other.pool) == (5, "tanh", "first")
    assert {name.split(".")[1] for name in found.fresh} == {"classify"}
    with pytest.raises(InvalidOption, match="label"):
        hub.load(masked, tasks=[{"task": "classify", "label": 5}])
