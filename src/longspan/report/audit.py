"""The certificates of an audit as a page."""

from collections.abc import Sequence
from typing import Any

from longspan.report.page import Html, page, table, tag, text


def audit_page(certificates: Sequence[dict[str, Any]]) -> str:
    """A page from what `longspan audit --out` wrote: a summary first, then every finding."""
    findings = [finding for certificate in certificates for finding in certificate["findings"]]
    good = sum(finding["passed"] for finding in findings)
    versions = certificates[0]["versions"] if certificates else {}
    made_with = ", ".join(f"{name} {number}" for name, number in versions.items())
    return page(
        "longspan audit",
        tag("h1", "longspan audit"),
        tag("p", f"{good} of {len(findings)} findings pass. Measured with {made_with}.", kind="quiet"),
        _summary(certificates),
        *(_section(certificate) for certificate in certificates),
    )


def _summary(certificates: Sequence[dict[str, Any]]) -> Html:
    rows = []
    for certificate in certificates:
        for form in certificate["settings"]["forms"]:
            findings = _of_form(certificate, form["form"])
            good = sum(finding["passed"] for finding in findings)
            failed = ", ".join(finding["check"] for finding in findings if not finding["passed"])
            rows.append(
                (
                    certificate["subject"],
                    form["form"],
                    f"{good} / {len(findings)}",
                    _verdict(good == len(findings)),
                    failed,
                )
            )
    return table(("target", "form", "hold", "verdict", "what fails"), rows, numbers=(2,))


def _section(certificate: dict[str, Any]) -> Html:
    settings = certificate["settings"]
    parts = [
        tag("h2", certificate["subject"], " ", _verdict(certificate["passed"])),
        tag("p", f"length {settings['length']}, {settings['dtype']}", kind="quiet"),
    ]
    for form in settings["forms"]:
        findings = _of_form(certificate, form["form"])
        rows = [
            (
                tag("code", finding["check"]),
                Html(text(finding["claim"]) + (tag("p", finding["detail"], kind="quiet") if finding["detail"] else "")),
                _number(finding["measured"]),
                _number(finding["limit"]),
                _verdict(finding["passed"]),
            )
            for finding in findings
        ]
        found = table(("check", "claim", "measured", "limit", "verdict"), rows, numbers=(2, 3))
        open_now = " open" if not all(finding["passed"] for finding in findings) or len(settings["forms"]) == 1 else ""
        summary = tag("summary", form["form"] or "all claims", f" ({len(findings)} findings)")
        parts.append(Html(f"<details{open_now}>{summary}{found}</details>"))
    return Html("\n".join(parts))


def _of_form(certificate: dict[str, Any], form: str) -> list[dict[str, Any]]:
    return [finding for finding in certificate["findings"] if finding["form"] == form]


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _verdict(passed: bool) -> Html:
    return tag("span", "pass" if passed else "FAIL", kind="good" if passed else "bad")
