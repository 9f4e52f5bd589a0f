"""Checks `longspan advise`: its picks for ten settings, measured against every mechanism that could be faster.

    python -m benchmarks.advice [--only 1,9] [--rounds 3] [--refresh]

Advice uses the stored measurements of this machine and measures what is missing. Then every mechanism that fits, and
that takes at most twice as long as the fastest, is measured again, in turns, each turn in its own process; these
measurements are not stored. A pick passes if it takes at most 1.10 times as long as the fastest.
"""

import argparse

from longspan.cli.tables import short_bytes
from longspan.measure.advise import advise
from longspan.measure.case import Case
from longspan.measure.process import MeasureProcesses
from longspan.measure.requirements import Requirements, candidates
from longspan.measure.run_case import Patience
from longspan.measure.store import Store

BAR, NEAR, THREADS = 1.10, 2.0, 2
SETTINGS = [
    Requirements(length=512, threads=THREADS),
    Requirements(length=1024, causal=True, threads=THREADS),
    Requirements(length=2048, padding=True, batch=2, threads=THREADS),
    Requirements(length=4096, threads=THREADS),
    Requirements(length=4096, causal=True, training=False, threads=THREADS),
    Requirements(length=8192, causal=True, memory=200 * 2**20, threads=THREADS),
    Requirements(length=16384, padding=True, memory=2**30, threads=THREADS),
    Requirements(length=32768, causal=True, training=False, memory=2**30, threads=THREADS),
    Requirements(length=512, keys=8192, padding=True, threads=THREADS),
    Requirements(length=8192, decode=True, threads=THREADS),
]


def near(question: Requirements, store: Store, room: int | None) -> list[Case]:
    """Mechanisms that fit, were measured, and could be the fastest."""
    found = [store.get(case) for case in candidates(question)[0]]
    done = [each for each in found if each is not None and each.state == "done"]
    fitting = [each for each in done if room is None or each.memory is None or each.memory <= room]
    least = min((each.least for each in fitting), default=0.0)
    return [each.case for each in fitting if each.least <= NEAR * least]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="numbers of settings, separated by commas")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each")
    parser.add_argument("--refresh", action="store_true", help="repeat the measurements that advice is based on")
    given = parser.parse_args()
    numbers = [int(part) for part in given.only.split(",") if part] or range(1, len(SETTINGS) + 1)
    good = 0
    with MeasureProcesses(Patience(call=5.0, case=15.0)) as processes:
        for number in numbers:
            question, store = SETTINGS[number - 1], Store()
            advice = advise(question, processes.measure, store, refresh=given.refresh)
            cases = near(question, store, advice.room)
            times: dict[str, list[float]] = {case.mechanism: [] for case in cases}
            for _ in range(given.rounds):
                for case in cases:
                    times[case.mechanism] += processes.measure(case).seconds
            best = {name: min(seconds) for name, seconds in times.items() if seconds}
            fastest, picked = min(best, key=lambda name: best[name]), advice.choices[0].mechanism
            ratio = best[picked] / best[fastest] if picked in best else float("inf")
            good += ratio <= BAR
            verdict = "good" if ratio <= BAR else "MISSED"
            print(f"{number}: {_spell(question)}", flush=True)
            print(f"   picked {picked}: {ratio:.2f} times the fastest, {fastest}, of {len(best)}: {verdict}")
            print("   " + ", ".join(f"{name} {1e3 * best[name]:.3g} ms" for name in sorted(best, key=best.__getitem__)))
    print(f"{good} of {len(numbers)} within {BAR - 1:.0%} of the fastest")


def _spell(question: Requirements) -> str:
    words = [question.kind, f"{question.length:,}"]
    words += [f"reads {question.keys:,}"] if question.keys is not None else []
    words += ["causal"] * question.causal + ["padding"] * question.padding + [f"batch {question.batch}"]
    return ", ".join(words + ([] if question.memory is None else [short_bytes(question.memory)]))


if __name__ == "__main__":
    main()
