"""Held-out rows: drawn by the seed, from each label alike, and the same whenever the run is opened again."""

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from longspan import files
from longspan.data.order import Shuffled
from longspan.data.text.tables import TableRow
from longspan.errors import InvalidInput, Notice
from longspan.parsing import read_json_table
from longspan.tasks.base import DataPaths

Item = TypeVar("Item")


def split_off(
    count: int, share: float, seed: int, labels: Sequence[str] | None = None, source: str | None = None
) -> tuple[list[int], list[int]]:
    """The numbers of the examples to train on and to hold out, drawn by the seed.

    With `labels`, each label has its share in both, and a label that occurs once is trained on.
    """
    cut = max(1, round(count * share))
    if count - cut < 1:
        where = "there are" if source is None else f"{source} has"
        raise InvalidInput(f"{where} {count} examples, too few to hold some out; give a held_out file")
    order = Shuffled(count, seed, 0)[:]
    held = set(order[:cut] if labels is None else _by_label(order, cut, labels))
    if not held:
        raise InvalidInput(f"{source or 'the file'}: every label occurs once, so none can be held out; give held_out")
    return [number for number in range(count) if number not in held], sorted(held)


def _by_label(order: Sequence[int], cut: int, labels: Sequence[str]) -> list[int]:
    """The first numbers of each label in a shuffled order: as many as its part of `cut`, rounded so that all add up."""
    members: dict[str, list[int]] = {}
    for number in order:
        members.setdefault(labels[number], []).append(number)
    exact = {label: cut * len(numbers) / len(order) for label, numbers in members.items()}
    quotas = {label: min(int(part), len(members[label]) - 1) for label, part in exact.items()}
    for label in sorted(members, key=lambda label: (quotas[label] - exact[label], label)):
        if sum(quotas.values()) < cut and quotas[label] < len(members[label]) - 1:
            quotas[label] += 1
    return [number for label, numbers in members.items() for number in numbers[: quotas[label]]]


def hold_out(
    rows: Sequence[Item], share: float, folders: DataPaths, source: str, labels: Sequence[str] | None = None
) -> tuple[list[Item], list[Item], str]:
    """The rows to train on, the rows that are held out, and a line about them for the reader."""
    train, held = hold_out_numbers(len(rows), share, folders, source, labels)
    said = describe(len(held), len(rows), folders.seed, by_label=labels is not None)
    return [rows[number] for number in train], [rows[number] for number in held], said


def describe(held: int, count: int, seed: int, *, by_label: bool = False) -> str:
    """What was held out, for the reader."""
    return f"{held:,} of {count:,} rows, drawn by seed {seed}{' from each label' if by_label else ''}"


def hold_out_numbers(
    count: int, share: float, folders: DataPaths, source: str, labels: Sequence[str] | None = None
) -> tuple[list[int], list[int]]:
    """As `split_off`, but what a run has held out once stays so: the run keeps the numbers in a file."""
    path = folders.split
    if path is not None and path.is_file():
        held = set(_kept(path, count, source))
        return [number for number in range(count) if number not in held], sorted(held)
    train, numbers = split_off(count, share, folders.seed, labels, source)
    if path is not None:
        files.write_text(path, json.dumps({"source": source, "rows": count, "held_out": numbers}) + "\n")
    return train, numbers


def _kept(path: Path, count: int, source: str) -> list[int]:
    record = read_json_table(path)
    rows, numbers = record.get("rows"), record.get("held_out")
    if not isinstance(numbers, list) or not all(isinstance(number, int) and number >= 0 for number in numbers):
        raise InvalidInput(f"{path} is damaged: it has no list of numbers called held_out")
    if rows != count or max(numbers, default=0) >= count:
        raise InvalidInput(
            f"{source} has {count} rows now, and had {rows} when {path} was written: the held-out rows are unknown; "
            "restore the file, or train a new run"
        )
    return numbers


def drop_empty(empty: Sequence[tuple[TableRow, str]], path: Path) -> None:
    """Say how many rows are left out because a field is empty, and where the first one is."""
    if empty:
        row, name = empty[0]
        count = f"{len(empty)} rows with an empty field are" if len(empty) > 1 else "a row with an empty field is"
        first = "; the first" if len(empty) > 1 else ""
        warnings.warn(Notice(f"{path}: {count} left out{first}: {row.where}, {name}"), stacklevel=2)


__all__ = ["describe", "drop_empty", "hold_out", "hold_out_numbers", "split_off"]
