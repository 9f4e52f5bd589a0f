"""Generated data, made in shards by several processes, and kept by a hash of what was asked for.

A shard is a function of the seed and its number alone, so the result does not depend on how many processes made it.
Each is written beside its place and renamed; what was interrupted goes on with the shards that are there. At the end
they are joined into three arrays, which are read memory-mapped, and a manifest. A folder is whole or not there; one
whose sizes are not those of its manifest is made anew.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib.format import open_memmap

from longspan import files
from longspan.arena.tasks.examples import LabelledSequences
from longspan.data.npz_files import read_npz
from longspan.errors import InvalidInput, InvalidOption
from longspan.parsing import read_json_table, refusing
from longspan.pools import Pool

VERSION = 1  # of the files; a generator's own version belongs to its options
ARRAYS = ("tokens", "starts", "labels")
MANIFEST = "manifest.json"

Make = Callable[
    [Mapping[str, Any], int, int, int], LabelledSequences
]  # options, seed, shard's number, how many examples


def made(
    name: str,
    options: Mapping[str, Any],
    make: Make,
    *,
    count: int,
    shard: int,
    seed: int,
    cache: Path,
    processes: int = 1,
    show: Callable[[int, int], None] | None = None,
) -> tuple[LabelledSequences, dict[str, Any]]:
    """`count` examples in shards of `shard`, read from the cache or made, and their manifest.

    `options` are plain and hold all that the examples depend on, the generator's version among them; `make` is a
    function at the top level of its module, which other processes can import. `show` is told how many are done.
    """
    if count < 1 or shard < 1:
        raise InvalidOption(f"{name}: at least 1 example and 1 in a shard are made, not {count} and {shard}")
    asked = {"name": name, "version": VERSION, "options": dict(options), "seed": seed, "count": count, "shard": shard}
    try:
        text = json.dumps(asked, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"{name}: options of generated data must be plain for JSON: {error}") from None
    folder = cache / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    found = _read(folder, json.loads(text))
    if found is not None:
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with _alone(cache / f"{folder.name}.lock"):
        found = _read(folder, json.loads(text))  # another process may have made it meanwhile
        if found is not None:
            return found
        parts = cache / f"{folder.name}.parts"
        parts.mkdir(exist_ok=True)
        _make_all(parts, asked, make, processes, show)
        _join(parts, folder, json.loads(text))
        shutil.rmtree(parts)
    found = _read(folder, json.loads(text))
    if found is None:
        raise InvalidInput(f"{folder} was written, and is not what was written; is the disk full or damaged?")
    return found


def check(folder: Path) -> None:
    """Reads all of what was made, and says which shard is not what its manifest says; `made` compares sizes alone."""
    manifest = read_json_table(folder / MANIFEST)
    with refusing(folder, f"is damaged: it is not what {MANIFEST} says; delete it"):
        whole = _load(folder, manifest)
        if whole is None:
            raise InvalidInput(f"{folder} is damaged: its arrays have not the sizes of {MANIFEST}; delete it")
        first = 0
        for number, each in enumerate(manifest["shards"]):
            part = _range(whole, first, first + each["count"])
            first += each["count"]
            if _sha256(part) != each["sha256"]:
                raise InvalidInput(
                    f"{folder} is damaged: shard {number} is not what {MANIFEST} says; delete the folder"
                )


def _make_all(
    parts: Path, asked: Mapping[str, Any], make: Make, processes: int, show: Callable[[int, int], None] | None
) -> None:
    count, shard = asked["count"], asked["shard"]
    sizes = [min(shard, count - first) for first in range(0, count, shard)]
    todo = [number for number, size in enumerate(sizes) if not _is_there(_path(parts, number), size)]
    done = count - sum(sizes[number] for number in todo)
    if show:
        show(done, count)
    jobs = [(make, asked["options"], asked["seed"], number, sizes[number], _path(parts, number)) for number in todo]
    if min(processes, len(jobs)) <= 1:
        for job in jobs:
            done += _make_one(*job)
            if show:
                show(done, count)
        return
    with Pool(min(processes, len(jobs))) as pool:
        waiting = [pool.submit(_make_one, *job) for job in jobs]
        try:
            for future in as_completed(waiting):
                done += future.result()
                if show:
                    show(done, count)
        except BrokenProcessPool:
            raise InvalidInput(
                f"a process that made {asked['name']} died, perhaps for lack of memory; {done} of {count} are kept in "
                f"{parts}: run it again, or with fewer processes"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _make_one(make: Make, options: Mapping[str, Any], seed: int, number: int, count: int, path: Path) -> int:
    found = make(options, seed, number, count)
    if len(found) != count:
        raise InvalidInput(f"shard {number} of {found.source} has {len(found)} examples, and {count} were asked for")

    def save(file: IO[bytes]) -> None:
        np.savez(file, tokens=found.tokens, starts=found.starts, labels=found.labels, texts=np.array(found.texts))

    files.write(path, save)
    return count


def _path(parts: Path, number: int) -> Path:
    return parts / f"{number:05d}.npz"


def _is_there(path: Path, count: int) -> bool:
    try:
        return len(_shard(path)) == count
    except (ValueError, TypeError):  # the archive keeps a checksum of each array
        return False


def _shard(path: Path) -> LabelledSequences:
    file = read_npz(path, ("tokens", "starts", "labels", "texts"))
    return LabelledSequences(file["tokens"], file["starts"], file["labels"], path.name, int(file["texts"]))


def _join(parts: Path, folder: Path, asked: dict[str, Any]) -> None:
    """All shards as one; read one after the other, as together they may be larger than memory."""
    numbers = range(-(-asked["count"] // asked["shard"]))
    shards, labels, lengths, texts, kind = [], [], [], 1, np.dtype(np.uint8)
    for number in numbers:
        part = _shard(_path(parts, number))
        shards.append({"count": len(part), "tokens": len(part.tokens), "sha256": _sha256(part)})
        labels.append(part.labels)
        lengths.append(np.diff(part.starts))
        texts, kind = part.texts, part.tokens.dtype
    label, length = np.concatenate(labels).astype(np.int64), np.concatenate(lengths)
    starts = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    beside = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(beside, ignore_errors=True)  # of a killed process that had this number
    beside.mkdir()
    try:
        np.save(beside / "starts.npy", starts)
        np.save(beside / "labels.npy", label)
        tokens = open_memmap(beside / "tokens.npy", mode="w+", dtype=kind, shape=(int(starts[-1]),))
        _reserve(beside / "tokens.npy")
        first = 0
        for number in numbers:
            part = _shard(_path(parts, number))
            tokens[first : first + len(part.tokens)] = part.tokens
            first += len(part.tokens)
        tokens.flush()
        classes, times = np.unique(label, return_counts=True)
        manifest = {
            "asked": asked,
            "texts": texts,
            "arrays": {
                each: [str(array.dtype), len(array)]
                for each, array in zip(ARRAYS, (tokens, starts, label), strict=True)
            },
            "label_shares": {str(each): float(n / len(label)) for each, n in zip(classes, times, strict=True)},
            "lengths": {"least": int(length.min()), "mean": float(length.mean()), "most": int(length.max())},
            "shards": shards,
            "sha256": _sha256(LabelledSequences(tokens, starts, label, folder.name, texts)),
        }
        (beside / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        beside.rename(folder)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _reserve(path: Path) -> None:
    """Make sure that the disk has room for the whole file: writing to a mapped file that has none kills the process."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _read(folder: Path, asked: dict[str, Any]) -> tuple[LabelledSequences, dict[str, Any]] | None:
    """What is there, or nothing where it is missing or damaged."""
    try:
        with refusing(folder):
            manifest = read_json_table(folder / MANIFEST)
            if manifest["asked"] != asked:
                return None
            found = _load(folder, manifest)
    except InvalidInput:
        return None
    return None if found is None else (found, manifest)


def _load(folder: Path, manifest: Mapping[str, Any]) -> LabelledSequences | None:
    arrays = []
    for name in ARRAYS:
        array = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        if [str(array.dtype), *array.shape] != manifest["arrays"][name]:
            return None
        arrays.append(array)
    tokens, starts, labels = arrays
    if len(labels) != manifest["asked"]["count"] or int(starts[-1]) != len(tokens):
        return None
    return LabelledSequences(tokens, np.array(starts), np.array(labels), str(folder), manifest["texts"])


def _range(whole: LabelledSequences, first: int, last: int) -> LabelledSequences:
    starts = whole.starts[first * whole.texts : last * whole.texts + 1]
    return LabelledSequences(
        whole.tokens[starts[0] : starts[-1]], starts - starts[0], whole.labels[first:last], whole.source, whole.texts
    )


def _sha256(examples: LabelledSequences) -> str:
    """Begins with `Examples.digest()`."""
    found = hashlib.sha256()
    for part in (examples.tokens, examples.starts, examples.labels):
        found.update(str(part.dtype).encode())
        found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process at a time makes one kind of data; the others wait for it, and a lock ends with its process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["MANIFEST", "VERSION", "Make", "check", "made"]
