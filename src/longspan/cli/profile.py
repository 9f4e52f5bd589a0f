"""`longspan profile`: time and memory of mechanisms by length."""

import json as json_format
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from longspan import files
from longspan.cli.inputs import AsJson, Dotted, check_writable, comma_separated, dotted, print_json, whole_numbers
from longspan.cli.measuring import progress
from longspan.cli.profile_tables import print_rows
from longspan.cli.tables import output
from longspan.cli.terminal import Console
from longspan.errors import InvalidOption

if TYPE_CHECKING:
    from longspan.measure.case import Case, Kind, Measured
    from longspan.measure.process import MeasureProcesses
    from longspan.measure.profile import ProfileRow

WHAT = Group("What to measure", sort_key=1)
HOW = Group("How to measure", sort_key=2)


def profile(
    *overrides: Dotted,
    mechanisms: Annotated[
        str | None, Parameter(group=WHAT, help="names from `longspan list`, separated by commas (default: all)")
    ] = None,
    lengths: Annotated[
        str, Parameter(group=WHAT, help="sequence lengths, separated by commas (default: 1024,4096,16384)")
    ] = "1024,4096,16384",
    causal: Annotated[bool, Parameter(group=WHAT, negative="", help="measure the causal forms")] = False,
    backward: Annotated[bool, Parameter(group=WHAT, negative="", help="also measure forward plus backward")] = False,
    decode: Annotated[bool, Parameter(group=WHAT, negative="", help="also measure decoding one more token")] = False,
    padding: Annotated[bool, Parameter(group=WHAT, negative="", help="mask a tenth of the keys")] = False,
    batch: Annotated[int, Parameter(group=WHAT, help="sequences per batch (default: 1)")] = 1,
    heads: Annotated[int, Parameter(group=WHAT, help="attention heads (default: 8)")] = 8,
    head_dim: Annotated[int, Parameter(group=WHAT, help="width of a head (default: 64)")] = 64,
    threads: Annotated[int, Parameter(group=HOW, help="CPU threads per case (default: 1)")] = 1,
    repeats: Annotated[int, Parameter(group=HOW, help="runs of each case; the fastest counts (default: 5)")] = 5,
    patience: Annotated[float, Parameter(group=HOW, help="skip calls that take longer than this; seconds (20)")] = 20.0,
    json: AsJson = False,
    out: Annotated[Path | None, Parameter(help="write the whole record to this file, as --json prints it")] = None,
    html: Annotated[Path | None, Parameter(help="write a page with charts to this file")] = None,
) -> int:
    """Measure time and memory of each mechanism on this machine, how they grow, and how dense attention compares.

    Measures the attention alone, without projections, in float32 on the CPU. Every mechanism is compared with `naive`
    (softmax attention with its n×n weights in memory) and `sdpa` (torch's fused kernel). Each case runs in its own
    process and alternates with a large matrix product; the least time in units of that product is compared, so that
    other load on the machine distorts little. Memory is the peak beyond the inputs, or the state when decoding. Cases
    that would take too long or too much memory are skipped and listed. Options of a mechanism (`longspan show window`)
    are given as --window.window 512. Exit code 0: measured; 1: a case failed; 2: invalid command.

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
    chosen = names() if mechanisms is None else comma_separated(mechanisms, "--mechanisms")
    chosen = [ATTENTION.adopt(name) if ":" in name else name for name in chosen]
    wanted: dict[Kind, bool] = {"forward": True, "training": backward, "decode": decode}
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
    kinds = [kind for kind, is_wanted in wanted.items() if is_wanted]
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
    """The options of each mechanism, by its name."""
    options: dict[str, dict[str, Any]] = {}
    for name, value in dotted(overrides, "options of mechanisms are given as --window.window 512").items():
        mechanism, _, option = name.partition(".")
        options.setdefault(mechanism, {})[option] = value
    return options


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
            show = stack.enter_context(progress(f"measuring {len(cases)} cases, each in its own process"))
        done = 0

        def tell(measured: "Measured | None") -> None:
            nonlocal done
            done += measured is not None
            if done < len(cases):
                following = cases[done]
                show(done, len(cases), f"{following.mechanism}, {following.kind}, {following.length:,} tokens")

        tell(None)
        return profiles.profile(cases, processes.measure, tell)
