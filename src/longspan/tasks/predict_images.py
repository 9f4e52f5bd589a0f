"""Predictions of a trained model for image files: labels with their probabilities."""

from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan.data.images.grids import read_image
from longspan.data.text.text_folders import IMAGES, folder_files
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.models.image_base import PIXEL_SCALE, ImageHeads, PixelScale
from longspan.tasks.base import head_output
from longspan.tasks.predict import label_task, labelled


def image_paths(paths: Sequence[Path]) -> list[Path]:
    """The image files that are named, and those of the folders that are."""
    found = [file for path in paths for file in ([path] if not path.is_dir() else _files(path))]
    if not found:
        raise InvalidInput("give at least one image file, or a folder of images")
    return found


def _files(folder: Path) -> list[Path]:
    return [file for file, _ in folder_files(folder, IMAGES)]


@torch.inference_mode()
def predict_images(
    pretrained: Pretrained,
    paths: Sequence[Path],
    *,
    resize: bool = False,
    batch: int = 32,
    progress: Callable[[int], None] | None = None,
) -> list[dict[str, Any]]:
    """The label of each image file, or its number if the model regresses; `resize` scales and converts images.

    Images are scaled as those that the model was trained on.

    >>> predict_images(hub.load("runs/mnist-vit"), [Path("seven.png")])[0]["label"]
    """
    if batch < 1:
        raise InvalidOption(f"batch must be at least 1, not {batch}")
    model = ImageHeads.require(pretrained.model, "predictions for images").eval()
    task, scale = label_task(model), _scale(pretrained, model)
    mean, deviation = (np.array(numbers) for numbers in (scale.mean, scale.deviation))
    answers: list[dict[str, Any]] = []
    files = iter(paths)
    while chosen := list(islice(files, 1 if model.image_size is None else batch)):  # sizes may differ
        pixels = np.stack([read_image(path, model.image_size, model.channels, resize=resize) for path in chosen])
        scaled = ((pixels / 255 - mean) / deviation).transpose(0, 3, 1, 2)
        images = torch.from_numpy(scaled).to(model.dtype).to(model.device)
        logits = head_output(model, model.outputs(images), task).float().cpu()
        if task == "regress":
            answers += [{"value": float(row[0])} for row in logits]
        else:
            answers += [labelled(pretrained, row.softmax(-1).tolist()) for row in logits]
        if progress is not None:
            progress(len(answers))
    return answers


def _scale(pretrained: Pretrained, model: ImageHeads) -> PixelScale:
    """The scale of the training images: the model's, or that in its folder."""
    scale = model.pixel_scale
    if scale is None and pretrained.path is not None:
        scale = PixelScale.read(pretrained.path / PIXEL_SCALE)
    if scale is None:
        raise Unsupported(
            f"this {model.name} does not know the mean and deviation of its training images; train it by the task "
            f"'images', or put them into {PIXEL_SCALE} of its folder, as image_mean and image_std"
        )
    if len(scale.mean) != model.channels:
        raise InvalidInput(f"{PIXEL_SCALE} has {len(scale.mean)} channels, and the model {model.channels}")
    return scale


__all__ = ["image_paths", "predict_images"]
