"""What goes wrong, said in one line: what was expected, what came, what to do.

Every error that a user can cause is a `LongspanError`, and a `ValueError` too, so that code which knows nothing of
longspan can still catch it. The command line prints it on one line and exits with 2.
"""

from collections.abc import Iterable
from difflib import get_close_matches

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


def suggest(name: str, known: Iterable[str]) -> str:
    """'did you mean …?' where something is near, and otherwise the whole list."""
    known = sorted(known)
    near = get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(known)}" if known else "none are known"
