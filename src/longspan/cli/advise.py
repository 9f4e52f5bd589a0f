"""`longspan advise`: rank the mechanisms by speed for a given size on this machine."""

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.measuring import progress
from longspan.cli.tables import output
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.measure.advise import Advice
    from longspan.measure.store import Store

WHAT = Group("What you need", sort_key=1)
SIZE = Group("Sizes", sort_key=2)
HOW = Group("How to answer", sort_key=3)

UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}}
UNITS |= {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}


def _what(help: str) -> Parameter:
    return Parameter(group=WHAT, negative="", help=help)


def advise(
    *,
    length: Annotated[int, Parameter(group=WHAT, help="sequence length in tokens; with --decode, tokens already read")],
    causal: Annotated[bool, _what("no token attends to a later one")] = False,
    decode: Annotated[bool, _what("generate one token at a time after LENGTH others (implies --causal)")] = False,
    cross: Annotated[bool, _what("cross-attention: the queries attend to another sequence")] = False,
    keys: Annotated[int | None, _what("with --cross: length of the other sequence (default: LENGTH)")] = None,
    padding: Annotated[bool, _what("sequences in a batch differ in length")] = False,
    inference: Annotated[bool, _what("forward pass only (default: forward and backward, as in training)")] = False,
    memory: Annotated[
        str | None,
        Parameter(
            group=SIZE, help="memory limit of one call: 8GiB, 500MB or 2e9 (default: this machine's free memory)"
        ),
    ] = None,
    batch: Annotated[int, Parameter(group=SIZE, help="sequences per batch (default: 1)")] = 1,
    heads: Annotated[int, Parameter(group=SIZE, help="attention heads (default: 8)")] = 8,
    head_dim: Annotated[int, Parameter(group=SIZE, help="width of a head (default: 64)")] = 64,
    threads: Annotated[int | None, Parameter(group=SIZE, help="CPU threads (default: torch's own number)")] = None,
    images: Annotated[bool, _what("include mechanisms for images, which need rows and columns")] = False,
    quick: Annotated[
        bool,
        Parameter(group=HOW, negative="", help="estimate in under a minute, from at most 1024 tokens"),
    ] = False,
    quality: Annotated[
        str,
        Parameter(
            group=HOW,
            help="accuracies to show beside the times: `published` (the Long Range Arena's table), `tiny` (a run by "
            "longspan's authors), the folder of your own `longspan arena` run, or `none` (default: published)",
        ),
    ] = "published",
    refresh: Annotated[bool, Parameter(group=HOW, negative="", help="ignore stored measurements")] = False,
    all: Annotated[bool, Parameter(group=HOW, negative="", help="show every choice, not only the first five")] = False,
    json: AsJson = False,
) -> int:
    """Find the fastest attention for your sizes on this machine, with the code to use it.

    Measures every mechanism that supports what you need, at that size, each in its own process, with default options
    (except sizes that, by the paper, grow with the length). This takes minutes; --quick estimates from short sequences
    instead. Cases that would take too long are estimated from shorter sequences and marked ≈. Measurements are stored
    for this machine, so asking again is immediate. Quality is not measured: known accuracies are shown beside the
    times. Exit code 0: found at least one choice; 1: nothing fits; 2: invalid command.

    **Examples:**

        longspan advise --length 8192
        longspan advise --length 65536 --quick
        longspan advise --length 8192 --causal --memory 8GiB
        longspan advise --length 16384 --decode
        longspan advise --length 512 --cross --keys 4096 --padding --batch 4
        longspan advise --length 4096 --quality runs/arena-small --all
    """
    import torch

    from longspan.cli.advise_screen import print_advice
    from longspan.measure import advise as library
    from longspan.measure.process import MeasureProcesses
    from longspan.measure.requirements import Requirements
    from longspan.measure.run_case import Patience
    from longspan.measure.store import Store

    requirements = Requirements(
        length=length,
        causal=causal,
        decode=decode,
        keys=length if cross and keys is None else keys,
        padding=padding,
        training=not inference,
        memory=None if memory is None else read_bytes(memory),
        batch=batch,
        heads=heads,
        head_dim=head_dim,
        threads=torch.get_num_threads() if threads is None else threads,
        images=images,
    )
    known = find_quality(quality)
    accuracy = None if known is None else known.accuracy
    keep_better = known is not None and known.users_run
    store = Store()
    if quick:  # its measurements are shorter: store them separately
        store = Store(store.path.with_stem(f"{store.path.stem}-quick"))
    patience = Patience(repeats=2, call=1.0, case=1.0) if quick else Patience(call=5.0, case=15.0)
    limit, most = (10.0, library.QUICK_SECONDS) if quick else (None, None)
    with MeasureProcesses(patience, limit=limit) as processes, progress(_first(length, quick), most=most) as tell:
        rank = library.quick if quick else library.advise
        advice = rank(
            requirements,
            processes.measure,
            store,
            refresh=refresh,
            accuracy=accuracy,
            keep_better=keep_better,
            tell=tell,
        )
    elsewhere = {} if quick else library.elsewhere(requirements, store)
    if json:
        print_json(plain(advice, store, elsewhere, known))
    else:
        print_advice(output(), advice, elsewhere, known, every=all)
    return 0 if advice.choices else 1


@dataclass(frozen=True)
class Quality:
    """Accuracies of mechanisms, the tasks they are averaged over, and their source."""

    accuracy: dict[str, float]
    tasks: list[str]
    source: str
    users_run: bool  # the source is an arena run of the user's


def find_quality(name: str) -> Quality | None:
    """The accuracies that --quality asks for."""
    from longspan.arena.recorded import DENSE, RECORDED
    from longspan.attention import names
    from longspan.measure.advise import EXACT

    if name == "none":
        return None
    if name in RECORDED:
        recorded = RECORDED[name]
        by_mechanism = {EXACT if model == DENSE else model: value for model, value in recorded.accuracy.items()}
        accuracy = {mechanism: value for mechanism, value in by_mechanism.items() if mechanism in names()}
        return Quality(accuracy, list(recorded.tasks), f"{recorded.name}: {recorded.source}", users_run=False)
    if not Path(name).exists():
        raise InvalidOption(
            f"--quality must be {', '.join(RECORDED)}, none, or a folder that `longspan arena` wrote, not {name!r}"
        )
    accuracy, tasks = read_quality(Path(name))
    return Quality(accuracy, tasks, name, users_run=True)


def read_bytes(text: str) -> int:
    """A size such as 8GiB, 500 MB or 2e9 as a number of bytes."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\+?\d{1,2})?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in UNITS or float(match[1]) * UNITS[match[2]] < 1:
        raise InvalidOption(f"--memory must be a size such as 8GiB, 500MB or 2e9 (bytes), not {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def read_quality(path: Path) -> tuple[dict[str, float], list[str]]:
    """Each mechanism's mean accuracy over the tasks that all mechanisms have results for, and these tasks."""
    from longspan.arena.runs.efficiency import FUSED
    from longspan.arena.runs.results import RESULTS
    from longspan.attention import names
    from longspan.measure.advise import EXACT
    from longspan.report.results import read

    if path.is_file() and path.name != RESULTS:
        raise InvalidInput(f"{path} is not a {RESULTS}: give the folder that `longspan arena --out` wrote")
    results = read(path.parent if path.is_file() else path)
    models = {model: EXACT if model == FUSED else model for model in results.models}
    scores = {
        name: {task: score.mean for task in results.tasks if (score := results.score(task, model)) is not None}
        for model, name in models.items()
        if name in names()
    }
    scores = {name: by_task for name, by_task in scores.items() if by_task}
    tasks = [task for task in results.tasks if scores and all(task in by_task for by_task in scores.values())]
    if not tasks:
        raise InvalidInput(f"{path} has no task on which all of its mechanisms have an accuracy")
    return {name: sum(by_task[task] for task in tasks) / len(tasks) for name, by_task in scores.items()}, tasks


def plain(advice: "Advice", store: "Store", elsewhere: dict[int, str], known: Quality | None) -> dict[str, Any]:
    """The advice as JSON data."""
    from longspan.measure import usage

    front = [choice.mechanism for choice in advice.front]
    return {
        "ranked_by": "time",
        "question": asdict(advice.question),
        "room": advice.room,
        "choices": [
            {**asdict(choice), "per_token": choice.per_token, "python": usage.python(choice.case)}
            for choice in advice.choices
        ],
        "ruled_out": dict(advice.ruled_out),
        "front": front,
        "tasks": [] if known is None else known.tasks,
        "quality": None if known is None else known.source,
        "elsewhere": elsewhere,
        "measurements": str(store.path),
    }


def _first(length: int, quick: bool) -> str:
    if quick:
        return f"estimating {length:,} tokens from short sequences: under a minute"
    return f"measuring every mechanism at {length:,} tokens takes some minutes; --quick takes under a minute"
