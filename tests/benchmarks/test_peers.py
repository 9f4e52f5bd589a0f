"""The pairs of the comparison with other packages, as far as they can be seen without those."""

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor

from benchmarks.peers import PAIRS, chart, table
from benchmarks.peers.pair import Pair, Size
from longspan.report.palette import KINDS

SIZE = Size(64)
ASKED = Path(__file__).parents[2] / "benchmarks" / "peers.txt"


def results(pair: Pair, *, lacks: dict[str, str] | None = None) -> dict[str, Any]:
    """What a run finds, theirs taking twice as long forward."""
    lacks = lacks or {}
    told = {"theirs forward": 0.2, "theirs backward": 0.3, "ours forward": 0.1, "ours backward": 0.3}
    seconds = {name: value for name, value in told.items() if name not in lacks}
    found = {"seconds": {**seconds, "full forward": 0.5, "full backward": 1.5}, "differs": None, "lacks": lacks}
    named = {
        name: getattr(pair, name) for name in ("peer", "what", "equal", "close", "kind", "decodes", "ours_decodes")
    }
    row = {**named, "version": "1.0", "times": found, "kept": found}
    row["memory"] = {"theirs": {"error": "no answer in 900 s"}, "ours": {"bytes": 2**20}}
    machine = {"processor": "a processor", "torch_threads": 2, "torch": "2"}
    decoding = {
        "rates": {"1": {"longspan": 200.0, "another": 100.0}},
        "prompt": 128,
        "new": 128,
        "layers": 6,
        "width": 8,
    }
    whole = {"length": 4096, "repeats": 5, "date": "2026-01-01", "machine": machine, "decoding": decoding}
    return {**whole, "rows": [row]}


PAIR = next(iter(PAIRS.values()))


@pytest.mark.parametrize("name", PAIRS)
def test_our_side_is_built_and_learns(name: str) -> None:
    pair = PAIRS[name]
    side = pair.ours(SIZE)
    out = side.forward()
    assert out.shape == side.inputs[-1].shape
    assert out.isfinite().all()
    side.backward()


def test_a_row_that_is_measured_anew_takes_its_old_place(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.peers import __main__ as command

    first, second, third = list(PAIRS)[:3]
    known = results(PAIRS[first])
    known["rows"] += results(PAIRS[second])["rows"]
    monkeypatch.setattr(command, "measure", lambda pair, *given: {**results(pair)["rows"][0], "version": "2.0"})
    *_, found = command.run([first, third], 4096, 5, 900.0, known)
    assert [row["what"] for row in found["rows"]] == [PAIRS[name].what for name in (first, second, third)]
    assert [row["version"] for row in found["rows"]] == ["2.0", "1.0", "2.0"]
    assert found["decoding"] == known["decoding"]


@pytest.mark.parametrize("name", PAIRS)
def test_a_colour_and_a_reason_stand_beside_each_pair(name: str) -> None:
    pair = PAIRS[name]
    assert pair.kind in KINDS
    assert pair.equal and pair.decodes
    assert pair.close is None or pair.tie is not None


def test_every_package_that_is_installed_is_measured() -> None:
    asked = ASKED.read_text().split("\n\n")[0].splitlines()[1:]
    assert {line.partition("==")[0] for line in asked} == {pair.peer for pair in PAIRS.values()} - {"torch"}


def test_both_sides_of_torchs_own_pairs_give_the_same() -> None:
    for name in ("scaled_dot_product_attention", "scaled_dot_product_attention, causal"):
        pair = PAIRS[f"torch: {name}"]
        assert _difference(pair) <= (pair.close or 0.0)
    encoder = next(pair for pair in PAIRS.values() if "TransformerEncoder" in pair.what)
    assert _difference(encoder) <= (encoder.close or 0.0)


def _difference(pair: Pair) -> float:
    torch.manual_seed(0)
    theirs, ours = pair.theirs(SIZE), pair.ours(SIZE)
    assert pair.tie is not None
    pair.tie(theirs.module, ours.module)
    there: Tensor = theirs.forward()
    return float((there - ours.forward()).abs().max() / there.abs().max())


def test_the_table_has_times_ratios_and_what_failed() -> None:
    text = table.markdown(results(PAIR, lacks={"theirs backward": "ImportError: no such thing"}), "peers.svg")
    assert "| 200, 100 | –, 300 | 2 (2) | – (–) | –, 1 | 500, 1500 |" in text
    assert "ImportError: no such thing" in text and "no answer in 900 s" in text
    assert "| longspan | 200 |" in text


def test_the_chart_is_a_picture_of_its_own_for_day_and_night() -> None:
    drawn = chart.svg(results(PAIR))
    ElementTree.fromstring(drawn)
    assert "forward 2×, with backward 1×" in drawn
    assert "prefers-color-scheme: dark" in drawn


def test_a_pair_without_times_is_in_the_chart_all_the_same() -> None:
    none = results(PAIR, lacks=dict.fromkeys(("theirs forward", "theirs backward"), "ImportError"))
    assert "not measured" in chart.svg(none)
