"""`longspan train`, `resume` and `evaluate`: alone, or the same command under `torchrun -m longspan`."""

import os
import shlex
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longspan.cli.inputs import AsJson, Dotted, dotted, print_json
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.train.loop import Trainer
    from longspan.train.processes import Processes

QUIET = 30.0  # seconds between lines where there is no terminal to draw a bar on
VALUES = "values of a recipe are given as --train.steps 500"
Data = Annotated[Path | None, Parameter(help="the folder of data sets; LONGSPAN_DATA unless given")]
DataOfRun = Annotated[Path | None, Parameter(help="the folder of data sets, where it has moved since the run began")]


def train(
    recipe: Path,
    /,
    *overrides: Dotted,
    out: Annotated[
        Path | None, Parameter(help="the folder of the run; runs/ and the recipe's name unless given")
    ] = None,
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Train as a recipe says; any of its values can be given anew by its name, as `--train.steps 500`.

    A run is a folder: config.toml, metrics.jsonl, checkpoints/ and, at the end, model/. Ctrl-C and SIGTERM let the
    step be finished and saved; `longspan resume` goes on from there, to the bit.

    **Examples:**

        longspan train shakespeare-char --data DATA
        longspan train shakespeare-char --train.steps 100 --model.layers 2 --out runs/small
        torchrun --nproc-per-node 2 -m longspan train shakespeare-char --train.shard true

    Parameters
    ----------
    recipe
        A TOML file with the tables [task], [model] and [train], or the name of a recipe that comes with longspan,
        such as shakespeare-char.
    """
    from longspan.train import recipe as recipes

    if recipe.is_dir():
        raise InvalidInput(
            f"{recipe} is a folder; `longspan resume {_quoted(recipe)}` continues a run, and training takes a TOML file"
        )
    read = recipes.read(recipe, dotted(overrides, VALUES))
    folder = Path("runs") / recipe.stem if out is None else out
    root = _data(data, read.data)
    return _run(folder, lambda run, processes: recipes.begin(read, run, data=root, processes=processes), json=json)


def resume(
    run: Path,
    /,
    *,
    inexact: Annotated[
        bool, Parameter(negative="", help="go on even where it cannot be as it would have been, and say why")
    ] = False,
    data: DataOfRun = None,
    json: AsJson = False,
) -> int:
    """Go on with a run that was stopped or killed, from its newest whole checkpoint.

    **Examples:**

        longspan resume runs/shakespeare-char
        longspan resume runs/shakespeare-char --inexact    # with another number of processes

    Parameters
    ----------
    run
        The folder of the run.
    """
    from longspan.train import recipe as recipes
    from longspan.train.run import Run

    if not run.is_dir():
        raise InvalidInput(f"{run} is not there; give the folder of a run")
    root = _data(data, recipes.of_run(Run(run)).data)
    return _run(
        run,
        lambda held, processes: recipes.resume(held, data=root, processes=processes),
        resume=True,
        inexact=inexact,
        json=json,
    )


def evaluate(
    run: Path,
    /,
    *,
    split: Annotated[str, Parameter(help="test, held_out or train")] = "held_out",
    data: DataOfRun = None,
    json: AsJson = False,
) -> int:
    """Measure what a run made: its result, or its newest checkpoint while it is not at its end.

    **Examples:**

        longspan evaluate runs/wikitext2 --split test
        longspan evaluate runs/shakespeare-char --json

    Parameters
    ----------
    run
        The folder of the run.
    """
    from longspan.train import recipe as recipes
    from longspan.train.run import Run

    if split not in ("test", "held_out", "train"):
        raise InvalidOption(f"--split must be test, held_out or train, not {split!r}")
    if not run.is_dir():
        raise InvalidInput(f"{run} is not there; give the folder of a run")
    root = _data(data, recipes.of_run(Run(run)).data)
    with _joined(run) as processes:
        with Console(stderr=True).status(f"measuring {run}"):
            found = recipes.evaluate(run, split=split, data=root, processes=processes)
        if not processes.first:
            return 0
    if json:
        named = {"run": str(run), "model": str(found.model), "split": split}
        print_json({**named, "figures": found.figures, "table": found.table})
    else:
        print(f"{found.model}, {split}: {_figures(found.figures)}")
        for row in found.table:
            said = ", ".join(f"{count} {name}" for name, count in row["said"].items() if count)
            print(f"  {row['label']} ({row['support']}): {said or 'none'}")
    return 0


def _run(
    folder: Path,
    make: "Callable[[Any, Processes], Trainer]",
    *,
    resume: bool = False,
    inexact: bool = False,
    json: bool = False,
) -> int:
    from longspan.train import fit
    from longspan.train.loop import Interrupted
    from longspan.train.malloc import keep_memory
    from longspan.train.run import RESULT, Run

    keep_memory()
    run, screen = Run(folder), Console(stderr=True, highlight=False, soft_wrap=True)
    code, last = 0, ""
    figures: Mapping[str, float] = {}
    with _joined(folder) as processes, ExitStack() as held:
        processes.together(lambda: held.enter_context(run.held()) if processes.first else None)
        trainer = make(run, processes)
        if processes.first:
            _introduce(screen, trainer)
        with _shown(screen, trainer) as (say, show):
            try:
                figures = fit.train(trainer, resume=resume, inexact=inexact, say=say, show=show)
            except Interrupted as stopped:
                code = 128 + stopped.signal
                last = f"saved at step {trainer.progress.step}; go on with: longspan resume {_quoted(folder)}"
            except KeyboardInterrupt:
                code = 128 + signal.SIGINT
                last = f"stopped without saving; the last checkpoint stays: longspan resume {_quoted(folder)}"
    if processes.first and last:  # below whatever else there was to say
        screen.print(last, markup=False)
    elif processes.first and json:
        named = {"run": str(folder), "model": str(folder / RESULT), "step": trainer.progress.step}
        print_json({**named, "figures": figures})
    elif processes.first:
        print(f"{folder / RESULT}: {_figures(figures)}")
    return code


@contextmanager
def _joined(run: Path) -> "Iterator[Processes]":
    """All processes that torchrun started; what one of them failed of, that one alone says."""
    from longspan.train.processes import Elsewhere, Lost, is_lost, start, stop

    processes = start()
    try:
        yield processes
    except Elsewhere:
        raise SystemExit(2) from None
    except RuntimeError as error:
        if processes.world == 1 or not is_lost(error):
            raise
        if processes.rank > 1:  # the first two are enough to say it, and one of them may be the lost one
            raise SystemExit(2) from None
        raise Lost(
            f"another of the {processes.world} processes has ended, and this one stops; the checkpoints are whole: "
            f"longspan resume {_quoted(run)}"
        ) from None
    finally:
        stop(processes)


@contextmanager
def _shown(screen: Console, trainer: "Trainer") -> Iterator[tuple[Callable[[str], None], Callable[..., None]]]:
    """A bar with loss, speed and time left; lines now and then where there is no terminal; the first process alone."""
    if not trainer.processes.first:
        yield (lambda line: None), (lambda trainer, row: None)
        return
    bar = Progress(
        TextColumn("step"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[state]}"),
        TimeRemainingColumn(),
        console=screen,
        transient=True,
        disable=not screen.is_terminal,
    )
    speed, last = 0.0, time.monotonic()
    task = bar.add_task("", total=trainer.steps, state="the first step")

    def say(line: str) -> None:
        screen.print(line, markup=False)

    def show(trainer: "Trainer", row: Mapping[str, float]) -> None:
        nonlocal speed, last
        now = row["count"] / row["seconds"]
        speed = now if not speed else 0.9 * speed + 0.1 * now
        if screen.is_terminal:
            state = f"loss {row['loss']:.4g} · {speed:,.0f} tokens/s"
            bar.update(task, completed=trainer.progress.step, state=state)
        elif time.monotonic() - last > QUIET:
            last = time.monotonic()
            say(f"step {trainer.progress.step}/{trainer.steps}: loss {row['loss']:.4g}, {speed:,.0f} tokens/s")

    with bar:
        yield say, show


def _introduce(screen: Console, trainer: "Trainer") -> None:
    """What is trained on what."""
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    facts = dict(trainer.facts)
    baselines: Mapping[str, Mapping[str, float]] = facts.pop("baselines", {})
    said = [f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in facts.items()]
    where = f"{trainer.processes.world} processes, " if trainer.processes.world > 1 else ""
    lines = [
        f"{trainer.run.folder}: {', '.join(said)}",
        f"{trainer.model.name}, {count:,} parameters; {where}{trainer.steps:,} steps, "
        f"{len(trainer.data.batches(0)):,} to an epoch",
    ]
    if baselines:
        width = max(map(len, baselines))
        lines.append("without a model, on the held-out data:")
        lines.extend(f"  {name:{width}}  {_figures(scores)}" for name, scores in baselines.items())
    for line in lines:
        screen.print(line, markup=False)


def _data(given: Path | None, kept: Path | None) -> Path | None:
    """The folder of data sets: the one given, the one that a run or a recipe names, or LONGSPAN_DATA."""
    if given is None and kept is not None and kept.is_dir():
        return None  # which means the one that is named
    named = os.environ.get("LONGSPAN_DATA")
    found = Path(named) if given is None and named else given
    if found is not None and not found.is_dir():
        raise InvalidInput(f"the folder of data sets, {found}, is not there")
    return found


def _figures(figures: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in figures.items()) or "no figures"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
