"""`longspan advise`."""

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

WHAT = Group("What the attention has to do", sort_key=1)
SIZE = Group("How large it is", sort_key=2)
HOW = Group("How it is answered", sort_key=3)

UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**n for n, p in enumerate("kmgt", 1)}}
UNITS |= {f"{p}ib": 1024**n for n, p in enumerate("kmgt", 1)}


def _what(help: str) -> Parameter:
    return Parameter(group=WHAT, negative="", help=help)


def advise(
    *,
    length: Annotated[int, Parameter(group=WHAT, help="tokens of a text; with --decode, of what was read before")],
    causal: Annotated[bool, _what("no token reads a later one")] = False,
    decode: Annotated[bool, _what("one more token at a time, after LENGTH others; causal, then")] = False,
    cross: Annotated[bool, _what("reads another text")] = False,
    keys: Annotated[int | None, _what("tokens of that other text; as many as LENGTH unless given")] = None,
    padding: Annotated[bool, _what("texts of a batch differ in length")] = False,
    inference: Annotated[bool, _what("forward only; otherwise forward and backward, as in training")] = False,
    memory: Annotated[
        str | None,
        Parameter(group=SIZE, help="what a call may take, as 8GiB, 500MB or 2e9; what this machine has unless given"),
    ] = None,
    batch: Annotated[int, Parameter(group=SIZE, help="texts at a time; 1 unless given")] = 1,
    heads: Annotated[int, Parameter(group=SIZE, help="8 unless given")] = 8,
    head_dim: Annotated[int, Parameter(group=SIZE, help="width of a head; 64 unless given")] = 64,
    threads: Annotated[int | None, Parameter(group=SIZE, help="as many as torch takes unless given")] = None,
    images: Annotated[bool, _what("mechanisms that read the rows and columns of images take part too")] = False,
    quick: Annotated[
        bool,
        Parameter(group=HOW, negative="", help="an estimate in under a minute, from texts of at most 1024 tokens"),
    ] = False,
    quality: Annotated[
        str,
        Parameter(
            group=HOW,
            help="accuracies that stand beside the times: `published` (the Long Range Arena's table), `tiny` (a run "
            "of ours), the folder of your own `longspan arena`, or `none`; published unless given",
        ),
    ] = "published",
    refresh: Annotated[bool, Parameter(group=HOW, negative="", help="measure again what is known")] = False,
    all: Annotated[bool, Parameter(group=HOW, negative="", help="every choice, not the first five")] = False,
    json: AsJson = False,
) -> int:
    """Which attention is the fastest for what you have, on this machine: ranked by time, with the code to use it.

    Every mechanism that can do it is measured at that size, in a process of its own, with its default options, except
    sizes that its paper lets grow with the text. This takes minutes; --quick estimates from short texts instead. What
    would take too long is estimated from shorter texts and marked ≈. Measurements are kept for this machine, so the
    next answer is immediate. Quality is not measured: accuracies on record stand beside the times. Exit code 0: there
    is a choice; 1: nothing fits; 2: the command was wrong.

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

    question = Requirements(
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
    keep_better = known is not None and known.own
    store = Store()
    if quick:  # its measurements are shorter: they are kept apart
        store = Store(store.path.with_stem(f"{store.path.stem}-quick"))
    patience = Patience(repeats=2, call=1.0, case=1.0) if quick else Patience(call=5.0, case=15.0)
    limit, most = (10.0, library.QUICK_SECONDS) if quick else (None, None)
    with MeasureProcesses(patience, limit=limit) as processes, progress(_first(length, quick), most=most) as tell:
        answer = library.quick if quick else library.advise
        found = answer(
            question,
            processes.measure,
            store,
            refresh=refresh,
            accuracy=accuracy,
            keep_better=keep_better,
            tell=tell,
        )
    elsewhere = {} if quick else library.elsewhere(question, store)
    if json:
        print_json(plain(found, store, elsewhere, known))
    else:
        print_advice(output(), found, elsewhere, known, every=all)
    return 0 if found.choices else 1


@dataclass(frozen=True)
class Quality:
    """Accuracies of mechanisms, and what they are of."""

    accuracy: dict[str, float]
    tasks: list[str]
    source: str
    own: bool  # of a run of the user's


def find_quality(name: str) -> Quality | None:
    """What --quality names."""
    from longspan.arena.recorded import DENSE, RECORDED
    from longspan.attention import names
    from longspan.measure.advise import EXACT

    if name == "none":
        return None
    if name in RECORDED:
        recorded = RECORDED[name]
        by_mechanism = {EXACT if model == DENSE else model: value for model, value in recorded.accuracy.items()}
        accuracy = {mechanism: value for mechanism, value in by_mechanism.items() if mechanism in names()}
        return Quality(accuracy, list(recorded.tasks), f"{recorded.name}: {recorded.source}", own=False)
    if not Path(name).exists():
        raise InvalidOption(
            f"--quality is {', '.join(RECORDED)}, none, or a folder that `longspan arena` wrote, not {name!r}"
        )
    accuracy, tasks = read_quality(Path(name))
    return Quality(accuracy, tasks, name, own=True)


def read_bytes(text: str) -> int:
    """The bytes of 8GiB, 500 MB or 2e9."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\+?\d{1,2})?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in UNITS or float(match[1]) * UNITS[match[2]] < 1:
        raise InvalidOption(f"--memory must be a size such as 8GiB, 500MB or 2e9 (bytes), not {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def read_quality(path: Path) -> tuple[dict[str, float], list[str]]:
    """The mean accuracy of each mechanism over the tasks on which all have one, and these tasks."""
    from longspan.arena.runs.efficiency import FUSED
    from longspan.arena.runs.results import RESULTS
    from longspan.attention import names
    from longspan.measure.advise import EXACT
    from longspan.report.results import read

    if path.is_file() and path.name != RESULTS:
        raise InvalidInput(f"{path} is no {RESULTS}: give the folder that `longspan arena --out` wrote")
    results = read(path.parent if path.is_file() else path)
    models = {model: EXACT if model == FUSED else model for model in results.models}
    scores = {
        name: {task: score.mean for task in results.tasks if (score := results.score(task, model)) is not None}
        for model, name in models.items()
        if name in names()
    }
    scores = {name: found for name, found in scores.items() if found}
    tasks = [task for task in results.tasks if scores and all(task in found for found in scores.values())]
    if not tasks:
        raise InvalidInput(f"{path} has no task on which all of its mechanisms have an accuracy")
    return {name: sum(found[task] for task in tasks) / len(tasks) for name, found in scores.items()}, tasks


def plain(advice: "Advice", store: "Store", elsewhere: dict[int, str], known: Quality | None) -> dict[str, Any]:
    """All of it for other programs."""
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
        return f"estimating {length:,} tokens from short texts: under a minute"
    return f"measuring every mechanism at {length:,} tokens: some minutes; --quick answers in under a minute"
