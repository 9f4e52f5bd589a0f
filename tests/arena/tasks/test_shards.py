"""Shards: whole or not there, made again where damaged; that processes change nothing is tested with ListOps."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longspan.arena.tasks import shards
from longspan.arena.tasks.examples import LabelledSequences
from longspan.errors import InvalidInput, InvalidOption


def _numbers(options: Mapping[str, Any], seed: int, number: int, count: int) -> LabelledSequences:
    draw = np.random.default_rng((seed, number))
    lengths = draw.integers(1, options["most"], count)
    tokens = draw.integers(1, 200, int(lengths.sum())).astype(np.uint8)
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return LabelledSequences(tokens, starts, draw.integers(0, 3, count), "numbers")


def _made(cache: Path, *, show: Any = None, seed: int = 3, make: Any = _numbers) -> Any:
    return shards.load_or_generate("numbers", {"most": 9}, make, count=25, shard=10, seed=seed, cache=cache, show=show)


def _never(options: Mapping[str, Any], seed: int, number: int, count: int) -> LabelledSequences:
    raise AssertionError(f"shard {number} was made")


def test_a_second_call_reads_the_cache(tmp_path: Path) -> None:
    first, manifest = _made(tmp_path)
    again, same = _made(tmp_path, make=_never)
    assert first.digest() == again.digest() == manifest["sha256"][:16]
    assert manifest == same and len(first) == 25
    assert isinstance(again.tokens, np.memmap)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]


def test_other_seeds_and_options_lie_in_other_folders(tmp_path: Path) -> None:
    assert _made(tmp_path)[0].digest() != _made(tmp_path, seed=4)[0].digest()
    assert len(list(tmp_path.glob("numbers-*/manifest.json"))) == 2


def test_the_manifest_describes_the_arrays(tmp_path: Path) -> None:
    found, manifest = _made(tmp_path)
    assert [each["count"] for each in manifest["shards"]] == [10, 10, 5]
    assert sum(manifest["label_shares"].values()) == pytest.approx(1)
    assert manifest["label_shares"]["1"] == (found.labels == 1).mean()
    assert manifest["lengths"]["most"] == np.diff(found.starts).max()
    (folder,) = (path.parent for path in tmp_path.glob("*/manifest.json"))
    assert json.loads((folder / "manifest.json").read_text()) == manifest
    shards.check(folder)


def test_an_interrupted_generation_resumes(tmp_path: Path) -> None:
    seen: list[int] = []

    def stop_at_second(options: Mapping[str, Any], seed: int, number: int, count: int) -> LabelledSequences:
        if number == 2:
            raise KeyboardInterrupt
        return _numbers(options, seed, number, count)

    with pytest.raises(KeyboardInterrupt):
        _made(tmp_path, make=stop_at_second)
    (parts,) = tmp_path.glob("*.parts")
    second = parts / "00001.npz"
    second.write_bytes(second.read_bytes()[:-30])  # what a crash of the machine may leave
    found, _ = _made(tmp_path, show=lambda done, total: seen.append(done))
    assert seen == [10, 20, 25]  # the first shard was there, the second was damaged, the third missing
    assert found.digest() == _made(tmp_path / "fresh")[0].digest()


@pytest.mark.parametrize("name", ["tokens.npy", "labels.npy", "manifest.json"])
def test_damaged_data_is_generated_again(tmp_path: Path, name: str) -> None:
    first = _made(tmp_path)[0].digest()
    (path,) = tmp_path.glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[:-1])
    assert _made(tmp_path)[0].digest() == first


def test_a_changed_byte_is_found_by_check(tmp_path: Path) -> None:
    _made(tmp_path)
    (path,) = tmp_path.glob("*/tokens.npy")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match="shard 2 is not what"):
        shards.check(path.parent)


def test_a_short_shard_and_options_that_are_not_plain_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="shard 0 of numbers has 9 examples, and 10 were asked for"):
        _made(tmp_path, make=lambda options, seed, number, count: _numbers(options, seed, number, count - 1))
    with pytest.raises(InvalidOption, match="plain"):
        shards.load_or_generate("numbers", {"most": object()}, _numbers, count=1, shard=1, seed=0, cache=tmp_path)
