"""Sentences with a word in several senses, and where the word is in each."""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput
from longspan.parsing import read_text

LEAST = 2  # sentences of a sense, so that one can be the neighbour of another


@dataclass(frozen=True)
class Occurrence:
    """A word in a sentence: the characters `start` to `stop`."""

    sentence: str
    sense: str
    start: int
    stop: int


@dataclass(frozen=True)
class SenseSet:
    """The occurrences of one word; `one_sense` marks a control, whose groups are topics."""

    word: str
    occurrences: tuple[Occurrence, ...]
    one_sense: bool = False

    @property
    def senses(self) -> list[str]:
        return list(dict.fromkeys(each.sense for each in self.occurrences))


@cache
def samples() -> dict[str, Any]:
    """The texts of the package."""
    return tomllib.loads((files("longspan.inspect.measures") / "samples.toml").read_text(encoding="utf-8"))


def sample_text() -> str:
    """A text for those who give none: twelve passages on different subjects."""
    text: str = samples()["text"]
    return text


def sample_senses() -> list[SenseSet]:
    """The words of the package: bank, bat and spring, and water as a control."""
    return [
        sense_set(
            entry["word"],
            [(sense, sentence) for sense, sentences in entry["senses"].items() for sentence in sentences],
            one_sense=entry.get("one_sense", False),
        )
        for entry in samples()["words"]
    ]


def read_senses(path: Path) -> list[SenseSet]:
    """A file of lines `word<TAB>sense<TAB>sentence`; `word#1` is the second occurrence in its sentence.

    A sense called `=NAME` is a topic of a word with one sense: a control.
    """
    rows: dict[str, list[tuple[str, str, int]]] = {}
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split("\t")
        if len(fields) != 3 or not all(field.strip() for field in fields):
            raise InvalidInput(f"{path}, line {number}: expected word, sense and sentence with tabs between them")
        rows.setdefault(fields[0].partition("#")[0].strip(), []).append((fields[1].strip(), line, number))
    if not rows:
        raise InvalidInput(
            f"{path} has no sentences; expected lines of word, sense and sentence with tabs between them"
        )
    sets = []
    for word, entries in rows.items():
        found = []
        for sense, line, number in entries:
            name, _, sentence = line.split("\t")
            which = name.partition("#")[2].strip()
            if which and not which.isdecimal():
                raise InvalidInput(f"{path}, line {number}: expected {word}#NUMBER, got {name!r}")
            try:
                found.append(occurrence(word, sense.removeprefix("="), sentence.strip(), int(which or 0)))
            except InvalidInput as error:
                raise InvalidInput(f"{path}, line {number}: {error}") from None
        one_sense = all(sense.startswith("=") for sense, *_ in entries)
        sets.append(_checked(SenseSet(word, tuple(found), one_sense), str(path)))
    return sets


def sense_set(word: str, sentences: Sequence[tuple[str, str]], *, one_sense: bool = False) -> SenseSet:
    """From (sense, sentence) pairs."""
    found = tuple(occurrence(word, sense, sentence) for sense, sentence in sentences)
    return _checked(SenseSet(word, found, one_sense), word)


def occurrence(word: str, sense: str, sentence: str, which: int = 0) -> Occurrence:
    """The `which`-th occurrence of a word, in any case, also with an ending such as -s or -'s."""
    pattern = rf"(?<!\w){re.escape(word)}(?:'?\w{{1,2}})?(?!\w)"
    exact = list(re.finditer(rf"(?<!\w){re.escape(word)}(?!\w)", sentence, re.IGNORECASE))
    matches = exact or list(re.finditer(pattern, sentence, re.IGNORECASE))
    if which >= len(matches):
        times = "is not" if not matches else f"is only {len(matches)} time{'s' * (len(matches) > 1)}"
        raise InvalidInput(f"{word!r} {times} in the sentence {sentence[:80]!r}")
    return Occurrence(sentence, sense, matches[which].start(), matches[which].end())


def _checked(found: SenseSet, where: str) -> SenseSet:
    counts = {sense: sum(each.sense == sense for each in found.occurrences) for sense in found.senses}
    if len(counts) < 2:
        raise InvalidInput(f"{where}: {found.word!r} has one sense, {found.senses[0]!r}; give at least 2")
    few = [sense for sense, count in counts.items() if count < LEAST]
    if few:
        raise InvalidInput(
            f"{where}: the sense {few[0]!r} of {found.word!r} has {counts[few[0]]} sentence; give at least {LEAST}"
        )
    return found


__all__ = ["Occurrence", "SenseSet", "occurrence", "read_senses", "sample_senses", "sample_text", "sense_set"]
