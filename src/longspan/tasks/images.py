"""Image classification: a label for each image."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.images.image_files import ImageData, Pictures, read_pictures
from longspan.data.images.image_folders import image_size, read_image_folder
from longspan.data.order import Shuffled
from longspan.data.sets import named as named_sets
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import ImageHeads, Model
from longspan.nn.heads import Head
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, Task, TaskLoss, head_output
from longspan.tasks.splits import describe, hold_out_numbers

TASK = "classify"


@dataclass
class ImageMetrics(Metrics):
    """Loss and accuracy."""

    nats: float = 0.0
    right: int = 0
    count: int = 0

    def add(self, other: Metrics) -> None:
        assert isinstance(other, ImageMetrics)
        self.nats, self.right, self.count = self.nats + other.nats, self.right + other.right, self.count + other.count

    def result(self) -> dict[str, float]:
        count = max(self.count, 1)
        return {"loss": self.nats / count, "accuracy": self.right / count}


class ImageLabel(Objective):
    """The cross-entropy of an image's label; batches have `images` and `labels`."""

    def __init__(self, smoothing: float = 0.0) -> None:
        self.smoothing = smoothing

    def count(self, batch: Batch) -> int:
        return len(batch["labels"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        logits, labels = _logits(model, batch["images"]), batch["labels"]
        total = cross_entropy(logits, labels, reduction="sum", label_smoothing=self.smoothing)
        extra = model.auxiliary_loss()
        if extra is None:
            return TaskLoss(total, {})
        count = self.count(batch)  # the auxiliary loss is a mean: times the count it is a sum
        return TaskLoss(total + extra * count, {"auxiliary": extra.detach() * count, "label": total.detach()})

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[ImageMetrics, Any]:
        logits, labels = _logits(model, batch["images"]), batch["labels"]
        right = int((logits.argmax(-1) == labels).sum())
        return ImageMetrics(float(cross_entropy(logits, labels, reduction="sum")), right, len(labels)), None


def _logits(model: Model, images: Tensor) -> Tensor:
    reader = ImageHeads.require(model, Images.name)
    logits = head_output(reader, reader.outputs(images), TASK)
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Images(Task):
    """Labels of the images of a named set, or of your own files: a folder for each label, or an .npz file."""

    name = "images"
    starting_model = starting.IMAGES
    starting_train = starting.LABELLED

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
        crop: int = option(0, "most pixels by which training images are shifted", low=0)
        flip: bool = option(False, "whether half of the training images are mirrored")
        smoothing: float = option(0.0, "label smoothing", low=0, high=0.999)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        splits, held_out = self._read(folders)
        first = splits["train"]
        for other in splits.values():
            unknown = [name for name in other.names if name not in first.names]
            if unknown and len(other.names) != len(first.names):
                raise InvalidInput(f"{other.source} has the label {unknown[0]!r}, which no training image has")
            if (other.size, other.channels, len(other.names)) != (first.size, first.channels, len(first.names)):
                raise InvalidInput(
                    f"{other.source} has images of {_spell(other)}, and {first.source} of {_spell(first)}"
                )
        mean, deviation = first.moments()

        def data(split: str) -> ImageData:
            train = split == "train"
            return ImageData(
                splits[split],
                options.batch,
                mean=mean,
                deviation=deviation,
                seed=folders.seed,
                shuffle=train,
                crop=options.crop if train else 0,
                flip=options.flip and train,
            )

        return Prepared(
            data("train"),
            data("held_out"),
            ImageLabel(options.smoothing),
            data("test") if "test" in splits else None,
            needs={
                "image_size": first.size,
                "channels": first.channels,
                "tasks": (Head(task=TASK, labels=len(first.names), names=self._names(first)),),
            },
            facts={
                **{f"{split} images": len(images) for split, images in splits.items()},
                **({} if held_out is None else {"held out": held_out}),
                "labels": first.names,
                "mean": mean.round(4).tolist(),
                "deviation": deviation.round(4).tolist(),
            },
        )

    def _names(self, pictures: Pictures) -> tuple[str, ...] | None:
        """The names of the labels, if they are more than numbers."""
        return pictures.names if self.options.set is None and not all(map(str.isdigit, pictures.names)) else None

    def suggest_model(self) -> Mapping[str, Any]:
        """Patches that divide the images: about seven on a side."""
        if self.options.train is None:
            return {**self.starting_model, "patch_size": 4}
        height, width = image_size(Path(self.options.train), self.options.resize)
        patch = [
            min((side for side in range(1, pixels + 1) if pixels % side == 0), key=lambda side: abs(pixels / side - 7))
            for pixels in (height, width)
        ]
        return {**self.starting_model, "patch_size": patch[0] if patch[0] == patch[1] else patch}

    def _files(self, folders: DataPaths) -> dict[str, Path]:
        options = self.options
        if (options.set is None) == (options.train is None):
            raise InvalidOption("[task] names a set, or a file to train on: one of the two")
        if options.set is not None:
            if named_sets.find(options.set).kind != self.name:
                raise InvalidOption(f"{options.set} has no images; `longspan data list` says what each set is for")
            return named_sets.files(options.set, folders.data)
        given = {"train": options.train, "held_out": options.held_out, "test": options.test}
        return {split: Path(name) for split, name in given.items() if name is not None}

    def _read(self, folders: DataPaths) -> tuple[dict[str, Pictures], str | None]:
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
        return splits, said


def _spell(pictures: Pictures) -> str:
    height, width = pictures.size
    return f"{height} × {width} × {pictures.channels} with {len(pictures.names)} labels"


__all__ = ["ImageLabel", "ImageMetrics", "Images"]
