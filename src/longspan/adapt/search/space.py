"""The space that is searched: which models a trial may draw, and which of them cannot be built."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from longspan.attention.registry import ATTENTION
from longspan.errors import InvalidOption


class Draws(Protocol):
    """What an Optuna trial offers."""

    def suggest_categorical(self, name: str, choices: Any) -> Any: ...


@dataclass(frozen=True)
class Space:
    """Choices of each gene. Layers form `groups` of neighbours; each group has one mechanism and one window."""

    mechanisms: tuple[str, ...] = ("softmax", "window", "linear")
    windows: tuple[int, ...] = (16, 64)
    widths: tuple[int, ...] = (64, 128)
    depths: tuple[int, ...] = (2, 4)
    kv_heads: tuple[int, ...] = ()  # empty: as many as heads
    head_dim: int = 32
    groups: int = 1

    def __post_init__(self) -> None:
        for name in ("mechanisms", "windows", "widths", "depths"):
            if not getattr(self, name):
                raise InvalidOption(f"{name} is empty; give one choice at least")
        for name in self.mechanisms:
            ATTENTION.find(name)
        for name in ("windows", "widths", "depths", "kv_heads"):
            for value in getattr(self, name):
                if value < 1:
                    raise InvalidOption(f"{name} must be positive, not {value}")
        for width in self.widths:
            if width % self.head_dim:
                raise InvalidOption(f"the width {width} is no multiple of the head width, {self.head_dim}")
        if not 1 <= self.groups <= min(self.depths):
            raise InvalidOption(f"groups must be 1 to {min(self.depths)}, the fewest layers, not {self.groups}")

    @property
    def hash(self) -> str:
        """A short name of the space: a study belongs to one."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def size(self) -> int:
        """How many combinations of choices there are; some may make no model."""
        per_group: int = sum(len(self.windows) if _has_window(name) else 1 for name in self.mechanisms)
        combinations = len(self.widths) * len(self.depths) * max(1, len(self.kv_heads))
        return int(combinations * per_group**self.groups)

    def draw(self, trial: Draws) -> dict[str, Any]:
        """The genes of a trial."""
        genes: dict[str, Any] = {
            "width": trial.suggest_categorical("width", self.widths),
            "depth": trial.suggest_categorical("depth", self.depths),
        }
        if self.kv_heads:
            genes["kv_heads"] = trial.suggest_categorical("kv_heads", self.kv_heads)
        for group in range(self.groups):
            name = trial.suggest_categorical(f"mechanism_{group}", self.mechanisms)
            genes[f"mechanism_{group}"] = name
            if _has_window(name):  # other mechanisms have no such gene
                genes[f"window_{group}"] = trial.suggest_categorical(f"window_{group}", self.windows)
        return genes

    def overrides(self, genes: Mapping[str, Any]) -> dict[str, Any]:
        """Options of a recipe's model; raises InvalidOption for genes that make no model."""
        width, depth = int(genes["width"]), int(genes["depth"])
        heads = width // self.head_dim
        options: dict[str, Any] = {"model.width": width, "model.layers": depth, "model.heads": heads}
        if "kv_heads" in genes:
            if heads % int(genes["kv_heads"]):
                raise InvalidOption(f"{heads} heads cannot share {genes['kv_heads']} key heads evenly")
            options["model.kv_heads"] = int(genes["kv_heads"])
        attention = []
        for layer in range(depth):
            group = layer * self.groups // depth
            name = genes[f"mechanism_{group}"]
            chosen: dict[str, Any] = {"name": name}
            if _has_window(name):
                chosen["window"] = int(genes[f"window_{group}"])
            attention.append(chosen)
        options["model.attention"] = attention
        return options


def _has_window(name: str) -> bool:
    return "window" in getattr(ATTENTION.find(name).Options, "__dataclass_fields__", {})


__all__ = ["Draws", "Space"]
