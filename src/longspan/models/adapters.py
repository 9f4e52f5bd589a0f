"""Adapters: small trained weights on a model whose own weights stay as they are.

A model has at most one adapter at a time (`model.adapter`), attached in place. Its folder holds `adapter.json` (kind,
options, heads, and a checksum of the model it belongs to) and `adapter.safetensors`; it also travels inside the whole
model's folder. The kinds are in `longspan.adapt.adapters`, found by name.
"""

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from longspan import __version__, config, files
from longspan.errors import InvalidInput, Unsupported
from longspan.manifest import MANIFEST, write_manifest
from longspan.models.base import Model
from longspan.registry import Registry

RECORD, WEIGHTS = "adapter.json", "adapter.safetensors"
HEADS = "heads."  # trained with every adapter


class Adapter(ABC):
    """A kind of adapter with its options."""

    name: ClassVar[str]
    options: Any

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        self.options = options
        self.originals: dict[str, Tensor] = {}  # weights of the base that are trained too, as they were
        self.inside = False  # whether it came with a whole model, which does not have these originals

    def record(self) -> dict[str, Any]:
        """Kind and options, ready for JSON."""
        return {"kind": self.name, "options": config.plain(self.options)}

    def attach(self, model: Model) -> None:
        """Adds the adapter to a model, in place. Nothing is changed if the model cannot have it."""
        if model.adapter is not None:
            raise InvalidInput(f"this {model.name} has an adapter already ({model.adapter.name}); detach it first")
        self.check(model)
        parameters = dict(model.named_parameters())
        self.originals = {name: parameters[name].detach().clone() for name in self.trained_base(model)}
        training, kind, device = model.training, model.dtype, model.device
        self.insert(model)
        model.to(device, kind).train(training)
        model.adapter = self

    def detach(self, model: Model) -> None:
        """Removes the adapter: the base model is back, bit for bit, except for its heads."""
        if self.inside and self.originals:
            raise Unsupported(f"this model was saved with its {self.name}, which trained norms; load the base instead")
        self.remove(model)
        with torch.no_grad():
            parameters = dict(model.named_parameters())
            for name, tensor in self.originals.items():
                parameters[name].copy_(tensor)
        model.adapter = None

    def freeze(self, model: Model) -> None:
        """Trains the adapter, the heads and what the kind trains besides; everything else is frozen."""
        trained = set(self.originals)
        for name, parameter in model.named_parameters():
            own = self.owns(name) or name.startswith(HEADS) or name in trained
            parameter.requires_grad_(own)

    def small(self, model: Model) -> tuple[Self, dict[str, Tensor]]:
        """The adapter and its tensors as they are stored by themselves."""
        return self, {
            name: tensor
            for name, tensor in model.state_dict().items()
            if self.owns(name) or name.startswith(HEADS) or name in self.originals
        }

    # What a kind writes

    @abstractmethod
    def check(self, model: Model) -> None:
        """Refuses a model that cannot have this adapter, before anything changes."""

    @abstractmethod
    def insert(self, model: Model) -> None:
        """Adds the modules."""

    @abstractmethod
    def remove(self, model: Model) -> None:
        """Takes the modules out again."""

    @abstractmethod
    def owns(self, name: str) -> bool:
        """Whether a name of the model's state belongs to the adapter."""

    def base_name(self, name: str) -> str:
        """The name that a weight of the base has without the adapter."""
        return name

    def trained_base(self, model: nn.Module) -> list[str]:
        """Weights of the base that are trained too, such as norms."""
        return []


ADAPTERS: Registry[Adapter] = Registry(
    "adapter",
    "longspan.adapters",
    "longspan.models.adapters:Adapter",
    {
        "lora": "longspan.adapt.adapters.lora:Lora",
        "houlsby": "longspan.adapt.adapters.houlsby:Houlsby",
        "prefix": "longspan.adapt.adapters.prefix:Prefix",
    },
)


def build(kind: str, **options: Any) -> Adapter:
    """An adapter by its kind and options."""
    cls = ADAPTERS.find(kind)
    return cls(config.make(cls.Options, options, f"adapter {kind}"))


def read(record: Any, where: str) -> Adapter:
    """The adapter that a record describes."""
    if not isinstance(record, Mapping) or not isinstance(record.get("options"), Mapping):
        raise InvalidInput(f"{where}: the adapter must have a kind and options")
    return build(str(record.get("kind")), **record["options"])


def base_digest(model: Model) -> str:
    """SHA-256 of the weights of the base, without heads and without what the adapter trains."""
    adapter, digest = model.adapter, hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        if name.startswith(HEADS) or (adapter is not None and (adapter.owns(name) or name in adapter.originals)):
            continue
        digest.update((name if adapter is None else adapter.base_name(name)).encode())
        digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def save(model: Model, folder: Path) -> None:
    """Writes the adapter of a model by itself: some kilobytes or megabytes."""
    if model.adapter is None:
        raise InvalidInput(f"this {model.name} has no adapter to save")
    adapter, tensors = model.adapter.small(model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)
    tasks = config.plain(model.options).get("tasks") or []
    record = {**adapter.record(), "longspan": __version__, "model": model.name, "base": base_digest(model)}
    files.write_tensors(folder / WEIGHTS, {name: tensor.contiguous() for name, tensor in tensors.items()})
    files.write_text(folder / RECORD, json.dumps({**record, "tasks": tasks}, indent=1) + "\n")
    write_manifest(folder, [RECORD, WEIGHTS])


__all__ = ["ADAPTERS", "RECORD", "WEIGHTS", "Adapter", "base_digest", "build", "read", "save"]
