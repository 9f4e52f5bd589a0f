"""The files of a folder: mapped, whole, in one piece or in shards, and never pickles."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.hub.parity import random_model
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM

from longspan import hub
from longspan.errors import InvalidInput
from longspan.hub.formats.safetensors_files import INDEX, ONE, Tensors, write
from longspan.models import build

SMALL = {"vocab_size": 40, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}


def some() -> dict[str, Tensor]:
    torch.manual_seed(0)
    return {f"part.{number}.weight": torch.randn(10, 7) for number in range(5)} | {"count": torch.arange(3)}


def test_one_file(tmp_path: Path) -> None:
    given = some()
    write(tmp_path, given)
    assert [path.name for path in tmp_path.iterdir()] == [ONE]
    found = Tensors(tmp_path)
    assert sorted(found) == sorted(given) and len(found) == 6
    assert list(found) == list(Tensors(tmp_path))
    assert all(torch.equal(found[name], tensor) for name, tensor in given.items())


def test_shards(tmp_path: Path) -> None:
    given = some()
    write(tmp_path, given, shard_bytes=600)
    index = json.loads((tmp_path / INDEX).read_text())
    files = sorted({*index["weight_map"].values()})
    assert files == [f"model-{number:05}-of-00003.safetensors" for number in (1, 2, 3)]
    assert index["metadata"]["total_size"] == 5 * 280 + 24
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([INDEX, *files])
    assert all(sum(t.nbytes for t in load_file(tmp_path / file).values()) <= 600 for file in files)
    found = Tensors(tmp_path)
    assert all(torch.equal(found[name], tensor) for name, tensor in given.items())


def test_what_was_there_before_does_not_stay(tmp_path: Path) -> None:
    given = some()
    (tmp_path / "model-notes.safetensors").touch()
    write(tmp_path, given)
    write(tmp_path, given, shard_bytes=300)
    assert not (tmp_path / ONE).exists() and len([*tmp_path.glob("model-*-of-*")]) == 6
    write(tmp_path, given, shard_bytes=600)
    assert len([*tmp_path.glob("model-*-of-*")]) == 3 and sorted(Tensors(tmp_path)) == sorted(given)
    write(tmp_path, given)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model-notes.safetensors", ONE]


def test_views_and_repeated_tensors_are_written_by_themselves(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    given = {"first": whole[:2], "again": whole[:2], "last": whole[2:], "turned": whole.t()}
    write(tmp_path, given)
    found = load_file(tmp_path / ONE)
    assert all(torch.equal(found[name], tensor) for name, tensor in given.items())


def test_hugging_face_reads_our_shards_and_we_read_theirs(tmp_path: Path) -> None:
    theirs = random_model(BertForMaskedLM, BertConfig(**SMALL), torch.float32)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert (tmp_path / "theirs" / INDEX).is_file()
    found = hub.load(tmp_path / "theirs")
    hub.save(found, tmp_path / "ours", shard_bytes=20_000)
    assert len([*(tmp_path / "ours").glob("model-*-of-*.safetensors")]) > 2
    again, report = BertForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    for name, tensor in theirs.state_dict().items():
        assert torch.equal(tensor, again.state_dict()[name]), name


def mapped_files(address: int) -> str:
    """The file that lies at an address of this process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(bound, 16) for bound in line.split()[0].split("-"))
        if low <= address < high:
            return line.split(maxsplit=5)[5] if len(line.split()) > 5 else ""
    return ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the memory map of a process is Linux's")
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_lie_in_the_file_and_nothing_is_drawn(tmp_path: Path, sharded: bool) -> None:
    random_model(BertForMaskedLM, BertConfig(**SMALL), torch.float32).save_pretrained(
        tmp_path, max_shard_size="20KB" if sharded else "5GB"
    )
    before = torch.get_rng_state()
    model = hub.load(tmp_path).model
    assert torch.equal(before, torch.get_rng_state())
    for name, parameter in model.named_parameters():
        file = mapped_files(parameter.data_ptr())
        assert file.startswith(str(tmp_path)) and file.endswith(".safetensors"), (name, file)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory of a process is Linux's")
def test_loading_reads_no_weights(tmp_path: Path) -> None:
    sizes = {"width": 64, "layers": 2, "heads": 4, "hidden": 64, "max_length": 8, "segments": 2}
    with torch.no_grad():
        hub.save(build("bert-base", vocabulary=250_000, **sizes), tmp_path, family="bert")
    hub.load(tmp_path)  # what loading itself needs, once
    before = resident()
    model = hub.load(tmp_path).model
    assert 8 * (resident() - before) < (tmp_path / ONE).stat().st_size  # 64 MB
    assert model(torch.zeros(1, 3, dtype=torch.long)).isfinite().all()


def test_training_further_does_not_change_the_file(tmp_path: Path) -> None:
    random_model(BertForMaskedLM, BertConfig(**SMALL), torch.float32).save_pretrained(tmp_path)
    before = (tmp_path / ONE).read_bytes()
    model = hub.load(tmp_path).model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ids = torch.arange(8)[None]
    loss = torch.nn.functional.cross_entropy(model.outputs(ids)["masked"][0], ids[0])
    loss.backward()
    optimizer.step()
    first = model.embedding.weight.detach().clone()
    assert (tmp_path / ONE).read_bytes() == before
    assert not torch.equal(first, hub.load(tmp_path).model.embedding.weight)
    # And into the folder that it came from, which is still mapped.
    hub.save(model, tmp_path, family="bert")
    assert torch.equal(first, hub.load(tmp_path).model.embedding.weight)
    assert torch.equal(first, model.embedding.weight)


# Files that cannot be


class Planted:
    """Runs when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "weights.pth", "last.ckpt", "model.pkl"])
def test_pickles_are_refused_and_never_opened(tmp_path: Path, name: str) -> None:
    folder, mark = tmp_path / "model", tmp_path / "ran"
    BertConfig(**SMALL, architectures=["BertForMaskedLM"]).save_pretrained(folder)
    (folder / name).write_bytes(pickle.dumps({"weight": Planted(mark)}))
    with pytest.raises(
        InvalidInput, match=f"{name} is a pickle, which can run code.*`longspan convert .*model NEW_FOLDER`"
    ):
        hub.load(folder)
    assert not mark.exists()
    pickle.loads((folder / name).read_bytes())  # it would have run
    assert mark.exists()


def test_no_weights_at_all(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=f"has no {ONE} and no {INDEX}"):
        Tensors(tmp_path)


@pytest.mark.parametrize("left", [0, 4, 100, -8])
def test_a_truncated_file(tmp_path: Path, left: int) -> None:
    write(tmp_path, some())
    whole = (tmp_path / ONE).read_bytes()
    (tmp_path / ONE).write_bytes(whole[:left] if left else b"")
    with pytest.raises(InvalidInput, match=f"{tmp_path / ONE} is no whole safetensors file"):
        Tensors(tmp_path)


def test_a_file_of_something_else(tmp_path: Path) -> None:
    (tmp_path / ONE).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12\n")
    with pytest.raises(InvalidInput, match="is no whole safetensors file"):
        Tensors(tmp_path)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    write(tmp_path, some(), shard_bytes=600)
    return tmp_path


def test_a_truncated_shard(sharded: Path) -> None:
    shard = sharded / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(InvalidInput, match=r"model-00002-of-00003.safetensors is no whole safetensors file"):
        Tensors(sharded)


def test_a_missing_shard(sharded: Path) -> None:
    (sharded / "model-00003-of-00003.safetensors").unlink()
    with pytest.raises(InvalidInput, match=f"has no model-00003-of-00003.safetensors, which {INDEX} names"):
        Tensors(sharded)


def test_a_shard_without_a_tensor_that_the_index_gives_it(sharded: Path) -> None:
    shard = sharded / "model-00001-of-00003.safetensors"
    held = load_file(shard)
    held.pop("part.0.weight")
    save_file(held, shard)
    with pytest.raises(InvalidInput, match=r"model-00001-of-00003.safetensors lacks part.0.weight, which .*index"):
        Tensors(sharded)


@pytest.mark.parametrize(
    "file", ["../secret.safetensors", "/etc/passwd", "sub/model.safetensors", "model.bin", "..", "", 3, None]
)
def test_an_index_that_leads_out_of_the_folder(sharded: Path, file: object) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["part.1.weight"] = file
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(InvalidInput, match=r"part\.1\.weight must be in a .safetensors file beside it, not "):
        Tensors(sharded)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "\udce4"])
def test_an_index_that_lists_nothing(sharded: Path, text: str) -> None:
    (sharded / INDEX).write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(InvalidInput, match=f"{INDEX} lists no weights"):
        Tensors(sharded)
