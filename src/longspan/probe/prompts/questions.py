"""Questions with one right answer: arithmetic (Brown et al. 2020, section 3.9.1), objects, letters, nonsense, facts.

The topics of objects, letters and nonsense are those with which lectures show the limits of language models: whether a
toaster or a pencil is heavier, the letter Z turned, 400 dice. The wording is ours.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

DIGITS = (1, 2, 3, 4, 5)
OPERATIONS = ("plus", "minus", "times")
PER_CELL = 4  # questions for each operation and number of digits


@dataclass(frozen=True)
class Question:
    """A question, its answer and, if it has them, its options; `steps` is a worked solution, without the answer."""

    set: str
    question: str
    answer: str
    options: tuple[str, ...] = ()
    steps: str = ""
    group: str = ""  # questions of one group are never examples for each other: the same in other words
    chance: float = 0.0  # of a random guess
    cell: tuple[str, int] | None = None  # arithmetic: operation and digits

    @property
    def text(self) -> str:
        """The question, with its options if it does not name them itself."""
        if not self.options or all(option.lower() in self.question.lower() for option in self.options):
            return self.question
        return f"{self.question} Options: {', '.join(self.options)}."


def choice(set: str, question: str, answer: str, options: Sequence[str], steps: str = "", group: str = "") -> Question:
    """A question whose options are all equally likely to a guess."""
    return Question(set, question, answer, tuple(options), steps, group or question, 1 / len(options))


# Arithmetic


def arithmetic(seed: int, per_cell: int = PER_CELL, *, apart: Sequence[Question] = ()) -> list[Question]:
    """`per_cell` different questions for each operation and 1 to 5 digits, none of which is in `apart`."""
    generator, used = np.random.default_rng(seed), {question.group for question in apart}
    found = []
    for operation, digits in product(OPERATIONS, DIGITS):
        kept = 0
        while kept < per_cell:
            low, high = (0, 10) if digits == 1 else (10 ** (digits - 1), 10**digits)
            one, other = generator.integers(low, high, size=2).tolist()
            question = calculation(operation, one, other, digits)
            if question.group not in used:
                used.add(question.group)
                found.append(question)
                kept += 1
    return found


def calculation(operation: str, one: int, other: int, digits: int) -> Question:
    """One calculation, worked out digit by digit of the second number."""
    value = {"plus": one + other, "minus": one - other, "times": one * other}[operation]
    text, group = f"What is {one} {operation} {other}?", f"{operation} {one} {other}"
    if operation != "minus":
        group = f"{operation} {min(one, other)} {max(one, other)}"
    steps = _steps(operation, one, other)
    return Question(
        "arithmetic", text, str(value), (), steps, group, 1 / _results(operation, digits), (operation, digits)
    )


def _results(operation: str, digits: int) -> int:
    """How many values a guess could choose from: all between the lowest and the highest result."""
    low, high = (0, 9) if digits == 1 else (10 ** (digits - 1), 10**digits - 1)
    if operation == "plus":
        return 2 * (high - low) + 1
    return 2 * (high - low) + 1 if operation == "minus" else high * high - low * low + 1


def _steps(operation: str, one: int, other: int) -> str:
    places = [int(digit) * 10**place for place, digit in enumerate(reversed(str(other)))]
    parts = [part for part in reversed(places) if part] or [0]
    if operation == "times":
        products = [one * part for part in parts]
        said = [f"{one} times {part} is {value}." for part, value in zip(parts, products)]
        total = products[0]
        for value in products[1:]:
            said.append(f"{total} plus {value} is {total + value}.")
            total += value
        return " ".join(said)
    total, said = one, []
    for part in parts:
        after = total + part if operation == "plus" else total - part
        said.append(f"{total} {operation} {part} is {after}.")
        total = after
    return " ".join(said)


# What the lectures ask

HEAVIER = (  # heavier, lighter, and why
    ("toaster", "pencil", "A toaster weighs more than a kilogram. A pencil weighs a few grams."),
    ("brick", "feather", "A brick weighs some kilograms. A feather weighs less than a gram."),
    ("car", "bicycle", "A car weighs more than a thousand kilograms. A bicycle weighs about fifteen."),
    ("piano", "spoon", "A piano weighs hundreds of kilograms. A spoon weighs a few grams."),
    ("cow", "mouse", "A cow weighs hundreds of kilograms. A mouse weighs a few grams."),
    ("refrigerator", "candle", "A refrigerator weighs more than fifty kilograms. A candle weighs less than one."),
)
TURNS = (  # letter, turn, result, and why
    ("Z", "a quarter turn", "N", "The horizontal strokes of Z become vertical, and the diagonal stays between them."),
    ("N", "a quarter turn", "Z", "The vertical strokes of N become horizontal, and the diagonal stays between them."),
    ("H", "a quarter turn", "I", "The vertical strokes of H become horizontal, with a vertical stroke between them."),
    ("M", "a half turn", "W", "The points of M point down after half a turn."),
    ("W", "a half turn", "M", "The points of W point up after half a turn."),
    ("Z", "a half turn", "Z", "Both horizontal strokes of Z change places, and the diagonal stays as it is."),
)
LETTERS = ("N", "Z", "I", "W", "M", "T")
NONSENSE = (  # a statement in the question cannot change what it asks
    (
        "I have 400 dice. I throw one of them and see a six. Is the next throw of that die more likely to be a six?",
        "no",
        "A die has no memory. Each throw shows a six with the same chance.",
    ),
    (
        "I throw 400 dice with six sides each. Is the sum of all of them at least 400?",
        "yes",
        "Each die shows one at least, and 400 times 1 is 400.",
    ),
    (
        "I throw 400 dice. Queen Elizabeth the Second was born in 1926. Does that make a six more likely?",
        "no",
        "The year of a birth does not change dice.",
    ),
    (
        "If every die of 400 dice shows a one, is the sum of all of them 400?",
        "yes",
        "400 times 1 is 400.",
    ),
    (
        "I throw 400 dice with six sides each. Can the sum of all of them be more than 2400?",
        "no",
        "Each die shows six at most, and 400 times 6 is 2400.",
    ),
    (
        "If Queen Elizabeth throws 400 dice, are there still 400 dice after the throw?",
        "yes",
        "A throw does not change how many dice there are.",
    ),
)
FACTS = (
    ("What is the capital of France?", "Paris", ("Paris", "London", "Rome", "Madrid")),
    ("What is the capital of Japan?", "Tokyo", ("Beijing", "Seoul", "Tokyo", "Bangkok")),
    ("What is the capital of Italy?", "Rome", ("Athens", "Rome", "Lisbon", "Vienna")),
    ("Which planet is closest to the Sun?", "Mercury", ("Venus", "Earth", "Mars", "Mercury")),
    ("Which planet is the largest of the solar system?", "Jupiter", ("Saturn", "Jupiter", "Neptune", "Mars")),
    ("Which gas do plants take from the air?", "carbon dioxide", ("oxygen", "helium", "carbon dioxide", "methane")),
    ("What is frozen water called?", "ice", ("steam", "ice", "sand", "oil")),
    ("Which animal barks?", "dog", ("dog", "cat", "horse", "bird")),
    ("Who wrote Romeo and Juliet?", "Shakespeare", ("Goethe", "Dickens", "Tolstoy", "Shakespeare")),
    ("Which ocean lies between Europe and America?", "Atlantic", ("Atlantic", "Pacific", "Indian", "Arctic")),
)


def objects() -> list[Question]:
    """Which of two objects is heavier: each pair in both orders, so that "the first" is right in half of them."""
    return [
        choice("objects", f"Which is heavier, a {one} or a {other}?", heavy, (one, other), steps, f"{heavy} {light}")
        for heavy, light, steps in HEAVIER
        for one, other in ((heavy, light), (light, heavy))
    ]


def letters() -> list[Question]:
    """Which capital letter appears if a letter is turned."""
    return [
        choice(
            "letters", f"Which capital letter do you see if you give the letter {letter} {turn}?", after, LETTERS, why
        )
        for letter, turn, after, why in TURNS
    ]


def nonsense() -> list[Question]:
    """Dice, and facts that have nothing to do with them."""
    return [choice("nonsense", text, answer, ("yes", "no"), why) for text, answer, why in NONSENSE]


def facts() -> list[Question]:
    """Simple facts with four options; the right one is at different positions."""
    return [choice("facts", text, answer, options, f"I remember: {answer}.") for text, answer, options in FACTS]


SETS: dict[str, Callable[[], list[Question]]] = {
    "objects": objects,
    "letters": letters,
    "nonsense": nonsense,
    "facts": facts,
}
NAMES = ("arithmetic", *SETS)


__all__ = ["DIGITS", "NAMES", "OPERATIONS", "PER_CELL", "SETS", "Question", "arithmetic", "calculation", "choice"]
