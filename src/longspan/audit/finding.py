"""What a check says, and how it measures."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from longspan.audit.claims import Claims
    from longspan.audit.subjects import Subject


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim, what was measured, and the verdict."""

    check: str  # "causal_perturbation"
    claim: str  # "later inputs change no earlier output"
    measured: float  # NaN where nothing could be measured
    limit: float  # the most that is allowed
    passed: bool
    detail: str = ""  # where the worst was seen, or what went wrong
    form: str = ""  # "causal" or "bidirectional", and the options, where there is more than one


@dataclass(frozen=True)
class Measurement:
    """What a check's body returns; `fault` is a reason to fail whatever the numbers are."""

    measured: float
    limit: float
    detail: str = ""
    fault: str = ""


@dataclass(frozen=True)
class Check:
    """A function that measures one claim, and when that claim is made."""

    name: str
    claim: str
    applies: "Callable[[Claims], bool]"
    measure: "Callable[[Subject], Measurement]"

    def __call__(self, subject: "Subject") -> Finding:
        """The finding on a copy of the subject, in evaluation; the caller's random numbers stay as they were."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            result = self.measure(subject.fresh())
        return Finding(
            check=self.name,
            claim=self.claim,
            measured=result.measured,
            limit=result.limit,
            passed=not result.fault and result.measured <= result.limit,  # False for NaN
            detail=result.fault or result.detail,
            form=subject.form,
        )

    def failed(self, subject: "Subject", error: Exception) -> Finding:
        """The finding when the check could not be carried out: the claim does not hold on what was tried."""
        line = " ".join(str(error).split())
        return Finding(
            check=self.name,
            claim=self.claim,
            measured=math.nan,
            limit=math.nan,
            passed=False,
            detail=f"raised {type(error).__name__}: {line[:300]}",
            form=subject.form,
        )


def check(claim: str, applies: "Callable[[Claims], bool]") -> "Callable[[Callable[[Subject], Measurement]], Check]":
    """Makes a check of the function below it, named as the function is."""

    def make(measure: "Callable[[Subject], Measurement]") -> Check:
        return Check(measure.__name__, claim, applies, measure)

    return make


class Worst:
    """The largest of several measurements, and where it was."""

    def __init__(self) -> None:
        self.value, self.where = 0.0, ""

    def see(self, value: float, where: str) -> None:
        if value > self.value or math.isnan(value):
            self.value, self.where = (math.inf if math.isnan(value) else value), where

    def against(self, limit: float, *, detail: str = "", fault: str = "") -> Measurement:
        place = f"worst: {self.where}" if self.where else ""
        return Measurement(self.value, limit, "; ".join(part for part in (detail, place) if part), fault)


def spread(output: Tensor) -> float:
    """The scale against which a change of this output is judged: its standard deviation."""
    finite = output[output.isfinite()].double()
    deviation = finite.std(correction=0).item() if finite.numel() else 0.0
    return deviation or (finite.abs().max().item() if finite.numel() else 0.0) or 1.0


def difference(found: Tensor, expected: Tensor, scale: float) -> float:
    """The largest difference, in units of `scale`; infinite where either is not a number."""
    if found.shape != expected.shape:
        raise ValueError(f"the output is {tuple(found.shape)}, where {tuple(expected.shape)} was expected")
    if not found.numel():
        return 0.0
    gap = (found.double() - expected.double()).abs().max().item() / scale
    return math.inf if math.isnan(gap) else gap


def gradients(out: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    """The gradients of a fixed random projection of `out`; a plain sum is constant for some modules."""
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    found = torch.autograd.grad(out, list(leaves.values()), direction, retain_graph=True, materialize_grads=True)
    return dict(zip(leaves, found))
