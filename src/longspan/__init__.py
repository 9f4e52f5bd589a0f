"""longspan: every Transformer attention, classic and efficient, behind one contract."""

__version__ = "0.1.0"
