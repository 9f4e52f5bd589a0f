"""What goes wrong, said in one line: what was expected, what came, what to do.

Every error that a user can cause is a `LongspanError`, and a `ValueError` too, so that code which knows nothing of
longspan can still catch it. The command line prints it on one line and exits with 2.
"""

from collections.abc import Iterable
from difflib import SequenceMatcher

LONGEST = 4000  # letters of a message: a file may have put anything into it


class LongspanError(ValueError):
    """The root of all errors raised on purpose."""

    def __str__(self) -> str:
        text = super().__str__()
        return text if len(text) <= LONGEST else f"{text[: LONGEST // 2]} … {text[-LONGEST // 4 :]}"


class Unsupported(LongspanError):
    """A mechanism was asked for something it cannot do."""


class InvalidInput(LongspanError):
    """A tensor has the wrong shape, type or device, or a file the wrong content."""


class InvalidOption(LongspanError):
    """An option has the wrong name, type or value."""


class UnknownName(LongspanError):
    """A name is not in its table."""


class Notice(UserWarning):
    """Something a user should know although nothing is wrong; the command line prints it on one line."""


SHORT_LIST = 25  # names that are listed when none is near; of more, the nearest five
MORE = 5


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean …?' where a name is probably a slip of the pen; otherwise the names, or the five nearest of many.

    >>> suggest("windw", ["window", "linear"])
    "did you mean 'window'?"
    """
    known = sorted(known)
    lowered = name.lower()
    distances = {each: _distance(lowered, each.lower()) for each in known}
    near = [each for each in known if _is_near(lowered, each.lower(), distances[each])]
    if near:
        return f"did you mean {min(reversed(near), key=distances.__getitem__)!r}?"
    if len(known) <= SHORT_LIST:
        return f"known: {', '.join(known)}" if known else "none are known"
    nearest = sorted(known, key=lambda each: (-SequenceMatcher(None, lowered, each.lower()).ratio(), each))[:MORE]
    return f"of {len(known)} names, the nearest are {', '.join(nearest)}"


def _is_near(name: str, known: str, distance: int) -> bool:
    """At most one edit in three letters, or the same beginning up to the middle.

    More edits would suggest `camembert` for `modernbert`: another thing, not another spelling.
    """
    shorter, longer = sorted((name, known), key=len)
    begins = next((place for place, pair in enumerate(zip(name, known)) if len(set(pair)) > 1), len(shorter))
    return (begins >= 3 and 2 * begins >= len(longer)) or 3 * distance <= max(3, len(shorter))


def _distance(a: str, b: str) -> int:
    """Edits from one text to another: letters added, left out, changed, or exchanged with their neighbour."""
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
