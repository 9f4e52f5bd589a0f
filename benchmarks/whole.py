"""Speed of whole models of the arena's Text task, relative to naive and to fused attention.

    python -m benchmarks.whole [--only linear,window] [--length 4096] [--batch 2] [--seconds 60] [--usual-memory]

Bytes, 4 layers of 256, 4 heads, feed-forward 1024; forward, backward and optimiser step; 2 threads. Runs the cells of
`longspan.arena.runs.speed`, each in its own process, and prints their goals. `naive` stores its n×n weights, `dense` is
the same model with torch's fused kernel. The process keeps freed memory, as in training; with `--usual-memory` glibc
returns it to the system, as when the goals were measured.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

from longspan.arena import settings
from longspan.arena.runs import speed
from longspan.arena.runs.cell import Cell, Record
from longspan.arena.runs.efficiency import FUSED, NAIVE, table

SETTING = "released"
GOALS = {  # times naive, times fused, at 4096
    "linear": (8.0, 4.0),
    "window": (7.0, 3.5),
    "sinkhorn": (7.0, 3.5),
    "routing": (7.0, 3.5),
    "performer": (6.0, 3.0),
    "linformer": (6.0, 3.0),
    "longformer": (6.0, 3.0),
    "bigbird": (5.5, 2.7),
    "nystrom": (7.0, 3.5),
    "reformer": (3.5, 1.7),
    FUSED: (2.1, 1.0),
}


def sizes() -> dict[str, int]:
    """The model's sizes in the setting."""
    all_sizes = settings.find(SETTING, speed.TASK).sizes(FUSED)
    return {name: all_sizes[name] for name in ("layers", "width", "heads", "hidden")}


def measure(cell: Cell, batch: int, dropout: float, keep_memory: bool) -> Record:
    """Measure one cell; its peak memory is the process's."""
    import torch

    torch.set_num_threads(cell.threads)
    how = speed.protocol(cell, "cpu", lambda length: 0.0)
    return speed.measure(
        cell, speed.prepare(cell, dropout=dropout), replace(how, batch=batch, keep_memory=keep_memory), say=_tell
    )


def _tell(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


def in_process(cell: Cell, batch: int, dropout: float, keep_memory: bool) -> Record:
    """`measure` in its own process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measure, cell, batch, dropout, keep_memory).result()


def line(row: dict[str, object], goal: tuple[float, float] | None) -> str:
    """A printed row of the efficiency table."""
    if row["state"] != "done":
        return f"{row['model']:<12}{row['state']}: {row['error']}"
    ratios = [row["steps_per_second_to_naive"], row["steps_per_second_to_fused"]]
    shown = " / ".join("   –" if ratio is None else f"{ratio:4.1f}" for ratio in ratios)
    rate, memory = row["steps_per_second"], row["memory"]
    assert isinstance(rate, float) and isinstance(memory, int)
    text = f"{row['model']:<12}{1 / rate:8.2f}{memory / 2**20:8.0f}   {shown}"
    if goal is None:
        return text
    short = any(isinstance(ratio, float) and ratio < wanted for ratio, wanted in zip(ratios, goal))
    return f"{text}   {goal[0]:4g} / {goal[1]:3g}{'  short' if short else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument(
        "--dropout", type=float, default=0.1, help="dropout on hidden states; attention weights have none"
    )
    parser.add_argument("--only", default="", help="models, separated by commas; naive and dense are always included")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for each model, repeats included")
    parser.add_argument("--usual-memory", action="store_true", help="do not keep freed memory")
    given = parser.parse_args()
    chosen = [name for name in given.only.split(",") if name] or list(GOALS)
    if unknown := [name for name in chosen if name not in GOALS]:
        parser.error(f"unknown rows: {', '.join(unknown)}; known: {', '.join(GOALS)}")
    names = list(dict.fromkeys([NAIVE, FUSED, *chosen]))
    threads = int(os.environ["OMP_NUM_THREADS"])
    model_sizes = ", ".join(f"{name} {size}" for name, size in sizes().items())
    how = f"length {given.length}, batch {given.batch}, {threads} threads, dropout {given.dropout:g}"
    print(f"{how}; {model_sizes}; freed memory {'as usual' if given.usual_memory else 'kept'}")
    print(f"{'':12}{'s/step':>8}{'MiB':>8}   × naive / fused   goal")
    common = {"kind": "speed", "task": speed.TASK, "setting": SETTING}
    cells = [Cell(model=name, length=given.length, seconds=given.seconds, threads=threads, **common) for name in names]
    records: list[Record] = []
    for cell in cells:
        records.append(in_process(cell, given.batch, given.dropout, not given.usual_memory))
        row = next(row for row in table(records) if row["model"] == cell.model)
        print(line(row, GOALS.get(cell.model)), flush=True)


if __name__ == "__main__":
    main()
