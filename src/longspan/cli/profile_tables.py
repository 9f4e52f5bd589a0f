"""The tables that `longspan profile` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from longspan.cli.tables import short_bytes, short_seconds
from longspan.cli.terminal import Console

if TYPE_CHECKING:
    from longspan.measure.profile import Point, ProfileRow

TITLES = {"forward": "forward", "training": "forward and backward", "decode": "decoding: one more token"}
NOTE = (
    "naive, sdpa: speed relative to softmax attention with its weights in memory, and to torch's fused kernel. "
    "GEMM: FLOP rate as a share of a large matrix product's. Powers of the length are fitted over all lengths; in "
    "brackets that of the FLOPs. from: length from which it is faster than sdpa; ~ means extrapolated."
)


def print_rows(console: Console, rows: "Sequence[ProfileRow]") -> None:
    """For each kind, a table at the longest length and one of speeds at all lengths; then cases without a result."""
    for kind in dict.fromkeys(row.kind for row in rows):
        of_kind = [row for row in rows if row.kind == kind]
        lengths = [point.measured.case.length for point in of_kind[0].points]
        console.print(f"[bold]{TITLES[kind]}[/bold], length {lengths[-1]:,}")
        console.print(_longest(of_kind))
        if len(lengths) > 1:
            console.print("speed relative to sdpa, by length")
            console.print(_speeds(of_kind, lengths))
    console.print(NOTE, style="dim", markup=False)
    lacking: dict[str, None] = {}
    for row in rows:
        for point in row.points:
            case = point.measured
            if case.state != "done":
                lacking[f"{row.name}, {row.kind}: {case.state}: {case.error or 'no reason given'}"] = None
    for line in lacking:
        console.print(line, markup=False, style="red" if ": failed: " in line else "dim", soft_wrap=True)


def _longest(rows: "Sequence[ProfileRow]") -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("mechanism", no_wrap=True)
    for name in ("time", "±", "naive", "sdpa", "memory", "GEMM", "time n^", "mem n^", "from"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        point = row.points[-1]
        case = point.measured
        counted = "" if row.counted is None else f" ({row.counted:.2f})"
        if case.state == "done":
            metrics = [short_seconds(case.least), f"{case.spread:.0%}"]
            metrics += [_times(point.speed_to_naive), _times(point.speed_to_fused)]
            metrics += ["" if case.memory is None else short_bytes(case.memory)]
            metrics += ["" if case.share is None else f"{case.share:.0%}"]
        else:
            metrics = [case.state, "", "", "", "", ""]
        if all(other.measured.state == "unsupported" for other in row.points):
            continue  # listed below the tables
        powers = ["" if row.time is None else f"{row.time:.2f}{counted}", _power(row.memory)]
        table.add_row(_name(row), *metrics, *powers, str(row.crossover or ""))
    return table


def _speeds(rows: "Sequence[ProfileRow]", lengths: Sequence[int]) -> Table:
    table = Table("mechanism", box=None, padding=(0, 2, 0, 0), show_edge=False)
    for length in lengths:
        table.add_column(f"{length:,}", justify="right")
    for row in rows:
        if any(point.speed_to_fused for point in row.points):
            table.add_row(_name(row), *(_cell(point) for point in row.points))
    return table


def _name(row: "ProfileRow") -> str:
    """The mechanism with its options below it, one per line: in one line they would widen the table too much."""
    return row.name.replace(" ", "\n  ")


def _cell(point: "Point") -> str:
    return point.measured.state if point.measured.state != "done" else _times(point.speed_to_fused)


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _power(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


__all__ = ["print_rows"]
