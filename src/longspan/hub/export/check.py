"""A program against the model itself, on shapes that were not traced and with padding."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.errors import Unsupported
from longspan.hub.export.decoding import ROOM, Prefill, Run, Step, positions_of
from longspan.hub.export.graphs import Graph, Values

LIMITS = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
STEPS = ROOM - 1  # tokens that are read one by one after a prompt


@dataclass(frozen=True)
class Comparison:
    """The largest difference to the model, over all shapes, and where it was."""

    graph: str
    shapes: list[list[int]]  # (batch, length) of each input
    difference: float  # in units of the output's standard deviation, or absolute where that is smaller
    limit: float


def compare(graph: Graph, run: Run, shapes: Sequence[tuple[int, int]], limit: float) -> Comparison:
    """The outputs of a program and of the model, at real tokens; raises if they differ by more than `limit`."""
    worst = 0.0
    for number, (batch, length) in enumerate(shapes):
        inputs = graph.sample(batch, length, seed=100 + number)
        with torch.no_grad():
            expected = graph.expected(inputs)
        given = _run(graph, run, inputs)
        for name, ours, theirs in zip(graph.outputs, given, expected):
            worst = max(worst, _difference(graph, name, ours, theirs, graph.real(inputs), limit, (batch, length)))
    return Comparison(graph.name, [list(shape) for shape in shapes], worst, limit)


def steps(
    prefill: Prefill, step: Step, runs: Mapping[str, Run], shapes: Sequence[tuple[int, int]], limit: float
) -> Comparison:
    """The logits of a prompt and of some tokens after it, by both programs and by the model."""
    worst = 0.0
    for number, (batch, length) in enumerate(shapes):
        inputs = prefill.sample(batch, length, seed=200 + number)
        mask = inputs[-1]
        at = positions_of(mask)[:, -1:] + 1
        with torch.no_grad():
            logits, state = prefill.read_prompt(inputs)
        given, *tensors = _run(prefill, runs["prefill"], inputs)
        worst = max(worst, _difference(prefill, "logits", given, logits, mask != 0, limit, (batch, length)))
        for turn in range(STEPS):
            at_turn = turn % inputs[-2].shape[1]
            new = inputs[-2][:, at_turn : at_turn + 1]
            with torch.no_grad():
                logits, state = step.model.extend(new, state, positions=at + turn)
            given, *after = _run(step, runs["step"], (new, at + turn, *tensors))
            worst = max(worst, _difference(step, "logits", given, logits, None, limit, (batch, length + turn + 1)))
            changed = iter(after)
            tensors = [t if entry.context else next(changed) for t, entry in zip(tensors, step.layout.inputs)]
    return Comparison(step.name, [list(shape) for shape in shapes], worst, limit)


def _run(graph: Graph, run: Run, inputs: Values) -> Values:
    try:
        return run(inputs)
    except Exception as error:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs[:2])
        raise Unsupported(
            f"{graph.name}: the exported program fails on inputs of {shapes}, which the model reads: "
            f"{' '.join(str(error).split())[:240]}"
        ) from error


def _difference(
    graph: Graph, name: str, given: Tensor, expected: Tensor, real: Tensor | None, limit: float, shape: tuple[int, int]
) -> float:
    if given.shape != expected.shape:
        raise Unsupported(
            f"{graph.name}: {name} is {tuple(given.shape)} in the program, and {tuple(expected.shape)} here"
        )
    if real is not None and expected.shape[:2] == real.shape:
        given, expected = given[real], expected[real]
    given, expected = given.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(finite, given.isfinite()):
        difference = float("inf")
    elif not bool(finite.any()):
        return 0.0
    else:
        scale = max(1.0, expected[finite].std(correction=0).item())
        difference = (given - expected)[finite].abs().max().item() / scale
    if not difference <= limit:
        raise Unsupported(
            f"{graph.name}: the exported program is wrong: {name} differs by {difference:.2g} at {shape}, "
            f"and at most {limit:g} is allowed; nothing was written"
        )
    return difference


def limit_of(dtype: Any) -> float:
    """The largest difference allowed for weights of this type."""
    return LIMITS[dtype]


__all__ = ["Comparison", "compare", "limit_of", "steps"]
