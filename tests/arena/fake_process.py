"""Stands in for `longspan.arena.runs.process`: a cell does what its model is called, and notes that it was run."""

import json
import os
import signal
import sys
from pathlib import Path

from longspan.arena.runs.cell import Cell, Record


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(cell_path: Path, record_path: Path) -> int:
    cell = Cell.read(json.loads(cell_path.read_text()))
    notes = Path(os.environ["FAKE_NOTES"])
    first = not (notes / cell.key).exists()
    with (notes / cell.key).open("a") as file:
        file.write(f"{os.environ['OMP_NUM_THREADS']} {os.environ.get('LONGSPAN_DATA', 'none')}\n")
    say("a library says hello")
    say(json.dumps({"length": 128, "batch": 4}))
    say(json.dumps({"step": 5, "steps": 10, "held_out": 0.25}))
    if cell.model == "raises":
        raise ValueError("the third row is no row")
    if cell.model == "killed" or (cell.model == "killed_once" and first):
        os.kill(os.getpid(), signal.SIGKILL)
    if cell.model == "parent_killed" or (cell.model == "parent_killed_once" and first):
        os.kill(os.getppid(), signal.SIGKILL)
        signal.pause()
    if cell.model == "segfault":
        os.kill(os.getpid(), signal.SIGSEGV)
    if cell.model == "half":
        record_path.write_text('{"cell": {"ta')
        return 0
    if cell.model == "waits" or (cell.model == "waits_once" and first):
        say(json.dumps({"step": os.getpid(), "steps": 0}))
        signal.pause()
    if cell.model == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say(json.dumps({"step": os.getpid(), "steps": 0}))
        while True:
            signal.pause()
    values = {"accuracy": 0.5, "held_out": 0.5, "steps": 10, "steps_per_second": 2.0, "seconds": 5.0, "memory": 2**20}
    record = Record(cell=cell, state="done", test_count=100, baselines={"majority": 0.1}, **values)
    if cell.model == "memory":
        record = Record(cell=cell, state="memory", error="it ran out of memory")
    record_path.write_text(json.dumps(record.plain()))
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
