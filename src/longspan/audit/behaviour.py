"""The checks that any module can be put to: what it does, seen from outside."""

import itertools
import math
from collections.abc import Sequence
from contextlib import suppress

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from longspan.audit.counting import LargestTensor, count_flops
from longspan.audit.finding import Measurement, Worst, check, difference, gradients, spread
from longspan.audit.subjects import MechanismSubject, Sample, Subject, append, cut, positions, take

SEEDS = (0, 1, 2)  # several, because a leak through a sort or an argmax shows only when the decision falls otherwise
NO_EFFECT = "the inputs have no effect on the outputs, so nothing is shown"
GROWTH = 0.15  # what a measured exponent may lie above the claimed one


# Padding


def masks(batch: int, length: int) -> dict[str, Tensor]:
    """Padding behind, padding before, and holes; each row keeps something and drops something."""
    place = torch.arange(length)
    short = torch.tensor([max(1, length - 3 - 5 * row) for row in range(batch)])[:, None]
    holes = torch.rand(batch, length, generator=torch.Generator().manual_seed(length)) < 0.6
    holes[:, length // 3], holes[:, length // 2] = True, False
    return {"padding behind": place < short, "padding before": place >= length - short, "holes": holes}


@check("what stands at masked positions changes no other output", lambda claims: claims.padding)
def padding_content(subject: Subject) -> Measurement:
    worst, sample = Worst(), subject.sample(2, subject.length, seed=0)
    gradient = 0.0
    for name, mask in masks(2, subject.length).items():
        with torch.no_grad():
            expected = subject.run(sample, mask)
            scale = spread(expected[mask])
            for seed, size in itertools.product(SEEDS, subject.scales):
                found = subject.run(subject.replace(sample, ~mask, seed + 100, size), mask)
                worst.see(difference(found[mask], expected[mask], scale), f"{name}, noise of size {size:g}")
        gradient = max(gradient, _gradient_from_masked(subject, sample, mask))
    worst.see(gradient, "gradient to masked positions")
    return worst.against(subject.same, fault="" if _reads_others(subject, sample) else NO_EFFECT)


def _gradient_from_masked(subject: Subject, sample: Sample, mask: Tensor) -> float:
    """0, or infinity: no share of a gradient may reach what is masked, however small."""
    leaves, out = subject.differentiable(sample, mask)
    chosen = out[mask]
    reached = [g.movedim(positions(g), 1)[~mask] for g in gradients(chosen, leaves).values()]
    return 0.0 if all(bool((part == 0).all()) for part in reached) else math.inf


def _reads_others(subject: Subject, sample: Sample) -> bool:
    """Whether a position changes the output of other positions at all; without that, no leak can be shown."""
    where = torch.zeros(2, subject.length, dtype=torch.bool)
    where[:, subject.length // 2] = True
    with torch.no_grad():
        before, after = subject.run(sample), subject.run(subject.replace(sample, where, seed=99))
    return difference(after[~where], before[~where], spread(before)) > subject.same


@check("appending masked positions changes no output", lambda claims: claims.padding)
def padding_amount(subject: Subject) -> Measurement:
    worst, length = Worst(), subject.length
    sample = subject.sample(2, length, seed=0)
    more = subject.sample(2, 17, seed=1)
    mask = torch.ones(2, length, dtype=torch.bool)
    with torch.no_grad():
        expected = subject.run(sample)
        for count in range(1, 18):
            longer = append(sample, cut(more, 0, count))
            padded = torch.cat([mask, torch.zeros(2, count, dtype=torch.bool)], dim=1)
            found = subject.run(longer, padded)[:, :length]
            worst.see(difference(found, expected, spread(expected)), f"{count} appended")
    return worst.against(subject.near, fault="" if _reads_others(subject, sample) else NO_EFFECT)


# Causality


@check("later inputs change no earlier output", lambda claims: claims.causal)
def causal_perturbation(subject: Subject) -> Measurement:
    worst, length, moved = Worst(), subject.length, 0.0
    place = torch.arange(length).expand(2, length)
    for seed in SEEDS:
        sample = subject.sample(2, length, seed)
        with torch.no_grad():
            expected = subject.run(sample)
            scale = spread(expected)
            # A maximum over the whole sequence leaks only large values, a rounding only small ones.
            for last, size in itertools.product(_places(length), subject.scales):
                found = subject.run(subject.replace(sample, place > last, seed + 100, size))
                kept = difference(found[:, : last + 1], expected[:, : last + 1], scale)
                worst.see(kept, f"inputs after {last}, noise of size {size:g}")
                moved = max(moved, difference(found[:, last + 1 :], expected[:, last + 1 :], scale))
    return worst.against(subject.same, fault="" if moved > subject.same else NO_EFFECT)


def _places(length: int) -> list[int]:
    """Early, odd, middle and late positions, none of them the last."""
    return sorted({min(place, length - 2) for place in (0, 3, length // 3, length // 2, length - 6, length - 2)})


@check("the gradient from an output to a later input is exactly 0", lambda claims: claims.causal)
def causal_gradient(subject: Subject) -> Measurement:
    worst, length = Worst(), subject.length
    leaves, out = subject.differentiable(subject.sample(2, length, seed=0))
    reached = 0.0
    for last in _places(length):
        for name, gradient in gradients(out[:, last], leaves).items():
            size = gradient.movedim(positions(gradient), 1).abs()
            worst.see(size[:, last + 1 :].max().item(), f"output {last}, input {name!r}")
            reached = max(reached, size[:, : last + 1].max().item())
    return worst.against(0.0, fault="" if reached > 0 else "no gradient reaches any input, so nothing is shown")


@check("a prefix gives the same outputs as it does within the whole", lambda claims: claims.causal)
def prefix(subject: Subject) -> Measurement:
    worst, length = Worst(), subject.length
    sample = subject.sample(2, length, seed=0)
    with torch.no_grad():
        whole = subject.run(sample)
        for stop in sorted({1, 2, 3, 7, length // 2, length // 2 + 1, length - 3, length - 1}):
            found = subject.run(cut(sample, 0, stop))
            worst.see(difference(found, whole[:, :stop], spread(whole)), f"the first {stop}")
    return worst.against(subject.near, fault="" if varies(whole) else NO_EFFECT)


def varies(out: Tensor) -> bool:
    """Whether the outputs differ by position or by row: a constant would pass for anything."""
    return bool((out != out[:1, :1]).any())


# Streaming


def stream(
    subject: Subject, sample: Sample, sizes: Sequence[int], mask: Tensor | None = None
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
def streaming(subject: Subject) -> Measurement:
    return _streaming(subject, {"no mask": None})


@check("reading in chunks gives the same under a mask", lambda claims: claims.streaming and claims.padding)
def streaming_masked(subject: Subject) -> Measurement:
    return _streaming(subject, dict(masks(2, subject.length)))


def _streaming(subject: Subject, cases: dict[str, Tensor | None]) -> Measurement:
    worst, length, sizes = Worst(), subject.length, ""
    sample, fault = subject.sample(2, length, seed=0), ""
    with torch.no_grad():
        for name, mask in cases.items():
            whole = subject.run(sample, mask)
            fault = fault if varies(whole) else NO_EFFECT
            counted = _counted(subject, mask, length)
            scale = spread(whole[counted])
            for chunks in _chunkings(length):
                found, states = stream(subject, sample, chunks, mask)
                worst.see(difference(found[counted], whole[counted], scale), f"chunks {_shorten(chunks)}, {name}")
                sizes = f"state {subject.state_bytes(states[0])} bytes after {chunks[0]}, " + (
                    f"{subject.state_bytes(states[-1])} after {length}"
                )
            worst.see(_old_state(subject, sample, mask), f"an old state continued a second time, {name}")
    return worst.against(subject.near, detail=sizes, fault=fault)


def _counted(subject: Subject, mask: Tensor | None, length: int) -> Tensor:
    """The outputs that are compared. A mechanism's mask says nothing of queries; in other people's modules the output
    at a masked position is nobody's business, and often differs."""
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


def _old_state(subject: Subject, sample: Sample, mask: Tensor | None) -> float:
    """States are values: continuing one in another way must not change what it says the first way."""
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
def batch_invariance(subject: Subject) -> Measurement:
    worst = Worst()
    sample = subject.sample(3, subject.length, seed=0)
    others = torch.ones(3, subject.length, dtype=torch.bool)
    others[1] = False
    with torch.no_grad():
        alone, together = subject.run(take(sample, [1])), subject.run(sample)
        for size in (*subject.scales, 1000.0 * subject.scales[-1]):
            beside = subject.run(subject.replace(sample, others, seed=5, scale=size))
            worst.see(difference(beside[1:2], alone, spread(alone)), f"other rows of size {size:g}")
    return worst.against(subject.same, fault="" if varies(together) else NO_EFFECT)


@check("the same input gives the same bits again", lambda claims: True)
def determinism(subject: Subject) -> Measurement:
    sample = subject.sample(2, subject.length, seed=0)
    with torch.no_grad():
        first = subject.run(sample).clone()
        torch.manual_seed(12345)
        second = subject.run(sample).clone()
        with suppress(Exception):  # whether other lengths work is another claim
            subject.run(subject.sample(1, 7, seed=1))  # a module may not remember a short batch
        third = subject.run(sample)
    changed = [
        name for name, again in (("at once", second), ("after a short batch", third)) if not torch.equal(first, again)
    ]
    worst = max(difference(second, first, spread(first)), difference(third, first, spread(first)))
    return Measurement(worst, 0.0, fault=f"changed {' and '.join(changed)}" if changed else "")


# Sizes, precision, tools


@check("any length works", lambda claims: claims.any_length)
def lengths(subject: Subject) -> Measurement:
    failed = []
    tried = (1, 2, 3, 5, 7, 16, 33, 65, 100)
    for length in tried:
        try:
            with torch.no_grad():
                out = subject.run(subject.sample(2, length, seed=0))
            if out.shape[:2] != (2, length) or not out.isfinite().all():
                failed.append(f"{length}: {tuple(out.shape)}, finite: {bool(out.isfinite().all())}")
        except Exception as error:
            failed.append(f"{length}: {type(error).__name__}")
    return Measurement(len(failed), 0, detail="; ".join(failed) or f"{', '.join(map(str, tried))} work")


@check("finite in float16 and bfloat16, forward and backward", lambda claims: claims.half_precision)
def half_precision(subject: Subject) -> Measurement:
    broken: list[str] = []
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1.0, 10.0)):
        twin = subject.fresh()
        twin.module.to(dtype)
        sample = subject.sample(2, subject.length, seed=0, dtype=dtype)
        sample = {name: part * size if part.is_floating_point() else part for name, part in sample.items()}
        leaves, out = twin.differentiable(sample)
        for name, tensor in {"output": out, **gradients(out, leaves)}.items():
            if not tensor.isfinite().all():
                broken.append(f"{name} in {dtype} for inputs of size {size:g}")
    return Measurement(len(broken), 0, detail="; ".join(broken))


@check("the saved weights are all there is", lambda claims: claims.save_load)
def save_load(subject: Subject) -> Measurement:
    with torch.no_grad():
        for parameter in subject.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # as after training
        sample = subject.sample(2, subject.length, seed=0)
        expected = subject.run(sample)
        tensors = {name: tensor.clone().contiguous() for name, tensor in subject.module.state_dict().items()}
        saved = safetensors.save(tensors)
        if isinstance(subject, MechanismSubject):
            other: Subject = subject.rebuilt(seed=4321)  # other random numbers, which must all be overwritten
        else:
            other = subject.fresh()
            for tensor in other.module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.normal_()
        other.module.load_state_dict(safetensors.load(saved))
        found = other.run(sample)
    return Measurement(difference(found, expected, spread(expected)), 0.0, detail=f"{len(tensors)} tensors")


class _Runner(nn.Module):
    """A subject as a module, which is what torch's tools take."""

    def __init__(self, subject: Subject) -> None:
        super().__init__()
        self.subject, self.module = subject, subject.module

    def forward(self, sample: Sample, mask: Tensor | None = None) -> Tensor:
        return self.subject.run(sample, mask)


@check("torch.compile captures it whole and changes nothing", lambda claims: claims.compile)
def compile(subject: Subject) -> Measurement:
    return _compiled(subject, None)


@check("torch.compile with a mask changes nothing", lambda claims: claims.compile and claims.padding)
def compile_masked(subject: Subject) -> Measurement:
    return _compiled(subject, masks(2, subject.length)["holes"])


def _compiled(subject: Subject, mask: Tensor | None) -> Measurement:
    worst = Worst()
    sample = subject.sample(2, subject.length, seed=0)
    torch.compiler.reset()
    try:
        compiled = subject.fresh()
        compiled.run = torch.compile(_Runner(compiled.fresh()), fullgraph=True, backend="aot_eager")  # type: ignore[method-assign]
        results = []
        for version in (subject, compiled):
            leaves, out = version.differentiable(sample, mask)
            results.append({"output": out, **gradients(out, leaves)})
    finally:
        torch.compiler.reset()
    eager, captured = results
    for name, expected in eager.items():
        worst.see(difference(captured[name], expected, spread(expected)), name)
    return worst.against(subject.near)


@check("torch.export with a dynamic length holds at other lengths", lambda claims: claims.export)
def export(subject: Subject) -> Measurement:
    return _exported(subject, masked=False)


@check("the same with a mask", lambda claims: claims.export and claims.padding)
def export_masked(subject: Subject) -> Measurement:
    return _exported(subject, masked=True)


def _exported(subject: Subject, *, masked: bool) -> Measurement:
    worst, runner, sizes = Worst(), _Runner(subject), subject.export_lengths
    length = torch.export.Dim("length", min=min(sizes), max=max(sizes))

    def arguments(size: int) -> tuple[object, ...]:
        sample = subject.sample(2, size, seed=size)
        return (sample, masks(2, size)["holes"]) if masked else (sample,)

    sample = subject.sample(2, sizes[0], seed=0)
    shapes: tuple[object, ...] = ({name: {positions(part): length} for name, part in sample.items()},)
    if masked:
        shapes = (*shapes, {1: length})
    with torch.no_grad():
        # torch cannot prove that, say, a padded length divides by its block, and would refuse; with asserts at run time
        # it is the runs below that decide. A length that was made a constant is refused all the same.
        program = torch.export.export(
            runner,
            arguments(sizes[0]),
            dynamic_shapes=shapes,
            prefer_deferred_runtime_asserts_over_guards=True,
        ).module()
        for size in sizes:
            expected = runner(*arguments(size))
            found = program(*arguments(size))
            worst.see(difference(found, expected, spread(expected)), f"length {size}")
    return worst.against(subject.near)


# Growth


@check("work and memory grow no faster than claimed", lambda claims: claims.order is not None and not claims.contract)
def order(subject: Subject) -> Measurement:
    claimed, sizes = subject.claims.order, subject.growth_lengths
    assert claimed is not None
    flops, largest = growth(subject, sizes)
    detail = f"matrix products n^{flops:.2f}, largest tensor n^{largest:.2f} between {sizes[0]} and {sizes[-1]}"
    return Measurement(max(flops, largest), claimed + GROWTH, detail=detail)


def growth(subject: Subject, sizes: Sequence[int]) -> tuple[float, float]:
    """The exponents, in the length, of the work of the matrix products and of the largest tensor."""
    flops, elements = [], []
    for size in sizes:
        sample = subject.sample(1, size, seed=0)
        with torch.no_grad():
            flops.append(count_flops(lambda: subject.run(sample)))  # noqa: B023  # run at once
            with LargestTensor() as seen:
                subject.run(sample)
        elements.append(seen.elements)
    return slope(sizes, flops), slope(sizes, elements)


def slope(sizes: Sequence[int], values: Sequence[int]) -> float:
    """The exponent between the two largest sizes, where the lower terms weigh least; 0 if nothing was counted."""
    if 0 in values[-2:]:
        return 0.0
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])
