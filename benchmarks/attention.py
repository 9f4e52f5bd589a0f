"""Speed of each mechanism relative to torch's full attention, forward and with backward.

    python -m benchmarks.attention [--length 4096] [--only window] [--repeats 7] [--json FILE]

Float32, batch 1, 8 heads of 64, 2 threads. `--memory` adds the peak memory of a forward and backward pass in a separate
process, above what the process held before.
"""

import argparse
import json
from multiprocessing import get_context
from pathlib import Path

from benchmarks.energy import spent
from benchmarks.rows import ROWS, Row
from longspan.attention import names
from longspan.measure.case import FUSED, Case
from longspan.measure.footprint import Resident
from longspan.measure.subject import Subject, subject
from longspan.measure.timing import compare

HEADS, WIDTH = 8, 64
FULL = FUSED
KINDS = ("forward", "backward")


def make(name: str, length: int, dropout: float, padding: bool) -> Subject:
    """The subject of one row; `FULL` is torch's own attention."""
    row = Row(FULL, (1.0, 1.0)) if name == FULL else ROWS[name]
    case = Case(
        mechanism=row.mechanism,
        length=length,
        causal=row.causal,
        padding=padding,
        heads=HEADS,
        head_dim=WIDTH,
        options=row.options,
    )
    return subject(case, dropout=dropout, layer=row.layer)


def peak(name: str, length: int) -> int:
    """Peak bytes that a forward and backward pass adds to the process."""
    made = make(name, length, 0.0, False)
    resident = Resident()
    made.backward()
    return resident.peak()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--only", action="append", default=[], help="rows whose name contains this; may be repeated")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dropout", type=float, default=0.0, help="on the weights, in training mode")
    parser.add_argument("--padding", action="store_true", help="hide the last tenth of the keys")
    parser.add_argument("--memory", action="store_true", help="measure peak memory too, each case in its own process")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    asked = [name for name in ROWS if not given.only or any(part in name for part in given.only)]
    rows = [name for name in asked if ROWS[name].mechanism in names()]

    # One row at a time beside the baseline: thirty cases at once would evict each other from the caches.
    best = {}
    baseline = make(FULL, given.length, 0.0, False)
    for name in rows:
        case = make(name, given.length, given.dropout, given.padding)
        times = compare(
            {(own, kind): getattr(each, kind) for own, each in ((FULL, baseline), (name, case)) for kind in KINDS},
            given.repeats,
        )
        best[name] = [(times[FULL, kind], times[name, kind]) for kind in KINDS]
    bytes_of = {}
    if given.memory:
        for name in rows:
            with get_context("spawn").Pool(1) as pool:
                bytes_of[name] = pool.apply(peak, (name, given.length))

    print(f"length {given.length}; full attention is measured again beside each row")
    print(f"{'':30}{'ms':>15}{'times faster':>16}{'goal':>14}{'MiB' if bytes_of else '':>8}")
    record = {}
    for name in rows:
        times, goal = [own for _, own in best[name]], ROWS[name].goal
        ratios = [whole / own for whole, own in best[name]]
        record[name] = [round(ratio, 2) for ratio in ratios]
        met = "" if ratios[0] >= goal[0] and ratios[1] >= goal[1] else "  short"
        shown = f"{1e3 * times[0]:7.1f} /{1e3 * times[1]:6.1f}{ratios[0]:8.1f} /{ratios[1]:6.1f}"
        memory = f"{bytes_of[name] / 2**20:8.0f}" if bytes_of else ""
        print(f"{name:30}{shown}{goal[0]:7g} /{goal[1]:5g}{memory}{met}")
    if given.json:
        given.json.write_text(
            json.dumps({"length": given.length, "times_faster": record, "energy": spent()}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
