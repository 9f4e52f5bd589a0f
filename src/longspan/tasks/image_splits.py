"""What the tasks on images share: where the images are, and how some are held out."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from longspan.config import option
from longspan.data.images.image_files import Pictures, read_pictures
from longspan.data.images.image_folders import read_image_folder
from longspan.data.order import Shuffled
from longspan.data.sets import named as named_sets
from longspan.errors import InvalidInput, InvalidOption
from longspan.tasks.base import DataPaths, Task
from longspan.tasks.splits import describe, hold_out_numbers


class ImageTask(Task):
    """A task on the images of a named set, or of your own files."""

    reads_text = False

    @dataclass(frozen=True, kw_only=True)
    class Options(Task.Options):
        set: str | None = option(None, "a named data set; see `longspan data list`")
        train: str | None = option(
            None, "a folder with a folder of images for each label, or an .npz file with x (bytes) and y (labels)"
        )
        held_out: str | None = option(None, "a held-out file; a share of the first unless given")
        test: str | None = option(None, "a test file")
        share: float = option(0.1, "share of the images to hold out, if held_out is not given", low=0, high=0.9)
        limit: int | None = option(None, "most images to train on, drawn by the seed", low=1)
        resize: tuple[int, ...] | None = option(
            None, "scale the images of folders to this height and width, or to squares of this side", low=1
        )
        grey: bool = option(False, "whether images of folders become grey")
        batch: int = option(64, "images per batch", low=1)

    options: Options

    def _files(self, folders: DataPaths) -> dict[str, Path]:
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or a file to train on: one of the two")
        if options.set is not None:
            if named_sets.find(options.set).kind != "images":
                raise InvalidOption(f"{options.set} has no images; `longspan data list` says what each set is for")
            return named_sets.files(options.set, folders.data)
        given = {"train": options.train, "held_out": options.held_out, "test": options.test}
        return {split: Path(name) for split, name in given.items() if name is not None}

    def read_splits(self, folders: DataPaths) -> tuple[dict[str, Pictures], str | None]:
        """The images of each split, and what was held out if no file is."""
        options, files, said = self.options, self._files(folders), None
        splits: dict[str, Pictures] = {}
        for split, path in files.items():
            if path.is_dir():  # the labels of the training images have the numbers for all
                names = splits["train"].names if splits else None
                splits[split] = read_image_folder(path, options.resize, grey=options.grey, names=names)
            elif not split.endswith(".labels"):
                splits[split] = read_pictures(path, files.get(f"{split}.labels"))
        whole = splits["train"]
        train = np.arange(len(whole))
        if "held_out" not in splits:
            if not 0 < round(len(whole) * options.share) < len(whole):
                raise InvalidInput(f"{whole.source} has {len(whole)} images, too few to hold some out")
            labels = [whole.names[label] for label in whole.labels]
            numbers, held = hold_out_numbers(len(whole), options.share, folders, whole.source, labels)
            splits["held_out"], train = whole.some(np.asarray(held)), np.asarray(numbers)
            said = describe(len(held), len(whole), folders.seed, by_label=True)
        order = np.asarray(Shuffled(len(train), folders.seed)[:])
        splits["train"] = whole.some(train[order[: options.limit]])
        self._check(splits)
        return splits, said

    def _check(self, splits: dict[str, Pictures]) -> None:
        """Refuses splits whose images differ in size, channels or labels."""
        first = splits["train"]
        for other in splits.values():
            unknown = [name for name in other.names if name not in first.names]
            if unknown and len(other.names) != len(first.names):
                raise InvalidInput(f"{other.source} has the label {unknown[0]!r}, which no training image has")
            if (other.size, other.channels, len(other.names)) != (first.size, first.channels, len(first.names)):
                raise InvalidInput(
                    f"{other.source} has images of {_spell(other)}, and {first.source} of {_spell(first)}"
                )


def _spell(pictures: Pictures) -> str:
    height, width = pictures.size
    return f"{height} × {width} × {pictures.channels} with {len(pictures.names)} labels"


__all__ = ["ImageTask"]
