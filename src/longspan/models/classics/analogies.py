"""Analogies a : b :: c : ? over unit vectors, and the question files of Mikolov et al. 2013."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.errors import InvalidInput, UnknownName, suggest
from longspan.models.classics.vocabulary import Vocabulary
from longspan.parsing import read_text

METHODS = ("add", "multiply")
EPSILON = 1e-3  # Levy & Goldberg 2014, section 6
PIECE = 256  # questions answered at once

Question = tuple[str, str, str, str]


def scores(
    unit: Float[Tensor, "words dim"], questions: Int[Tensor, "questions 3"], method: str
) -> Float[Tensor, "questions words"]:
    """Of every word as the answer d to a : b :: c : d.

    `add` (3CosAdd): cos(d, b - a + c).
    `multiply` (3CosMul, Levy & Goldberg 2014): cos(d, b)·cos(d, c) / (cos(d, a) + ε), each cosine moved to 0..1.
    """
    if method not in METHODS:
        raise UnknownName(f"no method of analogy is called {method!r}: {suggest(method, METHODS)}")
    a, b, c = (unit[column] for column in questions.unbind(1))
    if method == "add":
        target: Tensor = b - a + c
        lengths: Tensor = target.norm(dim=-1, keepdim=True)
        return target / lengths.clamp_min(1e-12) @ unit.T
    near_a, near_b, near_c = ((x @ unit.T + 1) / 2 for x in (a, b, c))
    return near_b * near_c / (near_a + EPSILON)


@dataclass(frozen=True)
class Section:
    """The counts of one section of questions; sections called `gram…` are the syntactic ones."""

    name: str
    asked: int  # questions all of whose words are known
    skipped: int  # those with an unknown word
    correct: int
    correct_unexcluded: int  # the control: a, b and c may be answers as well
    own_words: int  # how often the control's answer was one of the question's own words
    correct_neighbour: int  # another control: the nearest neighbour of c, whatever a and b are

    @property
    def syntactic(self) -> bool:
        return self.name.startswith("gram")


@dataclass(frozen=True)
class AnalogyReport:
    """The sections, and what they add up to; an accuracy is None where nothing was asked."""

    sections: tuple[Section, ...]

    @property
    def semantic(self) -> float | None:
        return _accuracy(section for section in self.sections if not section.syntactic)

    @property
    def syntactic(self) -> float | None:
        return _accuracy(section for section in self.sections if section.syntactic)

    @property
    def accuracy(self) -> float | None:
        return _accuracy(self.sections)

    @property
    def accuracy_unexcluded(self) -> float | None:
        """The control, which is near 0 even for good vectors: the nearest word is mostly c or b itself."""
        asked = sum(section.asked for section in self.sections)
        return sum(section.correct_unexcluded for section in self.sections) / asked if asked else None

    @property
    def accuracy_neighbour(self) -> float | None:
        """The control that answers with the nearest neighbour of c."""
        asked = sum(section.asked for section in self.sections)
        return sum(section.correct_neighbour for section in self.sections) / asked if asked else None

    @property
    def asked(self) -> int:
        return sum(section.asked for section in self.sections)

    @property
    def skipped(self) -> int:
        return sum(section.skipped for section in self.sections)


def _accuracy(sections: Iterable[Section]) -> float | None:
    counted = [(section.correct, section.asked) for section in sections]
    asked = sum(of for _, of in counted)
    return sum(correct for correct, _ in counted) / asked if asked else None


def evaluate(
    unit: Float[Tensor, "words dim"],
    vocabulary: Vocabulary,
    path: Path,
    *,
    method: str = "add",
    lower: bool = False,
) -> AnalogyReport:
    """Answers a file of questions: lines `: section` and lines of four words."""
    return AnalogyReport(
        tuple(_section(unit, vocabulary, name, asked, method) for name, asked in _sections(path, lower))
    )


def _sections(path: Path, lower: bool) -> Iterator[tuple[str, list[Question]]]:
    if not path.is_file():
        raise InvalidInput(f"{path} is not there: a file of analogy questions")
    name, questions = "", list[Question]()
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        words = line.split()
        if words and words[0].startswith(":"):
            if name or questions:
                yield name, questions
            name, questions = line.partition(":")[2].strip(), []
        elif len(words) == 4:
            a, b, c, d = (word.lower() for word in words) if lower else words
            questions.append((a, b, c, d))
        elif words:
            raise InvalidInput(f"{path}, line {number}: expected four words or ': section', got {line!r}")
    if not name and not questions:
        raise InvalidInput(f"{path} has no questions")
    yield name, questions


def _section(unit: Tensor, vocabulary: Vocabulary, name: str, questions: list[Question], method: str) -> Section:
    known = [[vocabulary.ids[word] for word in words] for words in questions if all(w in vocabulary for w in words)]
    correct = correct_unexcluded = own_words = neighbour = 0
    for piece in torch.split(torch.tensor(known, dtype=torch.long).view(-1, 4), PIECE):
        given, wanted = piece[:, :3].to(unit.device), piece[:, 3].to(unit.device)
        found = scores(unit, given, method)
        answer = found.argmax(1)
        correct_unexcluded += int((answer == wanted).sum())
        own_words += int((answer[:, None] == given).any(1).sum())
        correct += int((found.scatter_(1, given, -torch.inf).argmax(1) == wanted).sum())
        near = (unit[given[:, 2]] @ unit.T).scatter_(1, given, -torch.inf)
        neighbour += int((near.argmax(1) == wanted).sum())
    return Section(name, len(known), len(questions) - len(known), correct, correct_unexcluded, own_words, neighbour)


__all__ = ["METHODS", "AnalogyReport", "Section", "evaluate", "scores"]
