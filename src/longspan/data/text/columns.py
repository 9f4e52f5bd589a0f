"""Which column of a table is the text and which the label: by name, or else by what is in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from longspan.data.text.tables import TableRow

SAMPLE = 500  # rows that a guess looks at
# Usual names of columns by what they hold; earlier ones are preferred.
NAMES: Mapping[str, tuple[str, ...]] = {
    "text": (
        "text",
        "sentence",
        "review",
        "content",
        "body",
        "comment",
        "message",
        "tweet",
        "document",
        "sentence1",
        "article",
        "dialogue",
    ),
    "second": ("text_b", "sentence2", "second", "hypothesis", "question2"),
    "label": ("label", "labels", "class", "category", "sentiment", "stars", "rating", "target", "score", "y"),
    "question": ("question", "query"),
    "passage": ("passage", "context", "paragraph"),
    "answer": ("answer", "answers", "answer_text"),
    "words": ("words", "tokens", "sentence"),
    "tags": ("tags", "ner_tags", "labels", "ner", "pos_tags"),
    "summary": ("summary", "highlights", "abstract", "headline", "title", "tldr"),
    "source": ("source", "src", "en", "english"),
    "target": ("target", "tgt", "trg", "translation"),
}
LABEL = 40  # most characters of a label, on average


@dataclass(frozen=True)
class Guess:
    """A column, and why it was taken."""

    column: str
    why: str


def guess_columns(rows: Sequence[TableRow], roles: Mapping[str, str]) -> dict[str, Guess]:
    """The column of each role, such as `{"text": "text"}` with the name that is expected; a role may have none.

    A column is taken by its name: the expected one, or a usual one. Otherwise the label is the column with the fewest
    different values, and any other role the column with the longest texts.
    """
    columns = list(rows[0].fields) if rows else []
    guesses: dict[str, Guess] = {}
    for role, expected in roles.items():
        if expected in columns:
            guesses[role] = Guess(expected, "its name")
    for role in roles:
        free = [name for name in columns if name not in {guess.column for guess in guesses.values()}]
        lowered = {name.lower().strip(): name for name in reversed(free)}
        usual = next((lowered[name] for name in NAMES.get(role, ()) if name in lowered), None)
        if role not in guesses and usual is not None:
            guesses[role] = Guess(usual, "a usual name")
    for role in roles:
        free = [name for name in columns if name not in {guess.column for guess in guesses.values()}]
        if role in guesses or not free:
            continue
        guess = _label(rows, free) if role == "label" else _longest(rows, free)
        if guess is not None:
            guesses[role] = guess
    return guesses


def _longest(rows: Sequence[TableRow], names: Sequence[str]) -> Guess:
    length = {name: sum(len(row.fields.get(name, "")) for row in rows) / len(rows) for name in names}
    best = max(names, key=lambda name: length[name])
    return Guess(best, f"the longest texts, {length[best]:.0f} characters on average")


def _label(rows: Sequence[TableRow], names: Sequence[str]) -> Guess | None:
    values = {name: {row.fields.get(name, "") for row in rows} for name in names}
    short = [
        name
        for name in names
        if 2 <= len(values[name]) <= max(2, len(rows) // 2) and sum(map(len, values[name])) / len(values[name]) <= LABEL
    ]
    if not short:
        return None
    best = min(short, key=lambda name: len(values[name]))
    return Guess(best, f"{len(values[best])} different values in {len(rows)} rows")


__all__ = ["SAMPLE", "Guess", "guess_columns"]
