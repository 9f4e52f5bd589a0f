"""From one folder to another: kinds, precisions, shards; and what `describe` says of a folder."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.hub.folders import bert, decoder, sentence_bert
from tests.hub.parity import random_model
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers
from transformers import BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from longspan import hub
from longspan.data import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, LongspanError
from longspan.hub.conversion import read_size
from longspan.hub.formats.gguf_tokenizer import from_pieces

TEXTS = ["a [MASK] sits", "the cat [MASK]"]


@pytest.mark.parametrize("to", ["huggingface", "longspan"])
def test_a_folder_becomes_another_and_does_the_same(folder: Path, tmp_path: Path, to: str) -> None:
    bert(folder)
    hub.convert(folder, tmp_path / "new", to=to)
    found = hub.load(tmp_path / "new")
    assert found.family == (None if to == "longspan" else "bert")
    for one, other in zip(hub.fill(found, TEXTS), hub.fill(hub.load(folder), TEXTS)):
        assert [guess.id for guess in one[0]] == [guess.id for guess in other[0]]
        # Not to the last bit: where a tensor lies in memory changes the order of sums.
        assert [guess.probability for guess in one[0]] == pytest.approx([guess.probability for guess in other[0]])
    if to == "huggingface":
        first, second = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "new"))
        assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_precision_and_shards(folder: Path, tmp_path: Path) -> None:
    bert(folder)
    hub.convert(folder, tmp_path / "half", dtype="bfloat16", shard_size="4KB")
    assert len(list((tmp_path / "half").glob("model-*.safetensors"))) > 1
    found = hub.load(tmp_path / "half")
    assert found.model.dtype == torch.bfloat16 and found.config["dtype"] == "bfloat16"
    theirs = BertForMaskedLM.from_pretrained(tmp_path / "half")
    assert theirs.dtype == torch.bfloat16


def test_sentence_settings_go_along_to_ours(folder: Path, tmp_path: Path) -> None:
    sentence_bert(folder, pooling_mode_cls_token=True)
    hub.convert(folder, tmp_path / "ours", to="longspan")
    assert hub.load(tmp_path / "ours").sentence.pool == "first"


def test_refused_conversions(folder: Path, tmp_path: Path) -> None:
    bert(folder)
    (tmp_path / "file").write_text("")
    hub.convert(folder, tmp_path / "there")
    for target, given, words in (
        (folder, {}, "is the source itself"),
        (tmp_path / "file", {}, "is a file"),
        (tmp_path / "there", {}, "exists already"),
        (tmp_path / "new", {"to": "hugginface"}, "did you mean 'huggingface'"),
        (tmp_path / "new", {"dtype": "float15"}, "did you mean 'float16'"),
        (tmp_path / "new", {"shard_size": "5 bananas"}, "such as 500MB or 5GB, not '5 bananas'"),
        (tmp_path / "new", {"shard_size": 0}, "at least one byte"),
    ):
        with pytest.raises(LongspanError, match=words):
            hub.convert(folder, target, **given)
    assert not (tmp_path / "new").exists()
    hub.convert(folder, tmp_path / "there", overwrite=True)
    with pytest.raises(InvalidInput, match="nowhere"):
        hub.convert(tmp_path / "nowhere", tmp_path / "new")
    for target, given, words in (
        (tmp_path / "new", {}, r"must be the name of a file that ends in \.gguf"),
        (tmp_path / "no" / "new.gguf", {}, "there is no folder"),
        (tmp_path / "new.gguf", {"dtype": "bfloat16"}, "float32 or float16 here, not in bfloat16"),
        (tmp_path / "new.gguf", {}, "BPE.*and this is WordPiece"),
    ):
        with pytest.raises(LongspanError, match=words):
            hub.convert(folder, target, to="gguf", **given)


# GGUF


def llama(folder: Path, kind: str) -> Path:
    """A Llama with random weights, and a tokenizer of bytes or of pieces."""
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
        bos_token_id=1,
        eos_token_id=2,
    )
    random_model(LlamaForCausalLM, config, torch.float32).save_pretrained(folder)
    first, merges = ["<unk>", "<s>", "</s>"], [("t", "h"), ("th", "e"), ("a", "t")]
    if kind == "bytes":
        letters = sorted(pre_tokenizers.ByteLevel.alphabet())
        listed = [*first, *letters, *(left + right for left, right in merges)]
        inner = Inner(models.BPE({word: number for number, word in enumerate(listed)}, merges))
        digits = pre_tokenizers.Digits(individual_digits=True)
        inner.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
        inner.decoder = decoders.ByteLevel()
    else:
        merges = [("▁", "▁"), *merges, ("▁", "the")]
        spelled = [f"<0x{byte:02X}>" for byte in range(256)]
        listed = [*first, *spelled, "▁", *"abcdeht", *(left + right for left, right in merges)]
        inner = from_pieces(listed, [-float(number) for number in range(len(listed))])
    inner.add_special_tokens(first)
    Tokenizer(inner, {"unk": "<unk>", "bos": "<s>", "eos": "</s>"}).save(folder)
    return folder


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
def test_a_llama_becomes_a_gguf_file_and_comes_back(folder: Path, tmp_path: Path, kind: str) -> None:
    first = hub.load(llama(folder, kind))
    hub.convert(folder, tmp_path / "new.gguf", to="gguf")
    found = hub.load(tmp_path / "new.gguf")
    assert (found.tokenizer.bos, found.tokenizer.eos) == (1, 2)
    texts = ["the cat", "at 42 é", " the  bat", "", "<s> the"]
    for text in texts:
        assert found.tokenizer.encode(text).ids == first.tokenizer.encode(text).ids, text
        assert found.tokenizer.decode(found.tokenizer.encode(text).ids) == text
    one, other = (hub.generate(each, texts[:3], max_new=5) for each in (first, found))
    assert [text[0].tokens for text in one] == [text[0].tokens for text in other]
    hub.convert(tmp_path / "new.gguf", tmp_path / "back")
    names = load_file(folder / "model.safetensors")
    again = load_file(tmp_path / "back" / "model.safetensors")
    assert set(names) == set(again) and all(torch.equal(tensor, again[name]) for name, tensor in names.items())
    assert hub.load(tmp_path / "back").tokenizer.encode("the cat").ids == first.tokenizer.encode("the cat").ids


def test_a_gguf_file_may_have_no_tokenizer(folder: Path, tmp_path: Path) -> None:
    llama(folder, "bytes")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    hub.convert(folder, tmp_path / "new.gguf", to="gguf")
    assert hub.load(tmp_path / "new.gguf").tokenizer is None


@pytest.mark.data
def test_a_llama2c_file_and_its_folder_generate_the_same_text(stories: Path, tmp_path: Path) -> None:
    found = hub.load(stories / "stories260K.bin")
    (story,) = hub.generate(found, ["Once upon a time"], max_new=30)[0]
    assert story.text.startswith(", there was a little girl named")
    hub.convert(stories / "stories260K.bin", tmp_path / "folder")
    hub.convert(tmp_path / "folder", tmp_path / "stories.gguf", to="gguf")
    for path in (tmp_path / "folder", tmp_path / "stories.gguf"):
        assert hub.generate(hub.load(path), ["Once upon a time"], max_new=30)[0][0].tokens == story.tokens


@pytest.mark.weights
@pytest.mark.slow
def test_smollm_knows_the_capital(smollm: Path) -> None:
    found = hub.load(smollm)
    (text,) = hub.generate(found, ["The capital of France is"], max_new=4)[0]
    assert text.text.startswith(" Paris.")


def test_sizes_are_read() -> None:
    assert [read_size(size) for size in ("5GB", "500 MB", "2GiB", "1.5kb", "12", 7)] == (
        [5 * 10**9, 500 * 10**6, 2**31, 1500, 12, 7]
    )
    for wrong in ("", "GB", "nanGB", "1e999GB", "-1GB"):
        with pytest.raises(InvalidOption, match="size"):
            read_size(wrong)


def test_the_description_of_a_folder(folder: Path, tmp_path: Path) -> None:
    row = hub.describe(bert(folder))
    assert row["family"] == "bert" and row["architecture"] == "BertForMaskedLM" and row["tasks"] == ["masked"]
    assert row["parameters"] == sum(row["parts"].values())
    assert row["parameters"] == sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert row["tokenizer"]["size"] == 19 and row["tokenizer"]["special"]["mask"] == {"token": "[MASK]", "id": 4}
    own = hub.describe(decoder(tmp_path / "own"))
    assert own["family"] is None and own["model"] == "decoder" and own["max_length"] == 40
