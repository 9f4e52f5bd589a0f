"""`longspan arena`."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter
from rich.console import Console

from longspan.cli.arena_plan import command, print_plan
from longspan.cli.inputs import AsJson, print_json
from longspan.cli.tables import output
from longspan.errors import InvalidInput, InvalidOption
from longspan.registry import PLUGINS, Registry

if TYPE_CHECKING:
    from longspan.arena.runs.cell import Cell, Record
    from longspan.arena.runs.grid import Arguments
    from longspan.arena.runs.results import Folder
    from longspan.arena.runs.runner import Runner

WITHOUT_DATA = ("listops", "pathfinder")  # what is run where nothing is said and there is no folder of data sets
WITH_DATA = ("listops", "text", "retrieval", "image", "pathfinder")
MODELS = ("dense", "window", "routing", "linformer", "nystrom", "performer", "lstm")  # at least one of each kind

WHAT = Group("What is compared", sort_key=1)
HOW = Group("How it is run", sort_key=2)


def arena(
    *,
    tasks: Annotated[
        str | None,
        Parameter(group=WHAT, help="with commas; without a data folder listops,pathfinder, with one all but Path-X"),
    ] = None,
    models: Annotated[
        str | None, Parameter(group=WHAT, help=f"names with commas, or `all`; {','.join(MODELS)} unless given")
    ] = None,
    setting: Annotated[
        str, Parameter(group=WHAT, help="tiny, small, released or appendix: sizes and lengths")
    ] = "tiny",
    seeds: Annotated[int, Parameter(group=WHAT, help="runs of each model on each task")] = 3,
    budget: Annotated[
        str | None,
        Parameter(
            group=WHAT,
            help="time of the whole run, as 90s, 20m or 1h30m: divided over the cells, equally for all models of a "
            "task, each of which then trains for as many steps as its time allows; the setting's own steps without",
        ),
    ] = None,
    pretrain: Annotated[
        bool, Parameter(group=WHAT, negative="", help="each cell also with self pre-training, at the same budget")
    ] = False,
    speed: Annotated[bool, Parameter(group=WHAT, help="measure steps per second and memory too")] = True,
    lengths: Annotated[
        str | None, Parameter(group=WHAT, help="at which speed is measured; 1024,2048,3072,4096 unless given")
    ] = None,
    out: Annotated[Path | None, Parameter(group=HOW, help="folder of results; runs/arena-SETTING unless given")] = None,
    data: Annotated[
        Path | None, Parameter(group=HOW, help="the folder of data sets; LONGSPAN_DATA unless given")
    ] = None,
    workers: Annotated[
        int | None, Parameter(group=HOW, help="cells side by side; cores divided by threads unless given")
    ] = None,
    threads: Annotated[int, Parameter(group=HOW, help="of each cell")] = 1,
    runner: Annotated[Literal["local", "ray"], Parameter(group=HOW, help="this machine, or a Ray cluster")] = "local",
    address: Annotated[
        str | None, Parameter(group=HOW, help="of the Ray cluster; unless given, one is started on 127.0.0.1 only")
    ] = None,
    retry: Annotated[bool, Parameter(group=HOW, negative="", help="run again what failed before")] = False,
    dry_run: Annotated[bool, Parameter(group=HOW, negative="", help="print the plan and its estimate only")] = False,
    report_only: Annotated[bool, Parameter(group=HOW, negative="", help="only make the page of --out anew")] = False,
    json: AsJson = False,
) -> int:
    """The Long Range Arena: every model on every task, with as many seeds, each cell in a process of its own.

    Results go to OUT/results.jsonl. The same command resumes a run that was stopped, by Ctrl-C or otherwise: cells that
    ended are not run again. A crash or a lack of memory costs one cell. The last step writes OUT/report.html.
    Exit code 0: every cell has a result; 1: some failed; 2: the command was wrong.

    **Examples:**

        longspan arena --budget 20m --seeds 1
        longspan arena --tasks listops,recall --models dense,performer --out runs/two
        longspan arena --data DATA --setting small --models all --dry-run
        longspan arena --runner ray --address auto --setting released --data /shared/data
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
        raise InvalidOption("--address is that of a Ray cluster; give --runner ray too")
    if workers is not None and workers < 1:
        raise InvalidOption(f"--workers must be at least 1, not {workers}")
    given = _arguments(
        tasks, models, setting, seeds, budget, pretrain, _lengths(lengths) if speed else (), threads, _data(data)
    )
    width = max(1, (os.cpu_count() or 1) // threads) if workers is None else workers
    cells = grid.plan(given, workers=width)
    held = Folder(folder, warn=lambda line: screen.print(line, markup=False))
    if dry_run:
        planned = held.planned(given) if (folder / "grid.json").exists() else cells
        records = held.records(mend=False)
        print_plan(folder, planned, left(planned, records, retry=retry), records, width, given, json)
        return 0
    with held.held():
        cells = held.begin(given, cells)
        records = held.records()
        todo = left(cells, records, retry=retry)
        made = _runner(runner, held, given, width, address, retry)
        number = _run(screen, held, made, cells, todo, list(latest(records).values()), width)
    if number is not None:
        again = command(given, folder, data, workers, runner, address)
        screen.print(f"stopped; what is done is kept. Go on with: {again}", markup=False)
        return 128 + number
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
        screen.print(f"{folder.path}: {len(kept)} of {len(cells)} cells ended before", markup=False)
    with session.signals() as stopped, Screen(screen, todo, workers=workers, ended=kept) as shown:
        if todo:
            shown.say(f"{folder.path}: {shown.summary()}")
        return session.run(folder, runner, todo, hear=shown.hear, stopped=stopped)


def _finish(folder: Path, screen: Console, json: bool) -> int:
    """The page, the tables, and whether all is well."""
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


def _arguments(
    tasks: str | None,
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
    usual = WITHOUT_DATA if data is None else WITH_DATA
    chosen = usual if tasks is None else _names(tasks, "tasks", TASKS)
    presets = {name: settings.find(setting, name) for name in chosen if find(name)}
    reading = [name for name in chosen if not find(name).generated]
    if reading and data is None:
        free = ", ".join(name for name in TASKS if find(name).generated)
        raise InvalidInput(
            f"{', '.join(reading)} read{'s' * (len(reading) == 1)} files: give their folder by --data or LONGSPAN_DATA"
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
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if registry is not None:
        found = tuple(registry.adopt(name) if ":" in name else name for name in found)
    if not found:
        raise InvalidOption(f"--{flag} names none; give names with commas between them, or leave it out")
    return found


def _lengths(text: str | None) -> tuple[int, ...]:
    from longspan.arena.runs.grid import LENGTHS

    if text is None:
        return LENGTHS
    parts = _names(text, "lengths")
    if not all(part.isascii() and part.isdecimal() for part in parts):
        raise InvalidOption(f"--lengths must be whole numbers with commas between them, as 1024,2048, not {text!r}")
    return tuple(sorted({int(part) for part in parts}))


def _data(given: Path | None) -> Path | None:
    named = os.environ.get("LONGSPAN_DATA")
    found = Path(named) if given is None and named else given
    if found is not None and not found.is_dir():
        raise InvalidInput(f"the folder of data sets, {found}, is not there; without one, generated tasks are run")
    return found
