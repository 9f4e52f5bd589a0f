"""`longspan advise`."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter
from rich.console import Console

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.tables import output
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from collections.abc import Callable

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
    quality: Annotated[
        Path | None, Parameter(group=HOW, help="folder of a `longspan arena`: accuracies, and the Pareto front")
    ] = None,
    refresh: Annotated[bool, Parameter(group=HOW, negative="", help="measure again what is known")] = False,
    all: Annotated[bool, Parameter(group=HOW, negative="", help="every choice, not the first five")] = False,
    json: AsJson = False,
) -> int:
    """Which attention is the fastest for what you have, on this machine: ranked, with the code to use it.

    Every mechanism that can do it is measured at that size, in a process of its own, with its default options, but for
    sizes that its paper lets grow with the text. What would take too long is foretold from shorter texts, and marked
    ≈. Measurements are kept for this machine: the next answer comes at once. Exit code 0: there is a choice; 1: nothing
    fits; 2: the command was wrong.

    **Examples:**

        longspan advise --length 8192
        longspan advise --length 8192 --causal --memory 8GiB
        longspan advise --length 16384 --decode
        longspan advise --length 512 --cross --keys 4096 --padding --batch 4
        longspan advise --length 4096 --quality runs/arena-small --all
    """
    import torch

    from longspan.cli.advise_screen import print_advice
    from longspan.measure import advise as library
    from longspan.measure.attempt import Patience
    from longspan.measure.process import Processes
    from longspan.measure.question import Question
    from longspan.measure.store import Store

    question = Question(
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
    )
    accuracy, tasks = (None, []) if quality is None else read_quality(quality)
    store = Store()
    with Processes(Patience(call=5.0, case=15.0)) as processes, _progress() as tell:
        found = library.advise(question, processes.measure, store, refresh=refresh, accuracy=accuracy, tell=tell)
    elsewhere = library.elsewhere(question, store)
    if json:
        print_json(plain(found, store, elsewhere, tasks))
    else:
        print_advice(output(), found, elsewhere, tasks, every=all)
    return 0 if found.choices else 1


def read_bytes(text: str) -> int:
    """The bytes of 8GiB, 500 MB or 2e9."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?(?:e\+?\d{1,2})?)\s*([a-z]*)\s*", text.lower())
    if match is None or match[2] not in UNITS or float(match[1]) * UNITS[match[2]] < 1:
        raise InvalidOption(f"--memory must be a size such as 8GiB, 500MB or 2e9 (bytes), not {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def read_quality(path: Path) -> tuple[dict[str, float], list[str]]:
    """The mean accuracy of each mechanism over the tasks on which all have one, and these tasks."""
    from longspan.arena.efficiency import FUSED
    from longspan.arena.results import RESULTS
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


def plain(advice: "Advice", store: "Store", elsewhere: dict[int, str], tasks: list[str]) -> dict[str, Any]:
    """All of it for other programs."""
    from longspan.measure import usage

    front = [choice.mechanism for choice in advice.front]
    return {
        "question": asdict(advice.question),
        "room": advice.room,
        "choices": [
            {**asdict(choice), "per_token": choice.per_token, "python": usage.python(choice.case)}
            for choice in advice.choices
        ],
        "ruled_out": dict(advice.ruled_out),
        "front": front,
        "tasks": tasks,
        "elsewhere": elsewhere,
        "measurements": str(store.path),
    }


@contextmanager
def _progress() -> "Iterator[Callable[[str], None]]":
    """A line on the terminal while something is measured."""
    console = Console(stderr=True)
    with console.status("reading what is known") as status:
        yield lambda line: status.update(line)
