"""Image generation: the likelihood of images, pixel by pixel, in bits per dimension."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.config import option
from longspan.data.base import Batch, Data
from longspan.data.images.image_files import Pictures
from longspan.data.order import Shuffled, draws
from longspan.data.text.blocks import Batches
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.models.pixel_base import PixelModel
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, TaskLoss
from longspan.tasks.image_splits import ImageTask


@dataclass
class PixelMetrics(Metrics):
    """Nats and bits per dimension: a dimension is one channel of one pixel."""

    nats: float = 0.0
    dimensions: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, PixelMetrics)
        self.nats, self.dimensions = self.nats + other.nats, self.dimensions + other.dimensions

    def result(self) -> dict[str, float]:
        mean = self.nats / max(self.dimensions, 1)
        return {"loss": mean, "bits_per_dim": mean / math.log(2)}


class PixelLikelihood(Objective):
    """The negative log-likelihood of `images`, given `labels` and small `source` images if the batch has them."""

    unit = "dimensions"

    def count(self, batch: Batch) -> int:
        return batch["images"].numel()

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        return TaskLoss(self._able(model).training_nats(batch["images"], **_given(batch)).sum(), {})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[PixelMetrics, Any]:
        nats = self._able(model).nats(batch["images"], **_given(batch)).sum().item()
        return PixelMetrics(nats, self.count(batch)), None

    def _able(self, model: Model) -> PixelModel:
        return PixelModel.require(model, PixelTask.name)


def _given(batch: Batch) -> dict[str, Tensor]:
    """What images are conditioned on."""
    return {name: batch[name] for name in ("labels", "source") if name in batch}


class PixelData(Data):
    """Batches of `images` (batch, height, width, channels) with values from 0 to levels - 1.

    With `labels`, batches have the labels too; with `source`, images scaled down to that height and width. With `flip`,
    half of the images are mirrored, by the seed, the epoch and the example.
    """

    def __init__(
        self,
        pictures: Pictures,
        batch: int,
        *,
        levels: int,
        labels: bool = False,
        source: tuple[int, int] | None = None,
        flip: bool = False,
        seed: int = 0,
        shuffle: bool = True,
    ) -> None:
        self.pictures, self.batch, self.levels, self.labels = pictures, batch, levels, labels
        self.source, self.flip, self.seed, self.shuffle = source, flip, seed, shuffle

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        size = len(self.pictures)
        return Batches(Shuffled(size, self.seed, epoch) if self.shuffle else range(size), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        pixels = self.pictures.pixels[list(numbers)]
        if self.flip:
            mirrored = [draws(self.seed, epoch, number).random() < 0.5 for number in numbers]
            pixels = np.where(np.asarray(mirrored)[:, None, None, None], pixels[:, :, ::-1], pixels)
        batch = {"images": torch.from_numpy(quantise(pixels, self.levels))}
        if self.labels:
            batch["labels"] = torch.from_numpy(self.pictures.labels[list(numbers)])
        if self.source is not None:
            batch["source"] = torch.from_numpy(quantise(scale_down(pixels, self.source), self.levels))
        return batch

    def fingerprint(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self.pictures.pixels).data).hexdigest()[:16]
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{digest}, {self.levels} levels, batches of {self.batch}, {order}{', flipped' * self.flip}"


def quantise(pixels: np.ndarray, levels: int) -> np.ndarray:
    """Bytes as whole numbers from 0 to levels - 1."""
    return pixels.astype(np.int64) * levels // 256


def scale_down(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Images (examples, height, width, channels) of bytes, each pixel the mean of a rectangle."""
    count, height, width, channels = pixels.shape
    tiles = pixels.reshape(count, size[0], height // size[0], size[1], width // size[1], channels)
    means: np.ndarray = np.rint(tiles.mean((2, 4))).astype(np.uint8)
    return means


class PixelTask(ImageTask):
    """Images of a named set, or of your own files, generated pixel by pixel."""

    name = "pixels"
    starting_model = starting.PIXELS
    starting_train = starting.UNLABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(ImageTask.Options):
        levels: int = option(256, "values of a channel: 256, or fewer for a coarser image", low=2, high=256)
        flip: bool = option(False, "whether half of the training images are mirrored")
        conditional: bool = option(False, "whether the model is conditioned on the label of each image")
        source: int | None = option(
            None,
            "super-resolution: side of the small images that the model enlarges; none: no such images",
            low=1,
        )

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        splits, held_out = self.read_splits(folders)
        first = splits["train"]
        source = None if options.source is None else (options.source, options.source)
        if source is not None and (first.size[0] % source[0] or first.size[1] % source[1]):
            raise InvalidInput(
                f"{first.source} has images of {first.size[0]} × {first.size[1]}, which do not scale down to a side of "
                f"{options.source}: give a divisor"
            )

        def data(split: str) -> PixelData:
            train = split == "train"
            return PixelData(
                splits[split],
                options.batch,
                levels=options.levels,
                labels=options.conditional,
                source=source,
                flip=options.flip and train,
                seed=folders.seed,
                shuffle=train,
            )

        alone = independent_bits(first, splits["held_out"], options.levels)
        return Prepared(
            data("train"),
            data("held_out"),
            PixelLikelihood(),
            data("test") if "test" in splits else None,
            needs={
                "image_size": first.size,
                "channels": first.channels,
                "levels": options.levels,
                **({"classes": len(first.names)} if options.conditional else {}),
                **({} if source is None else {"source_size": source}),
            },
            facts={
                **{f"{split} images": len(images) for split, images in splits.items()},
                **({} if held_out is None else {"held out": held_out}),
                "image": (*first.size, first.channels),
                "bits of a uniform guess": math.log2(options.levels),
                "bits of each pixel by itself": round(alone, 3),
            },
        )


def independent_bits(train: Pictures, held_out: Pictures, levels: int) -> float:
    """Bits per dimension of a model without context: the frequencies of the values at each place, plus one of each."""
    seen, tested = quantise(train.pixels, levels), quantise(held_out.pixels, levels)
    places = seen[0].size
    counts = np.ones((places, levels))
    np.add.at(counts, (np.tile(np.arange(places), len(seen)), seen.reshape(-1)), 1)
    logs = np.log2(counts / counts.sum(1, keepdims=True))
    return float(-logs[np.arange(places)[None], tested.reshape(len(tested), -1)].mean())


__all__ = ["PixelData", "PixelLikelihood", "PixelMetrics", "PixelTask"]
