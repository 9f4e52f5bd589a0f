"""Checks and their findings."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from longspan.audit.claims import Claims
    from longspan.audit.subjects import AuditSubject

Verdict = Literal["pass", "fail", "not measured"]


class NotMeasured(Exception):
    """Raised by a check that cannot decide whether the claim holds; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim, what was measured, and the verdict."""

    check: str  # "causal_perturbation"
    claim: str  # "later inputs change no earlier output"
    verdict: Verdict
    measured: float  # NaN where there is no number
    limit: float  # the largest value allowed
    detail: str = ""  # where the worst was seen, what went wrong, or why nothing was measured
    form: str = ""  # "causal" or "bidirectional", and the options, where there is more than one

    @property
    def passed(self) -> bool:
        """Whether the claim was measured and holds."""
        return self.verdict == "pass"

    def line(self) -> str:
        """The check, the claim, the numbers and the detail in one line."""
        parts = [f"{self.check}: {self.claim}"]
        if not math.isnan(self.measured):
            parts.append(f"measured {number(self.measured)}, limit {number(self.limit)}")
        return ": ".join(parts) + (f" ({self.detail})" if self.detail else "")


def number(value: float | None) -> str:
    """Three digits, or a dash if there is no number."""
    return "–" if value is None or math.isnan(value) else f"{value:.3g}"


def one_line(error: Exception) -> str:
    """The class and the message of an error, shortened."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


@dataclass(frozen=True)
class Measurement:
    """What the body of a check returns. `fault` is a reason to fail whatever the numbers are."""

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
    measure: "Callable[[AuditSubject], Measurement]"
    must_run: bool  # the claim is that something works, so an error disproves it

    def __call__(self, subject: "AuditSubject") -> Finding:
        """The finding on a copy of the subject, in evaluation mode; the caller's random numbers stay as they were.

        An error disproves the claim where the claim is that something works, as everything does that the contract of
        longspan's own mechanisms demands. Otherwise the error only means that nothing was measured.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            try:
                result = self.measure(subject.fresh())
            except NotMeasured as reason:
                return self._without_numbers(subject, "not measured", str(reason))
            except Exception as error:
                fails = self.must_run or subject.claims.contract
                return self._without_numbers(subject, "fail" if fails else "not measured", f"raised {one_line(error)}")
        holds = not result.fault and result.measured <= result.limit  # False for NaN
        return Finding(
            check=self.name,
            claim=self.claim,
            verdict="pass" if holds else "fail",
            measured=result.measured,
            limit=result.limit,
            detail=result.fault or result.detail,
            form=subject.form,
        )

    def _without_numbers(self, subject: "AuditSubject", verdict: Verdict, detail: str) -> Finding:
        return Finding(
            check=self.name,
            claim=self.claim,
            verdict=verdict,
            measured=math.nan,
            limit=math.nan,
            detail=detail,
            form=subject.form,
        )


def check(
    claim: str, applies: "Callable[[Claims], bool]", *, must_run: bool = False
) -> "Callable[[Callable[[AuditSubject], Measurement]], Check]":
    """A decorator that makes a function a check, with the function's name."""

    def make(measure: "Callable[[AuditSubject], Measurement]") -> Check:
        return Check(measure.__name__, claim, applies, measure, must_run)

    return make


class Worst:
    """The largest of several measurements, and where it was."""

    def __init__(self) -> None:
        self.value, self.where = 0.0, ""

    def see(self, value: float, where: str) -> None:
        if value > self.value or math.isnan(value):
            self.value, self.where = (math.inf if math.isnan(value) else value), where

    def against(self, limit: float, *, detail: str = "", fault: str = "") -> Measurement:
        where = f"worst: {self.where}" if self.where else ""
        return Measurement(self.value, limit, "; ".join(text for text in (detail, where) if text), fault)


def spread(output: Tensor) -> float:
    """The unit for changes of this output: its standard deviation."""
    finite = output[output.isfinite()].double()
    deviation = finite.std(correction=0).item() if finite.numel() else 0.0
    return deviation or (finite.abs().max().item() if finite.numel() else 0.0) or 1.0


def difference(found: Tensor, expected: Tensor, scale: float) -> float:
    """The largest difference, in units of `scale`; infinite if either is NaN."""
    if found.shape != expected.shape:
        raise ValueError(f"the output is {tuple(found.shape)}, but {tuple(expected.shape)} was expected")
    if not found.numel():
        return 0.0
    gap = (found.double() - expected.double()).abs().max().item() / scale
    return math.inf if math.isnan(gap) else gap


def gradients(out: Tensor, leaves: dict[str, Tensor], *, retain: bool = True) -> dict[str, Tensor]:
    """The gradients of a fixed random projection of `out`; a plain sum is constant for some modules.

    `retain` keeps the graph for further gradients; a compiled backward pass may refuse that.
    """
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(out.dtype)
    values = torch.autograd.grad(out, list(leaves.values()), direction, retain_graph=retain, materialize_grads=True)
    return dict(zip(leaves, values))
