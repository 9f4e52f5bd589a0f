"""A program against the model itself, on shapes that were not traced and with padding."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.errors import Unsupported
from longspan.hub.export.decoding import ROOM, Prefill, Run, Step, positions_of
from longspan.hub.export.graphs import Graph, Values

LIMITS = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
ROUNDINGS = 3  # how many times the model's own rounding a program may be off, where that exceeds the limit
STEPS = ROOM - 1  # tokens that are read one by one after a prompt


@dataclass(frozen=True)
class Comparison:
    """The largest difference to the model, over all shapes, and what was allowed."""

    graph: str
    shapes: list[list[int]]  # (batch, length) of each input
    difference: float  # in units of the output's standard deviation, or absolute where that is smaller
    limit: float  # the largest allowed; above the usual one where the model itself rounds by more
    rounding: float | None = None  # the model's own difference to float64, if it had to be measured


class _Judge:
    """Compares outputs, and remembers the worst."""

    def __init__(self, graph: Graph, limit: float) -> None:
        self.graph, self.limit = graph, limit
        self.worst, self.allowed = 0.0, limit
        self.rounding: float | None = None

    def see(self, name: str, given: Tensor, expected: Tensor, exact: Callable[[], Tensor], real: Tensor | None) -> None:
        """Refuses an output that is further from the model than allowed.

        Deep models round by more than the limit in float32. Then the model in float64 decides: the program may be
        `ROUNDINGS` times as far from it as the model in float32 is, and no further.
        """
        gap = _gap(self.graph, name, given, expected, real)
        if not gap <= self.limit:
            precise = exact()
            rounding = _gap(self.graph, name, expected, precise, real)
            self.rounding = max(rounding, self.rounding or 0.0)
            self.allowed = max(self.allowed, ROUNDINGS * rounding)
            gap = _gap(self.graph, name, given, precise, real)
            if not gap <= max(self.limit, ROUNDINGS * rounding):
                shape = tuple(given.shape)
                raise Unsupported(
                    f"{self.graph.name}: the exported program is wrong: {name} {shape} is off by {gap:.2g}, and "
                    f"at most {max(self.limit, ROUNDINGS * rounding):.2g} is allowed; nothing was written"
                )
        self.worst = max(self.worst, gap)

    def verdict(self, shapes: Sequence[tuple[int, int]]) -> Comparison:
        sizes = [list(shape) for shape in shapes]
        return Comparison(self.graph.name, sizes, self.worst, self.allowed, self.rounding)


def compare(graph: Graph, run: Run, shapes: Sequence[tuple[int, int]], limit: float) -> Comparison:
    """The outputs of a program and of the model, at real tokens; raises if they differ by more than allowed."""
    judge, precise = _Judge(graph, limit), _Precise(graph)
    for number, (batch, length) in enumerate(shapes):
        inputs = graph.sample(batch, length, seed=100 + number)
        with torch.no_grad():
            expected = graph.expected(inputs)
        given = _run(graph, run, inputs)
        for index, name in enumerate(graph.outputs[: len(expected)]):

            def exact(index: int = index, inputs: Values = inputs) -> Tensor:
                return precise.outputs(inputs)[index]

            judge.see(name, given[index], expected[index], exact, graph.real(inputs))
    return judge.verdict(shapes)


def steps(
    prefill: Prefill, step: Step, runs: Mapping[str, Run], shapes: Sequence[tuple[int, int]], limit: float
) -> Comparison:
    """The logits of a prompt and of some tokens after it, by both programs and by the model."""
    judge, precise = _Judge(step, limit), _Precise(prefill)
    for number, (batch, length) in enumerate(shapes):
        inputs = prefill.sample(batch, length, seed=200 + number)
        expected = _read(prefill, inputs)
        given, *tensors = _run(prefill, runs["prefill"], inputs)
        all_given, at = [given], positions_of(inputs[-1])[:, -1:] + 1
        for turn in range(STEPS):
            given, *after = _run(step, runs["step"], (_next(inputs, turn), at + turn, *tensors))
            all_given.append(given)
            changed = iter(after)
            tensors = [t if entry.context else next(changed) for t, entry in zip(tensors, step.layout.inputs)]
        for index, (ours, theirs) in enumerate(zip(all_given, expected)):

            def exact(index: int = index, inputs: Values = inputs) -> Tensor:
                return precise.logits(inputs)[index]

            judge.see("logits", ours, theirs, exact, inputs[-1] != 0 if not index else None)
    return judge.verdict(shapes)


@torch.no_grad()
def _read(prefill: Prefill, inputs: Values) -> list[Tensor]:
    """The model's own logits of a prompt, and of each token after it."""
    at = positions_of(inputs[-1])[:, -1:] + 1
    logits, state = prefill.read_prompt(inputs)
    all_logits = [logits]
    for turn in range(STEPS):
        logits, state = prefill.model.extend(_next(inputs, turn), state, positions=at + turn)
        all_logits.append(logits)
    return all_logits


def _next(inputs: Values, turn: int) -> Tensor:
    """A token after the prompt: one of the prompt's own."""
    prompt = inputs[-2]
    return prompt[:, turn % prompt.shape[1], None]


class _Precise:
    """The model in float64, made when it is needed."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._copy: Graph | None = None

    @property
    def copy(self) -> Any:
        if self._copy is None:
            self._copy = copy.deepcopy(self.graph).double()
        return self._copy

    @torch.no_grad()
    def outputs(self, inputs: Values) -> Values:
        return self.copy.expected(tuple(x.double() if x.is_floating_point() else x for x in inputs))  # type: ignore[no-any-return]

    def logits(self, inputs: Values) -> list[Tensor]:
        return _read(self.copy, inputs)


def _run(graph: Graph, run: Run, inputs: Values) -> Values:
    try:
        return run(inputs)
    except Exception as error:
        shapes = ", ".join(str(tuple(x.shape)) for x in inputs[:2])
        raise Unsupported(
            f"{graph.name}: the exported program fails on inputs of {shapes}, which the model reads: "
            f"{' '.join(str(error).split())[:240]}"
        ) from error


def _gap(graph: Graph, name: str, given: Tensor, expected: Tensor, real: Tensor | None) -> float:
    """The largest difference at real tokens, in units of the output's deviation where that is above 1."""
    if given.shape != expected.shape:
        raise Unsupported(
            f"{graph.name}: {name} is {tuple(given.shape)} in the program, and {tuple(expected.shape)} here"
        )
    if real is not None and expected.shape[:2] == real.shape:
        given, expected = given[real], expected[real]
    given, expected = given.double(), expected.double()
    finite = expected.isfinite()
    if not torch.equal(finite, given.isfinite()):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    scale = max(1.0, expected[finite].std(correction=0).item())
    return (given - expected)[finite].abs().max().item() / scale


def limit_of(dtype: Any) -> float:
    """The largest difference allowed for weights of this type."""
    return LIMITS[dtype]


__all__ = ["Comparison", "compare", "limit_of", "steps"]
