"""A store of measurements: one file per machine, one line per measured case; the last line of a case counts.

Each line is written with a newline before it, so that a line cut short by a killed process does not damage the next.
Lines that cannot be read are ignored.
"""

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from longspan.data.json_lines import parse
from longspan.errors import InvalidInput
from longspan.files import cache
from longspan.measure import machine
from longspan.measure.case import Case, Kind, Measured

PROTOCOL = 1  # version of the measuring protocol: a new number discards older measurements
STATES = ("done", "memory", "unsupported", "slow", "failed")
FOR_GOOD = ("done", "unsupported", "slow")  # failures and lack of memory may be temporary

Measure = Callable[[Case], Measured]


def machine_id(known: Mapping[str, Any] | None = None) -> str:
    """A name for everything that speed depends on: processor, instructions, number of cores, versions."""
    known = machine.describe() if known is None else known
    parts = {name: known[name] for name in ("processor", "instructions", "cores", "usable", "torch", "longspan")}
    digest = hashlib.sha256(json.dumps({**parts, "protocol": PROTOCOL}, sort_keys=True).encode()).hexdigest()
    words = re.sub(r"[^a-z0-9.]+", "-", f"{parts['processor']} torch {parts['torch']}".lower()).strip("-")
    return f"{words}-{digest[:8]}"


class Store:
    """The measurements of one machine (default: this one's, in longspan's cache)."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = cache() / "measure" / f"{machine_id()}.jsonl" if path is None else path
        self._known = {measured.case.key: measured for measured in _read(self.path)}

    def get(self, case: Case) -> Measured | None:
        return self._known.get(case.key)

    def all(self) -> list[Measured]:
        """The last measurement of each case, in the order of the first ones."""
        return list(self._known.values())

    def put(self, measured: Measured) -> None:
        """Store a measurement on disk."""
        self._known[measured.case.key] = measured
        line = f"\n{json.dumps(asdict(measured), ensure_ascii=False)}\n".encode()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            number = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                while line:
                    line = line[os.write(number, line) :]
            finally:
                os.close(number)
        except OSError as error:
            raise InvalidInput(
                f"{self.path} cannot be written: {error.strerror}; name another folder by LONGSPAN_CACHE"
            ) from None

    def through(self, measure: Measure, *, refresh: bool = False) -> Measure:
        """The function `measure` with this store as a cache; `refresh` measures every case once more."""
        fresh: set[str] = set()

        def kept(case: Case) -> Measured:
            stored = self.get(case)
            if stored is not None and stored.state in FOR_GOOD and (not refresh or case.key in fresh):
                return stored
            measured = measure(case)
            fresh.add(case.key)
            self.put(measured)
            return measured

        return kept


def _read(path: Path) -> list[Measured]:
    try:
        content = path.read_bytes()
    except OSError:
        return []
    results = []
    for line in content.split(b"\n"):
        try:
            measured = Measured.read(parse(line))
        except InvalidInput:
            continue
        if _sound(measured):
            results.append(measured)
    return results


def _sound(measured: Measured) -> bool:
    """Whether all values have their types and ranges."""
    case: Any = measured.case
    row: Any = measured
    sizes = (case.length, case.batch, case.heads, case.head_dim, case.threads, 1 if case.keys is None else case.keys)
    numbers = [value for value in (row.gemm, row.exponent, row.memory, row.flops) if value is not None]
    return (
        isinstance(case.mechanism, str)
        and case.kind in get_args(Kind)
        and isinstance(case.options, dict)
        and all(type(size) is int and 0 < size < 1 << 62 for size in sizes)
        and all(type(flag) is bool for flag in (case.causal, case.padding))
        and row.state in STATES
        and all(type(value) in (int, float) and math.isfinite(value) for value in numbers)
        and all(type(value) in (int, float) and 0 < value < math.inf for value in row.seconds)
        and (bool(row.seconds) or row.state != "done")
        and isinstance(row.error, str | None)
    )


__all__ = ["FOR_GOOD", "PROTOCOL", "Measure", "Store", "machine_id"]
