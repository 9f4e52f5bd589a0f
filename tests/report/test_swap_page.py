"""The page of a swap: every section, self-contained, hostile text escaped, readable in a real browser."""

from dataclasses import replace
from pathlib import Path

import pytest
from tests.report.opened import open_page

from longspan.adapt.measures.decoding import DecodingCost, DecodingPoint
from longspan.adapt.measures.encoding import EncoderPoint, MaskedAgreement
from longspan.adapt.measures.intervals import Estimate, wilson
from longspan.adapt.measures.layer_error import HeadError, LayerError
from longspan.adapt.measures.loss_by_position import LossBlock, LossComparison
from longspan.adapt.measures.reach import Reach
from longspan.adapt.measures.recall import BEYOND_FIELD, BEYOND_WINDOW, IN_WINDOW, RecallCell, RecallReport
from longspan.adapt.swap_report import SwapReport
from longspan.report.swap import swap_page, write_swap_page

HOSTILE = "</script><img src=x onerror=\"document.title='hacked'\">&'"


def losses(length: int) -> LossComparison:
    blocks = tuple(
        LossBlock(
            max(1, at), at + 63, None if at >= 512 else 2.0, 2.1, None if at >= 512 else Estimate(0.1, 0.05, 0.15)
        )
        for at in range(0, length, 64)
    )
    return LossComparison(8, length, 512, 2.0, 2.1, Estimate(0.1, 0.05, 0.15), blocks)


def recalled(hits: tuple[int, int, int]) -> RecallReport:
    places = ((0.5, 16, IN_WINDOW), (2.0, 64, BEYOND_WINDOW), (8.0, 256, BEYOND_FIELD))
    cells = [
        RecallCell("pairs", gap, far, hit, 20, *wilson(hit, 20), place) for (gap, far, place), hit in zip(places, hits)
    ]
    missing = RecallCell("needle", 0.1, 900, 0, 0, 0.0, 1.0, BEYOND_FIELD, "longer than the 512 positions")
    return RecallReport(0.1, 32, 160, (missing, *cells), HOSTILE)


def causal() -> SwapReport:
    head = HeadError(0.5, 0.1, 0.2)
    layers = tuple(
        LayerError(n, f"window {HOSTILE}", n > 0, (head,) * 8, (replace(head, kl=None),) * 8, 0.1 * n, 0.2 * n)
        for n in range(5)
    )
    exact = DecodingCost(tuple(DecodingPoint(n, 1000 * n, 1.0 * n) for n in (1024, 4096)))
    ours = DecodingCost(tuple(DecodingPoint(n, 90000, 2.0) for n in (1024, 4096, 16384)), "its positions end")
    return SwapReport(
        original=HOSTILE,
        swapped="swapped",
        kind="decoder",
        texts=8,
        length=512,
        layers=layers,
        reach=Reach(32, 160, 4),
        loss=losses(512),
        beyond=losses(1024),
        recall={"original": recalled((20, 18, 15)), "swapped": recalled((20, 3, 2))},
        decoding={"original": exact, "swapped": ours},
        encoder=(),
        notes=(HOSTILE,),
    )


def encoding() -> SwapReport:
    masked = MaskedAgreement(200, 0.9, 0.85, 0.94, 0.6, 0.55)
    points = (
        EncoderPoint(1, 128, 8, "the original", Estimate(0.98, 0.97, 0.99), 0.9, masked),
        EncoderPoint(4, 512, 0, "the original", None, None, None, HOSTILE),
    )
    nothing = {"loss": None, "beyond": None, "recall": None, "decoding": None}
    return replace(causal(), encoder=points, reach=Reach(None, None, 0), **nothing)


def test_every_section_is_there_and_what_came_from_outside_is_escaped():
    page = swap_page(causal())
    assert page.count("<svg") == 2 + 3 + 2  # losses, three heat maps (no KL free-running), decoding
    assert "<img" not in page and "http://" not in page and "https://" not in page
    for words in (
        "The loss goes from 2.000 to 2.100 nats a token (+0.100, 95 % interval +0.050 to +0.150).",
        "Beyond the window it recalls 12% (at chance), the original 82%; a guess is 10%.",
        "4 of 5 layers were swapped; layer 4 errs most by itself (40.0% of its output).",
        "a layer reads 32 tokens back and the first 4 tokens; all layers together carry nothing further than 160",
        "a guess is right in 10%",
        "beyond the receptive field",
        "longer than the 512 positions",
        "State: the original grows, swapped flat within 10 %.",
        ">87.9 KiB<",
    ):
        assert words in page, words
    assert page.index("The loss goes") < page.index("<h2>")
    assert "cannot judge the swap" not in page


def test_an_original_at_chance_is_said_first():
    report = causal()
    weak = replace(report, recall={"original": recalled((20, 2, 1)), "swapped": recalled((20, 3, 2))})
    assert "The original itself is at chance beyond the window" in swap_page(weak)
    assert "so the original cannot do this test and it says nothing about the swap" in weak.sentence


def test_encoders_have_vectors_and_masked_tokens():
    page = swap_page(encoding())
    assert "At 128 tokens sentence vectors have a mean cosine of 0.9800 to the original." in page
    assert "agree 90.0% (85.0%–94.0%) of 200; right: original 60.0%, swapped 55.0%" in page
    assert "<img" not in page and "No layer has a window." in page and "<h2>Recall" not in page


@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_in_chromium(browser, tmp_path: Path, width: int, scheme: str):
    for name, report in (("causal", causal()), ("encoder", encoding())):
        path = tmp_path / f"{name}.html"
        write_swap_page(report, path)
        opened, requests, problems = open_page(browser, path, width, scheme)
        assert opened.title().endswith(" with another attention") and requests == [path.as_uri()] and problems == []
        assert opened.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        opened.locator("svg .shade").first.hover()
        assert "layer 0, head 0: 0.2" in opened.locator("#tip").inner_text()
        opened.context.close()
