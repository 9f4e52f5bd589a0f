"""Where longspan keeps what it downloads or makes for itself."""

from longspan.storage import cache

__all__ = ["cache"]
