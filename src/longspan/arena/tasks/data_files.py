"""Shared by tasks that read files: find the files, sample their rows, and describe them in notes."""

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
        """The largest number of examples of a split; None: all."""
        return None if self.sizes is None else self.sizes[SPLITS.index(split)]


@dataclass(frozen=True)
class FileLayout:
    """One way in which a data set is stored on disk."""

    name: str
    folders: tuple[str, ...]  # to search, relative to the folder of data sets
    files: Mapping[str, tuple[str, ...]]  # patterns by kind of file; exactly one file must match

    def names(self, key: str) -> str:
        """The possible names of a file."""
        return " or ".join(self.files[key])


@dataclass(frozen=True)
class DataFiles:
    """The files of a data set that were found, and their layout."""

    layout: FileLayout
    folder: Path
    files: Mapping[str, Path]


def find(
    task: str, what: str, layouts: Sequence[FileLayout], folders: DataFolders, files: str | None, get: str
) -> DataFiles:
    """The first layout with all of its files; otherwise an error that says what is missing and where to get it."""
    lacking: list[str] = []
    for layout in layouts:
        for folder in _folders(layout, folders, files):
            matches = {
                key: sorted({path for pattern in patterns for path in folder.glob(pattern)})
                for key, patterns in layout.files.items()
            }
            if all(matches.values()):
                return DataFiles(layout, folder, {key: _only(key, paths) for key, paths in matches.items()})
            if any(matches.values()):
                lacking += [f"{folder} lacks {layout.names(key)}" for key, paths in matches.items() if not paths][:1]
    if files is not None:
        where = f"in {files}, which option files names," if Path(files).is_dir() else f"as there is no folder {files}"
    elif folders.data is None:
        where = "as no folder of data sets is named by --data or LONGSPAN_DATA"
    else:
        names = dict.fromkeys(folder for layout in layouts for folder in layout.folders)
        where = f"in {folders.data} (folders {', '.join(names)})"
    expected = "; or ".join(f"{layout.name}: {', '.join(map(layout.names, layout.files))}" for layout in layouts)
    almost = f" ({'; '.join(dict.fromkeys(lacking))})" if lacking else ""
    raise InvalidInput(f"{task} needs {what}, not found {where}{almost}: looked for {expected}; {get}; {NEED_NONE}")


def _folders(layout: FileLayout, folders: DataFolders, files: str | None) -> list[Path]:
    if files is not None:
        return [Path(files), *(Path(files) / folder for folder in layout.folders)]
    return [] if folders.data is None else [folders.data / folder for folder in layout.folders]


def _only(key: str, paths: Sequence[Path]) -> Path:
    if len(paths) > 1:
        names = ", ".join(path.name for path in paths)
        raise InvalidInput(f"{paths[0].parent} has {names}, and one file is wanted for {key}: move the others away")
    return paths[0]


def byte_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The number, from 1, and the bytes of each line; all lines end as the first one does."""
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
        values = row.split(b"\t")
        if len(values) != columns:
            raise InvalidInput(f"{path}, row {number}: expected {columns} columns, got {len(values)}")
        yield number, values
        empty = False
    if empty:
        raise InvalidInput(f"{path} has no rows")


def read_label(value: bytes, path: Path, number: int) -> int:
    """0 or 1; also 0.0 and 1.0, since the release of AAN was read as decimal numbers."""
    if not re.fullmatch(rb"[01](\.0*)?", value):
        raise InvalidInput(f"{path}, row {number}: the label must be 0 or 1, not {_shown(value)}")
    return int(value[:1])


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("utf-8", "backslashreplace")) + ("…" if len(value) > 40 else "")


def sample_rows(rows: Iterator[Row], size: int | None, seed: int, split: str) -> tuple[list[Row], int]:
    """A random sample of at most `size` rows, in their order, and the number of all rows.

    Reservoir sampling (Vitter 1985, algorithm R): only the sample is in memory, as AAN has gigabytes.
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


def file_notes(files: DataFiles, splits: Mapping[str, LabelledSequences]) -> dict[str, Any]:
    """Notes for a record: the source of the data, and the size, label shares and hash of each split."""
    shares = {}
    for split, examples in splits.items():
        counts = Counter(examples.labels.tolist())
        shares[split] = {str(label): round(counts[label] / len(examples), 4) for label in sorted(counts)}
    return {
        "layout": files.layout.name,
        "folder": str(files.folder),
        "sizes": {split: len(examples) for split, examples in splits.items()},
        "label_shares": shares,
        "hashes": {split: examples.digest() for split, examples in splits.items()},
    }


def subset_note(what: str, full: Mapping[str, int], counts: Mapping[str, int]) -> dict[str, str]:
    """A note if the files have other numbers of examples than the data set of that name."""
    differing = [
        f"{counts[split]:,} of {full[split]:,} {split} examples" for split in full if counts[split] != full[split]
    ]
    return {"stand_in": f"Not all of {what}: its files here have {' and '.join(differing)}."} if differing else {}


__all__ = [
    "NEED_NONE",
    "SPLITS",
    "DataFiles",
    "FileLayout",
    "FileOptions",
    "byte_lines",
    "byte_rows",
    "file_notes",
    "find",
    "read_label",
    "sample_rows",
    "subset_note",
]
