"""A process that runs fake cells and says each event on a line: something to be killed."""

import sys
from pathlib import Path

from longspan.arena.runs import session
from longspan.arena.runs.cell import Cell
from longspan.arena.runs.grid import Arguments
from longspan.arena.runs.results import CELLS, Folder, left
from longspan.arena.runs.runner import CellFinished, CellProgress, Event, LocalRunner, NoEvent


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def hear(event: Event) -> None:
    if isinstance(event, NoEvent):
        return
    cell = event.record.cell if isinstance(event, CellFinished) else event.cell
    say(f"{type(event).__name__} {cell.model} {event.step if isinstance(event, CellProgress) else ''}")


def main(path: Path, workers: int, *models: str) -> int:
    cells = [Cell(task="listops", model=model) for model in models]
    folder = Folder(path, warn=say)
    with folder.held(), session.signals() as stopped:
        cells = folder.begin(Arguments(tasks=("listops",), models=models, lengths=()), cells)
        command = (sys.executable, str(Path(__file__).with_name("fake_process.py")))
        runner = LocalRunner(path / CELLS, workers=workers, command=command)
        return 128 + (session.run(folder, runner, left(cells, folder.records()), hear=hear, stopped=stopped) or -128)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]))
