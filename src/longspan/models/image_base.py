"""Abilities of models that read images or sets of numbers (see `models/base.py`).

ImageHeads         reads images and has task heads
SetModel           reads sets of numbers
"""

import json
import math
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from longspan.errors import InvalidInput
from longspan.models.base import Mask, Model
from longspan.nn.patches import pair
from longspan.parsing import read_json_table


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


PIXEL_SCALE = "preprocessor_config.json"  # Hugging Face's name, with the keys image_mean and image_std


@dataclass(frozen=True)
class PixelScale:
    """Mean and deviation of each channel of the training images, whose values are from 0 to 1."""

    mean: tuple[float, ...]
    deviation: tuple[float, ...]

    @classmethod
    def read(cls, path: Path) -> "PixelScale | None":
        """The scale in a folder's file; None: it has no such file."""
        if not path.is_file():
            return None
        record = read_json_table(path)
        numbers = record.get("image_mean"), record.get("image_std")
        if not all(isinstance(each, list) and each and all(map(_is_number, each)) for each in numbers):
            raise InvalidInput(f"{path} has no lists of numbers called image_mean and image_std")
        mean, deviation = (tuple(map(float, each or ())) for each in numbers)
        if len(mean) != len(deviation) or min(deviation) <= 0:
            raise InvalidInput(f"{path}: expected a mean and a deviation above 0 for each channel")
        return cls(mean, deviation)

    def write(self, path: Path) -> None:
        record = {"do_normalize": True, "image_mean": self.mean, "image_std": self.deviation}
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


class ImageHeads(Model):
    """A model that reads images and has `heads`, one for each task of its option `tasks`."""

    ability = "a model of images with task heads"
    files = (PIXEL_SCALE,)
    heads: nn.ModuleDict
    pixel_scale: PixelScale | None = None  # of the images that it was trained on

    def write_files(self, folder: Path) -> None:
        if self.pixel_scale is not None:
            self.pixel_scale.write(folder / PIXEL_SCALE)

    def read_files(self, folder: Path) -> None:
        self.pixel_scale = PixelScale.read(folder / PIXEL_SCALE)

    @property
    def image_size(self) -> tuple[int, int] | None:
        """Height and width of the images that it reads; None: any."""
        size = getattr(self.options, "image_size", None)
        return None if size is None else pair(size, "image_size")

    @property
    def channels(self) -> int:
        """Channels of a pixel."""
        return int(self.options.channels)

    def check_data(self, size: tuple[int, int], channels: int) -> None:
        """Refuses data whose images it cannot read, before training."""
        if channels != self.channels:
            raise InvalidInput(
                f"the images have {channels} channels, and the model reads {self.channels}; "
                + ("give grey = true" if self.channels == 1 else "choose a model of grey images")
            )
        expected = self.image_size
        if expected is not None and expected != size:
            raise InvalidInput(
                f"the images have {size[0]} × {size[1]} pixels, and the model reads {expected[0]} × {expected[1]}; "
                f"give resize = [{expected[0]}, {expected[1]}]"
            )

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


__all__ = ["PIXEL_SCALE", "ImageHeads", "PixelScale", "SetModel"]
