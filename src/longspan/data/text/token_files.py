"""Token files: ids on disk, mapped into memory, with the starts of documents.

`NAME.bin` holds the ids (2 bytes each if the vocabulary allows, else 4), `NAME.borders` where each document begins, and
`NAME.json` describes both; it is written last, so that it never describes an incomplete file. Ids are written as they
come, so that texts larger than memory can be prepared. Large data is split into shards: `NAME.json` then lists token
files, and a document may continue from one to the next.
"""

import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from longspan import files
from longspan.errors import InvalidInput
from longspan.parsing import read_json

FORMAT = 1
KINDS = ("<u2", "<u4")  # of ids
SHARD = 1 << 28  # default ids per shard: half a GiB or one


def _beside(path: Path, ending: str) -> Path:
    """NAME with another ending; NAME itself may have dots."""
    return path.with_name(path.name.removesuffix(".bin") + ending)


class TokenWriter:
    """Writes one token file; `close` makes it valid."""

    def __init__(self, path: Path, *, vocabulary: int, made_with: str = "") -> None:
        self.path, self.vocabulary, self.made_with = path, vocabulary, made_with
        self.kind = np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")
        self.count, self.borders, self.digest = 0, list[int](), hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        _beside(path, ".json").unlink(missing_ok=True)
        self._file: IO[bytes] = _beside(path, ".bin.part").open("wb")

    def add(self, ids: Sequence[int], *, begins: bool = True) -> None:
        """Adds the ids of a document or, with `begins` False, more of the last one."""
        array = np.asarray(ids, dtype=np.int64)
        if array.size and not (array.min() >= 0 and array.max() < self.vocabulary):
            wrong = int(array[(array < 0) | (array >= self.vocabulary)][0])
            number = max(0, len(self.borders) - (not begins))
            raise InvalidInput(f"document {number} has the id {wrong}, and the vocabulary is 0..{self.vocabulary - 1}")
        if begins:
            self.borders.append(self.count)
        content = array.astype(self.kind).tobytes()
        self.digest.update(content)
        self._file.write(content)
        self.count += array.size

    def close(self) -> "TokenFile":
        try:
            self._file.close()
        except BaseException:  # a full disk may show only now
            self.abandon()
            raise
        _beside(self.path, ".bin.part").replace(_beside(self.path, ".bin"))
        files.write_bytes(_beside(self.path, ".borders"), np.asarray(self.borders, dtype="<u8").tobytes())
        record = {
            "format": FORMAT,
            "dtype": self.kind.str,
            "tokens": self.count,
            "documents": len(self.borders),
            "vocabulary": self.vocabulary,
            "sha256": self.digest.hexdigest(),
            "made_with": self.made_with,
        }
        _write_record(self.path, record)
        return TokenFile(self.path)

    def abandon(self) -> None:
        """Removes the unfinished file."""
        try:
            self._file.close()
        finally:
            _beside(self.path, ".bin.part").unlink(missing_ok=True)


def write_tokens(
    path: Path, documents: Iterable[Sequence[int]], *, vocabulary: int, made_with: str = ""
) -> "TokenFile":
    """Writes the ids of documents to `path`.bin; `made_with` identifies the tokenizer."""
    writer = TokenWriter(path, vocabulary=vocabulary, made_with=made_with)
    try:
        for document in documents:
            writer.add(document)
    except BaseException:
        writer.abandon()
        raise
    return writer.close()


def write_shards(
    path: Path,
    parts: Iterable[tuple[Sequence[int], bool]],
    *,
    vocabulary: int,
    made_with: str = "",
    size: int = SHARD,
) -> "Shards":
    """Writes parts of documents to shards of `size` ids (the last has fewer); each part says whether a document begins.

    A document may continue in the next shard.
    """
    if size < 1:
        raise InvalidInput(f"a shard holds one id at least, not {size}")
    shards: list[TokenFile] = []
    _beside(path, ".json").unlink(missing_ok=True)

    def next_writer() -> TokenWriter:
        return TokenWriter(_beside(path, f"-{len(shards):05d}"), vocabulary=vocabulary, made_with=made_with)

    writer = next_writer()
    try:
        for ids, begins in parts:
            rest = ids
            while True:
                room = size - writer.count
                writer.add(rest[:room], begins=begins)
                rest, begins = rest[room:], False
                if len(rest) == 0:
                    break
                shards.append(writer.close())
                writer = next_writer()
    except BaseException:
        writer.abandon()
        raise
    shards.append(writer.close())
    record = {
        "format": FORMAT,
        "shards": [shard.path.name.removesuffix(".bin") for shard in shards],
        "tokens": sum(len(shard) for shard in shards),
        "vocabulary": vocabulary,
        "sha256": _digest(shards),
        "made_with": made_with,
    }
    _write_record(path, record)
    return Shards(path)


def _digest(shards: Sequence["TokenFile"]) -> str:
    return hashlib.sha256("\n".join(shard.sha256 for shard in shards).encode()).hexdigest()


def _write_record(path: Path, record: dict[str, Any]) -> None:
    files.write_text(_beside(path, ".json"), json.dumps(record, indent=1) + "\n")


def _read_record(path: Path) -> dict[str, Any]:
    name = _beside(path, ".json")
    if not name.is_file():
        raise InvalidInput(f"there is no token file {name}; prepare the data first")
    record = read_json(name)
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        given = record.get("format") if isinstance(record, dict) else None
        raise InvalidInput(f"{name} has format {given}; only {FORMAT} can be read")
    return record


def _take(target: "Tokens", record: dict[str, Any], **more: type) -> None:
    """Copies what all token files have from their record; `more` gives the types of other required entries."""
    for name, kind in {"vocabulary": int, "sha256": str, "made_with": str, **more}.items():
        if not isinstance(record.get(name), kind) or isinstance(record[name], bool):
            raise InvalidInput(f"{_beside(target.path, '.json')}: {name} must be {kind.__name__}; prepare it again")
    target.vocabulary, target.sha256, target.made_with = record["vocabulary"], record["sha256"], record["made_with"]


class Tokens(Sequence[int]):
    """Ids on disk; slices are arrays."""

    path: Path
    vocabulary: int
    sha256: str
    made_with: str
    borders: np.ndarray  # where each document begins

    @abstractmethod
    def __getitem__(self, index: Any) -> Any: ...

    def document_of(self, start: int, stop: int) -> np.ndarray:
        """The number of the document that each of the ids start..stop-1 belongs to."""
        return np.searchsorted(self.borders, np.arange(start, stop), side="right") - 1


class TokenFile(Tokens):
    """The ids of one file."""

    def __init__(self, path: Path | str) -> None:
        self.path = _beside(Path(path), ".bin")
        record = _read_record(self.path)
        if "shards" in record:
            raise InvalidInput(f"{_beside(self.path, '.json')} describes shards; read it with `open_tokens`")
        _take(self, record, tokens=int, documents=int)
        if record.get("dtype") not in KINDS:
            raise InvalidInput(f"{_beside(self.path, '.json')}: dtype must be {' or '.join(KINDS)}")
        kind, size = np.dtype(record["dtype"]), record["tokens"]
        if not self.path.is_file():
            raise InvalidInput(f"{self.path} is missing; prepare the data again")
        if self.path.stat().st_size != kind.itemsize * size:
            raise InvalidInput(
                f"{self.path} has {self.path.stat().st_size} bytes, and {kind.itemsize * size} were written: "
                "it was cut short; prepare the data again"
            )
        self.ids = np.memmap(self.path, kind, "r") if size else np.zeros(0, kind)
        borders = _beside(self.path, ".borders")
        if not borders.is_file() or borders.stat().st_size != 8 * record["documents"]:
            raise InvalidInput(f"{borders} is missing or was cut short; prepare the data again")
        self.borders = np.fromfile(borders, dtype="<u8").astype(np.int64)
        if len(self.borders) and (np.diff(self.borders, prepend=0, append=size) < 0).any():
            raise InvalidInput(f"{borders} is damaged: documents do not begin one after the other; prepare them again")

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: Any) -> Any:
        return self.ids[index]


class Shards(Tokens):
    """The ids of several files as if they were one; each is read when it is needed."""

    def __init__(self, path: Path | str) -> None:
        self.path = _beside(Path(path), ".bin")
        record = _read_record(self.path)
        if "shards" not in record:
            raise InvalidInput(f"{_beside(self.path, '.json')} describes one token file, not shards")
        _take(self, record, shards=list)
        names = record["shards"]
        if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
            raise InvalidInput(f"{_beside(self.path, '.json')}: shards must be the names of token files beside it")
        self.shards = [TokenFile(self.path.with_name(name)) for name in names]
        if _digest(self.shards) != self.sha256:
            raise InvalidInput(f"the shards of {self.path} are not those that were written; prepare the data again")
        self.starts = np.cumsum([0, *(len(shard) for shard in self.shards)])
        self.borders = np.concatenate([shard.borders + start for shard, start in zip(self.shards, self.starts)])

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step < 1:
                return self._read(stop + 1, start + 1)[::step] if start > stop else self._read(0, 0)
            return self._read(start, max(start, stop))[::step]
        if not -len(self) <= index < len(self):
            raise IndexError(f"id {index} of {len(self)}")
        index %= len(self)
        shard = int(np.searchsorted(self.starts, index, side="right")) - 1
        return self.shards[shard][index - self.starts[shard]]

    def _read(self, start: int, stop: int) -> np.ndarray:
        first = max(0, int(np.searchsorted(self.starts, start, side="right")) - 1)
        parts = []
        for shard, begin in zip(self.shards[first:], self.starts[first:]):
            if begin >= stop:
                break
            parts.append(shard[max(0, start - begin) : stop - begin])
        return np.concatenate(parts) if parts else np.zeros(0, self.shards[0].ids.dtype)


class Slice(Tokens):
    """The ids start..stop-1 of other tokens; a document that begins before them continues in them."""

    def __init__(self, tokens: Tokens, start: int, stop: int) -> None:
        self.path, self.vocabulary, self.made_with = tokens.path, tokens.vocabulary, tokens.made_with
        self.sha256 = hashlib.sha256(f"{tokens.sha256} {start} {stop}".encode()).hexdigest()
        self.tokens, self.start, self.stop = tokens, start, stop
        first, last = np.searchsorted(tokens.borders, [start, stop])
        inside = tokens.borders[first:last] - start
        self.borders = inside if len(inside) and inside[0] == 0 else np.concatenate([[0], inside])

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step < 1:
                raise IndexError("ids are read forwards")
            return self.tokens[self.start + start : self.start + max(start, stop) : step]
        if not -len(self) <= index < len(self):
            raise IndexError(f"id {index} of {len(self)}")
        return self.tokens[self.start + index % len(self)]


def open_tokens(path: Path | str) -> Tokens:
    """Open a token file or shards."""
    return Shards(path) if "shards" in _read_record(Path(path)) else TokenFile(path)


__all__ = [
    "SHARD",
    "Shards",
    "Slice",
    "TokenFile",
    "TokenWriter",
    "Tokens",
    "open_tokens",
    "write_shards",
    "write_tokens",
]
