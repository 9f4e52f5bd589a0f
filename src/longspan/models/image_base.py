"""Abilities of models that read images or sets of numbers (see `models/base.py`).

ImageHeads         reads images and has task heads
SetModel           reads sets of numbers
"""

from abc import abstractmethod

from jaxtyping import Float
from torch import Tensor, nn

from longspan.models.base import Mask, Model


class ImageHeads(Model):
    """A model that reads images and has `heads`, one for each task of its option `tasks`."""

    ability = "a model of images with task heads"
    heads: nn.ModuleDict

    @abstractmethod
    def outputs(self, images: Float[Tensor, "batch channels height width"]) -> dict[str, Tensor]:
        """The output of each head, by task."""

    def student_logits(self, images: Float[Tensor, "batch channels height width"], task: str) -> tuple[Tensor, Tensor]:
        """The logits that learn the label, and those that learn from a teacher; the same unless it has two heads."""
        logits = self.outputs(images)[task]
        return logits, logits


class SetModel(Model):
    """A model that reads sets of numbers, in any order, and gives rows of numbers for each."""

    ability = "a model of sets of numbers"

    @abstractmethod
    def forward(
        self, elements: Float[Tensor, "batch size features"], *, key_mask: Mask | None = None
    ) -> Float[Tensor, "batch rows outputs"]:
        """The rows of each set; `key_mask` is True for the elements that belong to it."""


__all__ = ["ImageHeads", "SetModel"]
