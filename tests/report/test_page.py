"""Pages: self-contained, escaped, and readable in a real browser."""

from pathlib import Path

import pytest
from tests.report.opened import open_page

from longspan.report.audit import audit_page
from longspan.report.page import Html, page, table, tag, text

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">&'"


def certificate(subject: str = "window", passed: bool = True, detail: str = "", verdict: str = "") -> dict:
    verdict = verdict or ("pass" if passed else "fail")
    finding = {
        "check": "causal_perturbation",
        "claim": "later inputs change no earlier output",
        "verdict": verdict,
        "measured": 0.0 if passed else None,
        "limit": 1e-12,
        "passed": passed,
        "detail": detail,
        "form": "causal",
    }
    return {
        "subject": subject,
        "verdict": verdict,
        "passed": passed,
        "versions": {"longspan": "0", "torch": "0"},
        "settings": {"lengths": [40, 250], "dtype": "float64", "forms": [{"form": "causal", "claims": {}}]},
        "findings": [finding],
    }


def test_text_is_escaped_and_markup_is_not():
    assert text("<a & 'b'>") == "&lt;a &amp; &#x27;b&#x27;&gt;"
    assert tag("b", Html("<i>x</i>"), "<", css='"') == '<b class="&quot;"><i>x</i>&lt;</b>'
    assert '<td data-head="head">&lt;script&gt;</td>' in table(["head"], [["<script>"]])


def test_a_page_loads_nothing_and_says_so():
    made = page(HOSTILE, tag("p", HOSTILE))
    assert "default-src 'none'" in made
    assert "<img" not in made and "http://" not in made and "https://" not in made and "<script" not in made


def test_an_audit_page_shows_every_finding_and_escapes_what_it_was_given():
    made = audit_page([certificate(), certificate(HOSTILE, passed=False, detail=HOSTILE)])
    assert "1 of 2 findings pass" in made and made.count("causal_perturbation") == 3
    assert "<img" not in made and "–" in made and "lengths 40, 250; float64" in made


def test_an_audit_page_shows_what_was_not_measured_apart_from_what_fails():
    unmeasured = certificate("mine:layer", passed=False, detail="takes no mask", verdict="not measured")
    made = audit_page([certificate(), unmeasured, certificate("mine:other", passed=False)])
    assert "1 of 3 findings pass, 1 fail, 1 not measured" in made
    assert made.count('<span class="quiet">not measured</span>') == 3  # in the summary, the heading and the finding
    assert made.count('<span class="bad">FAIL</span>') == 3


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_audit_page_in_chromium(browser, tmp_path: Path, width: int, scheme: str):
    path = tmp_path / "audit.html"
    path.write_text(audit_page([certificate(), certificate(HOSTILE, passed=False, detail=HOSTILE)]), encoding="utf-8")
    opened, requests, problems = open_page(browser, path, width, scheme)
    assert opened.title() == "longspan audit"
    assert requests == [path.as_uri()] and problems == []
    assert opened.locator("h2").count() == 2 and opened.locator(".bad").first.is_visible()
    assert HOSTILE in opened.locator("h2").nth(1).inner_text()
    # The page itself never scrolls sideways: wide tables scroll inside their own box.
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    ink, paper = opened.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light = [sum(int(part) for part in colour[4:-1].split(",")) for colour in (ink, paper)]
    assert (light[0] < light[1]) == (scheme == "light")
    opened.context.close()
