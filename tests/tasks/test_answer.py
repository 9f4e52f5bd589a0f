"""Answers that are spans: files, targets in windows, and what may be given as an answer."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.tasks.small import pretrained, run, tokenizer

from longspan import hub
from longspan.data.text.windows import around
from longspan.errors import InvalidInput
from longspan.hub.finetune import tune
from longspan.tasks.answer import by_article, questions
from longspan.tasks.base import DataPaths
from longspan.tasks.predict import predict
from longspan.tasks.registry import build
from longspan.tasks.spans import Passage, best_spans, masked, question_windows


def squad(path: Path, articles: int = 10, null: bool = False) -> Path:
    data = []
    for number in range(articles):
        city = ("Paris", "London")[number % 2]
        context = "the film was very good " * (number % 4) + f"Anna lives in {city}" + " a bad plot was in the film" * 2
        answers = [{"text": city, "answer_start": context.index(city)}]
        asked = [{"id": f"{number}", "question": "where lives Anna", "answers": answers}]
        if null:
            asked.append({"id": f"{number}n", "question": "good good", "answers": [], "is_impossible": True})
        data.append({"title": str(number), "paragraphs": [{"context": context, "qas": asked}]})
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return path


@pytest.mark.parametrize("span", [(0, 0), (40, 42), (1999, 1999)])
def test_targets_of_every_window_are_the_answer_or_nothing(span: tuple[int, int]) -> None:
    own = tokenizer()
    words = np.random.default_rng(0).choice(["good", "bad", "film", "plot", "Paris"], size=2000)
    passage = Passage.of(" ".join(words), own)
    assert len(passage.ids) == 2000
    gold = " ".join(words[span[0] : span[1] + 1])
    asked = own.encode("where lives Anna", special=False).ids
    made = question_windows(asked, passage, 0, around(own, pair=True), length=64, step=16, span=span)
    holding = 0
    for each in made:
        start, end = int(each.whole["start"]), int(each.whole["end"])
        if (start, end) == (0, 0):
            continue
        holding += 1
        assert passage.cut(each.each["places"][start], each.each["places"][end]) == gold
        assert own.decode(each.ids[start : end + 1].tolist()) == gold
    assert holding >= 1 and len(made) == 1 + -(-(2000 - 58) // 16)
    leads = [place for each in made for place in each.each["leads"] if place >= 0]
    assert sorted(leads) == list(range(2000))  # each token leads in one window


def test_given_answers_are_sound_whatever_the_scores() -> None:
    draws = torch.Generator().manual_seed(0)
    for _ in range(50):
        places = torch.tensor([-1] * 5 + list(range(7, 60)) + [-1])
        leads = torch.where(torch.rand(59, generator=draws) < 0.7, places, -1)
        logits = masked(torch.randn(1, 59, 2, generator=draws) * 5, places[None].clone())[0]
        _, spans = best_spans(logits, places, leads, keep=20, longest=30)
        assert spans and spans == sorted(spans, key=lambda each: -each[0])
        for score, first, last in spans:
            assert 7 <= first <= last < 60 and last - first < 30 and np.isfinite(score)
            assert first in leads.tolist()


def test_a_part_of_a_word_keeps_the_whole_token_and_text_is_cut_from_the_passage() -> None:
    passage = Passage.of("Very  GOOD film, London.", tokenizer())
    first, last = passage.tokens_of(17, 20)
    assert passage.cut(first, last) == "London"


def test_articles_are_held_out_whole(tmp_path: Path) -> None:
    asked = questions(squad(tmp_path / "a.json"))
    train, held = by_article(asked, 0.2)
    assert {each.article for each in held} == {8, 9} and len(train) == 8


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"data": [\n}', "line 2: not JSON"),
        ("[]", "not in SQuAD's format"),
        ('{"data": []}', "no questions"),
        ('{"data": [{"paragraphs": [{"qas": [{"id": "q"}]}]}]}', "article 0: not in SQuAD's format"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        questions(tmp_path / "a.json")


def test_an_answer_that_stands_elsewhere_is_named_by_its_question(tmp_path: Path) -> None:
    text = squad(tmp_path / "a.json").read_text().replace('"answer_start": 14', '"answer_start": 3', 1)
    (tmp_path / "b.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"question 0: 'Paris' is not at character 3"):
        questions(tmp_path / "b.json")


def test_answers_are_learned_and_found_in_the_last_window(tmp_path: Path) -> None:
    task = {"name": "answer", "train": str(squad(tmp_path / "a.json")), "length": 48, "step": 16, "batch": 8}
    figures = run(tmp_path / "run", task, {"from": str(pretrained(tmp_path / "body"))}, steps=100)
    assert figures["exact"] == 100.0
    found = hub.load(tmp_path / "run" / "model")
    long = "the film was very good " * 400
    said = predict(
        found, [f"where lives Anna\t{long}Anna lives in Paris", "where lives Anna\tAnna lives in London"], top=3
    )
    assert [each["answer"] for each in said] == ["Paris", "London"]
    assert len(said[0]["best"]) == 3
    with pytest.raises(InvalidInput, match="line 1: expected a question, a tab and a passage"):
        predict(found, ["where"])


def test_questions_without_answers_are_scored_apart(tmp_path: Path) -> None:
    task = build("answer", train=str(squad(tmp_path / "a.json", null=True)), length=48, step=16)
    prepared = task.prepare(DataPaths(None, tmp_path), tokenizer())
    model = tune(pretrained(tmp_path / "body"), prepared.needs["tasks"]).model.eval()
    with torch.no_grad():
        figures, _ = prepared.objective.measure(model, prepared.held_out.load([0, 1, 2, 3], 0))
    assert {"answerable_f1", "unanswerable_f1", "best_f1"} <= figures.result().keys()
