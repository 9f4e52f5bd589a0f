"""The answer in what a model wrote, and whether it is right. Only the answer is judged, never the reasoning."""

import re
from collections import Counter
from collections.abc import Sequence
from decimal import Decimal

from longspan.probe.prompts.questions import Question

NUMBER = re.compile(r"(?<![\d.,])[-−]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
MARK = re.compile(r"\banswer(?:\s+is|\s*:)", re.IGNORECASE)
EDGES = " \t\r\n.,;:!?\"'`*()[]"


def extract(text: str, question: Question, *, marked: bool = False) -> str | None:
    """The answer in a text, or None. It stands behind the last "answer is", if there is one.

    Without those words a text is read from its beginning or, if `marked`, has no answer: a chain of thought is full of
    numbers that are no answers.

    >>> extract("The answer is 1,234.", question)
    '1234'
    """
    marks = list(MARK.finditer(text))
    if marks:
        text = text[marks[-1].end() :]
    elif marked:
        return None
    text = text.strip()
    if is_number(question.answer):
        found = NUMBER.search(text)
        return None if found is None else plain_number(found[0])
    if question.options:
        return _first_option(text, question.options)
    line = text.split("\n")[0].strip(EDGES)
    return line or None


def is_right(answer: str | None, question: Question) -> bool:
    """Exact match: numbers by value, texts without case, articles and punctuation around them."""
    if answer is None:
        return False
    if is_number(question.answer) and is_number(answer):
        return Decimal(plain_number(answer)) == Decimal(plain_number(question.answer))
    return _normal(answer) == _normal(question.answer)


def is_number(text: str) -> bool:
    return NUMBER.fullmatch(text.strip()) is not None


def plain_number(text: str) -> str:
    """Without separators of thousands, with an ASCII minus sign."""
    return text.strip().replace(",", "").replace("−", "-")


def majority(answers: Sequence[str | None]) -> str | None:
    """The commonest answer, the earliest of several; texts without an answer do not vote."""
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0][0] if votes else None


def _first_option(text: str, options: Sequence[str]) -> str | None:
    """The option that is named first; of two at the same place the longer."""
    found = []
    for option in options:
        # A single capital letter is an option only as such: "a" is an article.
        flags = re.NOFLAG if len(option) == 1 else re.IGNORECASE
        match = re.search(rf"(?<!\w){re.escape(option)}(?!\w)", text, flags)
        if match is not None:
            found.append((match.start(), -len(option), option))
    return min(found)[2] if found else None


def _normal(text: str) -> str:
    words = text.casefold().strip(EDGES).split()
    return " ".join(words[1:] if len(words) > 1 and words[0] in ("a", "an", "the") else words)


__all__ = ["extract", "is_number", "is_right", "majority", "plain_number"]
