"""Generate data in shards with several processes, and cache it under a hash of its options.

A shard depends on the seed and its number only, so the result does not depend on the number of processes. Shards are
written atomically, and an interrupted generation resumes with those that exist. At the end they are joined into three
memory-mapped arrays and a manifest. A folder is complete or absent; if its sizes differ from its manifest, it is
generated again.
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

VERSION = 1  # of the file format; a generator's version belongs to its options
ARRAYS = ("tokens", "starts", "labels")
MANIFEST = "manifest.json"

Make = Callable[
    [Mapping[str, Any], int, int, int], LabelledSequences
]  # options, seed, number of the shard, number of examples


def load_or_generate(
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
    """`count` examples in shards of `shard`, from the cache or generated now, and their manifest.

    `options` are plain values and include everything that the examples depend on, such as the generator's version.
    `make` is a top-level function, so that other processes can import it. `show` gets the finished and all examples.
    """
    if count < 1 or shard < 1:
        raise InvalidOption(f"{name}: at least 1 example and 1 in a shard are made, not {count} and {shard}")
    request = {"name": name, "version": VERSION, "options": dict(options), "seed": seed, "count": count, "shard": shard}
    try:
        text = json.dumps(request, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidOption(f"{name}: options of generated data must be plain for JSON: {error}") from None
    folder = cache / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    result = _read(folder, json.loads(text))
    if result is not None:
        return result
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{folder.name}.lock"):
        result = _read(folder, json.loads(text))  # another process may have generated it meanwhile
        if result is not None:
            return result
        shards = cache / f"{folder.name}.parts"
        shards.mkdir(exist_ok=True)
        _make_shards(shards, request, make, processes, show)
        _join(shards, folder, json.loads(text))
        shutil.rmtree(shards)
    result = _read(folder, json.loads(text))
    if result is None:
        raise InvalidInput(f"{folder} does not read back as it was written; is the disk full or damaged?")
    return result


def check(folder: Path) -> None:
    """Raises if a shard differs from the manifest's checksum; `load_or_generate` compares sizes only."""
    manifest = read_json_table(folder / MANIFEST)
    with refusing(folder, f"is damaged: it is not what {MANIFEST} says; delete it"):
        all_examples = _load(folder, manifest)
        if all_examples is None:
            raise InvalidInput(f"{folder} is damaged: its arrays do not have the sizes of {MANIFEST}; delete it")
        first = 0
        for number, shard in enumerate(manifest["shards"]):
            examples = _range(all_examples, first, first + shard["count"])
            first += shard["count"]
            if _sha256(examples) != shard["sha256"]:
                raise InvalidInput(
                    f"{folder} is damaged: shard {number} is not what {MANIFEST} says; delete the folder"
                )


def _make_shards(
    parts: Path, request: Mapping[str, Any], make: Make, processes: int, show: Callable[[int, int], None] | None
) -> None:
    count, shard = request["count"], request["shard"]
    sizes = [min(shard, count - first) for first in range(0, count, shard)]
    todo = [number for number, size in enumerate(sizes) if not _is_complete(_path(parts, number), size)]
    done = count - sum(sizes[number] for number in todo)
    if show:
        show(done, count)
    jobs = [(make, request["options"], request["seed"], number, sizes[number], _path(parts, number)) for number in todo]
    if min(processes, len(jobs)) <= 1:
        for job in jobs:
            done += _make_shard(*job)
            if show:
                show(done, count)
        return
    with Pool(min(processes, len(jobs))) as pool:
        waiting = [pool.submit(_make_shard, *job) for job in jobs]
        try:
            for future in as_completed(waiting):
                done += future.result()
                if show:
                    show(done, count)
        except BrokenProcessPool:
            raise InvalidInput(
                f"a process that generated {request['name']} died, perhaps out of memory; {done} of {count} are "
                f"kept in {parts}: run it again, or with fewer processes"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _make_shard(make: Make, options: Mapping[str, Any], seed: int, number: int, count: int, path: Path) -> int:
    examples = make(options, seed, number, count)
    if len(examples) != count:
        raise InvalidInput(
            f"shard {number} of {examples.source} has {len(examples)} examples, and {count} were asked for"
        )

    def save(file: IO[bytes]) -> None:
        np.savez(
            file, tokens=examples.tokens, starts=examples.starts, labels=examples.labels, texts=np.array(examples.texts)
        )

    files.write(path, save)
    return count


def _path(parts: Path, number: int) -> Path:
    return parts / f"{number:05d}.npz"


def _is_complete(path: Path, count: int) -> bool:
    try:
        return len(_read_shard(path)) == count
    except (ValueError, TypeError):  # missing or damaged: the archive has checksums
        return False


def _read_shard(path: Path) -> LabelledSequences:
    file = read_npz(path, ("tokens", "starts", "labels", "texts"))
    return LabelledSequences(file["tokens"], file["starts"], file["labels"], path.name, int(file["texts"]))


def _join(parts: Path, folder: Path, request: dict[str, Any]) -> None:
    """Joins all shards into one folder, reading one at a time, since together they may not fit into memory."""
    numbers = range(-(-request["count"] // request["shard"]))
    shards, labels, lengths, texts, kind = [], [], [], 1, np.dtype(np.uint8)
    for number in numbers:
        shard = _read_shard(_path(parts, number))
        shards.append({"count": len(shard), "tokens": len(shard.tokens), "sha256": _sha256(shard)})
        labels.append(shard.labels)
        lengths.append(np.diff(shard.starts))
        texts, kind = shard.texts, shard.tokens.dtype
    label, length = np.concatenate(labels).astype(np.int64), np.concatenate(lengths)
    starts = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.part")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process with the same id
    temporary.mkdir()
    try:
        np.save(temporary / "starts.npy", starts)
        np.save(temporary / "labels.npy", label)
        tokens = open_memmap(temporary / "tokens.npy", mode="w+", dtype=kind, shape=(int(starts[-1]),))
        _reserve(temporary / "tokens.npy")
        first = 0
        for number in numbers:
            shard = _read_shard(_path(parts, number))
            tokens[first : first + len(shard.tokens)] = shard.tokens
            first += len(shard.tokens)
        tokens.flush()
        classes, times = np.unique(label, return_counts=True)
        manifest = {
            "asked": request,
            "texts": texts,
            "arrays": {
                name: [str(array.dtype), len(array)]
                for name, array in zip(ARRAYS, (tokens, starts, label), strict=True)
            },
            "label_shares": {str(value): float(n / len(label)) for value, n in zip(classes, times, strict=True)},
            "lengths": {"least": int(length.min()), "mean": float(length.mean()), "most": int(length.max())},
            "shards": shards,
            "sha256": _sha256(LabelledSequences(tokens, starts, label, folder.name, texts)),
        }
        (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1, sort_keys=True))
        shutil.rmtree(folder, ignore_errors=True)  # a damaged one
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _reserve(path: Path) -> None:
    """Allocates the whole file on disk: writing to a mapped file on a full disk kills the process."""
    with path.open("r+b") as file:
        os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


def _read(folder: Path, request: dict[str, Any]) -> tuple[LabelledSequences, dict[str, Any]] | None:
    """The examples and the manifest of a folder; None if it is missing or damaged."""
    try:
        with refusing(folder):
            manifest = read_json_table(folder / MANIFEST)
            if manifest["asked"] != request:
                return None
            examples = _load(folder, manifest)
    except InvalidInput:
        return None
    return None if examples is None else (examples, manifest)


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


def _range(examples: LabelledSequences, first: int, last: int) -> LabelledSequences:
    starts = examples.starts[first * examples.texts : last * examples.texts + 1]
    return LabelledSequences(
        examples.tokens[starts[0] : starts[-1]],
        starts - starts[0],
        examples.labels[first:last],
        examples.source,
        examples.texts,
    )


def _sha256(examples: LabelledSequences) -> str:
    """The full hash, of which `LabelledSequences.digest()` is the beginning."""
    sha256 = hashlib.sha256()
    for array in (examples.tokens, examples.starts, examples.labels):
        sha256.update(str(array.dtype).encode())
        sha256.update(np.ascontiguousarray(array).data)
    return sha256.hexdigest()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Locks a file, so that one process generates and the others wait; the lock ends with its process."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


__all__ = ["MANIFEST", "VERSION", "Make", "check", "load_or_generate"]
