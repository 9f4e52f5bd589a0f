"""Run an audit: measure every claim, and collect the findings in a certificate."""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from longspan.attention.base import Attention
from longspan.audit.checks import applicable
from longspan.audit.claims import Claims
from longspan.audit.finding import Finding, Verdict, number
from longspan.audit.subjects import AuditSubject
from longspan.audit.targets import Reading, resolve, subjects_of


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The findings on one target, in all its forms."""

    subject: str
    findings: tuple[Finding, ...]
    settings: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """ "fail" if a claim does not hold; else "not measured" if one could not be measured; else "pass"."""
        return overall(finding.verdict for finding in self.findings)

    @property
    def passed(self) -> bool:
        """Whether every claim was measured and holds."""
        return self.verdict == "pass"

    @property
    def failed(self) -> tuple[Finding, ...]:
        """The claims that do not hold."""
        return tuple(finding for finding in self.findings if finding.verdict == "fail")

    @property
    def not_measured(self) -> tuple[Finding, ...]:
        """The claims that could not be measured; the detail of each says why."""
        return tuple(finding for finding in self.findings if finding.verdict == "not measured")

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that was not measured, or is not finite, is null (the detail says why)."""
        return {
            "subject": self.subject,
            "verdict": self.verdict,
            "passed": self.passed,
            "versions": {"longspan": version("longspan"), "torch": str(torch.__version__)},
            "settings": self.settings,
            "findings": [{**_plain(asdict(finding)), "passed": finding.passed} for finding in self.findings],
        }

    def table(self, *, failed_only: bool = False) -> str:
        """The findings as lines of text; `failed_only` leaves out those that pass."""
        lines = []
        for finding in self.findings:
            if failed_only and finding.passed:
                continue
            verdict = "FAIL" if finding.verdict == "fail" else finding.verdict
            name = f"{finding.check} ({finding.form})" if finding.form else finding.check
            numbers = f": measured {number(finding.measured)}, limit {number(finding.limit)}"
            lines.append(f"{verdict}  {name}{'' if math.isnan(finding.measured) else numbers}")
            lines.append(f"      {finding.claim}{f': {finding.detail}' if finding.detail else ''}")
        return "\n".join(lines)


def overall(verdicts: Iterable[Verdict]) -> Verdict:
    """The verdict on several findings: a failure outweighs what was not measured, which outweighs a pass."""
    present = set(verdicts)
    return next((verdict for verdict in ("fail", "not measured") if verdict in present), "pass")


def audit(
    target: str | nn.Module | type[Attention] | AuditSubject,
    claims: Claims | None = None,
    *,
    options: dict[str, Any] | None = None,
    reading: Reading | None = None,
    progress: Callable[[Finding], None] | None = None,
) -> Certificate:
    """Measures what is claimed of a module, ours or not.

    `target` is the name of a mechanism, `package.module:factory`, or a module itself. A mechanism of longspan is
    audited in every form it supports, against all of the contract; `options` replace the small ones of the audit. For
    any other module, exactly the `claims` are measured, and always determinism and batch invariance; `reading` says
    how it is called, where that cannot be seen. `progress` gets each finding as it comes.

    The module is copied first and stays as it was. A check that cannot be carried out is a finding, "not measured"; an
    error is raised only for a target that cannot be found or called.

    >>> certificate = audit("mypackage.layers:make", Claims(causal=True, padding=True))
    >>> certificate.passed, certificate.to_dict()
    """
    if isinstance(target, AuditSubject):
        subjects: tuple[AuditSubject, ...] = (target,)
    elif isinstance(target, str):
        subjects = resolve(target, claims, options=options, reading=reading)
    else:
        subjects = subjects_of(target, claims, options=options, reading=reading)
    findings = []
    for subject in subjects:
        for check in applicable(subject):
            finding = check(subject)
            findings.append(finding)
            if progress is not None:
                progress(finding)
    return Certificate(
        subject=target if isinstance(target, str) else subjects[0].name,
        findings=tuple(findings),
        settings={
            "lengths": sorted({length for subject in subjects for length in subject.lengths}),
            "dtype": str(subjects[0].dtype).removeprefix("torch."),
            "forms": [{"form": subject.form, "claims": asdict(subject.claims)} for subject in subjects],
        },
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }
