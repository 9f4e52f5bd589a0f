"""The page of `longspan audit --out`."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from longspan.report.page import Html, page, table, tag, text


def audit_page(certificates: Sequence[dict[str, Any]]) -> str:
    """The certificates as a page: a summary first, then every finding."""
    findings = [finding for certificate in certificates for finding in certificate["findings"]]
    versions = certificates[0]["versions"] if certificates else {}
    measured_with = ", ".join(f"{name} {number}" for name, number in versions.items())
    return page(
        "longspan audit",
        tag("h1", "longspan audit"),
        tag("p", f"{_counts(findings)}. Measured with {measured_with}.", css="quiet"),
        _summary(certificates),
        *(_section(certificate) for certificate in certificates),
    )


def _summary(certificates: Sequence[dict[str, Any]]) -> Html:
    rows = []
    for certificate in certificates:
        for form in certificate["settings"]["forms"]:
            findings = _of_form(certificate, form["form"])
            rows.append(
                (
                    certificate["subject"],
                    form["form"],
                    f"{sum(finding['verdict'] == 'pass' for finding in findings)} / {len(findings)}",
                    _verdict(_overall(findings)),
                    _checks(findings, "fail"),
                    _checks(findings, "not measured"),
                )
            )
    return table(("target", "form", "pass", "verdict", "failed checks", "not measured"), rows, numbers=(2,))


def _checks(findings: Sequence[dict[str, Any]], verdict: str) -> str:
    return ", ".join(finding["check"] for finding in findings if finding["verdict"] == verdict)


def _section(certificate: dict[str, Any]) -> Html:
    settings = certificate["settings"]
    parts = [
        tag("h2", certificate["subject"], " ", _verdict(certificate["verdict"])),
        tag("p", f"lengths {', '.join(map(str, settings['lengths']))}; {settings['dtype']}", css="quiet"),
    ]
    for form in settings["forms"]:
        findings = _of_form(certificate, form["form"])
        rows = [
            (
                tag("code", finding["check"]),
                Html(text(finding["claim"]) + (tag("p", finding["detail"], css="quiet") if finding["detail"] else "")),
                _number(finding["measured"]),
                _number(finding["limit"]),
                _verdict(finding["verdict"]),
            )
            for finding in findings
        ]
        findings_table = table(("check", "claim", "measured", "limit", "verdict"), rows, numbers=(2, 3))
        open_now = " open" if _overall(findings) != "pass" or len(settings["forms"]) == 1 else ""
        summary = tag("summary", form["form"] or "all claims", f" ({len(findings)} findings)")
        parts.append(Html(f"<details{open_now}>{summary}{findings_table}</details>"))
    return Html("\n".join(parts))


def _of_form(certificate: dict[str, Any], form: str) -> list[dict[str, Any]]:
    return [finding for finding in certificate["findings"] if finding["form"] == form]


def _counts(findings: Sequence[dict[str, Any]]) -> str:
    count = Counter(finding["verdict"] for finding in findings)
    return (
        f"{count['pass']} of {len(findings)} findings pass, {count['fail']} fail, {count['not measured']} not measured"
    )


def _overall(findings: Sequence[dict[str, Any]]) -> str:
    present = {finding["verdict"] for finding in findings}
    return next((verdict for verdict in ("fail", "not measured") if verdict in present), "pass")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _verdict(verdict: str) -> Html:
    css = {"pass": "good", "fail": "bad"}.get(verdict, "quiet")
    return tag("span", "FAIL" if verdict == "fail" else verdict, css=css)
