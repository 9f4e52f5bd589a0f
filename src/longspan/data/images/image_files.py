"""Images with labels: read from .npz or idx files, in batches (batch, channels, height, width)."""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longspan.data.base import Batch, Data
from longspan.data.npz_files import read_npz
from longspan.data.order import Shuffled, draws
from longspan.data.text.blocks import Batches
from longspan.data.text.text_files import DAMAGED, open_bytes
from longspan.errors import InvalidInput

KINDS = {0x08: np.dtype(np.uint8)}  # types of idx files: images and labels are bytes
MIXING = 1  # a second stream of draws for each example: what is mixed into it
MOST_LABELS = 1 << 16  # largest number of labels in a file with few images


@dataclass(frozen=True)
class Pictures:
    """Images of one size, and their labels."""

    pixels: np.ndarray  # uint8 (examples, height, width, channels)
    labels: np.ndarray  # int64 (examples,)
    names: tuple[str, ...]  # of the labels
    source: str

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4:
            raise InvalidInput(
                f"{self.source}: expected images of bytes (examples, height, width, channels), "
                f"got {self.pixels.dtype} {self.pixels.shape}"
            )
        if len(self.pixels) != len(self.labels):
            raise InvalidInput(f"{self.source} has {len(self.pixels)} images and {len(self.labels)} labels")
        if not len(self.pixels):
            raise InvalidInput(f"{self.source} has no images")
        wrong = np.flatnonzero((self.labels < 0) | (self.labels >= len(self.names)))
        if wrong.size:
            label = int(self.labels[wrong[0]])
            raise InvalidInput(
                f"{self.source}, image {wrong[0]}: the label {label} is none of 0..{len(self.names) - 1}"
            )

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.pixels.shape[1]), int(self.pixels.shape[2])

    @property
    def channels(self) -> int:
        return int(self.pixels.shape[3])

    def some(self, numbers: np.ndarray) -> "Pictures":
        """A subset of the images."""
        return Pictures(self.pixels[numbers], self.labels[numbers], self.names, self.source)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each channel for pixels in 0..1, from exact counts."""
        counts = np.stack([np.bincount(self.pixels[..., each].ravel(), minlength=256) for each in range(self.channels)])
        values = np.arange(256) / 255
        mean = counts @ values / counts.sum(1)
        variance = counts @ values**2 / counts.sum(1) - mean**2
        return mean, np.maximum(np.sqrt(np.maximum(variance, 0)), 1 / 255)


def read_pictures(path: Path, labels: Path | None = None) -> Pictures:
    """Read images from an .npz file (`x`, `y` and optionally `classes`), or from two idx files as of MNIST."""
    if path.suffix == ".npz":
        return _read_npz(path)
    if labels is None:
        raise InvalidInput(f"{path} has images alone; an idx file needs another with the labels")
    pixels, found = read_idx(path), read_idx(labels).astype(np.int64)
    if pixels.ndim != 3 or found.ndim != 1:
        raise InvalidInput(f"{path} and {labels} have {pixels.ndim} and {found.ndim} dimensions; 3 and 1 are expected")
    return Pictures(pixels[..., None], found, _numbered(found, labels), str(path))


def _read_npz(path: Path) -> Pictures:
    arrays = read_npz(path, ("x", "y"), ("classes",))
    pixels, labels = arrays["x"], arrays["y"]
    if labels.ndim != 1 or labels.dtype.kind not in "biu":
        raise InvalidInput(f"{path}: y must be a row of whole numbers, not {labels.dtype} {labels.shape}")
    labels = labels.astype(np.int64)
    if "classes" in arrays and arrays["classes"].ndim != 1:
        raise InvalidInput(f"{path}: classes must be a row of names, not {arrays['classes'].shape}")
    names = tuple(map(str, arrays["classes"])) if "classes" in arrays else _numbered(labels, path)
    return Pictures(pixels if pixels.ndim != 3 else pixels[..., None], labels, names, str(path))


def _numbered(labels: np.ndarray, path: Path) -> tuple[str, ...]:
    most = int(labels.max(initial=-1))
    if most >= max(MOST_LABELS, len(labels)):
        raise InvalidInput(f"{path}: the label {most} is none: {len(labels)} images have fewer kinds than that")
    return tuple(map(str, range(most + 1)))


def read_idx(path: Path) -> np.ndarray:
    """An array of an idx file (LeCun et al. 1998): two zeros, the type, the number of dimensions, the dimensions."""
    with open_bytes(path) as file:
        try:
            content = file.read()
        except (OSError, *DAMAGED) as error:
            raise InvalidInput(f"{path} is cut short or damaged: {error}") from None
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in KINDS or not content[3]:
        raise InvalidInput(f"{path} is no idx file of bytes: it begins with {content[:4].hex(' ')}")
    start = 4 + 4 * content[3]
    shape = tuple(int.from_bytes(content[place : place + 4]) for place in range(4, start, 4))
    if len(content) - start != math.prod(shape):
        raise InvalidInput(f"{path} says {' × '.join(map(str, shape))}, and {len(content) - start} bytes follow")
    return np.frombuffer(content, KINDS[content[2]], offset=start).reshape(shape)


class ImageData(Data):
    """Batches of `images`, normalised by `mean` and `deviation` of each channel, and `labels`.

    With `crop`, an image is shifted by up to that many pixels in each direction and padded with black; with `flip`, it
    is mirrored with probability 1/2; with `erase`, a rectangle is filled with noise with that probability (Zhong et al.
    2017). `mixup` (Zhang et al. 2018) and `cutmix` (Yun et al. 2019) are the α of the Beta distribution by which an
    image is blended with another, or gets a rectangle of it; with both, one of the two is chosen at random. A mixed
    batch also has `other_labels`, and the `share` of each image that is its own. All of this follows from the seed, the
    epoch and the number of the example.
    """

    def __init__(
        self,
        pictures: Pictures,
        batch: int,
        *,
        mean: np.ndarray,
        deviation: np.ndarray,
        seed: int = 0,
        shuffle: bool = True,
        changes: "Changes | None" = None,
    ) -> None:
        self.pictures, self.batch, self.mean, self.deviation = pictures, batch, mean, deviation
        self.seed, self.shuffle, self.changes = seed, shuffle, changes or Changes()

    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        size = len(self.pictures)
        return Batches(Shuffled(size, self.seed, epoch) if self.shuffle else range(size), self.batch)

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        labels = torch.from_numpy(self.pictures.labels[list(numbers)])
        if not self.changes:
            return {"images": self._tensor(self.pictures.pixels[list(numbers)] / 255), "labels": labels}
        images = [self._changed(number, epoch) for number in numbers]
        if not (self.changes.mixup or self.changes.cutmix):
            return {"images": self._tensor(np.stack(images)), "labels": labels}
        mixed = [self._mixed(image, number, epoch) for image, number in zip(images, numbers)]
        return {
            "images": self._tensor(np.stack([image for image, _, _ in mixed])),
            "labels": labels,
            "other_labels": torch.from_numpy(self.pictures.labels[[other for _, other, _ in mixed]]),
            "share": torch.tensor([share for _, _, share in mixed]),
        }

    def _tensor(self, pixels: np.ndarray) -> Tensor:
        scaled = (pixels - self.mean) / self.deviation
        return torch.from_numpy(scaled.transpose(0, 3, 1, 2).astype(np.float32))

    def _changed(self, number: int, epoch: int) -> np.ndarray:
        """An example, shifted, mirrored and erased; values 0 to 1."""
        draw = draws(self.seed, epoch, number)
        image: np.ndarray = self.pictures.pixels[number]
        crop, erase = self.changes.crop, self.changes.erase
        down, right = draw.integers(2 * crop + 1, size=2)
        mirrored = self.changes.flip and draw.random() < 0.5
        height, width = image.shape[:2]
        if crop:
            around = ((crop, crop), (crop, crop), (0, 0))
            image = np.pad(image, around)[down : down + height, right : right + width]
        image = (image[:, ::-1] if mirrored else image) / 255
        if erase and draw.random() < erase:
            top, left, bottom, end = _rectangle(draw, height, width, draw.uniform(0.02, 1 / 3))
            noise = draw.normal(size=(bottom - top, end - left, image.shape[2]))
            image = image.copy()
            image[top:bottom, left:end] = noise * self.deviation + self.mean
        return image

    def _mixed(self, image: np.ndarray, number: int, epoch: int) -> tuple[np.ndarray, int, float]:
        """The image with another one mixed in, the number of that one, and the share that is its own."""
        draw = draws(self.seed, epoch, number, MIXING)
        other = int(draw.integers(len(self.pictures)))
        second, mixup, cutmix = self._changed(other, epoch), self.changes.mixup, self.changes.cutmix
        cut = draw.random() < 0.5 if mixup and cutmix else bool(cutmix)
        alpha = cutmix if cut else mixup
        share = float(draw.beta(alpha, alpha))
        if not cut:
            return share * image + (1 - share) * second, other, share
        height, width = image.shape[:2]
        top, left, bottom, end = _rectangle(draw, height, width, 1 - share)
        image = image.copy()
        image[top:bottom, left:end] = second[top:bottom, left:end]
        return image, other, 1 - (bottom - top) * (end - left) / (height * width)

    def fingerprint(self) -> str:
        digest = hashlib.sha256(np.ascontiguousarray(self.pictures.pixels).data)
        digest.update(np.ascontiguousarray(self.pictures.labels).data)
        order = f"shuffled by {self.seed}" if self.shuffle else "in order"
        return f"{digest.hexdigest()[:16]}, batches of {self.batch}, {order}{self.changes.describe()}"


@dataclass(frozen=True)
class Changes:
    """How training images are changed; nothing by default."""

    crop: int = 0
    flip: bool = False
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __bool__(self) -> bool:
        return self != Changes()

    def describe(self) -> str:
        """For the fingerprint of the data."""
        mixing = {"erased": self.erase, "mixup": self.mixup, "cutmix": self.cutmix}
        moved = f", moved by {self.crop}" * bool(self.crop) + ", flipped" * self.flip
        return moved + "".join(f", {name} {value}" for name, value in mixing.items() if value)


def _rectangle(draw: np.random.Generator, height: int, width: int, share: float) -> tuple[int, int, int, int]:
    """Top, left, bottom and right of a rectangle: about `share` of an image, in its proportions, cut at its borders."""
    half_height, half_width = height * share**0.5 / 2, width * share**0.5 / 2
    row, column = draw.uniform(0, height), draw.uniform(0, width)
    rows = np.clip([round(row - half_height), round(row + half_height)], 0, height)
    columns = np.clip([round(column - half_width), round(column + half_width)], 0, width)
    return int(rows[0]), int(columns[0]), int(rows[1]), int(columns[1])


__all__ = ["Changes", "ImageData", "Pictures", "read_idx", "read_pictures"]
