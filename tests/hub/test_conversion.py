"""From one folder to another: kinds, precisions, shards; and what `describe` says of a folder."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.hub.folders import bert, decoder, sentence_bert
from transformers import BertForMaskedLM

from longspan import hub
from longspan.errors import InvalidInput, InvalidOption, LongspanError
from longspan.hub.conversion import read_size

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


def test_what_is_not_converted(folder: Path, tmp_path: Path) -> None:
    bert(folder)
    (tmp_path / "file").write_text("")
    hub.convert(folder, tmp_path / "there")
    for target, given, words in (
        (folder, {}, "is the source itself"),
        (tmp_path / "file", {}, "is a file"),
        (tmp_path / "there", {}, "already has a model"),
        (tmp_path / "new", {"to": "hugginface"}, "did you mean 'huggingface'"),
        (tmp_path / "new", {"dtype": "float15"}, "did you mean 'float16'"),
        (tmp_path / "new", {"shard_size": "5 bananas"}, "such as 500MB or 5GB, not '5 bananas'"),
        (tmp_path / "new", {"shard_size": 0}, "at least one byte"),
    ):
        with pytest.raises(LongspanError, match=words):
            hub.convert(folder, target, **given)
    assert not (tmp_path / "new").exists()
    hub.convert(folder, tmp_path / "there", overwrite=True)
    with pytest.raises(InvalidInput, match=r"has no config\.json"):
        hub.convert(tmp_path / "nowhere", tmp_path / "new")


def test_sizes_are_read() -> None:
    assert [read_size(size) for size in ("5GB", "500 MB", "2GiB", "1.5kb", "12", 7)] == (
        [5 * 10**9, 500 * 10**6, 2**31, 1500, 12, 7]
    )
    for wrong in ("", "GB", "nanGB", "1e999GB", "-1GB"):
        with pytest.raises(InvalidOption, match="size"):
            read_size(wrong)


def test_what_a_folder_is(folder: Path, tmp_path: Path) -> None:
    row = hub.describe(bert(folder))
    assert row["family"] == "bert" and row["architecture"] == "BertForMaskedLM" and row["tasks"] == ["masked"]
    assert row["parameters"] == sum(row["parts"].values())
    assert row["parameters"] == sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert row["tokenizer"]["size"] == 19 and row["tokenizer"]["special"]["mask"] == {"token": "[MASK]", "id": 4}
    own = hub.describe(decoder(tmp_path / "own"))
    assert own["family"] is None and own["model"] == "decoder" and own["longest"] == 40
