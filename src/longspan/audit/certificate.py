"""The audit: every claim measured, and the certificate that the findings add up to."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from longspan.attention.base import Attention
from longspan.audit.checks import applicable
from longspan.audit.claims import Claims
from longspan.audit.finding import Finding
from longspan.audit.subjects import Subject
from longspan.audit.targets import Reading, resolve, subjects_of


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What was found of one target, in all the forms it has."""

    subject: str
    findings: tuple[Finding, ...]
    settings: dict[str, Any]

    @property
    def passed(self) -> bool:
        return all(finding.passed for finding in self.findings)

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; a number that was not measured, or is not finite, is null (the detail says why)."""
        return {
            "subject": self.subject,
            "passed": self.passed,
            "versions": {"longspan": version("longspan"), "torch": str(torch.__version__)},
            "settings": self.settings,
            "findings": [{name: _plain(value) for name, value in asdict(f).items()} for f in self.findings],
        }

    def table(self, *, failed_only: bool = False) -> str:
        """The findings as lines of text: verdict, form and check, measured, limit, and the detail below."""
        lines = []
        for finding in self.failed if failed_only else self.findings:
            verdict = "pass" if finding.passed else "FAIL"
            name = f"{finding.check} ({finding.form})" if finding.form else finding.check
            lines.append(f"{verdict}  {name}: measured {finding.measured:.3g}, limit {finding.limit:.3g}")
            lines.append(f"      {finding.claim}{f': {finding.detail}' if finding.detail else ''}")
        return "\n".join(lines)


def audit(
    target: str | nn.Module | type[Attention] | Subject,
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
    how it is called, where that cannot be seen. `progress` is told each finding as it comes.

    The module is copied first and stays as it was. A check that raises is a failed finding, not an error; errors are
    for a target that cannot be found or called.

    >>> certificate = audit("mypackage.layers:make", Claims(causal=True, padding=True))
    >>> certificate.passed, certificate.to_dict()
    """
    if isinstance(target, Subject):
        subjects: tuple[Subject, ...] = (target,)
    elif isinstance(target, str):
        subjects = resolve(target, claims, options=options, reading=reading)
    else:
        subjects = subjects_of(target, claims, options=options, reading=reading)
    findings = []
    for subject in subjects:
        for check in applicable(subject):
            try:
                finding = check(subject)
            except Exception as error:
                finding = check.failed(subject, error)
            findings.append(finding)
            if progress is not None:
                progress(finding)
    return Certificate(
        subject=target if isinstance(target, str) else subjects[0].name,
        findings=tuple(findings),
        settings={
            "length": subjects[0].length,
            "dtype": str(subjects[0].dtype).removeprefix("torch."),
            "forms": [{"form": subject.form, "claims": asdict(subject.claims)} for subject in subjects],
        },
    )


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
