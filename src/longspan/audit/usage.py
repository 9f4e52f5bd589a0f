"""Checks of other uses of a module: other lengths and precisions, saving, compiling, exporting."""

import itertools
from collections.abc import Sequence

import torch
from safetensors import torch as safetensors
from torch import Tensor, nn

from longspan.audit.behaviour import Attempts, masks
from longspan.audit.finding import Measurement, Worst, check, difference, gradients, one_line, spread
from longspan.audit.subjects import AuditSubject, MechanismSubject, Sample, positions


@check("any length works", lambda claims: claims.any_length)
def lengths(subject: AuditSubject) -> Measurement:
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


@check("finite in float16 and bfloat16, forward and backward", lambda claims: claims.half_precision, must_run=True)
def half_precision(subject: AuditSubject) -> Measurement:
    broken: list[str] = []
    for dtype, size in itertools.product((torch.float16, torch.bfloat16), (1.0, 10.0)):
        copy = subject.fresh()
        copy.module.to(dtype)
        sample = subject.sample(2, subject.length, seed=0, dtype=dtype)
        sample = {name: part * size if part.is_floating_point() else part for name, part in sample.items()}
        leaves, out = copy.differentiable(sample)
        for name, tensor in {"output": out, **gradients(out, leaves)}.items():
            if not tensor.isfinite().all():
                broken.append(f"{name} in {dtype} for inputs of size {size:g}")
    return Measurement(len(broken), 0, detail="; ".join(broken))


@check("the saved weights are all there is", lambda claims: claims.save_load, must_run=True)
def save_load(subject: AuditSubject) -> Measurement:
    with torch.no_grad():
        for parameter in subject.module.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))  # as after training
        sample = subject.sample(2, subject.length, seed=0)
        expected = subject.run(sample)
        tensors = {name: tensor.clone().contiguous() for name, tensor in subject.module.state_dict().items()}
        saved = safetensors.save(tensors)
        if isinstance(subject, MechanismSubject):
            other: AuditSubject = subject.rebuilt(seed=4321)  # other random numbers, which must all be overwritten
        else:
            other = subject.fresh()
            for tensor in other.module.state_dict().values():
                if tensor.is_floating_point():
                    tensor.normal_()
        other.module.load_state_dict(safetensors.load(saved))
        output = other.run(sample)
    return Measurement(difference(output, expected, spread(expected)), 0.0, detail=f"{len(tensors)} tensors")


class _Runner(nn.Module):
    """A subject as a module, for torch.compile and torch.export."""

    def __init__(self, subject: AuditSubject) -> None:
        super().__init__()
        self.subject, self.module = subject, subject.module

    def forward(self, sample: Sample, mask: Tensor | None = None) -> Tensor:
        return self.subject.run(sample, mask)


@check(
    "torch.compile captures it whole and changes nothing, at several lengths",
    lambda claims: claims.compile,
    must_run=True,
)
def compile(subject: AuditSubject) -> Measurement:
    return _compiled(subject, subject.compile_lengths, masked=False)


@check("torch.compile with a mask changes nothing", lambda claims: claims.compile and claims.padding, must_run=True)
def compile_masked(subject: AuditSubject) -> Measurement:
    return _compiled(subject, (subject.length,), masked=True)


def _compiled(subject: AuditSubject, lengths: Sequence[int], *, masked: bool) -> Measurement:
    """Outputs and gradients, compiled and not. The first length is compiled as a constant, the second as a variable,
    and the others must fit what there is or be compiled anew."""
    worst, attempts, length = Worst(), Attempts(subject), subject.length
    lengths = [length for length in lengths if attempts.run(subject.sample(2, length, seed=0)) is not None]
    torch.compiler.reset()
    try:
        compiled = subject.fresh()
        compiled.run = torch.compile(_Runner(compiled.fresh()), fullgraph=True, backend="aot_eager")  # type: ignore[method-assign]
        for length in lengths:
            sample, mask = subject.sample(2, length, seed=0), masks(2, length)["holes"] if masked else None
            results = []
            for version in (subject, compiled):
                leaves, out = version.differentiable(sample, mask)
                results.append({"output": out, **gradients(out, leaves, retain=False)})
            eager, captured = results
            for name, expected in eager.items():
                worst.see(difference(captured[name], expected, spread(expected)), f"length {length}, {name}")
    except Exception as error:
        raise RuntimeError(f"at length {length} of {', '.join(map(str, lengths))}: {one_line(error)}") from error
    finally:
        torch.compiler.reset()
    return worst.against(subject.near, detail=f"lengths {', '.join(map(str, lengths))}")


@check("torch.export with a dynamic length holds at other lengths", lambda claims: claims.export, must_run=True)
def export(subject: AuditSubject) -> Measurement:
    return _exported(subject, masked=False)


@check("the same with a mask", lambda claims: claims.export and claims.padding, must_run=True)
def export_masked(subject: AuditSubject) -> Measurement:
    return _exported(subject, masked=True)


def _exported(subject: AuditSubject, *, masked: bool) -> Measurement:
    worst, runner, sizes = Worst(), _Runner(subject), subject.export_lengths
    length = torch.export.Dim("length", min=min(sizes), max=max(sizes))

    def arguments(size: int) -> tuple[object, ...]:
        sample = subject.sample(2, size, seed=size)
        return (sample, masks(2, size)["holes"]) if masked else (sample,)

    sample = subject.sample(2, sizes[0], seed=0)
    shapes: tuple[object, ...] = ({name: {positions(tensor): length} for name, tensor in sample.items()},)
    if masked:
        shapes = (*shapes, {1: length})
    with torch.no_grad():
        # torch cannot prove that, say, a padded length divides by its block, and would refuse; with asserts at run time
        # the runs below decide. A length that became a constant is refused anyway.
        program = torch.export.export(
            runner,
            arguments(sizes[0]),
            dynamic_shapes=shapes,
            prefer_deferred_runtime_asserts_over_guards=True,
        ).module()
        for size in sizes:
            expected = runner(*arguments(size))
            output = program(*arguments(size))
            worst.see(difference(output, expected, spread(expected)), f"length {size}")
    return worst.against(subject.near)
