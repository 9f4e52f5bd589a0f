"""Image: classify a small grey photograph from its intensities, read one after the other."""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.arena.tasks import baselines
from longspan.arena.tasks.cifar import BATCHES, CLASSES, SIDE, read_arrays, read_binary, read_pickled
from longspan.arena.tasks.data_files import (
    DataFiles,
    FileLayout,
    FileOptions,
    file_notes,
    find,
    sample_rows,
    subset_note,
)
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.errors import InvalidInput, InvalidOption

HELD_OUT = 10  # the last of this many parts of train is held out, to select the best step
RED, GREEN, BLUE = 2989, 5870, 1140  # weights in luminance, of 10,000; integers, so that rounding is exact

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
        size: int = config.option(SIDE, "height and width in pixels, a divisor of 32", low=4, high=SIDE)

        def __post_init__(self) -> None:
            super().__post_init__()
            if SIDE % self.size:
                raise InvalidOption(f"option size must be a divisor of {SIDE}, such as 16 or 8, not {self.size}")

    options: "ImageTask.Options"

    def check(self, folders: DataFolders) -> None:
        self._find(folders)

    def _find(self, folders: DataFolders) -> DataFiles:
        return find("the task image", "CIFAR-10", [ARRAYS, BINARY, PICKLED], folders, self.options.files, GET)

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        files = self._find(folders)
        images, labels = self._read(files, [key for key in files.files if key != "test"])
        test_images, test_labels = self._read(files, ["test"])
        first = len(labels) - len(labels) // HELD_OUT
        if first == len(labels):
            raise InvalidInput(f"train of {files.folder} has {len(labels)} images, too few to hold a tenth out")
        sources = {
            "train": (images[:first], labels[:first]),
            "held_out": (images[first:], labels[first:]),
            "test": (test_images, test_labels),
        }
        examples = {}
        for split, (pixels, answers) in sources.items():
            sample, _ = sample_rows(iter(range(len(answers))), self.options.limit(split), seed, split)
            tokens = shrink(pixels[sample], self.options.size).reshape(-1)
            starts = np.arange(len(sample) + 1, dtype=np.int64) * self.options.size**2
            examples[split] = LabelledSequences(tokens, starts, answers[sample], f"{split} of {files.folder}")
        notes = {
            **file_notes(files, examples),
            **subset_note("CIFAR-10", WHOLE, {"train": len(labels), "test": len(test_labels)}),
            "selection": "the last tenth of train, in the order of the files",
        }
        side, train, held_out, test = self.options.size, examples["train"], examples["held_out"], examples["test"]
        return Splits(train, held_out, test, 256, CLASSES, side * side, padded=False, grid=(side, side), notes=notes)

    def baselines(self, splits: Splits) -> dict[str, float]:
        return {
            "majority": baselines.majority(splits),
            "mean_intensity": baselines.mean_intensity(splits),
            "nearest_mean": baselines.nearest_mean(splits),
        }

    def _read(self, files: DataFiles, keys: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """The images of several files, in grey."""
        read = READERS[files.layout.name]
        read_files = [(luminance(pixels), labels) for pixels, labels in (read(files.files[key]) for key in keys)]
        return np.concatenate([images for images, _ in read_files]), np.concatenate(
            [labels for _, labels in read_files]
        )


__all__ = ["ImageTask", "luminance", "shrink"]
