"""The ability to generate images pixel by pixel (see `models/base.py`), and what to generate."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import Model

Pixels = Int[Tensor, "batch height width channels"]  # values from 0 to levels - 1
Labels = Int[Tensor, " batch"]


@dataclass(frozen=True)
class ImageSampling:
    """Which images a `PixelModel` generates.

    The first `rows` rows are those of `known`, if given; `source` are small images to enlarge. `temperature` divides
    the logits; 0 takes the likeliest values.
    """

    count: int
    labels: Labels | None = None
    known: Pixels | None = None
    rows: int = 0
    source: Pixels | None = None
    temperature: float = 1.0
    generator: torch.Generator | None = None
    progress: Callable[[int], None] | None = None  # called with the number of tokens generated since the last call

    def __post_init__(self) -> None:
        if self.count < 1:
            raise InvalidOption(f"expected at least 1 image to generate, not {self.count}")
        if not self.temperature >= 0:
            raise InvalidOption(f"the temperature must be 0 or more, not {self.temperature}")

    def advance(self, tokens: int = 1) -> None:
        """Tells `progress` that more tokens of each image are there."""
        if self.progress is not None:
            self.progress(self.count * tokens)

    def draw(self, logits: Float[Tensor, "count levels"]) -> Int[Tensor, " count"]:
        """A value for each image from its logits."""
        if self.temperature == 0:
            return logits.argmax(-1)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        weights = (wide / self.temperature).softmax(-1)
        return torch.multinomial(weights.cpu(), 1, generator=self.generator)[:, 0].to(logits.device)


class PixelModel(Model):
    """A model of images as a product of conditional probabilities: it gives their likelihood, and generates them."""

    ability = "a model that generates images pixel by pixel"
    size: tuple[int, int]  # height and width
    channels: int
    levels: int  # values of a channel
    tokens: int  # of an image, generated one after the other: channels of pixels, or pixels
    classes: int = 0  # labels that it can be conditioned on; 0: none
    source_size: tuple[int, int] | None = None  # height and width of small images that it enlarges; None: it does not

    @abstractmethod
    def nats(
        self, images: Pixels, labels: Labels | None = None, source: Pixels | None = None
    ) -> Float[Tensor, " batch"]:
        """-log p(image | label, source) of each image: exact, over all pixels and channels."""

    def training_nats(
        self, images: Pixels, labels: Labels | None = None, source: Pixels | None = None
    ) -> Float[Tensor, " batch"]:
        """What training minimises: `nats`, or an estimate with the same mean that is quicker."""
        return self.nats(images, labels, source)

    @abstractmethod
    def sample(self, sampling: ImageSampling) -> Pixels:
        """New images."""

    # Checks

    def check_images(self, images: Tensor) -> None:
        """Refuses images of another size or with values that the model does not have."""
        if 0 in images.shape:
            raise InvalidInput(f"expected at least one image and one pixel, got {tuple(images.shape)}")
        if images.ndim != 4 or tuple(images.shape[1:]) != (*self.size, self.channels):
            raise InvalidInput(
                f"expected images (batch, {self.size[0]}, {self.size[1]}, {self.channels}), got {tuple(images.shape)}"
            )
        self._check_values(images)

    def _check_values(self, images: Tensor) -> None:
        if images.is_floating_point():
            raise InvalidInput(f"expected whole values from 0 to {self.levels - 1}, got {images.dtype}")
        if images.is_meta:  # shapes alone, without values
            return
        if int(images.max()) >= self.levels or int(images.min()) < 0:
            raise InvalidInput(
                f"expected values from 0 to {self.levels - 1}, got {int(images.min())} to {int(images.max())}"
            )

    def check_labels(self, labels: Tensor | None, count: int) -> None:
        """Refuses labels if the model has none, and asks for one for each image if it has."""
        if labels is None and not self.classes:
            return
        if not self.classes:
            raise InvalidInput("this model was trained without labels; leave them out")
        wanted = f"this model needs a label from 0 to {self.classes - 1} for each image"
        if labels is None:
            raise InvalidInput(wanted)
        if labels.shape != (count,):
            raise InvalidInput(f"{wanted}: {count}, got {tuple(labels.shape)}")
        if not labels.is_meta and (int(labels.max()) >= self.classes or int(labels.min()) < 0):
            raise InvalidInput(f"{wanted}, got {int(labels.min())} to {int(labels.max())}")

    def check_source(self, source: Tensor | None, count: int) -> None:
        """Refuses small images if the model enlarges none, and asks for one for each image if it does."""
        if source is None and self.source_size is None:
            return
        if self.source_size is None:
            raise InvalidInput("this model enlarges no images; leave out source")
        if source is None:
            raise InvalidInput(f"this model enlarges images of {self.source_size}; give them as source")
        if source.shape != (count, *self.source_size, self.channels):
            raise InvalidInput(
                f"expected {count} small images {(*self.source_size, self.channels)}, got {tuple(source.shape)}"
            )
        self._check_values(source)

    def known_rows(self, sampling: ImageSampling) -> Pixels:
        """The rows that are not generated, for each image: (count, rows, width, channels), none of them without any."""
        known, rows = sampling.known, sampling.rows
        if known is None:
            return torch.zeros(sampling.count, 0, self.size[1], self.channels, dtype=torch.long, device=self.device)
        if known.shape[1:] != (*self.size, self.channels):
            raise InvalidInput(
                f"expected images {(*self.size, self.channels)} to complete, got {tuple(known.shape[1:])}"
            )
        if len(known) not in (1, sampling.count):
            raise InvalidInput(f"expected 1 image to complete, or {sampling.count}, got {len(known)}")
        if not 0 <= rows <= self.size[0]:
            raise InvalidOption(f"rows must be 0 to {self.size[0]}, not {rows}")
        self._check_values(known)
        return known[:, :rows].expand(sampling.count, -1, -1, -1).to(self.device)


__all__ = ["ImageSampling", "Labels", "PixelModel", "Pixels"]
