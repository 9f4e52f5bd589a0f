"""Pooling settings of sentence-transformers: how the vector of a text is made from its hidden states."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan import parsing
from longspan.data.files import read_json
from longspan.errors import InvalidInput, Unsupported

MODULES, POOLING, SETTINGS = "modules.json", "1_Pooling/config.json", "sentence_bert_config.json"
# Their names of pooling and ours; other kinds are not supported.
POOLS = {"cls_token": "first", "mean_tokens": "mean", "max_tokens": "max", "lasttoken": "last"}


@dataclass(frozen=True)
class SentencePooling:
    """The settings files as read; they are written back unchanged."""

    pooling: Mapping[str, Any] = field(default_factory=dict)
    modules: Sequence[Mapping[str, Any]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def pool(self) -> str:
        """The kind of pooling."""
        modes = {key.removeprefix("pooling_mode_"): value for key, value in self.pooling.items() if "mode_" in key}
        kinds = [kind for kind, wanted in modes.items() if wanted]
        if len(kinds) == 1 and kinds[0] in POOLS:
            return POOLS[kinds[0]]
        raise Unsupported(
            f"{POOLING} asks for {' and '.join(kinds) or 'no pooling'}, which is not done here: give pool"
        )

    @property
    def normalise(self) -> bool:
        """Whether vectors are scaled to length 1."""
        return any(str(module.get("type", "")).endswith(".Normalize") for module in self.modules)

    def save(self, folder: Path) -> None:
        """Writes the files."""
        for name, value in ((POOLING, self.pooling), (MODULES, self.modules), (SETTINGS, self.settings)):
            if value:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def read_sentence(folder: Path) -> SentencePooling | None:
    """The settings of a folder, or None."""
    if not (folder / POOLING).is_file():
        return None
    return SentencePooling(read_json(folder / POOLING), _modules(folder / MODULES), read_json(folder / SETTINGS))


def _modules(path: Path) -> list[dict[str, Any]]:
    modules = parsing.read_json(path) if path.is_file() else []
    if not isinstance(modules, list) or not all(isinstance(module, dict) for module in modules):
        raise InvalidInput(f"{path} must be a list of modules")
    return modules


__all__ = ["SentencePooling", "read_sentence"]
