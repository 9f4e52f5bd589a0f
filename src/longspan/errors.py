"""Errors and their messages: one line that says what was expected, what was given, what to do.

Every error that a user can cause is a `LongspanError`. It is also a `ValueError`, so that code that does not know
longspan can catch it. The command line prints it on one line and exits with status 2.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher

LONGEST = 4000  # most characters of a message, which may quote a file


class LongspanError(ValueError):
    """The base class of all errors that longspan raises on purpose."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 4 :]}"


class Unsupported(LongspanError):
    """A mechanism does not support what was requested."""


class InvalidInput(LongspanError):
    """A tensor has the wrong shape, dtype or device, or a file has the wrong content."""


class InvalidOption(LongspanError):
    """An option has the wrong name, type or value."""


class UnknownName(LongspanError):
    """A name is not registered."""


class Notice(UserWarning):
    """A warning about something that is not an error; the command line prints it on one line."""


SHORT_LIST = 25  # if no name is similar, list all up to this many
NEAREST = 5  # and otherwise this many


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean …?' if the name looks like a typo; otherwise the known names, or the nearest five of many.

    >>> suggest("windw", ["window", "linear"])
    "did you mean 'window'?"
    """
    known = sorted(known)
    typo = nearest(name, known)
    if typo is not None:
        return f"did you mean {typo!r}?"
    if len(known) <= SHORT_LIST:
        return f"known: {', '.join(known)}" if known else "none are known"
    similarity = {candidate: SequenceMatcher(None, name.lower(), candidate.lower()).ratio() for candidate in known}
    closest = sorted(known, key=lambda candidate: (-similarity[candidate], candidate))[:NEAREST]
    return f"of {len(known)} names, the nearest are {', '.join(closest)}"


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` may be a typo or another version of; None if none is near."""
    known, lowered = sorted(known), name.lower()
    distances = {candidate: _distance(lowered, candidate.lower()) for candidate in known}
    near = [candidate for candidate in known if _is_near(lowered, candidate.lower(), distances[candidate])]
    return min(reversed(near), key=lambda candidate: (distances[candidate], _distance(name, candidate)), default=None)


def _is_near(name: str, known: str, distance: int) -> bool:
    """At most one edit in three letters, or a common prefix of at least half the name.

    With more edits allowed, `camembert` would be suggested for `modernbert`, which is not a typo of it.
    """
    shorter, longer = sorted((name, known), key=len)
    prefix = next((index for index, pair in enumerate(zip(name, known)) if len(set(pair)) > 1), len(shorter))
    return (prefix >= 3 and 2 * prefix >= len(longer)) or 3 * distance <= max(3, len(shorter))


def _distance(a: str, b: str) -> int:
    """The edit distance of two texts: letters inserted, deleted, replaced, or swapped with their neighbour."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        following = [i]
        for j, y in enumerate(b, 1):
            edits = min(row[j] + 1, following[-1] + 1, row[j - 1] + (x != y))
            if before and j > 1 and x == b[j - 2] and a[i - 2] == y:
                edits = min(edits, before[j - 2] + 1)
            following.append(edits)
        before, row = row, following
    return row[-1]
