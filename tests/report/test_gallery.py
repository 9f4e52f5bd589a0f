"""The gallery's page in a real browser."""

from pathlib import Path

import pytest
from tests.report.opened import open_page

from longspan.inspect import gallery
from longspan.inspect.visibility import visibility
from longspan.report.gallery import gallery_page
from longspan.report.gallery_data import decode, encode

pytestmark = pytest.mark.browser
CHOSEN = ["softmax", "longformer", "bigbird", "reformer", "nystrom", "inducing"]


@pytest.fixture(scope="module")
def entries() -> dict[str, gallery.Entry]:
    return {entry.name: entry for entry in gallery.collect(CHOSEN)}


@pytest.fixture(scope="module")
def path(entries, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("gallery") / "gallery.html"
    path.write_text(gallery_page(list(entries.values()), visibility()), encoding="utf-8")
    return path


def opened(browser, path: Path, width: int = 1400, scheme: str = "light"):
    page, requests, problems = open_page(browser, path, width, scheme)
    page.wait_for_selector("html[data-ready]")
    return page, requests, problems


def readout(page, slot: int = 0) -> str:
    return page.locator(".slot .readout").nth(slot).inner_text()


def move_to(page, query: int, key: int) -> None:
    box = page.locator(".slot canvas").first.bounding_box()
    page.mouse.move(box["x"] + (key + 0.5) * box["width"] / 64, box["y"] + (query + 0.5) * box["height"] / 64)


@pytest.mark.parametrize(("width", "scheme"), [(1400, "light"), (420, "dark")])
def test_it_opens_and_requests_nothing(browser, path, width, scheme):
    page, requests, problems = opened(browser, path, width, scheme)
    assert requests == [path.as_uri()] and problems == []
    assert page.locator(".card").count() == len(CHOSEN)
    assert page.locator(".slot select").first.input_value() == "bigbird"
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    page.context.close()


def test_hover_shows_the_weight_in_both_pictures(browser, path, entries):
    page, _, problems = opened(browser, path)
    page.locator(".card[data-name=longformer]").click()
    page.locator("#compare").click()
    move_to(page, 40, 37)
    for slot, name in enumerate(["longformer", "softmax"]):
        entry = entries[name]
        read = entry.pictures["bidirectional"][entry.start][0].read.numpy()
        shown = decode(*encode(read))[40, 37]
        assert readout(page, slot) == f"query 40 reads key 37: {shown:.2g}"
        assert shown == pytest.approx(read[40, 37], rel=0.03)
    move_to(page, 40, 10)
    assert readout(page) == "query 40 cannot read key 10"
    assert problems == []
    page.context.close()


def test_dials_forms_inputs_and_the_address(browser, path, entries):
    page, _, problems = opened(browser, path)
    page.locator(".card[data-name=reformer]").click()
    canvas = "document.querySelector('.slot canvas').toDataURL()"
    pictures = [page.evaluate(canvas)]
    page.locator(".another").first.click()
    pictures.append(page.evaluate(canvas))
    page.locator(".slot button[data-form=causal]").first.click()
    pictures.append(page.evaluate(canvas))
    page.locator("#dial-0-0").fill("2")
    pictures.append(page.evaluate(canvas))
    assert len(set(pictures)) == 4
    assert page.locator(".slot .dial output").first.inner_text() == "4"
    assert page.evaluate("location.hash") == "#a=reformer&af=causal&ad=2.1.1&ai=1"
    assert 'attention="reformer", causal=True, rounds=4, chunk=8, buckets=8' in page.locator(".code").first.inner_text()
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert page.evaluate(canvas) == pictures[-1] and problems == []
    page.context.close()


def test_keys_move_over_the_cells(browser, path):
    page, _, _ = opened(browser, path)
    page.locator(".slot canvas").first.focus()
    page.keyboard.press("ArrowDown")
    assert readout(page).startswith("query 33 reads key 32: ")
    page.keyboard.press("ArrowLeft")
    assert readout(page).startswith("query 33 reads key 31: ")
    page.keyboard.press("Escape")
    assert readout(page) == "Point at a cell, or use the arrow keys."
    page.context.close()


def test_what_is_shown_without_a_map_is_said(browser, path):
    page, _, _ = opened(browser, path)
    page.locator(".card[data-name=inducing]").click()
    assert page.locator(".shown").first.inner_text().startswith("It has no single map: it transforms its values first.")
    page.locator(".card[data-name=nystrom]").click()
    assert page.locator(".shown").first.inner_text() == (
        "It never computes this map. Shown is the matrix that turns its values into its outputs. Red ones are negative."
    )
    page.locator("#kinds button[data-kind='learned pattern']").click()
    assert page.locator(".card:visible").count() == 1
    page.context.close()
