"""`longspan train --seeds N` and `longspan resume` of such a set: one run after another, then a table over seeds.

Also the record of each start of a run (`sessions.jsonl`).
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from longspan.cli.inputs import print_json
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput

if TYPE_CHECKING:
    from longspan.train.loop import Trainer
    from longspan.train.processes import Processes
    from longspan.train.recipe import Recipe
    from longspan.train.run import Run
    from longspan.train.seeds import SeedSet


def refuse_set(folder: Path) -> None:
    """Refuse to begin anything in a folder that has a set of seeds."""
    from longspan.train.seeds import is_set

    if is_set(folder):
        raise InvalidInput(f"{folder} has a set of seeds already; resume it, or name another folder")


@contextmanager
def recorded_session(trainer: "Trainer") -> Iterator[None]:
    """Record wall time, energy and size of this start of a run in its sessions.jsonl, however it ends.

    Each of several processes measures itself, and the energy is added. It stays unknown if one of them failed, because
    the others cannot ask it.
    """
    import socket

    from longspan.measure.energy import Meter, combine
    from longspan.train.history import log_session
    from longspan.train.loop import Interrupted
    from longspan.train.run import CONFIG

    processes, began = trainer.processes, time.perf_counter()
    meter = Meter(device=processes.device.type)
    energy: dict[str, Any] | None = None

    def spent() -> dict[str, Any] | None:
        if processes.world == 1:
            return meter.energy()
        return combine(processes.gather((socket.gethostname(), meter.energy())))

    try:
        with meter:
            yield
        energy = spent()
    except Interrupted:  # all processes stop at the same step
        energy = spent()
        raise
    except BaseException:
        energy = meter.energy() if processes.world == 1 else None
        raise
    finally:
        if processes.first and (trainer.run.folder / CONFIG).is_file():
            row = {
                "step": trainer.progress.step,
                "seconds": time.perf_counter() - began,
                "processes": processes.world,
                "parameters": sum(parameter.numel() for parameter in trainer.model.parameters()),
                "energy": energy,
            }
            with suppress(OSError):  # such as a full disk, which the training itself reports
                log_session(trainer.run, row)


def run_seeds(seeds: "SeedSet", plan: "Recipe", *, data: Path | None, inexact: bool = False, json: bool = False) -> int:
    """Train or resume the runs of a set that are not finished, one after another, and report all of them."""
    from longspan.cli.training import joined, run_training
    from longspan.train import recipe as recipes
    from longspan.train.seeds import with_seed

    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    with joined(seeds.folder) as processes:  # once: torchrun's processes cannot join a second time
        for number, seed in enumerate(seeds.seeds, start=1):
            finished, resume = processes.same((seeds.finished(seed), seeds.begun(seed)))
            if finished:
                continue
            if processes.first:
                screen.print(f"seed {seed} ({number} of {len(seeds.seeds)})", markup=False)

            def make(run: "Run", processes: "Processes", seed: int = seed, resume: bool = resume) -> "Trainer":
                if resume:
                    return recipes.resume(run, data=data, processes=processes)
                trainer = recipes.begin(with_seed(plan, seed), run, data=data, processes=processes)
                if processes.first:
                    seeds.write()  # only now: a recipe with a mistake leaves no set
                return trainer

            code = run_training(
                seeds.run(seed), make, resume=resume, inexact=inexact, of_set=seeds.folder, processes=processes
            )
            if code:
                return code
            if processes.first:
                seeds.write_summary()
        if processes.first:
            _report(seeds, json)
    return 0


def _report(seeds: "SeedSet", json: bool) -> None:
    summary = seeds.write_summary()
    if json:
        print_json(summary)
        return
    table = Table(box=None, pad_edge=False)
    for name in ("metric", "mean", "deviation", *(f"seed {run['seed']}" for run in summary["runs"])):
        table.add_column(name, justify="left" if name == "metric" else "right")
    for name, numbers in summary["metrics"].items():
        table.add_row(name, *(_short(value) for value in (numbers["mean"], numbers["deviation"], *numbers["values"])))
    output().print(table)


def _short(value: Any) -> str:
    return "–" if value is None else f"{value:.4g}"


__all__ = ["recorded_session", "refuse_set", "run_seeds"]
