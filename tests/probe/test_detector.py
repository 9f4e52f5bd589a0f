"""Detectors of injections: ROC against a count of pairs and sklearn's definition, thresholds, runs, evasions."""

import json
import random
from itertools import product
from pathlib import Path

import pytest
from tests.hub.folders import bert, decoder

from longspan import hub
from longspan.errors import InvalidInput, Unsupported
from longspan.probe.injection.detector_report import Rows, detector_findings, rows_of, save_threshold
from longspan.probe.injection.detectors import TrainedDetector, check_detector
from longspan.probe.injection.readers import Prompt
from longspan.probe.injection.roc import choose_threshold, roc


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    draw = random.Random(0)
    labels = [draw.randrange(2) for _ in range(60)]
    scores = [round(draw.gauss(label, 1), 1) for label in labels]  # with ties
    positive = [s for s, label in zip(scores, labels) if label]
    negative = [s for s, label in zip(scores, labels) if not label]
    pairs = [(a > b) + 0.5 * (a == b) for a, b in product(positive, negative)]
    found = roc(scores, labels)
    assert found.auc == pytest.approx(sum(pairs) / len(pairs))
    steps = zip(found.points, found.points[1:])
    assert sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in steps) == pytest.approx(found.auc)
    assert 0 < found.low < found.auc < found.high < 1
    assert found.points[0] == (0.0, 0.0) and found.points[-1] == (1.0, 1.0)


def test_delongs_variance_by_hand() -> None:
    # Positives 3, 2, 1 beat 2, 2 and 1 of the two negatives 0.5 and 1.5: V10 = 1, 1, 0.5 and V01 = 1, 2/3.
    found = roc([3, 2, 1, 0.5, 1.5], [1, 1, 1, 0, 0])
    assert found.auc == pytest.approx(5 / 6)
    variance = (1 / 12) / 3 + (1 / 18) / 2
    spread = 1.959964 * variance**0.5 / (5 / 6 / 6)
    assert found.low == pytest.approx(1 / (1 + 2.718281828 ** -(1.6094379 - spread)), abs=1e-6)


def test_a_perfect_order_still_has_an_interval() -> None:
    found = roc([0.9, 0.8, 0.2, 0.1], [1, 1, 0, 0])
    assert found.auc == 1.0 and found.high == 1.0 and found.low == pytest.approx(0.342, abs=1e-3)
    with pytest.raises(InvalidInput, match="rows of both labels"):
        roc([0.1, 0.2], [1, 1])


def test_a_threshold_allows_few_false_alarms() -> None:
    scores, labels = [0.9, 0.8, 0.7, 0.6, 0.5], [1, 0, 1, 0, 1]
    assert choose_threshold(scores, labels, 0.0) == pytest.approx(0.85)
    assert choose_threshold(scores, labels, 0.5) == pytest.approx(0.65)
    assert choose_threshold([0.9, 0.1], [0, 1], 0.0) > 0.9  # nothing can be found without a false alarm


class Counting(TrainedDetector):
    """Scores by the number of the word "cat"."""

    def scores(self, texts):  # type: ignore[no-untyped-def]
        return [min(1.0, text.count("cat") / 4) for text in texts]


def test_the_threshold_comes_from_held_out_rows_and_not_from_test_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainedDetector, "scores", Counting.scores)
    held = [Prompt("cat cat cat", 1, 1, "train"), Prompt("cat", 0, 2, "train")]
    test = [Prompt("cat", 1, 547, "test"), Prompt("dog", 0, 548, "test"), Prompt("cat cat cat cat", 1, 549, "test")]
    ready, found = detector_findings(TrainedDetector(None, 0.0), Rows(held, test))  # type: ignore[arg-type]
    assert ready.threshold == pytest.approx(0.5)  # on test rows, 0.25 would find everything
    values = {finding.name: finding.values for finding in found}
    assert values["quality"]["recall"]["share"] == 50.0 and values["roc"]["auc"] == 1.0
    assert "2 held-out training rows" in values["quality"]["threshold from"]


def test_rows_of_a_run(tmp_path: Path) -> None:
    prompts = [Prompt(str(n), n % 2, n, "train" if n < 5 else "test") for n in range(1, 8)]
    with pytest.raises(InvalidInput, match=r"has no split\.json"):
        rows_of(tmp_path, prompts)
    (tmp_path / "split.json").write_text(json.dumps({"source": "x", "rows": 4, "held_out": [0, 2]}))
    rows = rows_of(tmp_path, prompts)
    assert [p.line for p in rows.validation] == [1, 3] and [p.line for p in rows.test] == [5, 6, 7]
    (tmp_path / "split.json").write_text(json.dumps({"source": "x", "rows": 9, "held_out": [0, 7]}))
    with pytest.raises(InvalidInput, match="is of other data: it has 9 rows"):
        rows_of(tmp_path, prompts)


def test_other_models_are_no_detectors(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=r"no detector; train one by .*or probe .*`longspan probe injection`"):
        check_detector(hub.load(decoder(tmp_path / "decoder")))
    labelled = bert(tmp_path / "bert", "BertForSequenceClassification", num_labels=2)
    with pytest.raises(Unsupported, match="has no label 'injection'"):
        check_detector(hub.load(labelled))
    names = {"id2label": {0: "benign", 1: "injection"}, "label2id": {"benign": 0, "injection": 1}}
    folder = bert(tmp_path / "detector", "BertForSequenceClassification", **names)
    with pytest.raises(InvalidInput, match=f"longspan probe detector {folder}"):
        TrainedDetector.load(folder)
    save_threshold(folder, TrainedDetector(hub.load(folder), 0.25), Rows([], []), 0.02)
    detector = TrainedDetector.load(folder)
    assert detector.threshold == 0.25
    scores = detector.scores(["the cat sits", "a\ttab \n " * 20, ""])
    assert all(0 <= score <= 1 for score in scores)
    assert TrainedDetector(detector.pretrained, scores[0] - 1e-3).flags(["the cat sits"]) == [True]
    assert TrainedDetector(detector.pretrained, scores[0] + 1e-3).flags(["the cat sits"]) == [False]
    (folder / "detector.json").write_text('{"threshold": "high"}')
    with pytest.raises(InvalidInput, match="threshold must be a number from 0 to 1, not 'high'"):
        TrainedDetector.load(folder)
