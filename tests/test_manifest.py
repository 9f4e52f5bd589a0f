"""Written folders: file modes follow the umask, and checksums are checked."""

import json
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.hub.folders import bert, decoder, letters

from longspan import files, hub, manifest
from longspan.data.sets import generated
from longspan.errors import InvalidInput
from longspan.models import folder as model_folder
from longspan.train import checkpoint

WEIGHTS = "model.safetensors"


@pytest.fixture(params=[0o022, 0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(folder: Path, umask: int) -> dict[str, str]:
    """The files and folders whose mode is another than the umask gives."""
    paths = sorted(folder.rglob("*"))
    assert any(path.is_file() for path in paths)
    wanted = {path: (0o777 if path.is_dir() else 0o666) & ~umask for path in paths}
    found = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    return {str(path.relative_to(folder)): oct(found[path]) for path in paths if found[path] != wanted[path]}


def test_everything_that_is_written_has_the_mode_of_the_umask(tmp_path: Path, umask: int) -> None:
    decoder(tmp_path / "own")
    found = hub.load(bert(tmp_path.parent / f"{tmp_path.name}-theirs"))
    hub.save(found, tmp_path / "one")
    hub.save(found, tmp_path / "shards", shard_bytes=4000)
    hub.convert(tmp_path / "own", tmp_path / "copy", to="longspan")
    with checkpoint.writing(tmp_path / "checkpoint") as part:
        checkpoint.write_tensors(part / "state.safetensors", {"a": torch.zeros(3)})
    generated.write("classify", tmp_path / "data")
    assert len(list((tmp_path / "shards").glob("model-*"))) > 1
    assert modes(tmp_path, umask) == {}


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="share memory"):
        tensor = torch.zeros(4)
        files.write_tensors(tmp_path / WEIGHTS, {"a": tensor, "b": tensor})
    assert list(tmp_path.iterdir()) == []


# Checksums


def flip(path: Path, place: int = -3) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json", "tokenizer_config.json"])
def test_a_flipped_bit_is_named(tmp_path: Path, name: str) -> None:
    folder = decoder(tmp_path / "model")
    hub.load(folder)
    if name == WEIGHTS:
        flip(folder / name)
    else:
        (folder / name).write_text((folder / name).read_text()[::-1])
    said = f"{folder / name} was changed since it was written: its sha256 differs; copy it again or, if you changed "
    with pytest.raises(InvalidInput, match=f"^{re.escape(said)}it yourself, delete .*manifest.json$"):
        hub.load(folder)
    (folder / "manifest.json").unlink()
    if name == WEIGHTS:
        hub.load(folder)


def test_missing_and_cut_files_are_named(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model")
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[:-4])
    with pytest.raises(InvalidInput, match=rf"{WEIGHTS} has {len(content) - 4} bytes, and {len(content)} were written"):
        model_folder.load(folder)
    (folder / WEIGHTS).write_bytes(content)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InvalidInput, match=r"tokenizer\.json is missing; copy it again"):
        model_folder.load(folder)
    (folder / "manifest.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"manifest\.json is not JSON"):
        model_folder.load(folder)
    (folder / "manifest.json").write_text('{"config.json": 3}')
    with pytest.raises(InvalidInput, match=r"manifest\.json is not a list of files with sizes and checksums"):
        model_folder.load(folder)


def test_what_is_written_again_is_what_is_checked(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model")
    first = manifest.read_manifest(folder)
    assert sorted(first) == ["config.json", WEIGHTS, "tokenizer.json", "tokenizer_config.json"]
    letters(begin=True).save(folder)
    assert hub.load(folder).tokenizer.encode("a").ids[0] == 0
    second = manifest.read_manifest(folder)
    assert first["tokenizer.json"] != second["tokenizer.json"] and first[WEIGHTS] == second[WEIGHTS]
    decoder(folder, layers=1)
    assert hub.load(folder).model.options.layers == 1


def test_large_files_are_read_once_and_folders_may_be_read_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(manifest, "REMEMBERED", 1)
    folder = decoder(tmp_path / "model")
    listed = {path.name: path.read_bytes() for path in folder.iterdir()}
    read: list[str] = []
    facts = manifest.facts
    monkeypatch.setattr(manifest, "facts", lambda path: read.append(path.name) or facts(path))
    hub.load(folder)
    assert sorted(read) == sorted(manifest.read_manifest(folder))
    hub.load(folder)
    assert len(read) == 4  # none was read again
    flip(folder / WEIGHTS)
    with pytest.raises(InvalidInput, match="its sha256 differs"):
        hub.load(folder)
    assert read[4:] == [WEIGHTS]
    (folder / WEIGHTS).write_bytes(listed[WEIGHTS])
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_text("[]")  # what is in a cache may be wrong
    hub.load(folder)
    monkeypatch.setenv("LONGSPAN_CACHE", str(folder / "config.json"))  # no folder can be made there
    hub.load(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == listed


def test_folders_without_checksums_are_loaded(tmp_path: Path) -> None:
    folder = decoder(tmp_path / "model")
    (folder / "manifest.json").unlink()
    hub.load(folder)
    theirs = bert(tmp_path / "theirs")
    (theirs / "manifest.json").write_text(json.dumps({"something": "of others"}))
    hub.load(theirs)
