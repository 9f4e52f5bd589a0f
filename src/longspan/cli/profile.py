"""`longspan profile`."""

import json as json_format
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longspan import files
from longspan.cli.inputs import AsJson, Dotted, check_writable, dotted, parts, print_json, whole_numbers
from longspan.cli.measuring import progress
from longspan.cli.profile_tables import print_rows
from longspan.cli.tables import output
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.measure.case import Case, Kind, Measured
    from longspan.measure.process import MeasureProcesses
    from longspan.measure.profile import ProfileRow

WHAT = Group("What is measured", sort_key=1)
HOW = Group("How it is measured", sort_key=2)


def profile(
    *overrides: Dotted,
    mechanisms: Annotated[
        str | None, Parameter(group=WHAT, help="names from `longspan list` with commas; all unless given")
    ] = None,
    lengths: Annotated[str, Parameter(group=WHAT, help="with commas")] = "1024,4096,16384",
    causal: Annotated[bool, Parameter(group=WHAT, negative="", help="the causal forms")] = False,
    backward: Annotated[bool, Parameter(group=WHAT, negative="", help="forward and backward too")] = False,
    decode: Annotated[bool, Parameter(group=WHAT, negative="", help="one more token after each length too")] = False,
    padding: Annotated[bool, Parameter(group=WHAT, negative="", help="with a tenth of the keys hidden")] = False,
    batch: Annotated[int, Parameter(group=WHAT, help="texts at once")] = 1,
    heads: Annotated[int, Parameter(group=WHAT, help="of the attention")] = 8,
    head_dim: Annotated[int, Parameter(group=WHAT, help="width of each head")] = 64,
    threads: Annotated[int, Parameter(group=HOW, help="that each case may use")] = 1,
    repeats: Annotated[int, Parameter(group=HOW, help="of each case; the least time counts")] = 5,
    patience: Annotated[float, Parameter(group=HOW, help="seconds of one call; what takes longer is left out")] = 20.0,
    json: AsJson = False,
    out: Annotated[Path | None, Parameter(help="write the whole record to this file, as --json prints it")] = None,
    html: Annotated[Path | None, Parameter(help="write it as a page with charts to this file")] = None,
) -> int:
    """Measure time and memory of each mechanism on this machine, beside dense attention, and how they grow.

    Heads are already projected, in float32 on the CPU. Every mechanism is held against `naive`, softmax attention with
    its n×n weights in memory, and `sdpa`, torch's own fused kernel. Each case has a process of its own, takes turns
    with a large matrix product, and what is compared is the least time in units of that product, so that a machine
    which others use too distorts little. Memory is the peak beyond the inputs; when decoding, that of the state.
    What would take too long or too much memory is left out, and said. Options of mechanisms that are not the defaults
    are given by their names (`longspan show window`), as --window.window 512. Exit code 0: measured; 1: a case failed;
    2: the command was wrong.

    **Examples:**

        longspan profile --mechanisms window,linear --lengths 1024,4096 --causal
        longspan profile --backward --decode --html profile.html
        longspan profile --lengths 2048,8192,32768 --threads 2 --out profile.json
        longspan profile --mechanisms window,routing --window.window 512 --routing.clusters 64
    """
    from longspan.attention.registry import ATTENTION, names
    from longspan.measure import machine
    from longspan.measure.case import Case
    from longspan.measure.process import MeasureProcesses
    from longspan.measure.profile import plan
    from longspan.measure.run_case import Patience

    for name, value in (("batch", batch), ("heads", heads), ("threads", threads), ("repeats", repeats)):
        if value < 1:
            raise InvalidOption(f"--{name} must be at least 1, not {value}")
    if head_dim < 1 or patience <= 0:
        raise InvalidOption(f"--head-dim and --patience must be above 0, not {head_dim} and {patience:g}")
    for path in (out, html):
        check_writable(path)
    chosen = names() if mechanisms is None else parts(mechanisms, "--mechanisms")
    chosen = [ATTENTION.adopt(name) if ":" in name else name for name in chosen]
    asked: dict[Kind, bool] = {"forward": True, "training": backward, "decode": decode}
    like = Case(
        mechanism=chosen[0],
        length=1,
        causal=causal,
        padding=padding,
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        threads=threads,
    )
    kinds = [kind for kind, wanted in asked.items() if wanted]
    cases = plan(chosen, tuple(sorted(set(whole_numbers(lengths, "--lengths")))), kinds, like, _options(overrides))
    waits = Patience(repeats=repeats, call=patience)
    with MeasureProcesses(waits) as processes:
        rows = _measure(cases, processes)
    record: dict[str, Any] = {
        "machine": {**machine.describe(), "torch_threads": threads},
        "settings": {**asdict(like), "patience": asdict(waits)},
        "rows": [row.plain() for row in rows],
    }
    if json:
        print_json(record)
    else:
        print_rows(output(), rows)
    if out is not None:
        files.write_text(out, json_format.dumps(record, indent=1, ensure_ascii=False) + "\n")
    if html is not None:
        from longspan.report.profile import profile_page

        files.write_text(html, profile_page(rows, record["machine"], record["settings"]))
    for path in (out, html):
        if path is not None and not json:
            print(f"wrote {path}")
    return 1 if any(point.measured.state == "failed" for row in rows for point in row.points) else 0


def _options(overrides: Sequence[str]) -> dict[str, dict[str, Any]]:
    """By mechanism."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in dotted(overrides, "options of mechanisms are given as --window.window 512").items():
        mechanism, _, option = name.partition(".")
        found.setdefault(mechanism, {})[option] = value
    return found


def _measure(cases: "Sequence[Case]", processes: "MeasureProcesses") -> "list[ProfileRow]":
    from longspan.measure import profile as profiles

    console = Console(stderr=True, highlight=False)
    with ExitStack() as stack:
        if console.is_terminal:
            shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            bar = stack.enter_context(Progress(*shown, console=console, transient=True))
            task = bar.add_task("starting", total=len(cases))

            def show(done: int, total: int, now: str) -> None:
                bar.update(task, completed=done, description=now)
        else:
            show = stack.enter_context(progress(f"measuring {len(cases)} cases, each in a process of its own"))
        done = 0

        def tell(found: "Measured | None") -> None:
            nonlocal done
            done += found is not None
            if done < len(cases):
                following = cases[done]
                show(done, len(cases), f"{following.mechanism}, {following.kind}, {following.length:,} tokens")

        tell(None)
        return profiles.profile(cases, processes.measure, tell)
