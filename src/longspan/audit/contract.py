"""Checks for longspan mechanisms only: the oracle, the declared cost, the refusals."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.attention.base import Shape
from longspan.audit.behaviour import masks
from longspan.audit.counting import LargestTensor, count_flops, count_kept
from longspan.audit.finding import Measurement, Worst, check, difference, gradients, spread
from longspan.audit.growth import GROWTH, growth
from longspan.audit.subjects import AuditSubject, MechanismSubject, Sample, cut
from longspan.errors import InvalidInput, InvalidOption, LongspanError, Unsupported

# A gradient that almost cancels (one key, and an ε in the denominator) is only rounding on both sides of a comparison.
VANISHING = 1e-3
SIZE_LENGTH = 4096  # long enough that n²/8 elements exceed all blocks and windows of the small options


def _mechanism(subject: AuditSubject) -> MechanismSubject:
    assert isinstance(subject, MechanismSubject), "the contract is for mechanisms of longspan"
    return subject


@dataclass(frozen=True)
class ContractCase:
    """One call of a mechanism."""

    name: str
    sample: Sample
    mask: Tensor | None = None
    bias: Tensor | None = None

    def side(self, subject: MechanismSubject) -> dict[str, Any]:
        return {"key_mask": self.mask, "bias": self.bias, "streams": subject.streams(self.sample)}


def _cases(subject: MechanismSubject) -> Iterator[ContractCase]:
    """A case for everything that the mechanism supports."""
    supports, length = subject.module.supports, subject.length
    sample = subject.sample(2, length, seed=0)
    for size in (1, 2, 33, length):
        yield ContractCase(f"length {size}", subject.sample(2, size, seed=size))
    if supports.key_mask:
        for name, mask in masks(2, length).items():
            yield ContractCase(name, sample, mask)
        nothing = masks(2, length)["holes"]
        nothing[0] = False
        yield ContractCase("a row fully masked", sample, nothing)
    if supports.cross and not subject.module.causal and not subject.module.streams:
        for queries, keys in ((5, length), (length, 5), (1, 33)):
            yield ContractCase(f"{queries} queries, {keys} keys", _crossed(subject, queries, keys))
    if supports.bias:
        yield ContractCase("bias", sample, bias=_bias(subject, length))
    if supports.grouped and not subject.module.key_weights:
        yield ContractCase("grouped heads", _grouped(subject, sample))


def _crossed(subject: MechanismSubject, queries: int, keys: int) -> Sample:
    longer = subject.sample(2, max(queries, keys), seed=3)
    return {name: tensor[:, :, : queries if name == "q" else keys] for name, tensor in longer.items()}


def _bias(subject: MechanismSubject, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(subject.module.shape.heads, 2 * length - 1, generator=generator, dtype=torch.float64)


def _grouped(subject: MechanismSubject, sample: Sample) -> Sample:
    """One key and value head for all query heads."""
    like_keys = {stream.name for stream in subject.module.streams if stream.kind == "heads" and stream.like != "q"}
    return {name: x[:, :1] if name in {"k", "v"} | like_keys else x for name, x in sample.items()}


@check("the fast path gives what the paper defines", lambda claims: claims.contract)
def oracle(subject: AuditSubject) -> Measurement:
    subject, worst = _mechanism(subject), Worst()
    with torch.no_grad():
        for case in _cases(subject):
            expected = subject.module.reference(*_heads(case.sample), **case.side(subject))
            output = subject.module(*_heads(case.sample), **case.side(subject))
            worst.see(difference(output, expected, spread(expected)), case.name)
    return worst.against(subject.near)


@check("the gradients of the fast path are those of the definition", lambda claims: claims.contract)
def oracle_gradients(subject: AuditSubject) -> Measurement:
    subject, worst = _mechanism(subject), Worst()
    for case in _cases(subject):
        fast = _gradients(subject, case, subject.module)
        defined = _gradients(subject, case, subject.module.reference)
        # A gradient may be 0 by symmetry, such as that of a number added to all scores of a row: both sides are then
        # rounding errors, which are small compared to the other gradients only.
        rounding = 1e-3 * max(_size(expected) for expected in defined.values())
        for name, expected in defined.items():
            scale = max(_size(expected), rounding, VANISHING)
            worst.see(difference(fast[name], expected, scale), f"{name}, {case.name}")
    return worst.against(subject.near)


def _heads(sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
    return sample["q"], sample["k"], sample["v"]


def _gradients(subject: MechanismSubject, case: ContractCase, call: Callable[..., Tensor]) -> Sample:
    """The gradients of a fixed random projection with respect to all inputs and the mechanism's weights."""
    leaves = {
        name: tensor.detach().clone().requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in case.sample.items()
    }
    # The bias of a module (T5) is learned too.
    bias = None if case.bias is None else case.bias.clone().requires_grad_()
    named = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    named |= {} if bias is None else {"bias": bias}
    named |= {name: weight for name, weight in subject.module.named_parameters() if weight.requires_grad}
    out = call(*_heads(leaves), **replace(case, sample=leaves, bias=bias).side(subject))
    return gradients(out, named)


@check("the map it applies is the map the paper defines", lambda claims: claims.contract and claims.map)
def weights(subject: AuditSubject) -> Measurement:
    subject, worst = _mechanism(subject), Worst()
    with torch.no_grad():
        for case in _cases(subject):
            q, k, _ = _heads(case.sample)
            expected = subject.module.oracle(q, k, **case.side(subject))
            applied = subject.module.weights(q, k, **case.side(subject))
            worst.see(difference(applied, expected, 1.0), case.name)
    return worst.against(subject.near)


@check("a row with nothing to read is 0, with gradient 0", lambda claims: claims.contract and claims.padding)
def dead_rows(subject: AuditSubject) -> Measurement:
    subject, worst = _mechanism(subject), Worst()
    length = subject.length
    mask = torch.ones(3, length, dtype=torch.bool)
    mask[0], mask[1, : length // 2] = False, False  # nothing at all; nothing in the first half
    sample = subject.sample(3, length, seed=0)
    with torch.no_grad():
        side = ContractCase("", sample, mask).side(subject)
        dead = (subject.module.oracle(sample["q"], sample["k"], **side) == 0).all(dim=-1)
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        copy = subject.cast(dtype)
        leaves = {
            name: tensor.to(dtype).requires_grad_() if tensor.is_floating_point() else tensor
            for name, tensor in sample.items()
        }
        out = copy.heads(leaves, mask)
        named = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
        worst.see(_size(out[dead]), f"output in {dtype}")
        worst.see(0.0 if out.isfinite().all() else math.inf, f"output in {dtype} is not finite")
        for name, gradient in gradients(out, named).items():
            worst.see(_size(gradient[0]), f"gradient of {name} in {dtype}")
            worst.see(0.0 if gradient.isfinite().all() else math.inf, f"gradient of {name} in {dtype} is not finite")
            if name == "q":
                worst.see(_size(gradient[dead]), f"gradient of dead queries in {dtype}")
    return worst.against(0.0, fault="" if dead[0].all() else "a fully masked row still has weights by the oracle")


def _size(tensor: Tensor) -> float:
    return tensor.abs().max().item() if tensor.numel() else 0.0


@check("chunks give the same with a bias and with grouped heads", lambda claims: claims.contract and claims.side_inputs)
def streaming_side_inputs(subject: AuditSubject) -> Measurement:
    subject, worst, length = _mechanism(subject), Worst(), subject.length
    for case in _cases(subject):
        if case.name not in ("bias", "grouped heads"):
            continue
        with torch.no_grad():
            whole = subject.module(*_heads(case.sample), **case.side(subject))
            state, begin, outputs = subject.module.start(2, dtype=subject.dtype), 0, []
            for size in (3, 1, 12, length - 16):
                chunk = replace(case, sample=cut(case.sample, begin, begin + size))
                out, state = subject.module.extend(*_heads(chunk.sample), state, **chunk.side(subject))
                outputs.append(out)
                begin += size
        worst.see(difference(torch.cat(outputs, dim=2), whole, spread(whole)), case.name)
    return worst.against(subject.near)


@check(
    "dropout is there in training, unbiased, and gone in evaluation", lambda claims: claims.contract and claims.dropout
)
def dropout(subject: AuditSubject) -> Measurement:
    subject, draws = _mechanism(subject), 2000
    dropping = subject.rebuilt(dropout=0.5)
    plain = subject.rebuilt(dropout=0.0)
    single = subject.sample(1, 12, seed=0)
    many = {name: tensor.expand(draws, *tensor.shape[1:]).contiguous() for name, tensor in single.items()}
    with torch.no_grad():
        expected = plain.run(single)[0]
        if not torch.equal(dropping.run(single)[0], expected):
            return Measurement(math.nan, math.nan, fault="dropout changes the output in evaluation")
        dropping.module.train()
        drawn = dropping.run(many)
    if not drawn.var(dim=0).max() > 0:
        return Measurement(math.nan, math.nan, fault="dropout=0.5 changes nothing in training")
    error = drawn.std(dim=0) / draws**0.5
    distance = ((drawn.mean(dim=0) - expected).abs() / error.clamp_min(1e-12)).max().item()
    return Measurement(distance, 6.0, detail=f"standard errors between the mean of {draws} draws and evaluation")


@check("declared cost is what is counted", lambda claims: claims.contract)
def cost(subject: AuditSubject) -> Measurement:
    subject, worst, texts = _mechanism(subject).cast(torch.float32), Worst(), []
    sizes = [(33, 33), (subject.length, subject.length), (100, 100)]
    if subject.module.supports.cross and not subject.module.causal and not subject.module.streams:
        sizes += [(7, 33), (33, 7)]
    masks = {s.name for s in subject.module.streams if s.kind == "mask" and not s.required}  # cost is without masks
    for queries, keys in sizes:
        crossed = subject.sample(1, queries, seed=0) if queries == keys else _crossed(subject, queries, keys)
        inputs = {name: tensor[:1].clone() for name, tensor in crossed.items() if name not in masks}
        leaves = {
            name: tensor.requires_grad_() if tensor.is_floating_point() else tensor for name, tensor in inputs.items()
        }
        run = lambda: subject.heads(leaves)  # noqa: B023, E731  # run before the next turn
        existing = [*leaves.values(), *subject.module.parameters(), *subject.module.buffers()]
        declared = subject.module.cost(queries, keys)
        counted = (count_flops(run), count_kept(run, existing))
        for name, found, stated in zip(declared._fields, counted, declared):
            worst.see(
                abs(found - stated) / max(stated, 1), f"{name} at {queries}×{keys}: {found} counted, {stated} declared"
            )
        texts.append(f"{declared.flops} flops and {declared.floats} floats at {queries}×{keys}")
    return worst.against(0.0, detail="" if worst.value else texts[0])


@check("work grows as declared, and the largest tensor no faster", lambda claims: claims.contract)
def exponent(subject: AuditSubject) -> Measurement:
    subject = _mechanism(subject)
    declared = subject.module.exponent
    # Longer if that is cheap: blocks and windows then matter less.
    sizes = (256, 512) if subject.module.quadratic_memory else (2048, 4096)
    flops, largest = growth(subject.rebuilt(max_length=sizes[-1]).cast(torch.float32), sizes)
    detail = f"matrix products n^{flops:.2f}, largest tensor n^{largest:.2f} between {sizes[0]} and {sizes[1]}"
    return Measurement(
        max(abs(flops - declared), largest - declared), GROWTH, detail=f"declared n^{declared:g}; {detail}"
    )


@check("no tensor of n²/8 elements, forward or backward", lambda claims: claims.contract and claims.subquadratic)
def size(subject: AuditSubject) -> Measurement:
    subject, length = _mechanism(subject), SIZE_LENGTH
    subject = subject.rebuilt(max_length=length).cast(torch.float32)
    sample = subject.sample(1, length, seed=0)
    keep = torch.ones(1, length, dtype=torch.bool)
    keep[:, -length // 8 :] = False
    limit, largest, maker = length * length // 8 - 1, 0, ""
    for mask in (None, keep) if subject.claims.padding else (None,):
        with LargestTensor() as seen:
            leaves, out = subject.differentiable(sample, mask)
            gradients(out, leaves)
        if seen.elements > largest:
            largest, maker = seen.elements, seen.maker
        if largest > limit:
            break
    return Measurement(largest, limit, detail=f"elements at n = {length}; the largest is by {maker}")


@check("what it cannot do, and what is malformed, is refused", lambda claims: claims.contract)
def refusals(subject: AuditSubject) -> Measurement:
    subject = _mechanism(subject)
    missing = [text for name, call, error in _refused(subject) if (text := _missing(subject, name, call, error))]
    return Measurement(len(missing), 0, detail="; ".join(missing))


def _missing(subject: MechanismSubject, name: str, call: Callable[[], Any], error: type[LongspanError]) -> str:
    """What is wrong with a refusal; empty if nothing is."""
    try:
        call()
    except error as raised:
        if error is Unsupported and subject.name not in str(raised):
            return f"{name}: the message does not name {subject.name}: {raised}"
        return ""
    except Exception as raised:
        return f"{name}: {type(raised).__name__} instead of {error.__name__}"
    return f"{name}: not refused"


def _refused(subject: MechanismSubject) -> Iterator[tuple[str, Callable[[], Any], type[LongspanError]]]:
    """Invalid calls: what is wrong, the call, and the error it must raise."""
    module = subject.module
    supports, kind, shape = module.supports, type(module), module.shape
    sample = subject.sample(2, 9, seed=0)
    q, k, v = _heads(sample)
    streams = subject.streams(sample)
    keep = torch.ones(2, 9, dtype=torch.bool)

    def build(**given: Any) -> Callable[[], Any]:
        return lambda: kind(shape, module.options, **given)

    def call(*heads: Tensor, **given: Any) -> Callable[[], Any]:
        return lambda: module(*heads, **{"streams": streams, **given})

    if not supports.causal:
        yield "causal=True", build(causal=True), Unsupported
    if not supports.bidirectional:
        yield "causal=False", build(causal=False), Unsupported
    if not supports.dropout:
        yield "dropout", build(causal=module.causal, dropout=0.1), Unsupported
    if not supports.cross or module.causal:
        yield "other keys than queries", call(q[:, :, :5], k, v), Unsupported
    if not supports.key_mask:
        yield "key_mask", call(q, k, v, key_mask=keep), Unsupported
    if not supports.bias:
        yield "bias", call(q, k, v, bias=torch.zeros(shape.heads, 17, dtype=q.dtype)), Unsupported
    if not supports.streaming:
        yield "start", lambda: module.start(2), Unsupported
    if not supports.streaming or not module.causal:
        yield "extend", lambda: module.extend(q, k, v, None), Unsupported  # type: ignore[arg-type]
    if not supports.grouped and shape.heads > 1:
        refusal = InvalidInput if module.key_weights else Unsupported
        yield "fewer key heads", call(q, k[:, :1], v[:, :1]), refusal

    yield "q without heads", call(q[:, 0], k, v), InvalidInput
    yield "too many heads", call(torch.cat([q, q], dim=1), k, v), InvalidInput
    yield "head_dim too small", call(q[..., 1:], k, v), InvalidInput
    yield "integer queries", call(q.long(), k, v), InvalidInput
    yield "keys of another type", call(q, k.half(), v), InvalidInput
    yield "values of another batch", call(q, k, v[:1]), InvalidInput
    yield "fewer values than keys", call(q, k, v[:, :, 1:]), InvalidInput
    yield "an unknown stream", call(q, k, v, streams={**(streams or {}), "no such stream": q}), InvalidInput
    for stream in module.streams:
        if stream.required:
            rest = {name: tensor for name, tensor in (streams or {}).items() if name != stream.name}
            yield f"no stream {stream.name}", call(q, k, v, streams=rest), InvalidInput
    if supports.key_mask:
        yield "a mask of floats", call(q, k, v, key_mask=keep.float()), InvalidInput
        yield "a mask of another length", call(q, k, v, key_mask=keep[:, 1:]), InvalidInput
        yield "a mask with heads", call(q, k, v, key_mask=keep[:, None]), InvalidInput
    if supports.bias:
        yield "an even number of offsets", call(q, k, v, bias=q.new_zeros(shape.heads, 18)), InvalidInput
    yield "an unknown option", lambda: config.make(kind.Options, {"no_such_option": 1}, module.name), InvalidOption
    yield "no heads", lambda: Shape(heads=0, head_dim=shape.head_dim), InvalidOption
    yield "dropout of 1", build(causal=module.causal, dropout=1.0), InvalidOption
