"""The ratios of `benchmarks.attention` by commit: which got worse by more than 15 %.

    python -m benchmarks.history [--length 4096] [--repeats 7] [--only window] [--keep]

Runs the benchmark, compares each ratio with the median of the last three records of the same machine and length, and
adds a line to `benchmarks/history.jsonl`. Only ratios to full attention are recorded: absolute times on a shared
machine are not comparable. A ratio that seems to have changed is measured again and reported only if the change
repeats: another process can slow one row by a third. Exits with 1 if a ratio got worse. Results with uncommitted
changes are not recorded unless `--keep` is given; they are then marked.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.energy import spent
from longspan.measure import machine

FILE = Path(__file__).with_name("history.jsonl")
KINDS = ("forward", "with backward")
LAST, MOST = 3, 0.15
Ratios = Mapping[str, Sequence[float]]  # row: forward, with backward


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run."""

    commit: str
    dirty: bool  # measured with uncommitted changes
    date: str
    machine: str
    length: int
    times_faster: Ratios
    energy: Mapping[str, Any] | None = None  # of the whole run

    @property
    def alike(self) -> tuple[str, int]:
        """What two records must share to be compared."""
        return self.machine, self.length


@dataclass(frozen=True)
class Change:
    """A ratio that changed."""

    row: str
    kind: str
    before: float
    now: float

    @property
    def worse(self) -> bool:
        return self.now < self.before

    def __str__(self) -> str:
        said, share = "worse" if self.worse else "better", self.now / self.before - 1
        return f"{said}: {self.row}, {self.kind}: {self.before:g} -> {self.now:g} ({share:+.0%})"


def changes(past: Iterable[Record], new: Record) -> list[Change]:
    """The ratios more than 15 % below or above the median of the last three comparable ones."""
    alike = [record.times_faster for record in past if record.alike == new.alike]
    found = []
    for row, ratios in new.times_faster.items():
        before = [each[row] for each in alike if row in each][-LAST:]
        if not before:
            continue
        for kind, now, *old in zip(KINDS, ratios, *before):
            usual = statistics.median(old)
            if abs(now - usual) > MOST * usual:
                found.append(Change(row, kind, usual, now))
    return found


def seen_again(found: Sequence[Change], again: Sequence[Change]) -> list[Change]:
    """The first changes that the second measurement confirms in the same direction."""
    same = {(change.row, change.kind, change.worse) for change in again}
    return [change for change in found if (change.row, change.kind, change.worse) in same]


def between(first: Ratios, second: Ratios) -> dict[str, list[float]]:
    """The geometric mean of ratios measured twice, and the others unchanged."""
    return {
        row: [round(math.sqrt(one * other), 2) for one, other in zip(ratios, second.get(row, ratios))]
        for row, ratios in first.items()
    }


def read(path: Path = FILE) -> list[Record]:
    if not path.exists():
        return []
    return [Record(**json.loads(line)) for line in path.read_text().splitlines() if line.strip()]


def append(record: Record, path: Path = FILE) -> None:
    with path.open("a") as file:
        file.write(json.dumps(asdict(record), ensure_ascii=False) + "\n")


def name_machine(found: Mapping[str, Any]) -> str:
    return f"{found['processor']}, {found['instructions']}, {found['torch_threads']} threads, torch {found['torch']}"


def measure(length: int, repeats: int, only: Iterable[str]) -> dict[str, list[float]]:
    """Current ratios, measured in a separate process; `only` has parts of row names, or is empty for all rows."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "ratios.json"
        options = ["--length", str(length), "--repeats", str(repeats), "--json", str(out)]
        rows = [f"--only={part}" for part in only]
        subprocess.run([sys.executable, "-m", "benchmarks.attention", *options, *rows], check=True)
        found: dict[str, list[float]] = json.loads(out.read_text())["times_faster"]
        return found


def git(*arguments: str) -> str:
    told = subprocess.run(["git", "-C", str(FILE.parent), *arguments], check=True, capture_output=True, text=True)
    return told.stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--only", action="append", default=[], help="rows whose name contains this; may be repeated")
    parser.add_argument("--keep", action="store_true", help="add the record even with uncommitted changes")
    given = parser.parse_args()
    # The state before measuring; what this program writes does not count as a change.
    commit, dirty = git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--", ":/", f":!/{_from_root(FILE)}"))
    new = Record(
        times_faster=measure(given.length, given.repeats, given.only),
        commit=commit,
        dirty=dirty,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        machine=name_machine(machine.describe()),
        length=given.length,
    )
    past = read()
    found = changes(past, new)
    if found:
        print(f"\nonce more, what is more than {MOST:.0%} off:", flush=True)
        second = measure(given.length, given.repeats, sorted({change.row for change in found}))
        found = seen_again(found, changes(past, replace(new, times_faster=second)))
        new = replace(new, times_faster=between(new.times_faster, second))
    alike = [record for record in past if record.alike == new.alike]
    print(f"\nagainst {min(LAST, len(alike))} of {len(alike)} records of this machine and length")
    for change in sorted(found, key=lambda each: each.now / each.before):
        print(change)
    if not found:
        print(f"no ratio changed by more than {MOST:.0%} twice" if alike else "nothing to compare with yet")
    if dirty and not given.keep:
        print(f"not added to {FILE.name}: there are uncommitted changes (--keep adds it anyway)")
    else:
        append(replace(new, energy=spent()))
    return int(any(change.worse for change in found))


def _from_root(path: Path) -> str:
    return str(path.relative_to(git("rev-parse", "--show-toplevel")))


if __name__ == "__main__":
    sys.exit(main())
