"""GGUF files: written and read back bit for bit, read by Hugging Face, quantised, cut off, foreign; and their words."""

from pathlib import Path
from typing import Any

import gguf as package
import numpy as np
import pytest
import tokenizers
import torch
from tests.hub.parity import assert_close, loaded, padded, random_model
from tokenizers import decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from longspan import hub
from longspan.data import Tokenizer
from longspan.decode import generate
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.formats import gguf
from longspan.hub.formats.gguf_file import GgufFile
from longspan.hub.formats.gguf_tokenizer import NEVER, build, from_pieces
from longspan.hub.formats.gguf_vocabulary import metadata
from longspan.models import build as build_model

SMALL = {
    "vocab_size": 40,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
ODD = {
    "untied": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "wide-heads": {"head_dim": 12, "pad_token_id": 3},
    "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 300.0, "factor": 4.0}},
    "llama3": {"rope_parameters": LLAMA3, "head_dim": 64},
    "yarn": {
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 1e4,
            "factor": 4.0,
            "original_max_position_embeddings": 16,
        }
    },
}


@pytest.fixture
def written(folder: Path, tmp_path: Path) -> Path:
    """A small Llama in a GGUF file."""
    found = loaded(random_model(LlamaForCausalLM, LlamaConfig(**SMALL), torch.float32), folder)
    gguf.write(found, tmp_path / "small.gguf")
    return tmp_path / "small.gguf"


@pytest.mark.parametrize("given", ODD.values(), ids=ODD)
def test_a_file_read_back_is_the_same_model_bit_for_bit(folder: Path, tmp_path: Path, given: dict[str, Any]) -> None:
    found = loaded(random_model(LlamaForCausalLM, LlamaConfig(**{**SMALL, **given}), torch.float32), folder)
    gguf.write(found, tmp_path / "small.gguf")
    again = hub.load(tmp_path / "small.gguf")
    first, second = found.model.state_dict(), again.model.state_dict()
    assert list(first) == list(second)
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())
    ids, _ = padded(40)
    with torch.no_grad():
        assert torch.equal(found.model(ids), again.model(ids))
    assert found.model.options.rotary_scaling == again.model.options.rotary_scaling


def test_theirs_reads_the_same_tensors_from_our_file(folder: Path, tmp_path: Path) -> None:
    """The order of queries and keys above all, which both of our directions might have wrong."""
    theirs = random_model(LlamaForCausalLM, LlamaConfig(**SMALL), torch.float32)
    gguf.write(loaded(theirs, folder), tmp_path / "small.gguf")
    found = load_gguf_checkpoint(tmp_path / "small.gguf", return_tensors=True, model_to_load=theirs)
    expected = theirs.state_dict()
    assert set(found["tensors"]) == set(expected)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found["tensors"].items())
    assert found["config"]["num_key_value_heads"] == 2 and found["config"]["max_position_embeddings"] == 32


def test_the_package_reads_our_file_as_we_do(written: Path) -> None:
    """Our reader of headers against that of the package."""
    own, other = GgufFile(written), package.GGUFReader(written)
    fields = {key: field.contents() for key, field in other.fields.items() if not key.startswith("GGUF.")}
    assert list(own.metadata) == list(fields)
    for key, value in fields.items():
        assert own.metadata[key] == (pytest.approx(value, rel=1e-6) if isinstance(value, float) else value), key
    assert {each.name: each.data.tolist() for each in other.tensors} == {key: own[key].tolist() for key in own}


def test_half_keeps_norms_whole(folder: Path, tmp_path: Path) -> None:
    found = loaded(random_model(LlamaForCausalLM, LlamaConfig(**SMALL), torch.float32), folder)
    gguf.write(found, tmp_path / "half.gguf", half=True)
    file = GgufFile(tmp_path / "half.gguf")
    assert {file[name].dtype for name in file if file[name].dim() == 1} == {torch.float32}
    assert {file[name].dtype for name in file if file[name].dim() == 2} == {torch.float16}
    again = hub.load(tmp_path / "half.gguf")
    torch.testing.assert_close(
        again.model.embedding.weight, found.model.embedding.weight.half().float(), rtol=0, atol=0
    )


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "BF16"])
def test_quantised_tensors_are_unpacked(tmp_path: Path, kind: str) -> None:
    numbers = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    kinds = package.GGMLQuantizationType[kind]
    packed = package.quants.quantize(numbers, kinds)
    writer = package.GGUFWriter(tmp_path / "one.gguf", "llama")
    writer.add_tensor("it", packed, raw_dtype=kinds)
    _finish(writer)
    found = GgufFile(tmp_path / "one.gguf")["it"]
    assert torch.equal(found.float(), torch.from_numpy(package.quants.dequantize(packed, kinds)))


def test_a_file_that_is_cut_off_is_named_with_what_it_lacks(written: Path) -> None:
    data = written.read_bytes()
    for size in (0, 10, 30, 100, 1000):
        written.write_bytes(data[:size])
        with pytest.raises(InvalidInput, match="no GGUF file" if size < 24 else "cut off in its header"):
            hub.load(written)
    written.write_bytes(data[:-9])
    with pytest.raises(InvalidInput, match=r"cut off: output\.weight ends at byte \d+, and the file at \d+"):
        hub.load(written)
    written.write_bytes(b"PK\x03\x04" + data[4:])
    with pytest.raises(InvalidInput, match="begins with"):
        hub.load(written)


def test_other_architectures_and_missing_metadata_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.gguf"
    _finish(package.GGUFWriter(path, "gemma"))
    with pytest.raises(Unsupported, match="'gemma'"):
        hub.load(path)
    _finish(package.GGUFWriter(path, "llama"))
    with pytest.raises(InvalidInput, match=r"llama\.embedding_length"):
        hub.load(path)
    writer = package.GGUFWriter(path, "llama")
    writer.add_expert_count(8)
    _finish(writer)
    with pytest.raises(Unsupported, match="8 experts"):
        hub.load(path)


def test_unknown_tensors_are_named(written: Path) -> None:
    file = GgufFile(written)
    writer = package.GGUFWriter(written, "llama")
    tensors = {name: file[name].numpy().copy() for name in file}
    for key, value in file.metadata.items():
        if key.startswith("llama."):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, tensor in {**tensors, "blk.0.attn_q_norm.weight": np.ones(8, np.float32)}.items():
        writer.add_tensor(name, tensor)
    _finish(writer)
    with pytest.raises(InvalidInput, match=r"has unknown blk\.0\.attn_q_norm\.weight"):
        hub.load(written)


def test_what_the_format_cannot_hold_is_refused(tmp_path: Path) -> None:
    options = {
        "position": "rotary",
        "norm": "rms",
        "norm_position": "pre",
        "bias": False,
        "scale": False,
        "max_length": 8,
    }
    found = build_model("decoder", width=8, heads=2, layers=1, activation="geglu", **options)
    with pytest.raises(Unsupported, match="swiglu"):
        gguf.write(hub.Pretrained(found, "llama"), tmp_path / "a.gguf")


def _finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# Tokenizers


def words(**given: Any) -> dict[str, Any]:
    """Metadata of a little byte-level vocabulary."""
    tokens = ["<|end|>", "<|more|>", *sorted({*"Ġabcde0123456789"}), "ab", "Ġab", "01", "12", "012"]
    merges = ["a b", "Ġ ab", "0 1", "1 2", "01 2"]
    said = {"model": "gpt2", "pre": "gpt-2", "tokens": tokens, "merges": merges, "bos_token_id": 0, **given}
    said["token_type"] = [3, 4] + [1] * (len(tokens) - 2)
    return {f"tokenizer.ggml.{key}": value for key, value in said.items()}


@pytest.mark.parametrize(
    "pre,expected",
    [("gpt-2", ["ab", "Ġab", "Ġ", "012", "3"]), ("smollm", ["ab", "Ġab", "Ġ", "0", "1", "2", "3"])],
)
def test_text_is_cut_as_the_name_says(pre: str, expected: list[str]) -> None:
    found = build(words(pre=pre), "a.gguf")
    assert found.encode("ab ab 0123").tokens == expected
    assert found.decode(found.encode("ab ab 0123").ids) == "ab ab 0123"


def test_special_tokens_are_whole_and_texts_begin_as_the_file_says() -> None:
    found = build(words(add_bos_token=True), "a.gguf")
    assert found.encode("ab<|more|>ab").tokens == ["<|end|>", "ab", "<|more|>", "ab"]
    assert found.decode(found.encode("ab<|more|>ab").ids) == "ab<|more|>ab"
    assert build(words(pre="llama-bpe"), "a.gguf").encode("ab").tokens == ["<|end|>", "ab"]


def test_pieces_with_scores_are_merged_best_first_and_the_rest_is_bytes() -> None:
    bytes_ = [f"<0x{value:02X}>" for value in range(256)]
    normal = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab"]
    said = {
        "model": "llama",
        "tokens": ["<unk>", "<s>", "</s>", *bytes_, *normal],
        "scores": [0.0] * 259 + [-9.0, -9.0, -9.0, -9.0, -2.0, -1.0, -3.0, -4.0],
        "token_type": [2, 3, 3] + [6] * 256 + [1] * len(normal),
        "bos_token_id": 1,
    }
    found = build({f"tokenizer.ggml.{key}": value for key, value in said.items()}, "a.gguf")
    assert found.encode("abc ab é").tokens == ["<s>", "▁a", "bc", "▁ab", "▁", "<0xC3>", "<0xA9>"]
    assert found.decode(found.encode("abc ab é").ids) == "abc ab é"


@pytest.mark.parametrize(
    "given,said",
    [({"pre": "tekken"}, "pre is 'tekken'"), ({"model": "bert"}, "model is 'bert'"), ({"merges": None}, "lacks")],
)
def test_tokenizers_that_cannot_be_made_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises((InvalidInput, Unsupported), match=said):
        build(words(**given), "a.gguf")


# SmolLM2-135M


def _inner(kind: str, words: list[str]) -> Tokenizer:
    """A tokenizer without merges: what has more than one letter is never made."""
    if kind == "bytes":
        inner = tokenizers.Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        return Tokenizer(inner, {})
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *words]
    return Tokenizer(from_pieces(pieces, [NEVER] * len(pieces)), {"unk": "<unk>"})


@pytest.mark.parametrize("words", [["a", "b", "Ġ"], ["a", "b", "Ġ", "ab"]])
@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_tokenizer_without_merges_is_read_back(tmp_path: Path, kind: str, words: list[str]) -> None:
    before = _inner(kind, words)
    options = {
        "position": "rotary",
        "norm": "rms",
        "norm_position": "pre",
        "bias": False,
        "scale": False,
        "tied": False,
    }
    sizes = {"width": 8, "heads": 2, "layers": 1, "max_length": 8, "vocabulary": before.size}
    model = build_model("decoder", activation="swiglu", **sizes, **options)
    gguf.write(hub.Pretrained(model, "llama"), tmp_path / "a.gguf", tokenizer=metadata(before, before.size))
    found = hub.load(tmp_path / "a.gguf").tokenizer
    assert found is not None and found.inner.get_vocab() == before.inner.get_vocab()
    for text in ("ab ab", "ba", " a"):
        assert found.encode(text).ids == before.encode(text).ids
        assert found.decode(found.encode(text).ids) == before.decode(before.encode(text).ids)


@pytest.mark.weights
def test_smollm_says_what_the_capital_of_france_is(smollm: Path, smollm_model: hub.Pretrained) -> None:
    words = gguf.tokenizer(smollm)
    prompt = words.encode("The capital of France is")
    assert prompt.ids == [504, 3575, 282, 4649, 314]
    assert words.encode("a12345 b").tokens == ["a", "1", "2", "3", "4", "5", "Ġb"]
    assert generate(smollm_model.model, [prompt.ids], max_new=2, tokenizer=words).texts == [" Paris."]
    assert sum(each.numel() for each in smollm_model.model.parameters()) == 134_515_008


@pytest.mark.weights
def test_smollm_equals_theirs_with_the_same_weights(smollm_model: hub.Pretrained, tmp_path: Path) -> None:
    hub.save(smollm_model, tmp_path)
    theirs = LlamaForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    ids, mask = padded(49152, side="left", length=12)
    with torch.no_grad():
        assert_close(smollm_model.model(ids, key_mask=mask), theirs(ids, attention_mask=mask).logits, mask)
