"""Formal limits: labels by independent rules, hard attention against argmax, really trained models, resuming."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from longspan.attention.base import Shape
from longspan.errors import InvalidInput, UnknownName
from longspan.nn.loss import IGNORED
from longspan.probe.limits import experiment
from longspan.probe.limits.experiment import Cell, LimitOptions, guesses, run_cells, train_cell
from longspan.probe.limits.findings import limit_findings, shares
from longspan.probe.limits.hard import HardAttention, straight_through
from longspan.probe.limits.languages import LANGUAGES, NOUN, NOUNS, SENTENCE, VERB, nearest_noun


def words(name: str, count: int = 40, length: int = 12, depth: int = 3) -> tuple[list[list[str]], np.ndarray]:
    language = LANGUAGES[name]
    letters, labels = language.draw(np.random.default_rng(1), count, length, depth)
    assert letters.shape == labels.shape == (count, length)
    return [[language.letters[letter] for letter in word] for word in letters], labels


# Languages


def test_parity_and_first_label_every_prefix():
    for word, labels in zip(*words("parity")):
        assert labels.tolist() == ["".join(word[: at + 1]).count("1") % 2 for at in range(12)]
    for word, labels in zip(*words("first")):
        assert labels.tolist() == [int(word[0])] * 12


@pytest.mark.parametrize(("name", "pairs"), [("dyck1", {")": "("}), ("dyck2", {")": "(", "]": "["})])
def test_brackets_close_what_is_open_and_stay_within_the_depth(name: str, pairs: dict[str, str]):
    kinds = {bracket: number for number, bracket in enumerate(pairs.values(), start=1)}
    deepest = 0
    for word, labels in zip(*words(name, count=100)):
        stack: list[str] = []
        for letter, label in zip(word, labels):
            if letter in pairs:
                assert stack.pop() == pairs[letter]
            else:
                stack.append(letter)
            assert label == (kinds[stack[-1]] if stack else 0)
            deepest = max(deepest, len(stack))
    assert deepest == 3


def test_verbs_agree_with_the_noun_of_their_own_clause():
    """Read by a stack: THAT opens a clause, a verb closes it and agrees with the clause's first noun."""
    seen_nested = 0
    for sentence, labels in zip(*words("agreement", count=200, length=14)):
        clauses: list[list[int]] = [[]]
        for word, label in zip(sentence, labels):
            letter = SENTENCE.index(word)
            if word == "that":
                clauses.append([])
            elif letter >= NOUN:
                clauses[-1].append(int(letter >= NOUN + len(NOUNS)))
            elif letter == VERB:
                assert label == clauses.pop()[0]
                seen_nested += bool(clauses)
            if letter != VERB:
                assert label == IGNORED
        assert clauses == [] and sentence[-1] == "VERB" and len(sentence) == 14
    assert seen_nested > 20


@pytest.mark.parametrize("length", range(3, 30))
def test_sentences_have_every_length(length: int):
    letters, _ = LANGUAGES["agreement"].draw(np.random.default_rng(0), 5, length, 2)
    assert letters.shape == (5, length)


def test_the_nearest_noun_is_the_last_one_before_the_verb():
    ids = [
        [SENTENCE.index(word) for word in text.split()]
        for text in ("the key near the dogs VERB", "the red old dogs near VERB")
    ]
    assert nearest_noun(np.array(ids)).tolist() == [1, 1]


@pytest.mark.parametrize("name", list(LANGUAGES))
def test_test_words_are_balanced_and_the_same_for_all(name: str):
    language, options = LANGUAGES[name], LimitOptions(words=120)
    length = language.fit(21)
    letters, labels = experiment.test_words(language, options, length, 4)
    assert np.array_equal(letters, experiment.test_words(language, options, length, 4)[0])
    counts = np.bincount(labels[:, -1], minlength=len(language.labels))
    assert counts.sum() == 120 and counts.max() - counts.min() <= 1
    assert guesses(language, options, length)["commonest label"] == 1 / len(language.labels)


# Hard attention


def test_hard_attention_reads_the_leftmost_of_the_highest_keys():
    attention = HardAttention(Shape(heads=1, head_dim=2, value_dim=2), causal=True)
    k = torch.tensor([[[[1.0, 0], [3, 0], [3, 0], [9, 0]]]])
    v = torch.arange(8.0).view(1, 1, 4, 2)
    q = torch.ones(1, 1, 4, 2)
    out = attention(q, k, v)
    assert torch.equal(out[0, 0], v[0, 0, [0, 1, 1, 3]])
    assert torch.equal(out, attention.reference(q, k, v))
    masked = attention(q, k, v, key_mask=torch.tensor([[True, False, True, False]]))
    assert torch.equal(masked[0, 0], v[0, 0, [0, 0, 2, 2]])


def test_the_gradient_of_a_hard_choice_is_that_of_the_softmax():
    scores = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    factors = torch.randn(3, 5, dtype=torch.float64)
    hard = straight_through(scores.softmax(-1))
    assert set(hard.detach().flatten().tolist()) == {0.0, 1.0} and torch.equal(hard.argmax(-1), scores.argmax(-1))
    (found,) = torch.autograd.grad((hard * factors).sum(), scores)
    (expected,) = torch.autograd.grad((scores.softmax(-1) * factors).sum(), scores)
    assert torch.allclose(found, expected)


# Training


def test_parity_an_lstm_carries_over_and_a_transformer_does_not():
    """Hahn 2020: what a Transformer learned of PARITY at short lengths does not carry over to twice the length."""
    options = LimitOptions(longest=6, steps=400, width=32, words=400)
    lstm = train_cell("parity", "lstm", 0, options)
    assert lstm.lengths[6] / 400 > 0.99 and lstm.lengths[12] / 400 > 0.99
    transformer = train_cell("parity", "transformer", 0, options)
    assert transformer.lengths[6] / 400 > 0.95
    assert 0.35 < transformer.lengths[12] / 400 < 0.65


@pytest.mark.parametrize("model", list(experiment.MODELS))
def test_a_cell_is_reproducible_and_every_language_trains(model: str, tmp_path: Path):
    options = LimitOptions(longest=6, steps=2, batch=4, width=8, heads=2, layers=1, depth=2, words=12)
    cells = run_cells(list(LANGUAGES), [model], 1, options, tmp_path)
    again = train_cell("parity", model, 0, options)
    assert (again.loss, again.lengths) == (cells[0].loss, cells[0].lengths)
    assert list(cells[0].lengths) == [3, 6, 9, 12, 24, 48] and cells[0].depths == {}
    nested = {cell.language: cell for cell in cells}["dyck2"]
    assert list(nested.lengths) == [4, 6, 10, 12, 24, 48] and list(nested.depths) == [1, 2, 3]


def test_finished_cells_are_not_trained_again_and_other_options_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    options = LimitOptions(longest=6, steps=1, batch=2, width=8, heads=2, words=10)
    first = run_cells(["parity"], ["lstm"], 2, options, tmp_path)
    monkeypatch.setattr(experiment, "train_cell", None)
    assert run_cells(["parity"], ["lstm"], 2, options, tmp_path) == first
    path = tmp_path / "parity-lstm-1.json"
    with pytest.raises(InvalidInput, match=r"parity-lstm-0\.json was made with other options; give another --out"):
        run_cells(["parity"], ["lstm"], 2, LimitOptions(longest=6, steps=2), tmp_path)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match=r"parity-lstm-1.json is no result of this command"):
        run_cells(["parity"], ["lstm"], 2, options, tmp_path)


def test_unknown_names_are_refused_before_training(tmp_path: Path):
    with pytest.raises(UnknownName, match="there is no language 'party'; did you mean 'parity'"):
        run_cells(["party"], ["lstm"], 1, LimitOptions(), tmp_path)
    with pytest.raises(UnknownName, match="there is no model 'gru'"):
        run_cells(["parity"], ["gru"], 1, LimitOptions(), tmp_path)
    assert list(tmp_path.iterdir()) == []


# Findings


def cell(model: str, seed: int, hits: dict[int, int]) -> Cell:
    return Cell("parity", model, seed, {}, 7, 1.0, 0.1, hits)


def test_means_and_bands_are_over_seeds():
    options = LimitOptions(longest=6, words=100)
    lengths = (3, 6, 9, 12, 24, 48)
    cells = [
        cell("lstm", 0, dict.fromkeys(lengths, 100)),
        cell("lstm", 1, dict.fromkeys(lengths, 90)),
        cell("transformer", 0, {**dict.fromkeys(lengths, 50), 6: 98}),
        cell("transformer", 1, {**dict.fromkeys(lengths, 52), 6: 100}),
    ]
    assert shares(cells[:2], [6, 12], 100) == [(95, 90, 100), (95, 90, 100)]
    (finding,) = limit_findings(cells, options)
    assert finding.sentence == (
        "Right after words of 6 letters, the longest of training, and of 12: "
        "LSTM 95.0 % and 95.0 %; Transformer 99.0 % and 51.0 %."
    )
    chart = finding.figures[0]
    assert chart.lines[0].band[0] == (90, 100) and chart.lines[-1].control
    assert json.dumps(finding.values)
