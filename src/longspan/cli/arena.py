"""`longspan arena`: train models on the tasks of the Long Range Arena and compare them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from longspan.cli.arena_plan import command, print_plan
from longspan.cli.inputs import AsJson, print_json, whole_numbers
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput, InvalidOption
from longspan.registry import PLUGINS, Registry

if TYPE_CHECKING:
    from longspan.arena.runs.cell import Cell, Record
    from longspan.arena.runs.grid import Arguments
    from longspan.arena.runs.results import Folder
    from longspan.arena.runs.runner import Runner

TELLING = ("mqar", "selective_copy", "parity")  # the default: kinds of models differ on them within minutes
WITHOUT_DATA = ("listops", "pathfinder")  # of the benchmark, at other settings than tiny, without data sets
WITH_DATA = ("listops", "text", "retrieval", "image", "pathfinder")
MODELS = ("dense", "window", "linformer", "linear", "performer", "retention", "lstm")  # attention to recurrence

WHAT = Group("What to compare", sort_key=1)
HOW = Group("How to run", sort_key=2)


def arena(
    *,
    tasks: Annotated[
        str | None,
        Parameter(
            group=WHAT,
            help=f"tasks, separated by commas (default: {','.join(TELLING)}; with --data, or at another setting than "
            f"tiny, those of the benchmark that the data allows: {','.join(WITH_DATA)})",
        ),
    ] = None,
    models: Annotated[
        str | None,
        Parameter(group=WHAT, help=f"names, separated by commas, or `all` (default: {','.join(MODELS)})"),
    ] = None,
    setting: Annotated[
        str, Parameter(group=WHAT, help="model sizes and lengths: tiny, small, released or appendix (default: tiny)")
    ] = "tiny",
    seeds: Annotated[int, Parameter(group=WHAT, help="runs of each model on each task (default: 3)")] = 3,
    budget: Annotated[
        str | None,
        Parameter(
            group=WHAT,
            help="time for the whole run, such as 90s, 20m or 1h30m: all models of a task get the same share, and "
            "train for as many steps as it allows (default: the setting's number of steps)",
        ),
    ] = None,
    pretrain: Annotated[
        bool, Parameter(group=WHAT, negative="", help="run each cell also with self pre-training, at the same budget")
    ] = False,
    speed: Annotated[bool, Parameter(group=WHAT, help="also measure steps per second and memory")] = True,
    lengths: Annotated[
        str | None, Parameter(group=WHAT, help="lengths to measure speed at (default: 1024,2048,3072,4096)")
    ] = None,
    out: Annotated[Path | None, Parameter(group=HOW, help="result folder (default: runs/arena-SETTING)")] = None,
    data: Annotated[Path | None, Parameter(group=HOW, help="the folder of data sets (default: LONGSPAN_DATA)")] = None,
    workers: Annotated[
        int | None, Parameter(group=HOW, help="cells run in parallel (default: cores divided by --threads)")
    ] = None,
    threads: Annotated[int, Parameter(group=HOW, help="CPU threads per cell (default: 1)")] = 1,
    runner: Annotated[
        Literal["local", "ray"], Parameter(group=HOW, help="this machine, or a Ray cluster (default: local)")
    ] = "local",
    address: Annotated[
        str | None, Parameter(group=HOW, help="address of the Ray cluster (default: start one on 127.0.0.1 only)")
    ] = None,
    retry: Annotated[bool, Parameter(group=HOW, negative="", help="run failed cells again")] = False,
    dry_run: Annotated[bool, Parameter(group=HOW, negative="", help="only print the plan and a time estimate")] = False,
    report_only: Annotated[bool, Parameter(group=HOW, negative="", help="only rewrite the report of --out")] = False,
    json: AsJson = False,
) -> int:
    """Compare models on tasks, in one encoder: every model on every task, each cell in its own process.

    By default three small tasks that tell kinds of models apart; the Long Range Arena with --data or --tasks.

    Results go to OUT/results.jsonl. The same command resumes a stopped run: finished cells are not run again. A crash
    or a lack of memory costs one cell only. The last step writes OUT/report.html. Exit code 0: every cell has a result;
    1: some failed; 2: invalid command.

    **Examples:**

        longspan arena --budget 16m --seeds 1
        longspan arena --tasks listops,pathfinder --budget 20m --seeds 1 --out runs/benchmark
        longspan arena --tasks listops,recall --models dense,performer --out runs/two
        longspan arena --data DATA --setting small --models all --dry-run
        longspan arena --runner ray --address auto --setting released --data /mnt/data
        longspan arena --out runs/two --report-only
    """
    folder = Path("runs") / f"arena-{setting}" if out is None else out
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    if report_only:
        if dry_run or retry:
            raise InvalidOption("--report-only runs nothing; leave out --dry-run and --retry")
        return _finish(folder, screen, json)
    from longspan.arena.runs import grid
    from longspan.arena.runs.results import Folder, latest, left

    if address is not None and runner != "ray":
        raise InvalidOption("--address is for a Ray cluster; give --runner ray too")
    if workers is not None and workers < 1:
        raise InvalidOption(f"--workers must be at least 1, not {workers}")
    given = _arguments(
        _default_tasks(setting, data) if tasks is None else tasks,
        models,
        setting,
        seeds,
        budget,
        pretrain,
        _lengths(lengths) if speed else (),
        threads,
        _data(data),
    )
    width = max(1, (os.cpu_count() or 1) // threads) if workers is None else workers
    cells = grid.plan(given, workers=width)
    held = Folder(folder, warn=lambda line: screen.print(line, markup=False))
    if dry_run:
        planned = held.planned(given) if (folder / "grid.json").exists() else cells
        records = held.records(repair=False)
        print_plan(folder, planned, left(planned, records, retry=retry), records, width, given, json)
        return 0
    with held.held():
        cells = held.begin(given, cells)
        records = held.records()
        todo = left(cells, records, retry=retry)
        cell_runner = _runner(runner, held, given, width, address, retry)
        signal_number = _run(screen, held, cell_runner, cells, todo, list(latest(records).values()), width)
    if signal_number is not None:
        again = command(given, folder, data, workers, runner, address)
        screen.print(f"stopped; finished cells are kept. Continue with: {again}", markup=False)
        return 128 + signal_number
    return _finish(folder, screen, json)


def _run(
    screen: Console,
    folder: "Folder",
    runner: "Runner",
    cells: "Sequence[Cell]",
    todo: "Sequence[Cell]",
    ended: "Sequence[Record]",
    workers: int,
) -> int | None:
    from longspan.arena.runs import session
    from longspan.cli.arena_screen import Screen

    again = {cell.key for cell in todo}
    kept = [record for record in ended if record.cell.key not in again]
    if kept:
        screen.print(f"{folder.path}: {len(kept)} of {len(cells)} cells are finished already", markup=False)
    with session.signals() as stopped, Screen(screen, todo, workers=workers, ended=kept) as shown:
        if todo:
            shown.say(f"{folder.path}: {shown.summary()}")
        return session.run(folder, runner, todo, hear=shown.hear, stopped=stopped)


def _finish(folder: Path, screen: Console, json: bool) -> int:
    """Write the report, print the tables, and return the exit code."""
    from longspan.cli.arena_results import print_results, summary
    from longspan.report import arena as page
    from longspan.report.results import read

    results = read(folder)
    for note in results.notes:
        screen.print(f"{folder}: {note}", markup=False)
    report = page.write(folder)
    failed = [record for record in results.records if record.state != "done"]
    if json:
        print_json(summary(folder, results, report))
    else:
        print_results(output(), results)
        print(f"report: {report}")
    return 1 if failed else 0


def _runner(
    kind: str, folder: "Folder", given: "Arguments", workers: int, address: str | None, again: bool
) -> "Runner":
    from longspan.arena.runs.results import CELLS

    environment = {} if given.data is None else {"LONGSPAN_DATA": given.data}
    if os.environ.get(PLUGINS):
        environment[PLUGINS] = os.environ[PLUGINS]
    if kind == "ray":
        from longspan.arena.runs.ray_cluster import RayRunner

        return RayRunner(address=address, processors=workers * given.threads, environment=environment)
    from longspan.arena.runs.runner import LocalRunner

    return LocalRunner(folder.path / CELLS, workers=workers, environment=environment, again=again)


def _default_tasks(setting: str, data: Path | None) -> str:
    """Those that tell kinds of models apart, or the benchmark's; the former even if LONGSPAN_DATA is set."""
    if setting == "tiny" and data is None:
        return ",".join(TELLING)
    return ",".join(WITHOUT_DATA if _data(data) is None else WITH_DATA)


def _arguments(
    tasks: str,
    models: str | None,
    setting: str,
    seeds: int,
    budget: str | None,
    pretrain: bool,
    lengths: tuple[int, ...],
    threads: int,
    data: Path | None,
) -> "Arguments":
    from longspan.arena import settings
    from longspan.arena.models import registry as arena_models
    from longspan.arena.runs import speed
    from longspan.arena.runs.grid import Arguments, duration
    from longspan.arena.tasks.registry import TASKS, DataFolders, build, find
    from longspan.attention.registry import ATTENTION
    from longspan.files import cache

    seconds = None if budget is None else duration(budget)
    chosen = _names(tasks, "tasks", TASKS)
    presets = {name: settings.find(setting, name) for name in chosen if find(name)}
    reading = [name for name in chosen if not find(name).generated]
    if reading and data is None:
        free = ", ".join(name for name in TASKS if find(name).generated)
        raise InvalidInput(
            f"{', '.join(reading)} need{'s' * (len(reading) == 1)} data: give its folder by --data or LONGSPAN_DATA"
            f"; {free} need none"
        )
    for name, preset in presets.items():
        build(name, preset.task).check(DataFolders(data, cache() / "arena"))
    named = (
        MODELS
        if models is None
        else tuple(arena_models.names())
        if models == "all"
        else _names(models, "models", ATTENTION)
    )
    entered = tuple(dict.fromkeys(arena_models.find(name).name for name in named))
    return Arguments(
        tasks=chosen,
        models=entered,
        setting=setting,
        seeds=seeds,
        budget=seconds,
        pretrain=pretrain,
        threads=threads,
        lengths=lengths,
        timed=tuple(dict.fromkeys((speed.NAIVE, speed.FUSED, *entered))) if lengths else (),
        data=str(data.resolve()) if data is not None and reading else None,
    )


def _names(text: str, flag: str, registry: "Registry[Any] | None" = None) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidOption(f"--{flag} is empty; give names separated by commas, or leave it out")
    if registry is None:
        return names
    return tuple(registry.adopt(name) if ":" in name else name for name in names)


def _lengths(text: str | None) -> tuple[int, ...]:
    from longspan.arena.runs.grid import LENGTHS

    if text is None:
        return LENGTHS
    return tuple(sorted(set(whole_numbers(text, "--lengths"))))


def _data(flag: Path | None) -> Path | None:
    variable = os.environ.get("LONGSPAN_DATA")
    folder = Path(variable) if flag is None and variable else flag
    if folder is not None and not folder.is_dir():
        raise InvalidInput(f"there is no data folder {folder}; without one, only generated tasks are run")
    return folder
