"""Metrics against the packages that define them, and the examples of their papers and scripts."""

import re
import string
import warnings
from collections import Counter

import numpy as np
import pytest

from longspan.tasks import metrics
from longspan.tasks.metric_sums import Answered, AnswerMetrics, ClassMetrics, NumberMetrics, TagMetrics, entity_scores


@pytest.mark.parametrize("labels", [2, 5])
def test_label_metrics_equal_those_of_scikit_learn(labels: int) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    draws = np.random.default_rng(0)
    true, said = draws.integers(labels, size=(2, 300))
    said = np.where(draws.random(300) < 0.5, true, said)
    found = ClassMetrics.of(true, said, labels).result()
    assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, said), abs=1e-12)
    assert found["macro_f1"] == pytest.approx(sklearn.f1_score(true, said, average="macro"), abs=1e-12)
    assert found["matthews"] == pytest.approx(sklearn.matthews_corrcoef(true, said), abs=1e-12)
    if labels == 2:
        assert found["f1"] == pytest.approx(sklearn.f1_score(true, said), abs=1e-12)


def test_constant_predictions_have_no_correlation() -> None:
    assert ClassMetrics.of([0, 1, 1, 0], [1, 1, 1, 1], 2).result()["matthews"] == 0.0
    assert metrics.pearson([1.0, 1.0], [0.0, 2.0]) == 0.0


def test_number_metrics_equal_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    draws = np.random.default_rng(1)
    one = np.round(draws.normal(size=200), 1)  # with ties
    other = one + draws.normal(size=200)
    found = NumberMetrics(one.tolist(), other.tolist()).result()
    assert found["pearson"] == pytest.approx(stats.pearsonr(one, other).statistic, abs=1e-12)
    assert found["spearman"] == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-12)


def test_figures_are_the_same_however_they_are_split() -> None:
    draws = np.random.default_rng(2)
    true, said = draws.normal(size=(2, 50))
    whole = NumberMetrics(true.tolist(), said.tolist())
    parts = NumberMetrics(true[1::2].tolist(), said[1::2].tolist())
    parts.add(NumberMetrics(true[::2].tolist(), said[::2].tolist()))
    assert whole.result() == parts.result()
    labels, others = draws.integers(3, size=(2, 50))
    sure = draws.random(50)
    counts = ClassMetrics.of(labels[::2], others[::2], 3, names="abc", confidence=sure[::2])
    counts.add(ClassMetrics.of(labels[1::2], others[1::2], 3, names="abc", confidence=sure[1::2]))
    assert counts.result() == ClassMetrics.of(labels, others, 3, confidence=sure).result()
    row = counts.table()[0]
    assert row["label"] == "a" and row["support"] == int((labels == 0).sum()) == sum(row["said"].values())


def test_calibration_is_how_far_confidence_is_from_being_right() -> None:
    # In the bin of 0.9 three of four are right, in that of 0.6 none of one: (|3 − 3.6| + |0 − 0.6|) / 5.
    figures = ClassMetrics.of([0, 0, 0, 0, 1], [0, 0, 0, 1, 0], 2, confidence=[0.9, 0.9, 0.9, 0.9, 0.6])
    assert figures.result()["calibration_error"] == pytest.approx((0.6 + 0.6) / 5)
    assert "calibration_error" not in ClassMetrics.of([0, 1], [0, 0], 2).result()


def test_an_inside_tag_after_none_opens_an_entity_unless_strict() -> None:
    true, said = ["B-NP", "I-NP", "O"], ["I-NP", "I-NP", "O"]
    assert entity_scores([(true, said)])["f1"] == 1.0
    assert entity_scores([(true, said)], strict=True)["f1"] == 0.0


def test_entity_scores_equal_those_of_seqeval() -> None:
    seqeval = pytest.importorskip("seqeval.metrics")
    scheme = pytest.importorskip("seqeval.scheme")
    draws = np.random.default_rng(3)
    tags = np.array(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"])
    true = [tags[draws.integers(5, size=draws.integers(1, 12))].tolist() for _ in range(500)]
    said = [[tag if draws.random() < 0.7 else str(draws.choice(tags)) for tag in sentence] for sentence in true]
    for strict in (False, True):
        options = {"mode": "strict", "scheme": scheme.IOB2} if strict else {}
        mine = entity_scores(list(zip(true, said)), strict=strict)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert mine["f1"] == pytest.approx(seqeval.f1_score(true, said, **options), abs=1e-12)
            assert mine["precision"] == pytest.approx(seqeval.precision_score(true, said, **options), abs=1e-12)
            assert mine["recall"] == pytest.approx(seqeval.recall_score(true, said, **options), abs=1e-12)


def test_windows_of_a_sentence_come_together() -> None:
    parts = TagMetrics({0: {2: ("O", "O"), 1: ("I-X", "I-X")}})
    parts.add(TagMetrics({0: {0: ("B-X", "B-X")}}))
    assert parts.result()["f1"] == 1.0 and parts.result()["strict_f1"] == 1.0


def test_neighbours_of_one_type_go_to_iob2_and_back() -> None:
    first = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-PER"]
    second = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-PER"]
    assert metrics.to_iob2(first) == second
    assert metrics.to_iob1(second) == first
    assert metrics.to_iob2(second) == second


def official(answer: str) -> str:
    """`normalize_answer` of SQuAD's evaluate-v1.1.py."""
    exclude = set(string.punctuation)
    bare = "".join(ch for ch in answer.lower() if ch not in exclude)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", bare).split())


def official_f1(prediction: str, truth: str) -> float:
    one, other = official(prediction).split(), official(truth).split()
    same = sum((Counter(one) & Counter(other)).values())
    if not one or not other:
        return float(one == other)
    if same == 0:
        return 0.0
    precision, recall = same / len(one), same / len(other)
    return 2 * precision * recall / (precision + recall)


def test_answers_are_scored_as_by_the_official_script() -> None:
    assert metrics.exact_match("the Denver Broncos", ["Denver Broncos!"]) == 1.0
    assert metrics.answer_f1("the Denver Broncos", ["Denver Broncos!"]) == 1.0
    assert metrics.answer_f1("Santa Clara, California", ["Santa Clara"]) == pytest.approx(0.8)
    draws = np.random.default_rng(4)
    words = ["the", "a", "An", "Denver", "denver.", "Broncos", "24–10", "won", "U.S.", "'the'", ""]
    for _ in range(1000):
        one, *gold = (" ".join(draws.choice(words, size=draws.integers(0, 5))) for _ in range(4))
        assert metrics.answer_f1(one, gold) == pytest.approx(max(official_f1(one, each) for each in gold), abs=1e-12)
        assert metrics.exact_match(one, gold) == float(any(official(one) == official(each) for each in gold))


def test_the_best_threshold_is_never_worse_and_nothing_is_the_least_of_all_windows() -> None:
    figures = AnswerMetrics()
    figures.add(AnswerMetrics({0: Answered(("cat",), 5.0, [(1.0, "dog")])}))
    figures.add(AnswerMetrics({0: Answered(("cat",), 2.0, [(1.5, "cat")])}))
    figures.add(AnswerMetrics({1: Answered((), 3.0, [(1.0, "bird")])}))
    assert figures.answers[0].null == 2.0 and figures.answers[0].texts[0][1] == "cat"
    found = figures.result()
    assert found["f1"] == 50.0 and found["unanswerable_f1"] == 100.0 and found["answerable_f1"] == 0.0
    assert found["best_f1"] == 100.0 and 0.5 <= found["best_threshold"] < 2.0
