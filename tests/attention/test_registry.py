"""The table of mechanisms: every entry is a complete mechanism."""

import inspect
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from longspan import attention, config, models
from longspan.attention import Attention, Shape, Supports, build, describe, find, names, registry
from longspan.audit.subjects import MechanismSubject
from longspan.errors import InvalidOption, UnknownName, Unsupported

SURVEY = {"FP", "M", "LP", "LR", "KR", "RC"}
EACH = pytest.mark.parametrize("name", names())


def test_names_are_unique_and_include_the_basic_mechanisms():
    assert {"softmax", "window"} <= set(names())
    assert len(names()) == len(set(names()))
    names().clear()  # a copy: the table stays
    assert "softmax" in names()


@EACH
def test_file_registry_and_class_have_one_name(name: str):
    found = find(name)
    assert found.name == name
    assert Path(inspect.getfile(found)).stem == name
    assert found.__name__.lower() == name.replace("_", "") + "attention"
    assert registry.ATTENTION.entries[name] == f"{found.__module__}:{found.__qualname__}"


@EACH
def test_every_mechanism_declares_its_name_paper_and_order(name: str):
    found = find(name)
    assert issubclass(found, Attention) and not inspect.isabstract(found)
    assert (inspect.getmodule(found).__doc__ or "").strip()
    assert found.paper.split()[-1].strip("()") or found.paper
    assert any(character.isdigit() for character in found.paper)  # its year
    assert isinstance(found.survey_class, tuple) and set(found.survey_class) <= SURVEY
    assert "n" in found.order
    assert 0 < found.exponent <= 2
    assert isinstance(found.supports, Supports)
    assert found.supports.causal or found.supports.bidirectional
    assert found.supports.causal or not found.supports.streaming


@EACH
def test_every_option_has_help_and_a_default_that_fits(name: str):
    options = find(name).Options
    assert is_dataclass(options) and issubclass(options, config.Options)
    options()
    for item in config.describe(options):
        assert item["help"] and item["type"]
    assert len(config.describe(options)) == len(fields(options))


@EACH
def test_every_mechanism_is_built_by_name(name: str):
    found = find(name)
    causal = not found.supports.bidirectional
    built = build(name, heads=2, head_dim=8, causal=causal, max_length=256)
    assert type(built) is found
    assert built.shape == Shape(heads=2, head_dim=8, max_length=256)
    assert built.causal is causal and built.dropout == 0.0
    assert built.options == found.Options()
    assert f"heads=2, head_dim=8, causal={causal}" in repr(built)


@EACH
def test_every_mechanism_is_described_for_json(name: str):
    found = describe(name)
    assert json.loads(json.dumps(found))["name"] == name
    assert found["summary"] and found["paper"] == find(name).paper
    assert {item["name"] for item in found["options"]} == {item.name for item in fields(find(name).Options)}
    assert found["supports"].keys() == {item.name for item in fields(Supports)}


@EACH
def test_every_mechanism_refuses_an_unknown_option(name: str):
    with pytest.raises(InvalidOption, match=f"{name} has no option 'no_such_option'"):
        build(name, heads=2, head_dim=8, no_such_option=1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("sofmax", "no attention is called 'sofmax': did you mean 'softmax'?"),
        ("windows", "no attention is called 'windows': did you mean 'window'?"),
        ("WINDOW", None),
        ("", None),
        ("qqqq", None),
    ],
)
def test_an_unknown_name_suggests_the_nearest(wrong: str, message: str | None):
    for call in (find, describe, lambda name: build(name, heads=2, head_dim=8)):
        with pytest.raises(UnknownName) as raised:
            call(wrong)
        text = str(raised.value)
        assert text.startswith(f"no attention is called {wrong!r}: ")
        assert "\n" not in text
        if message is not None:
            assert text == message
        else:
            assert "softmax" in text or "did you mean" in text


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"heads": 0, "head_dim": 8}, "heads must be an int of at least 1, not 0"),
        ({"heads": 2.0, "head_dim": 8}, "heads must be an int of at least 1, not 2.0"),
        ({"heads": True, "head_dim": 8}, "heads must be an int of at least 1, not True"),
        ({"heads": None, "head_dim": 8}, "heads must be an int of at least 1, not None"),
        ({"heads": 2, "head_dim": -1}, "head_dim must be an int of at least 1, not -1"),
        ({"heads": 2, "head_dim": 8, "max_length": 0}, "max_length must be an int of at least 1, not 0"),
        ({"heads": 2, "head_dim": 8, "dropout": 1.0}, "dropout must be at least 0 and below 1, not 1.0"),
        ({"heads": 2, "head_dim": 8, "dropout": -0.1}, "dropout must be at least 0 and below 1, not -0.1"),
        ({"heads": 2, "head_dim": 8, "dropout": float("nan")}, "dropout must be at least 0 and below 1, not nan"),
    ],
    ids=str,
)
def test_invalid_sizes_are_refused(given: dict, message: str):
    with pytest.raises(InvalidOption) as raised:
        build("softmax", **given)
    assert str(raised.value) == message


def test_options_reach_the_mechanism():
    built = build("window", heads=2, head_dim=8, causal=True, dropout=0.1, window=7, dilation=(1, 3))
    assert built.options.window == 7 and built.options.dilation == (1, 3)
    assert built.causal and built.dropout == 0.1


@EACH
def test_unsupported_forms_are_refused_at_construction(name: str):
    supports = find(name).supports
    if not supports.causal:
        with pytest.raises(Unsupported, match=f"{name} has no causal form; these can: .*softmax"):
            build(name, heads=2, head_dim=8, max_length=16, causal=True)
    if not supports.bidirectional:
        with pytest.raises(Unsupported, match=f"{name} is causal only"):
            build(name, heads=2, head_dim=8, max_length=16)
    if not supports.dropout:
        with pytest.raises(Unsupported, match=f"{name} has no attention weights to drop"):
            build(name, heads=2, head_dim=8, max_length=16, causal=not supports.bidirectional, dropout=0.1)


def test_the_package_exports_its_public_names():
    for name in attention.__all__:
        assert hasattr(attention, name)


@pytest.mark.parametrize(
    ("name", "options", "option"),
    [
        ("sparse", {"stride": 33}, "stride"),
        ("memory_compressed", {"stride": 33}, "stride"),
        ("etc", {"global_tokens": 33}, "global_tokens"),
        ("bigbird", {"form": "etc", "global_tokens": 33}, "global_tokens"),
    ],
)
def test_options_larger_than_max_length_are_refused(name: str, options: dict, option: str):
    causal = name == "sparse"
    with pytest.raises(InvalidOption, match=f"option {option} must be at most the max_length of 32, not 33"):
        build(name, heads=2, head_dim=8, causal=causal, max_length=32, **options)
    build(name, heads=2, head_dim=8, causal=causal, **options)


def test_mechanisms_are_in_the_order_of_their_survey_classes():
    assert [name for members in registry.by_survey_class().values() for name in members] == registry.names()
    assert list(registry.by_survey_class()) == [
        title for title in registry.SURVEY_CLASSES.values() if title != "recurrence"
    ]
    assert (
        registry.survey_class("memory_compressed") == "fixed pattern"
        and registry.survey_class("synthesizer") == "low rank"
    )


FORMS = [
    (name, causal)
    for name in registry.names()
    for causal in (False, True)
    if (registry.find(name).supports.causal if causal else registry.find(name).supports.bidirectional)
]


@pytest.mark.parametrize("length", [1, 2, 7, 64, 128])
@pytest.mark.parametrize(("name", "causal"), FORMS)
def test_defaults_fit_any_max_length(name: str, causal: bool, length: int) -> None:
    torch.manual_seed(0)
    module = build(name, heads=2, head_dim=8, causal=causal, max_length=length).double().eval()
    subject = MechanismSubject(module)
    sample = subject.sample(1, length, seed=0)
    out = subject.heads(sample)
    expected = module.reference(sample["q"], sample["k"], sample["v"], streams=subject.streams(sample))
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("name", "options", "length", "fitted"),
    [
        ("etc", {}, 128, {"global_tokens": 128}),
        ("etc", {}, 512, {"global_tokens": 256}),
        ("sparse", {}, 64, {"stride": 64, "summary": 32}),
        ("sparse", {"pattern": "fixed"}, 7, {"stride": 7, "summary": 7}),
        ("sparse", {"pattern": "fixed", "stride": 16}, None, {"stride": 16, "summary": 16}),
        ("memory_compressed", {}, 2, {"stride": 2}),
        ("bigbird", {"form": "etc"}, 64, {"global_tokens": 64}),
    ],
)
def test_defaults_shrink_to_max_length(
    name: str, options: dict[str, Any], length: int | None, fitted: dict[str, int], tmp_path: Path
) -> None:
    causal = not registry.find(name).supports.bidirectional
    module = build(name, heads=2, head_dim=8, causal=causal, max_length=length, **options)
    assert {key: getattr(module.options, key) for key in fitted} == fitted
    # A model's configuration holds what was said and the length, so that a loaded one is fitted to the same.
    kind = "decoder" if causal else "encoder"
    sizes = {"vocabulary": 11, "layers": 1, "width": 16, "heads": 2, "hidden": 32, "max_length": length}
    model = models.build(kind, attention={"name": name, **options}, **sizes)
    model.save(tmp_path / "model")
    for each in (model, models.load(tmp_path / "model")):
        own = next(part for part in each.modules() if isinstance(part, Attention))
        assert own.options == module.options


@pytest.mark.parametrize(
    ("name", "options"),
    [("etc", {"global_tokens": 256}), ("sparse", {"stride": 128}), ("memory_compressed", {"stride": 3})],
)
def test_given_options_do_not_shrink(name: str, options: dict[str, int]) -> None:
    option, value = next(iter(options.items()))
    causal = not registry.find(name).supports.bidirectional
    with pytest.raises(InvalidOption) as caught:
        build(name, heads=2, head_dim=8, causal=causal, max_length=2, **options)
    assert str(caught.value) == f"option {option} must be at most the max_length of 2, not {value}"
