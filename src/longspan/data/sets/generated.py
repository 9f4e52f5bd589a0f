"""Generated data sets: every kind of task can be tried without downloads, and learned within minutes.

All content follows from a fixed seed and is the same on every machine. It is simple on purpose: a grammar of a few
dozen words; a toy language, English word by word with adjectives after nouns; sentiment by adjectives; names; places
where people live; shapes.
"""

import io
import json
import math
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path

import numpy as np

from longspan import files

VERSION = 1  # of the content; each version has its own folder
SIZES = {"train": 2000, "held_out": 200, "test": 200}

NOUNS = [
    "fox",
    "dog",
    "cat",
    "bird",
    "child",
    "farmer",
    "teacher",
    "river",
    "house",
    "tree",
    "garden",
    "road",
    "letter",
    "book",
    "song",
    "ship",
]
GOOD = ["kind", "bright", "lovely", "happy", "clever", "gentle"]
BAD = ["cruel", "dull", "awful", "sad", "clumsy", "rude"]
PLAIN = ["small", "old", "red", "quiet", "tall", "green"]
VERBS = ["sees", "finds", "follows", "hears", "remembers", "paints", "carries", "leaves"]
FIRST = ["Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Henry", "Ida", "Jonas"]
LAST = ["Adler", "Brook", "Castle", "Dale", "Engel", "Frost", "Grove", "Hill"]
PLACES = ["Paris", "Rome", "Oslo", "Lima", "Cairo", "Delhi", "Quito", "Tokyo"]
SYLLABLES = ["ba", "ke", "lo", "mi", "nu", "pa", "ro", "su", "ta", "vi"]
SHAPES = ("square", "cross", "stripes", "circle")
SIDE = 16  # pixels of an image


def _pick(draw: np.random.Generator, words: list[str]) -> str:
    return words[int(draw.integers(len(words)))]


def _phrase(draw: np.random.Generator, adjectives: list[str]) -> list[str]:
    article = "the" if draw.random() < 0.7 else "a"
    found = [article, _pick(draw, adjectives), _pick(draw, NOUNS)]
    return found if draw.random() < 0.6 else [found[0], found[2]]


def _sentence(draw: np.random.Generator) -> list[str]:
    adjectives = [*GOOD, *BAD, *PLAIN]
    return [*_phrase(draw, adjectives), _pick(draw, VERBS), *_phrase(draw, adjectives)]


def language(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """Paragraphs, with empty lines between."""
    paragraphs = []
    for _ in range(count):
        sentences = [" ".join(_sentence(draw)) for _ in range(int(draw.integers(2, 6)))]
        paragraphs.append(" ".join(f"{each[0].upper()}{each[1:]}." for each in sentences))
    return {"": ("\n\n".join(paragraphs) + "\n").encode()}


def pairs(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """English, and a toy language whose adjectives follow their nouns."""
    adjectives = {*GOOD, *BAD, *PLAIN}
    known = ["the", "a", *NOUNS, *GOOD, *BAD, *PLAIN, *VERBS]
    translation = {word: _made_up(number) for number, word in enumerate(known)}
    first, second = [], []
    for _ in range(count):
        words = _sentence(draw)
        first.append(" ".join(words))
        second.append(" ".join(translation[word] for word in _turned(words, adjectives)))
    return {".en": ("\n".join(first) + "\n").encode(), ".toy": ("\n".join(second) + "\n").encode()}


def _turned(words: list[str], adjectives: set[str]) -> list[str]:
    """Moves each adjective after its noun."""
    found: list[str] = []
    for place, word in enumerate(words):
        if word in adjectives:
            continue
        found.append(word)
        if place and words[place - 1] in adjectives:
            found.append(words[place - 1])
    return found


def _made_up(number: int) -> str:
    return SYLLABLES[number % 10] + SYLLABLES[number // 10 % 10] + ("n" if number % 3 == 0 else "")


def labels(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """Sentences with a sentiment."""
    rows = ["label\ttext"]
    for _ in range(count):
        good = bool(draw.integers(2))
        words = [
            *_phrase(draw, PLAIN),
            _pick(draw, VERBS),
            "the",
            _pick(draw, GOOD if good else BAD),
            _pick(draw, NOUNS),
        ]
        rows.append(f"{int(good)}\t{' '.join(words)}")
    return {"": ("\n".join(rows) + "\n").encode()}


def tags(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """Words with their tags on each line, an empty line after each sentence."""
    sentences = []
    for _ in range(count):
        person = [_pick(draw, FIRST), _pick(draw, LAST)][: int(draw.integers(1, 3))]
        rows = [(word, "B-person" if place == 0 else "I-person") for place, word in enumerate(person)]
        rows += [(word, "O") for word in [_pick(draw, VERBS), *_phrase(draw, PLAIN)]]
        if draw.random() < 0.5:
            rows += [("in", "O"), (_pick(draw, PLACES), "B-place")]
        sentences.append("".join(f"{word}\t{tag}\n" for word, tag in rows))
    return {"": "\n".join(sentences).encode()}


def answers(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """Articles in the format of SQuAD v1.1, with questions on where people live."""
    articles = []
    for number in range(max(2, count // 20)):
        people = [FIRST[int(place)] for place in draw.permutation(len(FIRST))[:4]]
        homes = [_pick(draw, PLACES) for _ in people]
        context = " ".join(f"{person} lives in {home}." for person, home in zip(people, homes))
        asked = []
        for person, home in zip(people, homes):
            start = context.index(f"{person} lives in ") + len(f"{person} lives in ")
            answer = {"text": home, "answer_start": start}
            question = {"id": f"{number}-{person}", "question": f"Where does {person} live?", "answers": [answer]}
            asked.append(question)
        articles.append({"title": f"Village {number}", "paragraphs": [{"context": context, "qas": asked}]})
    return {"": json.dumps({"version": "1.1", "data": articles}).encode()}


def images(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """Grey images of a shape at a random position, with noise."""
    kinds = draw.integers(len(SHAPES), size=count)
    rows, columns = np.mgrid[:SIDE, :SIDE]
    found = np.zeros((count, SIDE, SIDE, 1), np.uint8)
    for number, kind in enumerate(kinds):
        middle, radius = draw.integers(5, SIDE - 5, size=2), int(draw.integers(3, 5))
        down, right = np.abs(rows - middle[0]), np.abs(columns - middle[1])
        inside = np.maximum(down, right) <= radius
        shape = {
            "square": inside & (np.maximum(down, right) >= radius - 1),
            "cross": inside & ((down == 0) | (right == 0)),
            "stripes": inside & (down % 2 == 0),
            "circle": np.abs(np.hypot(down, right) - radius) < 0.8,
        }[SHAPES[kind]]
        noise = draw.integers(0, 60, size=(SIDE, SIDE))
        found[number, :, :, 0] = np.where(shape, 255 - noise, noise)
    file = io.BytesIO()
    np.savez(file, x=found, y=kinds.astype(np.uint8), classes=np.array(SHAPES))
    return {"": file.getvalue()}


def series(draw: np.random.Generator, count: int) -> dict[str, bytes]:
    """Daily values from 2015 on: a level of 100, a slope of 4 a year, seasons of a year and a week, and noise.

    The yearly season is a sine of amplitude 10. Weekends are 6 lower, Fridays 3 higher. The noise is autoregressive
    with coefficient 0.7 and innovations of deviation 1.
    """
    first, noise = date(2015, 1, 1), 0.0
    rows = ["date,value"]
    for number in range(count):
        day = first + timedelta(number)
        noise = 0.7 * noise + float(draw.normal())
        weekly = (0.0, 0.0, 0.0, 0.0, 3.0, -6.0, -6.0)[day.weekday()]
        yearly = 10 * math.sin(2 * math.pi * number / 365.25)
        rows.append(f"{day.isoformat()},{100 + 4 * number / 365.25 + yearly + weekly + noise:.3f}")
    return {"": ("\n".join(rows) + "\n").encode()}


MAKERS: dict[str, Callable[[np.random.Generator, int], dict[str, bytes]]] = {
    "language": language,
    "translate": pairs,
    "classify": labels,
    "tag": tags,
    "answer": answers,
    "images": images,
    "series": series,
}
# Part of each kind's seed; numbers stay as they are, so that the content does.
SEEDS = {"answer": 0, "classify": 1, "images": 2, "language": 3, "tag": 4, "translate": 5, "series": 6}
ENDINGS = {
    "language": ".txt",
    "translate": "",
    "classify": ".tsv",
    "tag": ".conll",
    "answer": ".json",
    "images": ".npz",
    "series": ".csv",
}


def file_names(kind: str) -> dict[str, str]:
    """The files of a kind by split, relative to the folder of data sets."""
    sides = (".en", ".toy") if kind == "translate" else ("",)
    return {
        f"{split}{side}": f"generated/{VERSION}/{kind}/{split}{side}{ENDINGS[kind]}"
        for split in (SIZES if kind != "series" else ("train",))  # a series is split by time
        for side in sides
    }


def write(kind: str, root: Path) -> None:
    """Generates the missing files of a kind."""
    names = file_names(kind)
    for index, (split, count) in enumerate(SIZES.items()):
        targets = {name: root / file for name, file in names.items() if name.partition(".")[0] == split}
        if all(path.is_file() for path in targets.values()):
            continue
        draw = np.random.Generator(np.random.Philox(np.random.SeedSequence((VERSION, SEEDS[kind], index))))
        for side, content in MAKERS[kind](draw, count).items():
            target = targets[f"{split}{side}"]
            target.parent.mkdir(parents=True, exist_ok=True)
            files.write_bytes(target, content)  # safe if several processes do it: the content is the same


__all__ = ["MAKERS", "file_names", "write"]
