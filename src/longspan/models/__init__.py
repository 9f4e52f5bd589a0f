"""Models: `build` makes one by name, `load` reads one from its folder, `names` lists them."""

from longspan.models.base import CausalModel, Model
from longspan.models.folder import load
from longspan.models.registry import build, find, names

__all__ = ["CausalModel", "Model", "build", "find", "load", "names"]
