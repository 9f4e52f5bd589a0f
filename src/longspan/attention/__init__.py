"""Attention mechanisms: `build` creates one by name, `names` lists them, `describe` says what one can do."""

from longspan.attention.base import Attention, Cost, Shape, Stream, Supports
from longspan.attention.registry import build, describe, find, names
from longspan.attention.state import State

__all__ = ["Attention", "Cost", "Shape", "State", "Stream", "Supports", "build", "describe", "find", "names"]
