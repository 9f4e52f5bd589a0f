"""Checks for any module: what its outputs depend on, in evaluation mode."""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress

import torch
from torch import Tensor

from longspan.audit.finding import (
    Measurement,
    NotMeasured,
    Worst,
    check,
    difference,
    gradients,
    one_line,
    spread,
)
from longspan.audit.subjects import AuditSubject, MechanismSubject, Sample, append, cut, positions, take

SEEDS = (0, 1, 2)  # several, because a leak through a sort or an argmax shows only if the decision changes
NO_EFFECT = "the inputs have no effect on the outputs, so nothing is shown"


# Padding


def masks(batch: int, length: int) -> dict[str, Tensor]:
    """Masks with padding behind, padding before, and holes; each row has masked and unmasked positions."""
    position = torch.arange(length)
    short = torch.tensor([max(1, length - 3 - 5 * row) for row in range(batch)])[:, None]
    holes = torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) < 0.6
    holes[:, length // 3], holes[:, length // 2] = True, False
    return {"padding behind": position < short, "padding before": position >= length - short, "holes": holes}


@check("the content of masked positions changes no other output", lambda claims: claims.padding)
def padding_content(subject: AuditSubject) -> Measurement:
    worst, note = Worst(), ""
    for length, seeds, scales in _settings(subject):
        sample = subject.sample(2, length, seed=0)
        for name, mask in masks(2, length).items():
            with torch.no_grad():
                expected = subject.run(sample, mask)
                scale = spread(expected[mask])
                for seed, size in itertools.product(seeds, scales):
                    output = subject.run(subject.replace(sample, ~mask, seed + 100, size), mask)
                    gap = difference(output[mask], expected[mask], scale)
                    worst.see(gap, f"length {length}, {name}, noise of size {size:g}")
            try:
                gradient = _gradient_from_masked(subject, sample, mask)
                worst.see(gradient, f"length {length}, {name}, gradient to masked positions")
            except NotMeasured as reason:
                note = f"gradients were not measured: {reason}"
    _require_effect(subject)
    return worst.against(subject.same, detail=note)


def _settings(subject: AuditSubject) -> Iterator[tuple[int, tuple[int, ...], tuple[float, ...]]]:
    """The lengths to try, with seeds and noise scales; fewer for long inputs, which are slower."""
    yield subject.length, SEEDS, subject.scales
    for length in subject.lengths[1:]:
        yield length, SEEDS[:1], subject.scales[-2:]


def _gradient_from_masked(subject: AuditSubject, sample: Sample, mask: Tensor) -> float:
    """0 if no gradient reaches a masked position, otherwise infinity."""
    leaves, out = subject.differentiable(sample, mask)
    chosen = out[mask]
    reached = [g.movedim(positions(g), 1)[~mask] for g in gradients(chosen, leaves).values()]
    return 0.0 if all(bool((gradient == 0).all()) for gradient in reached) else math.inf


def _require_effect(subject: AuditSubject) -> None:
    """Require that positions affect each other's outputs: otherwise no leak can show."""
    sample, where = subject.sample(2, subject.length, seed=0), torch.zeros(2, subject.length, dtype=torch.bool)
    where[:, subject.length // 2] = True
    with torch.no_grad():
        before, after = subject.run(sample), subject.run(subject.replace(sample, where, seed=99))
    if difference(after[~where], before[~where], spread(before)) <= subject.same:
        raise NotMeasured(NO_EFFECT)


@check("appending masked positions changes no output", lambda claims: claims.padding)
def padding_amount(subject: AuditSubject) -> Measurement:
    worst, attempts = Worst(), Attempts(subject)
    cases = [(subject.length, range(1, 18)), *((length - 17, (1, 17)) for length in subject.lengths[1:])]
    for length, counts in cases:
        sample, more = subject.sample(2, length, seed=0), subject.sample(2, 17, seed=1)
        mask = torch.ones(2, length, dtype=torch.bool)
        expected = attempts.run(sample)
        for count in counts if expected is not None else ():
            padded = torch.cat([mask, torch.zeros(2, count, dtype=torch.bool)], dim=1)
            output = attempts.run(append(sample, cut(more, 0, count)), padded)
            if output is not None and expected is not None:
                gap = difference(output[:, :length], expected, spread(expected))
                worst.see(gap, f"{count} appended to {length}")
                attempts.count += 1
    attempts.require_one()
    _require_effect(subject)
    return worst.against(subject.near, detail=attempts.note)


class Attempts:
    """Runs at lengths that a module may refuse; a module need not take every length unless that is claimed."""

    def __init__(self, subject: AuditSubject, run: Callable[[Sample, Tensor | None], Tensor] | None = None) -> None:
        self.subject, self.count = subject, 0  # how many comparisons were made
        self._run = subject.run if run is None else run
        self._refused: dict[int, str] = {}

    def run(self, sample: Sample, mask: Tensor | None = None) -> Tensor | None:
        """The output, or None if the module raised."""
        try:
            with torch.no_grad():
                return self._run(sample, mask)
        except NotMeasured:  # independent of the length
            raise
        except Exception as error:
            if self.subject.claims.contract:  # our mechanisms take every length
                raise
            tensor = next(iter(sample.values()))
            self._refused[tensor.shape[positions(tensor)]] = one_line(error)
            return None

    @property
    def note(self) -> str:
        if not self._refused:
            return ""
        lengths = ", ".join(map(str, sorted(self._refused)))
        return f"not measured at length {lengths}, where it raised {next(iter(self._refused.values()))}"

    def require_one(self) -> None:
        if not self.count:
            raise NotMeasured(self.note.removeprefix("not measured ") or "nothing could be compared")


# Causality


@check("later inputs change no earlier output", lambda claims: claims.causal)
def causal_perturbation(subject: AuditSubject) -> Measurement:
    worst, moved = Worst(), 0.0
    for length, seeds, scales in _settings(subject):
        position = torch.arange(length).expand(2, length)
        for seed in seeds:
            sample = subject.sample(2, length, seed)
            with torch.no_grad():
                expected = subject.run(sample)
                scale = spread(expected)
                # A maximum over the whole sequence leaks only large values, a rounding only small ones.
                for last, size in itertools.product(cut_points(length), scales):
                    output = subject.run(subject.replace(sample, position > last, seed + 100, size))
                    kept = difference(output[:, : last + 1], expected[:, : last + 1], scale)
                    worst.see(kept, f"length {length}, inputs after {last}, noise of size {size:g}")
                    moved = max(moved, difference(output[:, last + 1 :], expected[:, last + 1 :], scale))
    if moved <= subject.same:
        raise NotMeasured(NO_EFFECT)
    return worst.against(subject.same, detail=subject.causal_hint if worst.value > subject.same else "")


def cut_points(length: int) -> list[int]:
    """Early, odd, middle and late positions, but not the last one."""
    chosen = (0, 3, length // 3, length // 2, 2 * length // 3, length - 6, length - 2)
    return sorted({min(position, length - 2) for position in chosen})


@check("the gradient from an output to a later input is exactly 0", lambda claims: claims.causal)
def causal_gradient(subject: AuditSubject) -> Measurement:
    worst, reached = Worst(), 0.0
    for length in subject.lengths:
        leaves, out = subject.differentiable(subject.sample(2, length, seed=0))
        for last in cut_points(length):
            for name, gradient in gradients(out[:, last], leaves).items():
                size = gradient.movedim(positions(gradient), 1).abs()
                worst.see(size[:, last + 1 :].max().item(), f"length {length}, output {last}, input {name!r}")
                reached = max(reached, size[:, : last + 1].max().item())
    if not reached > 0:
        raise NotMeasured("no gradient reaches any input, so nothing is shown")
    return worst.against(0.0)


@check("a prefix gives the same outputs as it does within the whole", lambda claims: claims.causal)
def prefix(subject: AuditSubject) -> Measurement:
    worst, attempts = Worst(), Attempts(subject)
    for length in subject.lengths:
        sample = subject.sample(2, length, seed=0)
        with torch.no_grad():
            whole = subject.run(sample)
        if not varies(whole):
            raise NotMeasured(NO_EFFECT)
        stops = {1, 2, 3, 7, length // 2 + 1} if length == subject.length else set()
        for stop in sorted({*stops, length // 2, length - 3, length - 1}):
            output = attempts.run(cut(sample, 0, stop))
            if output is not None:
                worst.see(difference(output, whole[:, :stop], spread(whole)), f"the first {stop} of {length}")
                attempts.count += 1
    attempts.require_one()
    return worst.against(subject.near, detail=attempts.note)


def varies(out: Tensor) -> bool:
    """Whether the outputs differ by position or by row: a constant would pass for anything."""
    return bool((out != out[:1, :1]).any())


# Streaming


def stream(
    subject: AuditSubject, sample: Sample, sizes: Sequence[int], mask: Tensor | None = None
) -> tuple[Tensor, list[object]]:
    """The outputs of reading `sample` in chunks of these sizes, and the states after each chunk."""
    first = next(iter(sample.values()))
    state, states, outputs, begin = subject.start(first.shape[0]), [], [], 0
    for size in sizes:
        chunk_mask = None if mask is None else mask[:, begin : begin + size]
        out, state = subject.extend(cut(sample, begin, begin + size), state, chunk_mask)
        outputs.append(out)
        states.append(state)
        begin += size
    return torch.cat(outputs, dim=1), states


@check("reading in chunks gives what reading at once gives", lambda claims: claims.streaming)
def streaming(subject: AuditSubject) -> Measurement:
    return _streaming(subject, {"no mask": None})


@check("reading in chunks gives the same under a mask", lambda claims: claims.streaming and claims.padding)
def streaming_masked(subject: AuditSubject) -> Measurement:
    return _streaming(subject, dict(masks(2, subject.length)))


def _streaming(subject: AuditSubject, cases: dict[str, Tensor | None]) -> Measurement:
    worst, length, sizes = Worst(), subject.length, ""
    sample = subject.sample(2, length, seed=0)
    with torch.no_grad():
        for name, mask in cases.items():
            whole = subject.run(sample, mask)
            if not varies(whole):
                raise NotMeasured(NO_EFFECT)
            counted = _counted(subject, mask, length)
            scale = spread(whole[counted])
            for chunks in _chunkings(length):
                output, states = stream(subject, sample, chunks, mask)
                worst.see(difference(output[counted], whole[counted], scale), f"chunks {_shorten(chunks)}, {name}")
                sizes = f"state {subject.state_bytes(states[0])} bytes after {chunks[0]}, " + (
                    f"{subject.state_bytes(states[-1])} after {length}"
                )
            worst.see(_old_state(subject, sample, mask), f"an old state continued a second time, {name}")
        for longer in subject.lengths[1:] if None in cases.values() else ():
            sample = subject.sample(2, longer, seed=0)
            whole, chunks = subject.run(sample), [longer // 2, longer - longer // 2 - 2, 1, 1]
            output, _ = stream(subject, sample, chunks)
            worst.see(difference(output, whole, spread(whole)), f"chunks {_shorten(chunks)}")
    return worst.against(subject.near, detail=sizes)


def _counted(subject: AuditSubject, mask: Tensor | None, length: int) -> Tensor:
    """The outputs that are compared. A mechanism's mask says nothing of queries; in other people's modules the output
    at a masked position is undefined, and often differs."""
    if mask is None or isinstance(subject, MechanismSubject):
        return torch.ones(2, length, dtype=torch.bool)
    return mask


def _chunkings(length: int) -> list[list[int]]:
    uneven = [3, 1, 7, 2]
    while sum(uneven) < length:
        uneven.append(min(uneven[-4] + 2, length - sum(uneven)))
    return [[length], [length - 1, 1], [1, length - 1], uneven, [1] * length]


def _shorten(chunks: list[int]) -> str:
    text = ",".join(map(str, chunks[:6]))
    return f"{text},…" if len(chunks) > 6 else text


def _old_state(subject: AuditSubject, sample: Sample, mask: Tensor | None) -> float:
    """States are immutable: continuing one twice must give the same result as once."""
    half, length = subject.length // 2, subject.length
    _, states = stream(subject, cut(sample, 0, half), [half], None if mask is None else mask[:, :half])
    rest = cut(sample, half, length)
    rest_mask = None if mask is None else mask[:, half:]
    other = subject.sample(2, length - half, seed=9)
    counted = _counted(subject, rest_mask, length - half)
    first, _ = subject.extend(rest, states[-1], rest_mask)
    first = first.clone()
    subject.extend(other, states[-1], rest_mask)
    again, _ = subject.extend(rest, states[-1], rest_mask)
    return difference(again[counted], first[counted], spread(first[counted]))


# Always measured


@check("a row gives the same alone and beside others", lambda claims: True)
def batch_invariance(subject: AuditSubject) -> Measurement:
    worst = Worst()
    sample = subject.sample(3, subject.length, seed=0)
    others = torch.ones(3, subject.length, dtype=torch.bool)
    others[1] = False
    with torch.no_grad():
        alone, together = subject.run(take(sample, [1])), subject.run(sample)
        for size in (*subject.scales, 1000.0 * subject.scales[-1]):
            beside = subject.run(subject.replace(sample, others, seed=5, scale=size))
            worst.see(difference(beside[1:2], alone, spread(alone)), f"other rows of size {size:g}")
    if not varies(together):
        raise NotMeasured(NO_EFFECT)
    return worst.against(subject.same)


@check("the same input gives the same bits again, whatever was read between", lambda claims: True)
def determinism(subject: AuditSubject) -> Measurement:
    sample = subject.sample(2, subject.length, seed=0)
    with torch.no_grad():
        first = subject.run(sample).clone()
        torch.manual_seed(12345)
        again = {"at once": subject.run(sample).clone()}
        subject.run(subject.sample(2, subject.length, seed=1))  # a module may not remember a batch
        again["after another batch"] = subject.run(sample).clone()
        with suppress(Exception):  # whether other lengths work is a separate claim
            subject.run(subject.sample(1, 7, seed=1))
        again["after a short batch"] = subject.run(sample)
    changed = [when for when, out in again.items() if not torch.equal(first, out)]
    worst = max(difference(out, first, spread(first)) for out in again.values())
    return Measurement(worst, 0.0, fault=f"changed {' and '.join(changed)}" if changed else "")
