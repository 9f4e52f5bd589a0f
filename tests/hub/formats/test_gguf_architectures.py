"""GGUF files of the relatives of Llama: written, read back as the same model, and read by Hugging Face."""

from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
import torch
from tests.hub.parity import loaded, padded
from tests.hub.test_decoders import CASES, LONG
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats import gguf
from longspan.hub.formats.gguf_file import GgufFile

GEMMA = {"query_pre_attn_scalar": 10}
# By family: settings that a file can hold, and the architecture that it is written as.
FILES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("llama", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"attention_bias": True}),
    "gemma2": ("gemma2", {**GEMMA, "final_logit_softcapping": 5.0}),
    "gemma3_text": ("gemma3", {**GEMMA, "final_logit_softcapping": 5.0}),
    "phi3": (
        "phi3",
        {
            "rope_parameters": {**LONG, "partial_rotary_factor": 1.0},
            "max_position_embeddings": 128,
            "original_max_position_embeddings": 8,
            "sliding_window": 4,
        },
    ),
    "smollm3": ("smollm3", {"num_hidden_layers": 4, "mlp_bias": True}),
    "olmo2": ("olmo2", {}),
    "gpt_oss": ("gpt-oss", {}),
}


def written(family: str, folder: Path, path: Path, **given: Any) -> tuple[Any, hub.Pretrained]:
    theirs = CASES[family].build(dtype=torch.float32, **{**FILES[family][1], **given})
    found = loaded(theirs, folder)
    gguf.write(found, path)
    return theirs, found


@pytest.mark.parametrize("family", FILES)
def test_a_file_read_back_is_the_same_model(folder: Path, tmp_path: Path, family: str) -> None:
    _, found = written(family, folder, tmp_path / "small.gguf")
    again = hub.load(tmp_path / "small.gguf")
    assert GgufFile(tmp_path / "small.gguf").metadata["general.architecture"] == FILES[family][0]
    first, second = found.model.state_dict(), again.model.state_dict()
    assert list(first) == list(second)
    for name, tensor in first.items():  # gains of Gemma's norms have 1 added and taken off, which rounds
        tolerance = 1e-6 if "gemma" in family and "norm" in name else 0.0
        torch.testing.assert_close(second[name], tensor, rtol=0, atol=tolerance)
    ids, mask = padded(40, length=12)
    with torch.no_grad():
        expected = found.model(ids, key_mask=mask)
        torch.testing.assert_close(again.model(ids, key_mask=mask)[mask], expected[mask], rtol=0, atol=2e-5)


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "gemma2", "gemma3_text"])
def test_theirs_reads_the_same_tensors_from_our_file(folder: Path, tmp_path: Path, family: str) -> None:
    theirs, _ = written(family, folder, tmp_path / "small.gguf")
    found = load_gguf_checkpoint(tmp_path / "small.gguf", return_tensors=True, model_to_load=theirs)
    expected = theirs.state_dict()
    assert set(found["tensors"]) <= set(expected) and set(expected) - set(found["tensors"]) <= {"lm_head.weight"}
    for name, tensor in found["tensors"].items():
        torch.testing.assert_close(torch.as_tensor(tensor), expected[name], rtol=0, atol=1e-6)


def test_rotary_pairs_are_adjacent_where_llama_cpp_has_them_so(folder: Path, tmp_path: Path) -> None:
    for family, adjacent in (("mistral", True), ("smollm3", True), ("qwen2", False), ("olmo2", False)):
        theirs, _ = written(family, folder, tmp_path / "small.gguf")
        rows = GgufFile(tmp_path / "small.gguf")["blk.0.attn_k.weight"]
        weight = theirs.state_dict()["model.layers.0.self_attn.k_proj.weight"]
        halves = weight.unflatten(0, (2, 2, -1)).transpose(1, 2).flatten(0, 2)  # 2 heads, 2 halves
        assert torch.equal(rows, halves if adjacent else weight), family


def rewrite(path: Path, architecture: str, change: Any = None, **metadata: Any) -> None:
    """The file again with other tensors: `change` gives an array and its type for a name, or None to leave it out."""
    file = GgufFile(path)
    arrays = {name: file[name].numpy().copy() for name in file}
    entries = {key: value for key, value in file.metadata.items() if key.startswith(f"{architecture}.")} | metadata
    writer = package.GGUFWriter(path, architecture)
    for key, value in entries.items():
        add = {float: writer.add_float32, str: writer.add_string, int: writer.add_uint32}[type(value)]
        add(key, value)
    for name, array in arrays.items():
        changed = (array, None) if change is None else change(name, array)
        if changed is not None:
            writer.add_tensor(name, changed[0], raw_dtype=changed[1])
    finish(writer)


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_experts_in_four_bits_are_unpacked(folder: Path, tmp_path: Path) -> None:
    """The released files of gpt-oss have their experts in MXFP4."""
    path, kind = tmp_path / "small.gguf", package.GGMLQuantizationType.MXFP4
    _, found = written("gpt_oss", folder, path, hidden_size=32, intermediate_size=32, num_hidden_layers=1)

    def pack(name: str, array: Any) -> tuple[Any, Any]:
        if "_exps.weight" not in name:
            return array, None
        return package.quants.quantize(array, kind), kind

    rewrite(path, "gpt-oss", pack)
    layer = hub.load(path).model.stack.blocks[0].feedforward
    before = found.model.stack.blocks[0].feedforward
    for own, exact in ((layer.gate_up, before.gate_up), (layer.down, before.down)):
        turned = np.ascontiguousarray(exact.detach().mT.numpy())
        packed = package.quants.dequantize(package.quants.quantize(turned, kind), kind)
        assert torch.equal(own.detach().mT, torch.from_numpy(packed))
    assert torch.equal(layer.gate_up_bias, before.gate_up_bias)


@pytest.mark.parametrize(
    "family,given,said",
    [
        ("mistral", {"sliding_window": 4}, "cannot say attention"),
        ("gemma2", {"query_pre_attn_scalar": 7}, "a GGUF file of gemma2 cannot say attention"),
        ("gemma2", {"attn_logit_softcapping": None}, "caps its scores and its logits"),
        ("gemma3_text", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "cannot say"),
        ("smollm3", {"num_hidden_layers": 3, "no_rope_layers": [0, 1, 1]}, "a GGUF file of smollm3 cannot say"),
        ("gpt_oss", {"swiglu_limit": 3.0}, "a GGUF file of gpt-oss cannot say experts"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "cannot say attention"),
    ],
)
def test_what_a_file_cannot_hold_is_not_written(
    folder: Path, tmp_path: Path, family: str, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        written(family, folder, tmp_path / "small.gguf", **given)
    assert not list(tmp_path.glob("*.gguf*"))


def test_files_that_lack_or_have_something_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "small.gguf"
    written("olmo2", folder, path)
    rewrite(path, "olmo2", **{"olmo2.attention.sliding_window": 4096})
    with pytest.raises(Unsupported, match="as OLMo 3 has"):
        hub.load(path)
    written("gpt_oss", folder, path, num_hidden_layers=1)
    rewrite(path, "gpt-oss", lambda name, array: None if name == "blk.0.ffn_up_exps.weight" else (array, None))
    with pytest.raises(InvalidInput, match=r"lacks blk\.0\.ffn_up_exps\.weight"):
        hub.load(path)
    finish(package.GGUFWriter(path, "qwen4"))
    with pytest.raises(Unsupported, match=r"is a 'qwen4'; GGUF files of llama, .* are read; the nearest is 'qwen3'"):
        hub.load(path)
