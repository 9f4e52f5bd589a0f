"""longspan against other packages, at equal settings, in one run: table, chart and figures.

    python -m benchmarks.peers [--length 4096] [--repeats 5] [--only performer] [--out docs]

Writes peers.json, peers.md and peers.svg. `--drawn` only rewrites the last two from the first; `--only` measures some
rows again, if the file is of this machine. A pair takes about a minute at length 4096, in four consecutive processes.
"""

import argparse
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks.peers import PAIRS, cell, chart, table
from benchmarks.peers.pair import Pair
from longspan.measure import machine


def measure(pair: Pair, length: int, repeats: int, limit: float) -> dict[str, Any]:
    """The row of a pair."""
    size = ("--pair", pair.name, "--length", length)
    return {
        "peer": pair.peer,
        "what": pair.what,
        "version": installed(pair.peer),
        "equal": pair.equal,
        "close": pair.close,
        "kind": pair.kind,
        "decodes": pair.decodes,
        "ours_decodes": pair.ours_decodes,
        **{what: cell.start(limit, what, *size, "--repeats", repeats) for what in ("times", "kept")},
        "memory": {side: cell.start(limit, "memory", *size, "--side", side) for side in (cell.THEIRS, cell.OURS)},
    }


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def run(
    names: list[str], length: int, repeats: int, limit: float, earlier: dict[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Yields the results after each pair, so that a stopped run keeps what it measured.

    With `earlier` results, other rows and the decoding stay unchanged.
    """
    results: dict[str, Any] = earlier or {
        "length": length,
        "repeats": repeats,
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine.describe(),
        "decoding": {"error": "not yet"},
        "rows": [],
    }
    for name in names:
        row = measure(PAIRS[name], length, repeats, limit)
        print(line(row), flush=True)
        known = [(earlier_row["peer"], earlier_row["what"]) for earlier_row in results["rows"]]
        at = known.index((row["peer"], row["what"])) if (row["peer"], row["what"]) in known else len(known)
        results["rows"][at : at + 1] = [row]
        yield results
    if earlier is None:
        results["decoding"] = cell.start(limit, "decoding", "--repeats", min(repeats, 3), spin=True)
        yield results


def earlier(data: Path, length: int) -> dict[str, Any] | None:
    """Earlier results of this machine and length, of which some rows are to be measured again."""
    if not data.exists():
        return None
    found = json.loads(data.read_text())
    return found if (found["length"], found["machine"]) == (length, machine.describe()) else None


def line(row: dict[str, Any]) -> str:
    ratios = [table.ratio(row, kind) for kind in cell.KINDS]
    shown = " / ".join("–" if value is None else f"{value:.2f}" for value in ratios)
    return f"{row['peer']}: {row['what']:<60}{shown}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096, help="a square and a power of two")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default="", help="pairs whose name has this in it")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for one process")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    parser.add_argument("--drawn", action="store_true", help="measure nothing: table and chart from peers.json")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    data = given.out / "peers.json"
    if given.drawn:
        draw(json.loads(data.read_text()), given.out)
        return
    names = [name for name in PAIRS if given.only in name]
    if not names:
        parser.error(f"no pair has {given.only!r} in its name; they are: {'; '.join(PAIRS)}")
    print(f"times faster than each peer, forward / with backward, length {given.length}")
    known = earlier(data, given.length) if given.only else None
    for results in run(names, given.length, given.repeats, given.limit, known):
        data.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")
        draw(results, given.out)


def draw(results: dict[str, Any], folder: Path) -> None:
    (folder / "peers.md").write_text(table.markdown(results, "peers.svg"))
    (folder / "peers.svg").write_text(chart.svg(results))


if __name__ == "__main__":
    main()
