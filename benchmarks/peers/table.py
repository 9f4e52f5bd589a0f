"""The results as Markdown."""

import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

from benchmarks.peers.cell import KINDS, OURS, THEIRS, WITNESS

TITLES = {"forward": "forward", "backward": "with backward"}
Row = Mapping[str, Any]


def ratio(row: Row, kind: str, allocator: str = "times") -> float | None:
    """How many times faster ours is."""
    seconds = row[allocator].get("seconds", {})
    there, here = (seconds.get(f"{side} {kind}") for side in (THEIRS, OURS))
    return None if there is None or here is None else there / here


def markdown(results: Mapping[str, Any], chart: str) -> str:
    rows, machine = results["rows"], results["machine"]
    parts = [
        "# Against other packages",
        _verdict(rows),
        f"`make peers`, {results['date']}, on {machine['processor']}, {machine['torch_threads']} threads, torch "
        f"{machine['torch']}: length {results['length']}, minimum of {results['repeats']} turns, float32, batch 1, "
        "8 heads of 64, width 512.",
        f"![How many times faster longspan is than each peer]({chart})",
        _table(
            [
                "peer",
                "what",
                *(f"ms {TITLES[kind]}: theirs, ours" for kind in KINDS),
                *(f"× {TITLES[kind]} (kept)" for kind in KINDS),
                "MiB: theirs, ours",
                "full attention, ms",
            ],
            (_figures(row) for row in rows),
        ),
        "## How to read the table",
        "- × is how many times faster longspan is; below 1 it is slower. Look at ratios: the two of a pair and torch's "
        "full attention (not causal) take turns in one process, so the machine treats all of them alike.",
        "- *Kept* is the same with `longspan.train.malloc.keep_memory()`, under which the C library keeps freed "
        "memory. Much of a peer's time may be page faults, which any program can avoid this way.",
        "- *Layer*: with input and output projections; otherwise the heads are already projected. Windows, blocks and "
        "ranks are as stated, or a quarter of the length if that is less.",
        "- Times are processor time by the rule of `longspan/measure/timing.py`. MiB is the peak of forward and "
        "backward in a separate process.",
        "## What is equal",
        "Both sides get the same weights where that is possible. *Differ* is the largest difference of outputs as a "
        "share of the largest output.",
        _table(
            ["peer", "what", "equal", "differ"],
            ([_named(row), row["what"], row["equal"], _differs(row)] for row in rows),
        ),
        "## What they cannot do",
        *(_list(rows) or ["Nothing: each supports everything that was measured."]),
        "## Decoding",
        *_decoding(results["decoding"]),
        "How the mechanisms above generate, token by token:",
        _table(
            ["peer", "what", "theirs", "ours"],
            (
                [_named(row), row["what"], row["decodes"], "step by step" if row["ours_decodes"] else "not this form"]
                for row in rows
            ),
        ),
    ]
    return "\n\n".join(_wrapped(part) for part in parts).replace("\n\n- ", "\n- ") + "\n"


def _verdict(rows: Iterable[Row]) -> str:
    """The number of pairs in which longspan is faster, and slower."""
    faster, slower = [], []
    for kind in KINDS:
        ratios = [value for value in (ratio(row, kind) for row in rows) if value is not None]
        faster.append(f"{sum(value >= 1.05 for value in ratios)} of {len(ratios)} pairs {TITLES[kind]}")
        slower.append(f"{sum(value < 0.95 for value in ratios)} {TITLES[kind]}")
    return f"**longspan is at least 5 % faster in {', '.join(faster)}; more than 5 % slower in {', '.join(slower)}.**"


def _wrapped(part: str) -> str:
    """Prose in lines of at most 100 characters; tables, headings and pictures stay."""
    if part.startswith(("|", "#", "!")) or "\n" in part:
        return part
    hang = "  " if part.startswith("- ") else ""
    return textwrap.fill(part, 100, subsequent_indent=hang, break_long_words=False, break_on_hyphens=False)


def _figures(row: Row) -> list[str]:
    seconds = row["times"].get("seconds", {})

    def ms(side: str, kind: str) -> str:
        found = seconds.get(f"{side} {kind}")
        return "–" if found is None else f"{1e3 * found:.3g}" if found < 1 else f"{1e3 * found:.0f}"

    def times(kind: str) -> str:
        plain, kept = ratio(row, kind), ratio(row, kind, "kept")
        return f"{_factor(plain)} ({_factor(kept)})"

    def size(side: str) -> str:
        found = row["memory"][side].get("bytes")
        return "–" if found is None else f"{found / 2**20:.0f}"

    return [
        _named(row),
        row["what"],
        *(f"{ms(THEIRS, kind)}, {ms(OURS, kind)}" for kind in KINDS),
        *(times(kind) for kind in KINDS),
        f"{size(THEIRS)}, {size(OURS)}",
        ", ".join(ms(WITNESS, kind) for kind in KINDS),
    ]


def _factor(value: float | None) -> str:
    return "–" if value is None else f"{value:.2g}" if value < 10 else f"{value:.0f}"


def _named(row: Row) -> str:
    return f"{row['peer']} {row['version'] or '(not installed)'}"


def _differs(row: Row) -> str:
    found = row["times"].get("differs")
    if found is None:
        return "–"
    over = row["close"] is not None and found > row["close"]
    return f"{found:.0e}" + (f" (**over {row['close']:.0e}**)" if over else "")


def _list(rows: Iterable[Row]) -> list[str]:
    lines = []
    for row in rows:
        whole = [each.get("error") for each in (row["times"], row["kept"], *row["memory"].values())]
        reasons = dict.fromkeys([*row["times"].get("lacks", {}).values(), *(each for each in whole if each)])
        lines += [f"- {row['peer']}, {row['what']}: {reason}" for reason in reasons]
    return ["\n".join(lines)] if lines else []


def _decoding(found: Mapping[str, Any]) -> list[str]:
    if "error" in found:
        return [f"Not measured: {found['error']}."]
    rates = found["rates"]
    said = (
        f"Tokens per second of the whole call, by the clock: a decoder like GPT-2, {found['layers']} layers of "
        f"{found['width']}, random weights, {found['new']} tokens after {found['prompt']}, greedy. More in "
        "[speed](speed.md#generation)."
    )
    names = next(iter(rates.values()))
    lines = [[name, *(f"{rates[batch][name]:.0f}" for batch in rates)] for name in names]
    return [said, _table(["", *(f"batch {batch}" for batch in rates)], lines)]


def _table(head: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = list(head)
    shown = [head, ["---"] * len(head), *(list(line) for line in lines)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '∣') for cell in line)} |" for line in shown)
