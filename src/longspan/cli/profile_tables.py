"""What `longspan profile` prints."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from longspan.cli.tables import short_bytes, short_seconds

if TYPE_CHECKING:
    from longspan.measure.profile import Point, ProfileRow

TITLES = {"forward": "forward", "training": "forward and backward", "decode": "decoding: one more token"}
NOTE = (
    "naive and sdpa: how many times faster than softmax attention with its weights in memory, and than torch's fused "
    "kernel. GEMM: share of the rate of a large matrix product. Powers of the length are fitted over all lengths, in "
    "brackets that of the arithmetic. from: the length from which it is faster than sdpa, ~ if extrapolated."
)


def print_rows(console: Console, rows: "Sequence[ProfileRow]") -> None:
    """For each kind a table at the longest length, and one of speeds at all lengths; then what has no figures."""
    for kind in dict.fromkeys(row.kind for row in rows):
        own = [row for row in rows if row.kind == kind]
        lengths = [point.measured.case.length for point in own[0].points]
        console.print(f"[bold]{TITLES[kind]}[/bold], length {lengths[-1]:,}")
        console.print(_longest(own))
        if len(lengths) > 1:
            console.print("times faster than sdpa, by length")
            console.print(_speeds(own, lengths))
    console.print(NOTE, style="dim", markup=False)
    lacking: dict[str, None] = {}
    for row in rows:
        for point in row.points:
            found = point.measured
            if found.state != "done":
                lacking[f"{row.name}, {row.kind}: {found.state}: {found.error or 'it does not say why'}"] = None
    for line in lacking:
        console.print(line, markup=False, style="red" if ": failed: " in line else "dim", soft_wrap=True)


def _longest(rows: "Sequence[ProfileRow]") -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), show_edge=False)
    table.add_column("mechanism", no_wrap=True)
    for name in ("time", "±", "naive", "sdpa", "memory", "GEMM", "time n^", "mem n^", "from"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        point = row.points[-1]
        found = point.measured
        counted = "" if row.counted is None else f" ({row.counted:.2f})"
        if found.state == "done":
            figures = [short_seconds(found.least), f"{found.spread:.0%}"]
            figures += [_times(point.speed_to_naive), _times(point.speed_to_fused)]
            figures += ["" if found.memory is None else short_bytes(found.memory)]
            figures += ["" if found.share is None else f"{found.share:.0%}"]
        else:
            figures = [found.state, "", "", "", "", ""]
        if all(each.measured.state == "unsupported" for each in row.points):
            continue  # said below
        powers = ["" if row.time is None else f"{row.time:.2f}{counted}", _power(row.memory)]
        table.add_row(_name(row), *figures, *powers, str(row.crossover or ""))
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
    """Options stand below the mechanism, one on each line: beside it they would push the figures out of the table."""
    return row.name.replace(" ", "\n  ")


def _cell(point: "Point") -> str:
    return point.measured.state if point.measured.state != "done" else _times(point.speed_to_fused)


def _times(ratio: float | None) -> str:
    return "–" if ratio is None else f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"


def _power(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


__all__ = ["print_rows"]
