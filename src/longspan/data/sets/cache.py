"""Where longspan keeps what it downloads or makes for itself."""

from longspan.files import cache

__all__ = ["cache"]
