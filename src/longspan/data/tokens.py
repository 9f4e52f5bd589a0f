"""Token files: ids on disk, mapped into memory, with the borders of documents beside them.

`NAME.bin` holds the ids one after the other (2 bytes each where the vocabulary allows, else 4), `NAME.json` says so,
and `NAME.borders` where each document begins. They are written as the ids come, so that a text larger than memory can
be prepared, and read where they lie.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from longspan.errors import InvalidInput

FORMAT = 1


def write_tokens(
    path: Path, documents: Iterable[Sequence[int]], *, vocabulary: int, made_with: str = ""
) -> "TokenFile":
    """Writes the ids of documents to `path`.bin; `made_with` says by which tokenizer."""
    kind = np.dtype("<u2") if vocabulary <= 1 << 16 else np.dtype("<u4")
    path.parent.mkdir(parents=True, exist_ok=True)
    digest, count, borders = hashlib.sha256(), 0, [0]
    part = path.with_suffix(".bin.part")
    with part.open("wb") as file:
        for number, document in enumerate(documents):
            ids = np.asarray(document, dtype=np.int64)
            if ids.size and not (ids.min() >= 0 and ids.max() < vocabulary):
                wrong = int(ids[(ids < 0) | (ids >= vocabulary)][0])
                raise InvalidInput(f"document {number} has the id {wrong}, and the vocabulary is 0..{vocabulary - 1}")
            content = ids.astype(kind).tobytes()
            digest.update(content)
            file.write(content)
            count += ids.size
            borders.append(count)
    np.asarray(borders[:-1], dtype="<u8").tofile(path.with_suffix(".borders"))
    record = {
        "format": FORMAT,
        "dtype": kind.str,
        "tokens": count,
        "documents": len(borders) - 1,
        "vocabulary": vocabulary,
        "sha256": digest.hexdigest(),
        "made_with": made_with,
    }
    path.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    part.replace(path.with_suffix(".bin"))
    return TokenFile(path)


class TokenFile(Sequence[int]):
    """The ids of a file; slices are arrays."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).with_suffix(".bin")
        record = self._record()
        self.vocabulary: int = record["vocabulary"]
        self.sha256: str = record["sha256"]
        self.made_with: str = record["made_with"]
        kind, size = np.dtype(record["dtype"]), record["tokens"]
        if not self.path.is_file():
            raise InvalidInput(f"{self.path} is missing; prepare the data once more")
        if self.path.stat().st_size != kind.itemsize * size:
            raise InvalidInput(
                f"{self.path} has {self.path.stat().st_size} bytes, and {kind.itemsize * size} were written: "
                "it was cut short; prepare the data once more"
            )
        self.ids = np.memmap(self.path, kind, "r") if size else np.zeros(0, kind)
        self.borders = np.fromfile(self.path.with_suffix(".borders"), dtype="<u8").astype(np.int64)

    def _record(self) -> dict[str, Any]:
        path = self.path.with_suffix(".json")
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidInput(f"there is no token file {path}; prepare the data first") from None
        except (UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InvalidInput(f"{path} is not JSON: {error}") from None
        if record.get("format") != FORMAT:
            raise InvalidInput(f"{path} is of format {record.get('format')}, and {FORMAT} is what can be read")
        assert isinstance(record, dict)
        return record

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, place: Any) -> Any:
        return self.ids[place]

    def document_of(self, start: int, stop: int) -> np.ndarray:
        """The number of the document that each of the ids start..stop-1 belongs to."""
        return np.searchsorted(self.borders, np.arange(start, stop), side="right") - 1


__all__ = ["TokenFile", "write_tokens"]
