"""Exported programs are the model: at other shapes, with padding, step by step, and without longspan."""

import json
from pathlib import Path
from typing import Any

import numpy
import onnxruntime
import pytest
import torch
from tests.hub.folders import SIZES, bert, decoder, transformer

from longspan import decode, hub
from longspan.attention import names
from longspan.cli.main import main
from longspan.errors import InvalidInput, InvalidOption, UnknownName, Unsupported
from longspan.hub.export import check, export
from longspan.hub.export.decoding import StateLayout
from longspan.hub.pretrained import Pretrained
from longspan.models import build

DOCS = Path(__file__).parents[3] / "docs"
MIXED = [{"name": "softmax"}, {"name": "window", "window": 4}, {"name": "linear"}]


def tiny(kind: str = "decoder", **options: Any) -> Pretrained:
    torch.manual_seed(0)
    return Pretrained(build(kind, **{**SIZES, "max_length": 40, **options}).eval())


# ONNX


def test_a_decoder_in_onnx_generates_without_longspan(tmp_path: Path):
    source = tiny(layers=3, attention=MIXED, position="rotary")
    exported = export(source, tmp_path / "out")
    assert exported.files == ["config.json", "export.json", "prefill.onnx", "step.onnx", "weights.bin"]
    assert [comparison.graph for comparison in exported.checks] == ["prefill", "step"]
    assert all(comparison.difference < 1e-5 and len(comparison.shapes) >= 3 for comparison in exported.checks)
    described = json.loads((tmp_path / "out/export.json").read_text())["programs"]
    shapes = {name: item["shape"] for name, item in described["step"]["inputs"].items()}
    assert shapes["state.0.k"] == ["batch", 2, "past", 8]  # grows
    assert shapes["state.1.k"] == ["batch", 2, 4, 8]  # a window has its size from the start
    assert shapes["state.2.sums"] == ["batch", 2, 8, 9]  # linear attention too

    prompts = [[5, 6, 7, 8, 9], [11, 12]]
    expected = decode.generate(source.model, prompts, max_new=4).tokens
    assert greedy(tmp_path / "out", prompts, 4) == expected


def greedy(folder: Path, prompts: list[list[int]], new: int) -> list[list[int]]:
    """Generation with nothing but onnxruntime: prompts padded on the left."""
    prefill, step = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in ("prefill", "step"))
    longest = max(map(len, prompts))
    ids = numpy.array([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = numpy.array([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    outputs = dict(
        zip([x.name for x in prefill.get_outputs()], prefill.run(None, {"input_ids": ids, "attention_mask": mask}))
    )
    state, at, tokens = {k: v for k, v in outputs.items() if k != "logits"}, mask.sum(1, keepdims=True), []
    for _ in range(new):
        tokens.append(outputs["logits"][:, -1].argmax(-1)[:, None])
        feeds = {"input_ids": tokens[-1], "position_ids": at, **state}
        known = {x.name for x in step.get_inputs()}
        feeds = {name: value for name, value in feeds.items() if name in known}
        outputs = dict(zip([x.name for x in step.get_outputs()], step.run(None, feeds)))
        state = {name.removeprefix("new."): value for name, value in outputs.items() if name != "logits"}
        at = at + 1
    return numpy.concatenate(tokens, 1).tolist()


def test_a_bert_of_hugging_face_is_one_onnx_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = bert(tmp_path / "bert", "BertForSequenceClassification")
    out = tmp_path / "bert.onnx"
    assert main(["export", str(folder), "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["files"] == ["bert.onnx"] and sorted(tmp_path.iterdir()) == [folder, out]
    session = onnxruntime.InferenceSession(out)
    assert [x.name for x in session.get_inputs()] == ["input_ids", "attention_mask", "token_type_ids"]
    ids, mask = torch.tensor([[2, 7, 9, 3, 0]]), torch.tensor([[1, 1, 1, 1, 0]])
    feeds = {"input_ids": ids.numpy(), "attention_mask": mask.numpy(), "token_type_ids": (0 * ids).numpy()}
    with torch.no_grad():
        expected = hub.load(folder).model.outputs(ids, key_mask=mask != 0, segments=0 * ids)["classify"]
    numpy.testing.assert_allclose(session.run(["logits"], feeds)[0], expected, atol=1e-5)


# torch


def test_an_encoder_as_a_program_of_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    folder = bert(tmp_path / "bert", "BertModel")
    assert main(["export", str(folder), "--format", "torch", "--out", str(tmp_path / "out")]) == 0
    out, err = capsys.readouterr()
    assert "model equals the model to" in out and "tracing model" in err
    assert {"model.pt2", "tokenizer.json", "config.json", "export.json"} <= {
        p.name for p in (tmp_path / "out").iterdir()
    }
    program = torch.export.load(tmp_path / "out/model.pt2").module()
    ids = torch.tensor([[2, 7, 9, 3], [2, 8, 3, 0]])
    states, pooled = program(ids, (ids != 0).long(), 0 * ids)
    model = hub.load(folder).model
    with torch.no_grad():
        torch.testing.assert_close(states, model(ids, key_mask=ids != 0, segments=0 * ids), atol=1e-5, rtol=0)
    assert pooled.shape == (2, 16)


def test_an_encoder_decoder_with_its_state(tmp_path: Path):
    exported = export(transformer(tmp_path / "own"), tmp_path / "out", format="torch")
    assert list(exported.programs) == ["prefill", "step"]
    inputs = exported.programs["step"]["inputs"]
    assert inputs["context.0.k"]["shape"] == ["batch", 2, "source", 8]
    assert not any(name.startswith("new.context") for name in exported.programs["step"]["outputs"])


def test_images_have_a_dynamic_batch(tmp_path: Path):
    sizes = {"width": 16, "layers": 1, "heads": 2, "hidden": 24, "image_size": 8, "patch_size": 4}
    model = build("vit", **sizes, tasks=[{"task": "classify", "labels": 3}]).eval()
    exported = export(Pretrained(model), tmp_path / "vit.pt2", format="torch")
    assert exported.programs["model"]["inputs"] == {"pixel_values": {"type": "float32", "shape": ["batch", 3, 8, 8]}}
    assert torch.export.load(tmp_path / "vit.pt2").module()(torch.zeros(5, 3, 8, 8))[0].shape == (5, 3)


def test_fixed_sizes(tmp_path: Path):
    exported = export(tiny("encoder"), tmp_path / "out", format="torch", length=12, batch=2)
    assert exported.programs["model"]["inputs"]["input_ids"]["shape"] == [2, 12]
    assert exported.checks[0].shapes == [[2, 12]]
    with pytest.raises(Exception, match=r"12|2"):
        torch.export.load(tmp_path / "out/model.pt2").module()(
            torch.zeros(2, 13, dtype=torch.long), torch.ones(2, 13, dtype=torch.long)
        )


# What cannot be exported


def test_a_state_that_changes_its_shape_is_refused_or_left_out(tmp_path: Path):
    source = tiny(layers=1, attention={"name": "axial", "width": 4})
    reason = "the state of this attention cannot be exported: it counts positions in state.0.length"
    with pytest.raises(Unsupported, match=reason):
        export(source, tmp_path / "out", format="torch", state=True)
    assert list(tmp_path.iterdir()) == []
    exported = export(source, tmp_path / "out", format="torch")
    assert list(exported.programs) == ["model"] and reason in exported.notes[0]


def test_a_program_that_differs_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(check.LIMITS, torch.float32, 1e-12)
    monkeypatch.setattr(check, "ROUNDINGS", 0.0)
    with pytest.raises(
        Unsupported, match=r"model: the exported program is wrong: last_hidden_state .* is off by .*; nothing"
    ):
        export(tiny("encoder", layers=1), tmp_path / "out", format="torch")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"format": "onxx"}, UnknownName, "format cannot be 'onxx': did you mean 'onnx'?"),
        ({"dtype": "int8"}, UnknownName, "dtype cannot be 'int8'"),
        ({"length": 0}, InvalidOption, "option length must be 'dynamic' or a number from 1 on, not 0"),
        ({"length": 41}, InvalidOption, "length=41: this model holds at most 40 tokens"),
        ({"out": "x.pt2", "format": "onnx"}, InvalidInput, "must end in .onnx for the format onnx, or be a folder"),
        ({"out": "no/where"}, InvalidInput, "there is no folder"),
        ({"out": "full"}, InvalidInput, "exists already; give another name, or overwrite it"),
        ({"dtype": "float16"}, InvalidInput, "the model is torch.float32; load it as float16"),
    ],
)
def test_wrong_options(tmp_path: Path, options: dict[str, Any], error: type[Exception], said: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("")
    out = tmp_path / options.pop("out", "out")
    with pytest.raises(error) as caught:
        export(tiny("encoder"), out, **{"format": "torch", **options})
    assert said in str(caught.value) and not (tmp_path / "out").exists()


def test_commands_refuse_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    decoder(tmp_path / "own")
    for words, said in (
        (
            ["export", "own", "--out", "x", "--length", "many"],
            "--length must be dynamic or a number from 1 on, not 'many'",
        ),
        (["export", str(tmp_path / "none"), "--out", str(tmp_path / "x")], "there is no folder or file"),
        (["export", str(tmp_path / "own"), "--out", str(tmp_path / "own")], "exists already"),
    ):
        assert main(words) == 2
        out, err = capsys.readouterr()
        assert not out and said in err.splitlines()[-1] and "Traceback" not in err


def test_overwriting_replaces_the_whole_folder(tmp_path: Path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old").write_text("")
    export(tiny("encoder", layers=1), tmp_path / "out", format="torch", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "export.json", "model.pt2"]


# The table in the docs


def test_every_mechanism_has_a_row_of_what_exports():
    record = json.loads((DOCS / "export.json").read_text())
    assert list(record) == names(), "write it again: python -m benchmarks.export_table"
    page = (DOCS / "export.md").read_text()
    assert [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")] == names()


@pytest.mark.parametrize("name", ["softmax", "window", "linear", "axial", "cosformer"])
def test_the_table_tells_the_truth_about_states(name: str):
    record = json.loads((DOCS / "export.json").read_text())[name]["step"]["torch"]
    model = tiny(layers=1, attention={"name": name}).model
    if isinstance(record, float):
        assert StateLayout(model).inputs
    else:
        with pytest.raises(Unsupported, match="cannot be exported"):
            StateLayout(model)
