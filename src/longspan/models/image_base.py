"""Abilities of models of images and of sets of numbers (see `models/base.py`).

ImageHeads         reads images and has task heads
PixelModel         generates images pixel by pixel
SetModel           reads sets of numbers
"""

from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float, Int
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


Pixels = Int[Tensor, "batch height width channels"]  # values from 0 to levels - 1


class PixelModel(Model):
    """A model of images as a product of conditional probabilities: it gives their likelihood, and generates them."""

    ability = "a model that generates images pixel by pixel"
    size: tuple[int, int]  # height and width
    channels: int
    levels: int  # values of a channel
    classes: int = 0  # labels that it can be conditioned on; 0: none

    @abstractmethod
    def nats(self, images: Pixels, labels: Int[Tensor, " batch"] | None = None) -> Float[Tensor, " batch"]:
        """-log p(image | label) of each image: exact, over all pixels and channels."""

    @abstractmethod
    def sample(
        self,
        count: int,
        *,
        labels: Int[Tensor, " batch"] | None = None,
        known: Pixels | None = None,
        rows: int = 0,
        source: Pixels | None = None,
        temperature: float = 1.0,
        generator: torch.Generator | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Pixels:
        """New images. The first `rows` rows are those of `known`, if given; `source` are small images to enlarge.

        `progress` is called with the number of pixels generated since the last call.
        """


__all__ = ["ImageHeads", "PixelModel", "Pixels", "SetModel"]
