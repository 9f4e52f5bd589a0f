"""What the tasks that are read from files share: finding the files, drawing from them, and what is noted of them."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from longspan import config
from longspan.arena.tasks.examples import LabelledSequences
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.data.order import draws
from longspan.data.text.text_files import DAMAGED, open_bytes
from longspan.errors import InvalidInput, InvalidOption

Row = TypeVar("Row")

SPLITS = ("train", "held_out", "test")
NEED_NONE = "listops, pathfinder and recall are generated and need no files"


@dataclass(frozen=True, kw_only=True)
class FileOptions(ArenaTask.Options):
    files: str | None = config.option(None, "the folder of the files; found in the folder of data sets unless given")
    sizes: tuple[int, ...] | None = config.option(
        None, "examples of train, held out and test at most, drawn by the seed; all unless given", low=1
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes is not None and len(self.sizes) != len(SPLITS):
            raise InvalidOption(f"option sizes must be three numbers, of {', '.join(SPLITS)}, not {self.sizes!r}")

    def limit(self, split: str) -> int | None:
        """How many examples of a split are wanted at most."""
        return None if self.sizes is None else self.sizes[SPLITS.index(split)]


@dataclass(frozen=True)
class FileLayout:
    """One way in which a data set lies on disk."""

    name: str
    folders: tuple[str, ...]  # in the folder of data sets, where it is looked for
    files: Mapping[str, tuple[str, ...]]  # by what they are: patterns, of which one file must fit one

    def wanted(self, key: str) -> str:
        """What a file is called."""
        return " or ".join(self.files[key])


@dataclass(frozen=True)
class Found:
    """A layout that is there."""

    layout: FileLayout
    folder: Path
    files: Mapping[str, Path]


def find(task: str, what: str, layouts: Sequence[FileLayout], place: DataFolders, files: str | None, get: str) -> Found:
    """The first layout whose files are all there; else an error says what was looked for, and where to get it."""
    lacking: list[str] = []
    for layout in layouts:
        for folder in _folders(layout, place, files):
            found = {
                key: sorted({path for pattern in patterns for path in folder.glob(pattern)})
                for key, patterns in layout.files.items()
            }
            if all(found.values()):
                return Found(layout, folder, {key: _only(key, paths) for key, paths in found.items()})
            if any(found.values()):
                lacking += [f"{folder} lacks {layout.wanted(key)}" for key, paths in found.items() if not paths][:1]
    if files is not None:
        where = f"in {files}, which option files names," if Path(files).is_dir() else f"as there is no folder {files}"
    elif place.data is None:
        where = "as no folder of data sets is named by --data or LONGSPAN_DATA"
    else:
        names = dict.fromkeys(folder for layout in layouts for folder in layout.folders)
        where = f"in {place.data} (folders {', '.join(names)})"
    wanted = "; or ".join(f"{layout.name}: {', '.join(map(layout.wanted, layout.files))}" for layout in layouts)
    near = f" ({'; '.join(dict.fromkeys(lacking))})" if lacking else ""
    raise InvalidInput(f"{task} needs {what}, not found {where}{near}: looked for {wanted}; {get}; {NEED_NONE}")


def _folders(layout: FileLayout, place: DataFolders, files: str | None) -> list[Path]:
    if files is not None:
        return [Path(files), *(Path(files) / folder for folder in layout.folders)]
    return [] if place.data is None else [place.data / folder for folder in layout.folders]


def _only(key: str, paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InvalidInput(f"{paths[0].parent} has {names}, and one file is wanted for {key}: move the others away")
    return paths[0]


def byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The number, from 1, and the bytes of each line; lines end with what the first one ends with."""
    number, end = 0, b"\n"
    try:
        with open_bytes(path) as file:
            for line in file:
                number += 1
                if number == 1 and line.endswith(b"\r\n"):
                    end = b"\r\n"
                yield number, line.removesuffix(end) if line.endswith(end) else line.removesuffix(b"\n")
    except DAMAGED as error:
        raise InvalidInput(f"{path} is cut short or damaged after row {number}: {error}") from None


def byte_rows(path: Path, columns: int, header: bytes | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """The number and the columns of each row of a tsv file, as bytes: nothing is decoded, quoted or trimmed."""
    empty = True
    for number, row in byte_lines(path):
        if number == 1 and header is not None:
            if row != header:
                raise InvalidInput(f"{path}, row 1: expected {_shown(header)}, got {_shown(row)}")
            continue
        found = row.split(b"\t")
        if len(found) != columns:
            raise InvalidInput(f"{path}, row {number}: expected {columns} columns, got {len(found)}")
        yield number, found
        empty = False
    if empty:
        raise InvalidInput(f"{path} has no rows")


def read_label(value: bytes, path: Path, number: int) -> int:
    """0 or 1; the release of AAN was read as numbers with a point, so these are allowed."""
    if not re.fullmatch(rb"[01](\.0*)?", value):
        raise InvalidInput(f"{path}, row {number}: the label must be 0 or 1, not {_shown(value)}")
    return int(value[:1])


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("utf-8", "backslashreplace")) + ("…" if len(value) > 40 else "")


def some(rows: Iterator[Row], size: int | None, seed: int, split: str) -> tuple[list[Row], int]:
    """At most so many of them, each as likely as another, in the order they have; and how many there were.

    Only these are kept in memory: the whole of AAN has gigabytes.
    A place is given up to a later row with the chance that keeps all equally likely (Vitter 1985, algorithm R).
    """
    generator = draws(seed, SPLITS.index(split), 0)
    kept: list[tuple[int, Row]] = []
    count = 0
    for row in rows:
        if size is None or count < size:
            kept.append((count, row))
        elif (chosen := int(generator.integers(count + 1))) < size:
            kept[chosen] = (count, row)
        count += 1
    return [row for _, row in sorted(kept, key=lambda pair: pair[0])], count


def notes(found: Found, parts: Mapping[str, LabelledSequences]) -> dict[str, Any]:
    """What a record keeps of the data: where it is from, how large, which labels, and a hash of each split."""
    shares = {}
    for split, part in parts.items():
        counts = Counter(part.labels.tolist())
        shares[split] = {str(label): round(counts[label] / len(part), 4) for label in sorted(counts)}
    return {
        "layout": found.layout.name,
        "folder": str(found.folder),
        "sizes": {split: len(part) for split, part in parts.items()},
        "label_shares": shares,
        "hashes": {split: part.digest() for split, part in parts.items()},
    }


def part_of(what: str, whole: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, str]:
    """A sentence where files have other numbers of examples than the set they are called after."""
    other = [
        f"{counts[split]:,} of {whole[split]:,} {split} examples" for split in whole if counts[split] != whole[split]
    ]
    return {"stand_in": f"Not all of {what}: its files here have {' and '.join(other)}."} if other else {}


__all__ = [
    "NEED_NONE",
    "SPLITS",
    "FileLayout",
    "FileOptions",
    "Found",
    "byte_lines",
    "byte_rows",
    "find",
    "notes",
    "part_of",
    "read_label",
    "some",
]
