"""Image classification: a label for each image."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from longspan.config import option
from longspan.data.base import Batch
from longspan.data.images.image_files import Changes, ImageData
from longspan.data.images.image_folders import image_size
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidInput
from longspan.models.base import Model
from longspan.models.image_base import ImageHeads, PixelScale
from longspan.nn.heads import Head
from longspan.tasks import starting
from longspan.tasks.base import DataPaths, Metrics, Objective, Prepared, TaskLoss, head_output
from longspan.tasks.image_splits import ImageTask

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


@dataclass(frozen=True)
class Teacher:
    """A trained model that a student learns from (Hinton et al. 2015; Touvron et al. 2020, section 4).

    `hard`: the student learns the label that the teacher finds likeliest, with the weight `weight`. `soft`: it learns
    the teacher's probabilities at a `temperature` τ, by τ² times the Kullback–Leibler divergence.
    """

    model: ImageHeads
    kind: str = "hard"
    weight: float = 0.5
    temperature: float = 3.0

    def loss(self, student: Tensor, images: Tensor) -> Tensor:
        """The sum over the images, without its weight. The teacher sees the same images as the student."""
        teacher = self.model.to(images.device).eval()
        with torch.no_grad():
            target = _widen(head_output(teacher, teacher.outputs(images), TASK))
        if target.shape != student.shape:
            raise InvalidInput(f"the teacher knows {target.shape[1]} labels, and the student {student.shape[1]}")
        if self.kind == "hard":
            return cross_entropy(student, target.argmax(-1), reduction="sum")
        mine, theirs = ((logits / self.temperature).log_softmax(-1) for logits in (student, target))
        return self.temperature**2 * kl_div(mine, theirs, reduction="sum", log_target=True)


class ImageLabel(Objective):
    """The cross-entropy of an image's label; batches have `images` and `labels`, and mixed ones `other_labels`."""

    unit = "images"

    def __init__(self, smoothing: float = 0.0, teacher: Teacher | None = None) -> None:
        self.smoothing, self.teacher = smoothing, teacher

    def count(self, batch: Batch) -> int:
        return len(batch["labels"])

    def loss(self, model: Model, batch: Batch, carried: Any = None) -> TaskLoss:
        reader, images = ImageHeads.require(model, Images.name), batch["images"]
        if self.teacher is None:
            total, parts = self._label_loss(_logits(model, images), batch), {}
        else:
            logits, student = map(_widen, reader.student_logits(images, TASK))
            label, teacher = self._label_loss(logits, batch), self.teacher.loss(student, images)
            total = (1 - self.teacher.weight) * label + self.teacher.weight * teacher
            parts = {"label": label.detach(), "teacher": teacher.detach()}
        extra = model.auxiliary_loss()
        if extra is None:
            return TaskLoss(total, parts)
        count = self.count(batch)  # the auxiliary loss is a mean: times the count it is a sum
        return TaskLoss(total + extra * count, {"label": total.detach(), **parts, "auxiliary": extra.detach() * count})

    def _label_loss(self, logits: Tensor, batch: Batch) -> Tensor:
        losses = cross_entropy(logits, batch["labels"], reduction="none", label_smoothing=self.smoothing)
        if "share" in batch:
            other = cross_entropy(logits, batch["other_labels"], reduction="none", label_smoothing=self.smoothing)
            share = batch["share"].to(losses.dtype)
            losses = share * losses + (1 - share) * other
        return losses.sum()

    def measure(self, model: Model, batch: Batch, carried: Any = None) -> tuple[ImageMetrics, Any]:
        logits, labels = _logits(model, batch["images"]), batch["labels"]
        right = int((logits.argmax(-1) == labels).sum())
        return ImageMetrics(float(cross_entropy(logits, labels, reduction="sum")), right, len(labels)), None


def _logits(model: Model, images: Tensor) -> Tensor:
    reader = ImageHeads.require(model, Images.name)
    return _widen(head_output(reader, reader.outputs(images), TASK))


def _widen(logits: Tensor) -> Tensor:
    """At least float32, for the softmax."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Images(ImageTask):
    """Labels of the images of a named set, or of your own files: a folder for each label, or an .npz file."""

    name = "images"
    starting_model = starting.IMAGES
    starting_train = starting.LABELLED

    @dataclass(frozen=True, kw_only=True)
    class Options(ImageTask.Options):
        crop: int = option(0, "most pixels by which training images are shifted", low=0)
        flip: bool = option(False, "whether half of the training images are mirrored")
        erase: float = option(0.0, "share of training images in which a rectangle becomes noise", low=0, high=1)
        mixup: float = option(0.0, "α of mixup, which blends two training images and their labels; 0: none", low=0)
        cutmix: float = option(0.0, "α of cutmix, which puts a rectangle of one image into another; 0: none", low=0)
        smoothing: float = option(0.0, "label smoothing", low=0, high=0.999)
        pool: str = option("first", "what the label is read from: the class token, or all", choices=("first", "mean"))
        teacher: str | None = option(None, "a trained model of the same labels to learn from: a run, or a folder")
        distill: str = option("hard", "what is learned from the teacher", choices=("hard", "soft"))
        teacher_weight: float = option(0.5, "weight of the teacher's loss; the label's has the rest", low=0, high=1)
        temperature: float = option(3.0, "of soft distillation", above=0)

    options: Options

    def prepare(self, folders: DataPaths, tokenizer: Tokenizer | None = None) -> Prepared:
        options = self.options
        splits, held_out = self.read_splits(folders)
        first = splits["train"]
        mean, deviation = first.moments()
        changes = Changes(options.crop, options.flip, options.erase, options.mixup, options.cutmix)

        def data(split: str) -> ImageData:
            train = split == "train"
            return ImageData(
                splits[split],
                options.batch,
                mean=mean,
                deviation=deviation,
                seed=folders.seed,
                shuffle=train,
                changes=changes if train else None,
            )

        return Prepared(
            data("train"),
            data("held_out"),
            ImageLabel(options.smoothing, self._teacher()),
            data("test") if "test" in splits else None,
            needs={
                "image_size": first.size,
                "channels": first.channels,
                "tasks": (Head(task=TASK, labels=len(first.names), names=first.names, pool=options.pool),),
            },
            pixel_scale=PixelScale(tuple(mean.tolist()), tuple(deviation.tolist())),
            facts={
                **{f"{split} images": len(images) for split, images in splits.items()},
                **({} if held_out is None else {"held out": held_out}),
                "labels": first.names,
                "mean": mean.round(4).tolist(),
                "deviation": deviation.round(4).tolist(),
            },
        )

    def _teacher(self) -> Teacher | None:
        options = self.options
        if options.teacher is None:
            return None
        from longspan.hub import load

        model = ImageHeads.require(load(options.teacher).model, f"{self.name}: teacher")
        return Teacher(model.requires_grad_(False), options.distill, options.teacher_weight, options.temperature)

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


__all__ = ["ImageLabel", "ImageMetrics", "Images", "Teacher"]
