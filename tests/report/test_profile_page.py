"""The page of a profile: every figure, self-contained, and readable in a real browser."""

from pathlib import Path

import pytest
from tests.measure.made_up import law
from tests.report.opened import open_page

from longspan.attention import names
from longspan.measure import machine
from longspan.measure.case import Case, Measured
from longspan.measure.profile import plan, profile
from longspan.measure.run_case import without_result
from longspan.report.palette import KINDS
from longspan.report.profile import kind_of, milliseconds, profile_page

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">&'"
SETTINGS = {"batch": 1, "heads": 8, "head_dim": 64, "causal": True, "padding": False, "threads": 1}


def made(mechanisms: list[str]) -> str:
    def measure(case: Case) -> Measured:
        if case.mechanism == "etc":
            return without_result(case, "unsupported", HOSTILE)
        if case.mechanism == "naive" and case.length == 16384:
            return without_result(case, "memory", "too large")
        return law(case)

    rows = profile(plan(mechanisms, (1024, 4096, 16384), ("forward", "decode")), measure)
    return profile_page(rows, machine.describe(), SETTINGS)


def test_every_figure_is_there_and_what_came_from_outside_is_escaped():
    page = made(["linear", "etc"])
    assert page.count("<svg") == 4 and "<img" not in page and "http://" not in page and "https://" not in page
    for words in ("n^2.00", "n^1.00", "4.00× sdpa", "out of memory", "causal", "Not supported: 1", ">4K<"):
        assert words in page, words


def test_every_mechanism_has_a_colour():
    assert {kind_of(name) for name in names()} <= set(KINDS) - {"other"}
    assert kind_of("naive") == kind_of("sdpa") == "dense"


def test_how_times_are_written():
    assert [milliseconds(each) for each in (0.0000123, 0.0123, 12.3)] == ["0.0123 ms", "12.3 ms", "12.3 s"]


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_chromium(browser, tmp_path: Path, width: int, scheme: str):
    path = tmp_path / "profile.html"
    path.write_text(made(names()), encoding="utf-8")
    opened, requests, problems = open_page(browser, path, width, scheme)
    assert opened.title() == "longspan profile" and requests == [path.as_uri()] and problems == []
    assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    opened.locator("svg .dot").first.hover()
    assert "naive: " in opened.locator("#tip").inner_text() and "at length" in opened.locator("#tip").inner_text()
    opened.context.close()
