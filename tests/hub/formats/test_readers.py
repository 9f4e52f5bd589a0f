"""Pickles to safetensors, on request: what is read, what is refused, and that nothing in them is run."""

import json
import os
import pickle
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.hub.parity import padded, random_model
from transformers import AlbertConfig, AlbertForMaskedLM, BertConfig, BertModel

from longspan import hub
from longspan.errors import InvalidInput
from longspan.hub.formats.readers import convert

SMALL = {
    "vocab_size": 40,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 20,
}


@pytest.fixture
def pickled(tmp_path: Path) -> tuple[Any, Path]:
    """A model, and its folder as it was before safetensors."""
    model = random_model(BertModel, BertConfig(**SMALL), torch.float32)
    folder = tmp_path / "old"
    model.config.architectures = ["BertModel"]
    model.config.save_pretrained(folder)
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n")
    (folder / "training_args.bin").write_bytes(b"what is not looked at")
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    return model, folder


def check(model: Any, folder: Path) -> None:
    found = hub.load(folder)
    ids, mask = padded(40)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).last_hidden_state
        torch.testing.assert_close(found.model(ids, key_mask=mask)[mask], expected[mask], rtol=0, atol=1e-4)


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_a_pickle_becomes_safetensors_bit_for_bit(pickled: tuple[Any, Path], tmp_path: Path, legacy: bool) -> None:
    model, folder = pickled
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    with pytest.raises(InvalidInput, match=r"pytorch_model.bin is a pickle.*longspan convert"):
        hub.load(folder)
    written = convert(folder, tmp_path / "new")
    assert [path.name for path in written] == ["config.json", "model.safetensors", "vocab.txt"]
    held = load_file(tmp_path / "new" / "model.safetensors")
    assert set(held) == set(model.state_dict())
    assert all(torch.equal(tensor, held[name]) for name, tensor in model.state_dict().items())
    assert (tmp_path / "new" / "vocab.txt").read_text() == "[PAD]\n[UNK]\n"
    assert json.loads((folder / "config.json").read_text()) == json.loads((tmp_path / "new/config.json").read_text())
    check(model, tmp_path / "new")


def test_tied_weights_and_views_are_written(tmp_path: Path) -> None:
    model = random_model(AlbertForMaskedLM, AlbertConfig(**SMALL, embedding_size=12), torch.float32)
    model.config.architectures = ["AlbertForMaskedLM"]
    folder = tmp_path / "old"
    model.config.save_pretrained(folder)
    torch.save(model.state_dict(), folder / "pytorch_model.bin")  # tied, so the table is in it under two names
    convert(folder, tmp_path / "new")
    found = hub.load(tmp_path / "new")
    ids, mask = padded(40)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask).logits
    torch.testing.assert_close(found.model.outputs(ids, key_mask=mask)["masked"][mask], expected[mask])


def test_shards(pickled: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = pickled
    (folder / "pytorch_model.bin").unlink()
    state = list(model.state_dict().items())
    files = {"pytorch_model-00001-of-00002.bin": state[:20], "pytorch_model-00002-of-00002.bin": state[20:]}
    for file, part in files.items():
        torch.save(dict(part), folder / file)
    where = {name: file for file, part in files.items() for name, _ in part}
    index = folder / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    convert(folder, tmp_path / "new")
    check(model, tmp_path / "new")

    index.write_text(json.dumps({"weight_map": {**where, "extra": "pytorch_model-00001-of-00002.bin"}}))
    with pytest.raises(InvalidInput, match=r"00001-of-00002.bin lacks extra, which .*index.json says it has"):
        convert(folder, tmp_path / "other")
    index.write_text(json.dumps({"weight_map": {"pooler": "../pytorch_model.bin"}}))
    with pytest.raises(InvalidInput, match=r"pooler must be in a \.bin file beside it"):
        convert(folder, tmp_path / "other")
    (folder / "pytorch_model-00002-of-00002.bin").unlink()
    index.write_text(json.dumps({"weight_map": where}))
    with pytest.raises(InvalidInput, match=r"has no pytorch_model-00002-of-00002.bin, which pytorch_model.bin.index"):
        convert(folder, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_file_and_a_checkpoint_of_training(pickled: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = pickled
    (folder / "pytorch_model.bin").rename(folder / "best.pt")
    convert(folder / "best.pt", tmp_path / "one")
    torch.save({"state_dict": OrderedDict(model.state_dict()), "epoch": 3}, folder / "best.pt")
    convert(folder, tmp_path / "two")
    for new in ("one", "two"):
        check(model, tmp_path / new)
    torch.save({}, folder / "last.pt")
    with pytest.raises(InvalidInput, match=r"has best.pt, last.pt; give the one that is wanted"):
        convert(folder, tmp_path / "three")


class Planted:
    """What a pickle does on being read, if it is let."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("kind", ["zip", "legacy", "pickle 2", "pickle 5"])
def test_a_planted_pickle_is_refused_and_not_run(pickled: tuple[Any, Path], tmp_path: Path, kind: str) -> None:
    model, folder = pickled
    sign, file = tmp_path / "it ran", folder / "pytorch_model.bin"
    bad = {**model.state_dict(), "planted": Planted(sign)}
    if kind.startswith("pickle"):
        file.write_bytes(pickle.dumps({"planted": Planted(sign)}, protocol=int(kind[-1])))
    else:
        torch.save(bad, file, _use_new_zipfile_serialization=kind == "zip")
    what = "it is more than weights" if kind == "pickle 5" else "it asks for posix.mkdir"
    with pytest.raises(InvalidInput, match=f"pytorch_model.bin was not read: {what}") as refused:
        convert(folder, tmp_path / "new")
    assert "\n" not in str(refused.value)
    assert not sign.exists() and not (tmp_path / "new").exists() and not (tmp_path / "new.part").exists()
    pickle.loads(pickle.dumps(Planted(sign)))  # it would have
    assert sign.exists()


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ([1, 2], "must hold tensors by their names, not a list"),
        ({}, "must hold tensors by their names, not an empty one"),
        ({"epoch": 3}, "'epoch' must be a dense tensor with a name, not a int"),
        (
            {"w": torch.eye(3).to_sparse()},
            "'w' must be a dense tensor with a name, not a tensor of layout",
        ),
    ],
)
def test_what_is_no_state_is_named(pickled: tuple[Any, Path], tmp_path: Path, held: Any, words: str) -> None:
    _, folder = pickled
    torch.save(held, folder / "pytorch_model.bin")
    with pytest.raises(InvalidInput, match=words):
        convert(folder, tmp_path / "new")


def test_broken_files_are_named(pickled: tuple[Any, Path], tmp_path: Path) -> None:
    _, folder = pickled
    file = folder / "pytorch_model.bin"
    whole = file.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"version https://git-lfs.github.com/spec/v1\n", b"\x80\x02}"):
        file.write_bytes(broken)
        with pytest.raises(InvalidInput, match=r"pytorch_model.bin (was not read|is no whole file)") as refused:
            convert(folder, tmp_path / "new")
        assert "\n" not in str(refused.value)


def test_targets_and_sources_that_do_not_fit(pickled: tuple[Any, Path], tmp_path: Path) -> None:
    model, folder = pickled
    with pytest.raises(InvalidInput, match="exists already; give the name of a new folder"):
        convert(folder, folder)
    (tmp_path / "empty").mkdir()
    convert(folder, tmp_path / "empty")
    check(model, tmp_path / "empty")
    with pytest.raises(InvalidInput, match="has its weights in safetensors already; load it as it is"):
        convert(tmp_path / "empty", tmp_path / "again")
    with pytest.raises(InvalidInput, match="nowhere does not exist"):
        convert(tmp_path / "nowhere", tmp_path / "again")
    (tmp_path / "again.part").mkdir()
    with pytest.raises(InvalidInput, match=r"again.part is left over from an interrupted conversion"):
        convert(folder, tmp_path / "again")
    (folder / "config.json").unlink()
    with pytest.raises(InvalidInput, match=r"is nothing that can be converted; expected a folder with config.json"):
        convert(folder, tmp_path / "third")
