"""LoRA: a low-rank change of chosen projections, W x + (α/r) B A x (Hu et al. 2021), through PEFT."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from longspan import config
from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.models.adapters import Adapter
from longspan.models.base import Model
from longspan.nn.block import Block
from longspan.nn.multihead import MultiHead

INSIDE = ("lora_A", "lora_B", "lora_dropout", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")
TARGETS = ("q", "k", "v", "out", "feedforward")


class Lora(Adapter):
    """A and B of every chosen projection; B starts at 0, so that the first output is the base's, bit for bit."""

    name = "lora"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        rank: int = option(8, "rank of the change", low=1)
        alpha: float = option(16.0, "the change is scaled by alpha / rank", above=0)
        dropout: float = option(0.0, "dropout before A, in training", low=0, below=1)
        targets: tuple[str, ...] = option(("q", "v"), "projections that are changed: q, k, v, out, feedforward")

        def __post_init__(self) -> None:
            super().__post_init__()
            wrong = [name for name in self.targets if name not in TARGETS]
            if wrong or not self.targets:
                raise InvalidOption(f"targets are some of {', '.join(TARGETS)}, not {', '.join(wrong) or 'none'}")

    options: Options

    def check(self, model: Model) -> None:
        if not self._names(model):
            raise Unsupported(f"this {model.name} has no projection {' or '.join(self.options.targets)} to change")

    def insert(self, model: Model) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PEFT's own dependencies
            from peft import LoraConfig, inject_adapter_in_model

            options = self.options
            settings: Any = LoraConfig(
                r=options.rank,
                lora_alpha=options.alpha,  # type: ignore[arg-type]  # PEFT only divides it by the rank
                lora_dropout=options.dropout,
                target_modules=self._names(model),
            )
            inject_adapter_in_model(settings, model)

    def remove(self, model: Model) -> None:
        for name, layer in _layers(model):
            _put(model, name, layer.base_layer)

    @torch.no_grad()
    def merge(self, model: Model) -> None:
        """Adds the change to the weights: a plain model, as fast as the base, without an adapter."""
        for _, layer in _layers(model):
            layer.merge(safe_merge=True)
        self.remove(model)
        model.adapter = None

    def owns(self, name: str) -> bool:
        return any(part in INSIDE for part in name.split("."))

    def base_name(self, name: str) -> str:
        return name.replace(".base_layer.", ".")

    def _names(self, model: nn.Module) -> list[str]:
        """The linear layers to change, each once even if layers share it."""
        chosen = []
        for name, module in model.named_modules():
            if isinstance(module, MultiHead):
                inside = {**{key: f"project.{key}" for key in module.project}, "out": "out"}
                chosen += [f"{name}.{inside[target]}" for target in self.options.targets if target in inside]
            elif isinstance(module, Block) and "feedforward" in self.options.targets and module.feedforward is not None:
                linear = [key for key, part in module.feedforward.named_modules() if isinstance(part, nn.Linear)]
                chosen += [".".join(filter(None, (name, "feedforward", key))) for key in linear]
        return [name for name in chosen if isinstance(model.get_submodule(name), nn.Linear)]


def _layers(model: nn.Module) -> list[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    return [(name, module) for name, module in model.named_modules() if isinstance(module, LoraLayer)]


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    owner, _, last = name.rpartition(".")
    setattr(model.get_submodule(owner), last, module)


__all__ = ["Lora"]
