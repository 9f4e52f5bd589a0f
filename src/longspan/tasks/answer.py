"""Question answering by spans of a passage, as in SQuAD (Rajpurkar et al. 2016; Devlin et al. 2018, section 4.2)."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.examples import Example
from longspan.data.text import text_files
from longspan.data.text.tables import ending, format_of
from longspan.data.text.windows import around
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.tasks import metrics, starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss
from longspan.tasks.metric_sums import Answered, AnswerMetrics
from longspan.tasks.spans import Passage, best_spans, masked, question_windows
from longspan.tasks.text_inputs import (
    TextTaskOptions,
    data_of,
    files,
    limited,
    padding_facts,
    read,
    read_rows,
    tokenizer_for,
    with_set,
)


@dataclass(frozen=True)
class SpanQuestion:
    """A question on a passage; without answers, it has none in the passage."""

    text: str
    passage: str
    answers: tuple[tuple[str, int], ...]  # each with the character it starts at
    article: int
    where: str  # the file and the question's id

    @property
    def gold(self) -> tuple[str, ...]:
        return tuple(answer for answer, _ in self.answers)


def questions(path: Path, encoding: str | None = None) -> list[SpanQuestion]:
    """The questions of a file in SQuAD's JSON format, v1.1 or v2."""
    try:
        with text_files.hinting():
            content = json.loads(text_files.whole(path, encoding))
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path}, line {error.lineno}: not JSON: {error.msg}") from None
    except InvalidInput:
        raise
    except (RecursionError, ValueError) as error:  # nested too deep, or a number of thousands of digits
        raise InvalidInput(f"{path} is not readable JSON: {error}") from None
    articles = content.get("data") if isinstance(content, dict) else None
    if not isinstance(articles, list):
        raise InvalidInput(f"{path} is not in SQuAD's format: it has no list called data")
    parsed: list[SpanQuestion] = []
    for number, article in enumerate(articles):
        try:
            for paragraph in article["paragraphs"]:
                for each in paragraph["qas"]:
                    given = [] if each.get("is_impossible") else each["answers"]
                    answers = tuple((str(one["text"]), int(one["answer_start"])) for one in given)
                    where = f"{path}, question {each['id']}"
                    parsed.append(
                        SpanQuestion(str(each["question"]), str(paragraph["context"]), answers, number, where)
                    )
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            last = parsed[-1].where if parsed else f"{path}, its beginning"
            raise InvalidInput(f"{path}, article {number}: not in SQuAD's format after {last}: {error!r}") from None
    for one in parsed:
        for answer, start in one.answers:
            if one.passage[start : start + len(answer)] != answer:
                raise InvalidInput(f"{one.where}: {answer[:40]!r} is not at character {start} of its passage")
        if not one.passage.strip() or not one.text.strip():
            raise InvalidInput(f"{one.where}: the question or its passage is empty")
    if not parsed:
        raise InvalidInput(f"{path} has no questions")
    return parsed


class Spans(Objective):
    """The mean cross-entropy of an answer's start and end."""

    unit = "windows"

    def __init__(
        self, questions: Sequence[SpanQuestion], passages: dict[str, Passage], *, keep: int = 20, longest: int = 30
    ) -> None:
        self.questions, self.passages, self.keep, self.longest = questions, passages, keep, longest

    def count(self, batch: Batch) -> int:
        return len(batch["start"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits = masked(read(model, batch, "span").float(), batch["places"])
        return TaskLoss(_nats(logits, batch), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[Metrics, Any]:
        logits = masked(read(model, batch, "span").float(), batch["places"])
        metrics = AnswerMetrics(nats=float(_nats(logits, batch)), windows=len(logits), keep=self.keep)
        for row, number in enumerate(batch["question"].tolist()):
            null, spans = best_spans(
                logits[row], batch["places"][row], batch["leads"][row], keep=self.keep, longest=self.longest
            )
            question = self.questions[number]
            passage = self.passages[question.passage]
            texts = [(score, passage.cut(first, last)) for score, first, last in spans]
            metrics.add(AnswerMetrics({number: Answered(question.gold, null, texts)}, keep=self.keep))
        return metrics, None


def _nats(logits: Tensor, batch: Batch) -> Tensor:
    start, end = logits.unbind(-1)
    both = [cross_entropy(logit, batch[name], reduction="sum") for logit, name in ((start, "start"), (end, "end"))]
    return (both[0] + both[1]) / 2


class Answer(Task):
    """Questions on passages, in SQuAD's JSON format or a table; unless a file is held out, the last passages are."""

    name = "answer"
    starting_model = starting.ENCODER
    starting_train = starting.BY_F1

    @dataclass(frozen=True, kw_only=True)
    class Options(TextTaskOptions):
        question: str = option("question", "the column of the question, if the file is a table", column=True)
        passage: str = option("passage", "the column of the passage", column=True)
        answer: str = option("answer", "the column of the answer; an empty one: the passage has none", column=True)
        length: int = option(384, "most tokens of a window, the question's included", low=8)
        step: int = option(128, "tokens from one window to the next (BERT's doc stride)", low=1)
        question_length: int = option(64, "most tokens of a question; the rest is cut off", low=1)
        answer_length: int = option(30, "most tokens of a predicted answer", low=1)
        keep: int = option(20, "best starts and ends to combine, and best answers to keep", low=1)
        share: float = option(0.2, "share of the articles to hold out, if held_out is not given", low=0, high=0.9)
        batch: int = option(16, "windows per batch", low=1)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = with_set(self.options, self.name)
        tables = {split: self._questions(path, options) for split, path in files(options, folders).items()}
        said: dict[str, Any] = {}
        if "held_out" not in tables:
            count = len(tables["train"])
            tables["train"], tables["held_out"] = by_article(tables["train"], options.share)
            said["held out"] = f"{len(tables['held_out']):,} of {count:,} questions, those of the last passages"
        tables["train"] = limited(tables["train"], options.limit, folders.seed)
        texts = [part for question in tables["train"] for part in (question.text, question.passage)]
        tokenizer = tokenizer_for(options, tokenizer, texts)
        all_questions = [question for table in tables.values() for question in table]
        passages = {text: Passage.of(text, tokenizer) for text in {one.passage: None for one in all_questions}}
        edge = around(tokenizer, pair=True)
        splits: dict[str, list[Example]] = {}
        number = 0
        for split, table in tables.items():
            examples: list[Example] = []
            for question in table:
                words = tokenizer.encode(question.text, special=False).ids[: options.question_length]
                passage = passages[question.passage]
                span = None
                if question.answers:
                    answer, start = question.answers[0]
                    span = passage.tokens_of(start, start + len(answer))
                examples.extend(
                    question_windows(words, passage, number, edge, length=options.length, step=options.step, span=span)
                )
                number += 1
            splits[split] = examples
        data = data_of(splits, options, tokenizer, folders.seed)
        facts = {
            **{f"{split} questions": len(table) for split, table in tables.items()},
            **padding_facts(data),
            **said,
            "baselines": {"the nearest sentence": nearest_sentence(tables["held_out"])},
        }
        objective = Spans(all_questions, passages, keep=options.keep, longest=options.answer_length)
        return Prepared(
            data["train"],
            data["held_out"],
            objective,
            data.get("test"),
            tokenizer,
            needs={"vocabulary": tokenizer.size, "tasks": (Head(task="span"),)},
            facts=facts,
        )

    def _questions(self, path: Path, options: "Answer.Options") -> list[SpanQuestion]:
        if is_squad(path, options.encoding):
            return questions(path, options.encoding)
        return question_rows(path, options)


def is_squad(path: Path, encoding: str | None = None) -> bool:
    """Whether a file is in SQuAD's format: JSON that is no list of rows."""
    if format_of(path) != "json":
        return format_of(path) == "tsv" and ending(path) != ".tsv"
    first = next((line.strip() for line in text_files.lines(path, encoding) if line.strip()), "")
    return not first.startswith("[")


def question_rows(path: Path, options: "Answer.Options") -> list[SpanQuestion]:
    """The questions of a table. An answer is where it first occurs in its passage; equal passages are one article."""
    parsed: list[SpanQuestion] = []
    articles: dict[str, int] = {}
    wanted = [options.question, options.passage]
    for row in read_rows(path, wanted, options, optional=[options.answer]):
        passage, answer = row.fields[options.passage], row.fields[options.answer].strip()
        start = passage.find(answer)
        if start < 0:
            raise InvalidInput(f"{row.where}: the answer {answer[:40]!r} is not in its passage, letter by letter")
        article = articles.setdefault(passage, len(articles))
        answers = ((answer, start),) if answer else ()
        parsed.append(SpanQuestion(row.fields[options.question], passage, answers, article, row.where))
    return parsed


def by_article(table: Sequence[SpanQuestion], share: float) -> tuple[list[SpanQuestion], list[SpanQuestion]]:
    """The questions of the first articles, and of the held-out last ones: no passage is in both."""
    count = 1 + max(question.article for question in table)
    cut = count - max(1, round(count * share))
    if cut < 1:
        raise InvalidInput("there is one article, and none to hold out; give a held_out file")
    first = [question for question in table if question.article < cut]
    return first, [question for question in table if question.article >= cut]


def nearest_sentence(table: Sequence[SpanQuestion]) -> dict[str, float]:
    """Scores of a baseline: the sentence of the passage that shares most words with the question."""
    exact = f1 = 0.0
    for question in table:
        words = {*metrics.normalise(question.text).split()}
        sentences = re.split(r"(?<=[.!?])\s+", question.passage)
        best = max(sentences, key=lambda sentence: len(words & {*metrics.normalise(sentence).split()}))
        exact += metrics.exact_match(best, question.gold)
        f1 += metrics.answer_f1(best, question.gold)
    return {"exact": 100 * exact / len(table), "f1": 100 * f1 / len(table)}


__all__ = ["Answer", "SpanQuestion", "Spans", "by_article", "nearest_sentence", "question_rows", "questions"]
