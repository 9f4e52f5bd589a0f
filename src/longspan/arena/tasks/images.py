"""Image: what a small photograph shows, from its intensities one after the other."""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.arena.tasks import baselines
from longspan.arena.tasks.cifar import BATCHES, CLASSES, SIDE, read_arrays, read_binary, read_pickled
from longspan.arena.tasks.data_files import FileLayout, FileOptions, Found, find, notes, part_of, some
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.errors import InvalidInput, InvalidOption

HELD_OUT = 10  # of so many training images the last one is for selection
RED, GREEN, BLUE = 2989, 5870, 1140  # of 10,000 parts of luminance; in whole numbers, so that rounding is exact

ARRAYS = FileLayout("npz files", ("cifar10",), {"train": ("train*.npz",), "test": ("test*.npz",)})
BINARY = FileLayout(
    "cifar-10-batches-bin",
    ("cifar10/cifar-10-batches-bin", "cifar-10-batches-bin", "cifar10"),
    {**{name: (f"{name}.bin",) for name in BATCHES}, "test": ("test_batch.bin",)},
)
PICKLED = FileLayout(
    "cifar-10-batches-py",
    ("cifar10/cifar-10-batches-py", "cifar-10-batches-py", "cifar10"),
    {**{name: (name,) for name in BATCHES}, "test": ("test_batch",)},
)
READERS = {ARRAYS.name: read_arrays, BINARY.name: read_binary, PICKLED.name: read_pickled}
WHOLE = {"train": 50_000, "test": 10_000}
GET = (
    "unpack cifar-10-binary.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html in the folder of data sets, "
    "or name its folder by the option files"
)


def luminance(pixels: np.ndarray) -> np.ndarray:
    """Bytes (…, 3) of red, green and blue to one byte each."""
    red, green, blue = (pixels[..., channel].astype(np.uint32) for channel in range(3))
    return ((RED * red + GREEN * green + BLUE * blue + 5000) // 10_000).astype(np.uint8)


def shrink(images: np.ndarray, size: int) -> np.ndarray:
    """Bytes (images, 32, 32) to (images, size, size): the mean of each square, rounded."""
    step = images.shape[1] // size
    if step == 1:
        return images
    sums = images.reshape(len(images), size, step, size, step).sum((2, 4), dtype=np.uint32)
    means: np.ndarray = (2 * sums + step * step) // (2 * step * step)
    return means.astype(np.uint8)


class ImageTask(ArenaTask):
    """Which of ten things a photograph of CIFAR-10 shows, in grey."""

    name = "image"
    title = "Image"
    generated = False
    pixels = True

    @dataclass(frozen=True, kw_only=True)
    class Options(FileOptions):
        size: int = config.option(SIDE, "pixels of a side, of which there were 32: a divisor of it", low=4, high=SIDE)

        def __post_init__(self) -> None:
            super().__post_init__()
            if SIDE % self.size:
                raise InvalidOption(f"option size must be a divisor of {SIDE}, such as 16 or 8, not {self.size}")

    options: "ImageTask.Options"

    def check(self, place: DataFolders) -> None:
        self._found(place)

    def _found(self, place: DataFolders) -> Found:
        return find("the task image", "CIFAR-10", [ARRAYS, BINARY, PICKLED], place, self.options.files, GET)

    def splits(self, place: DataFolders, seed: int = 0) -> Splits:
        found = self._found(place)
        images, labels = self._read(found, [key for key in found.files if key != "test"])
        test_images, test_labels = self._read(found, ["test"])
        first = len(labels) - len(labels) // HELD_OUT
        if first == len(labels):
            raise InvalidInput(f"train of {found.folder} has {len(labels)} images, too few to hold a tenth out")
        parts = {
            "train": (images[:first], labels[:first]),
            "held_out": (images[first:], labels[first:]),
            "test": (test_images, test_labels),
        }
        made = {}
        for split, (pixels, answers) in parts.items():
            kept, _ = some(iter(range(len(answers))), self.options.limit(split), seed, split)
            tokens = shrink(pixels[kept], self.options.size).reshape(-1)
            starts = np.arange(len(kept) + 1, dtype=np.int64) * self.options.size**2
            made[split] = LabelledSequences(tokens, starts, answers[kept], f"{split} of {found.folder}")
        said = {
            **notes(found, made),
            **part_of("CIFAR-10", WHOLE, {"train": len(labels), "test": len(test_labels)}),
            "selection": "the last tenth of train, in the order of the files",
        }
        side, train, held_out, test = self.options.size, made["train"], made["held_out"], made["test"]
        return Splits(train, held_out, test, 256, CLASSES, side * side, padded=False, grid=(side, side), notes=said)

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {
            "majority": baselines.majority(splits),
            "mean_intensity": baselines.mean_intensity(splits),
            "nearest_mean": baselines.nearest_mean(splits),
        }

    def _read(self, found: Found, keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """In grey at once, which is a third of the memory."""
        read = READERS[found.layout.name]
        parts = [(luminance(pixels), labels) for pixels, labels in (read(found.files[key]) for key in keys)]
        return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


__all__ = ["ImageTask", "luminance", "shrink"]
