"""Where longspan keeps what it downloads or generates, unless it is told where."""

import os
from pathlib import Path


def cache() -> Path:
    """The folder of what longspan keeps for itself: LONGSPAN_CACHE, or the user's cache."""
    given = os.environ.get("LONGSPAN_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longspan"


__all__ = ["cache"]
