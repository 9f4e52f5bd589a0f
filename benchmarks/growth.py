"""Measured growth of time and memory with length, and the exponent that each mechanism declares.

    python -m benchmarks.growth [--lengths 2048,4096,8192,16384] [--only window] [--repeats 2]

Forward and backward as in `benchmarks.attention`, every length of every row in its own process. The exponent is the
log-log slope between the shortest and the longest length; memory is the peak above the inputs at the longest.
Quadratic mechanisms are skipped unless `--only` selects them.
"""

import argparse
import math
from multiprocessing import get_context

from benchmarks.attention import make, peak
from benchmarks.rows import ROWS
from longspan.attention import find
from longspan.measure.timing import once

WARM = 512  # tokens
LIMIT = 2**30  # most bytes that a linear mechanism may take at length 16,384


def measure(name: str, length: int, repeats: int) -> tuple[float, int]:
    """Seconds of a forward and backward pass, and the bytes it adds to the process."""
    make(name, WARM, 0.0, False).backward()  # torch's one-time set-up does not count
    held = peak(name, length)
    case = make(name, length, 0.0, False)
    case.backward()
    return min(once(case.backward) for _ in range(repeats)), held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="2048,4096,8192,16384")
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--repeats", type=int, default=2)
    given = parser.parse_args()
    lengths = [int(part) for part in given.lengths.split(",")]
    rows = [
        name for name, row in ROWS.items() if given.only in name and (given.only or find(row.mechanism).exponent < 2)
    ]
    print(f"{'':30}{'exponent of time':>18}{'of memory':>11}{'declared':>10}{'MiB at ' + str(lengths[-1]):>14}")
    for name in rows:
        measured = []
        for length in lengths:
            with get_context("spawn").Pool(1) as pool:
                measured.append(pool.apply(measure, (name, length, given.repeats)))
        steps = math.log(lengths[-1] / lengths[0])
        time, memory = (math.log(last / first) / steps for first, last in zip(measured[0], measured[-1]))
        declared, held = find(ROWS[name].mechanism).exponent, measured[-1][1]
        over = "  over 1 GiB" if declared <= 1 and held > LIMIT else ""
        print(f"{name:30}{time:18.2f}{memory:11.2f}{declared:10g}{held / 2**20:14.0f}{over}", flush=True)


if __name__ == "__main__":
    main()
