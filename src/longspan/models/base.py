"""What every model has: options that are its whole description, parts that can be counted, and a folder on disk.

A model that reads left to right is `Causal`: `start` gives the state before the first token, and `extend` reads the
next ones, any number of them. That is all that `longspan.decode` needs of it.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan import config
from longspan.attention.state import State
from longspan.errors import InvalidInput

Ids = Int[Tensor, "batch length"]
Logits = Float[Tensor, "batch places vocabulary"]  # as many places as tokens or, with `last`, one
Mask = Bool[Tensor, "batch length"]
Streams = Mapping[str, Tensor]  # what a mechanism reads beside the tokens, such as which of them are global


class Model(nn.Module, ABC):
    """The base of every model; `Model.build(width=512, …)` makes one from its options."""

    name: ClassVar[str]  # the same as in the registry and in config.json
    paper: ClassVar[str]  # "Vaswani et al. 2017"
    files: ClassVar[tuple[str, ...]] = ()  # the names of what `write_files` writes

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        pass

    def __init__(self, options: Any) -> None:
        super().__init__()
        self.options: Any = options

    @classmethod
    def build(cls, **options: Any) -> Self:
        """From options as Python or as a configuration file has them."""
        return cls(config.make(cls.Options, options, cls.name))

    @property
    def device(self) -> torch.device:
        """Where its parameters are."""
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """What its parameters are."""
        return next(self.parameters()).dtype

    def parts(self) -> Mapping[str, nn.Module | nn.Parameter]:
        """The parts that a reader knows from the paper; what is counted part by part. Tied weights count once."""
        return dict(self.named_children())

    def auxiliary_loss(self) -> Tensor | None:
        """What the last training pass adds to the task's loss (commitment, reconstruction, ponder time), or None."""
        found = [getattr(module, "auxiliary_loss", None) for module in self.modules() if module is not self]
        losses = [loss for loss in found if isinstance(loss, Tensor)]
        return torch.stack(losses).sum() if losses else None

    def save(self, folder: Path | str, *, tokenizer: str | None = None) -> None:
        """Writes `config.json`, `model.safetensors` and, given its text, `tokenizer.json`."""
        from longspan.models.folder import save  # it knows the models, and they this file

        save(self, Path(folder), tokenizer=tokenizer)

    def write_files(self, folder: Path) -> None:
        """What the model keeps in its folder beside options and weights, such as its words; nothing unless said."""

    def read_files(self, folder: Path) -> None:
        """Reads back what `write_files` wrote."""


class CausalModel(Model):
    """A model that reads left to right and gives the logits of the next token.

    `key_mask` (True: real) and `positions` speak of the tokens given. Where `left_padding` is True, a row with padding
    on its left gives what the row alone gives, if `positions` count its real tokens from 0.
    """

    vocabulary: int
    max_length: int | None = None  # the longest text it can hold; None: any
    # Whether tables end at max_length. Otherwise it is only what the model was made for, and `extend(…, beyond=True)`
    # reads on past it.
    fixed_length: bool = True
    left_padding: bool = False
    reads_source: bool = False  # an encoder–decoder: start() wants a source

    @abstractmethod
    def start(
        self,
        batch: int,
        *,
        source: Ids | None = None,
        source_mask: Mask | None = None,
        source_streams: Streams | None = None,
        align: bool = False,
    ) -> State:
        """The state before the first token, after reading the source, and its streams, where there is one.

        With `align`, the state after each `extend` has `alignment` (batch, new tokens, source tokens).
        """

    @abstractmethod
    def extend(
        self,
        ids: Ids,
        state: Any,
        *,
        key_mask: Mask | None = None,
        positions: Ids | None = None,
        last: bool = False,
    ) -> tuple[Logits, Any]:
        """The logits after each of the next tokens (with `last`, after the last one only), and the state after them."""

    def _refuse_source(self, source: Tensor | None, align: bool) -> None:
        if source is not None or align:
            raise InvalidInput(f"{self.name} reads no source; leave out source and align")

    def _check_room(self, length: int) -> None:
        if self.max_length is not None and length > self.max_length:
            raise InvalidInput(f"this {self.name} holds at most {self.max_length} tokens, and {length} were given")


__all__ = ["CausalModel", "Ids", "Logits", "Mask", "Model", "Streams"]
