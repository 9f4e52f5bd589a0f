"""`longspan generate` with a model of images: a PNG file with a grid of new, completed or enlarged images."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Group, Parameter

from longspan.cli.inputs import print_json, progress
from longspan.cli.mark import Mark, by
from longspan.cli.terminal import Console
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.models.pixel_base import PixelModel

IMAGES = Group("Images", sort_key=4)
SAMPLES = 16
LEAST_SIDE = 500  # pixels of the shorter side of the file: small images are enlarged


def _flag(help: str, **options: Any) -> Parameter:
    return Parameter(group=IMAGES, negative="", help=help, **options)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ImageFlags:
    """The flags of `generate` for models of images."""

    out: Annotated[Path | None, _flag("the PNG file to write (default: images.png)")] = None
    complete: Annotated[Path | None, _flag("an image file whose upper part is kept")] = None
    rows: Annotated[int | None, _flag("with --complete: number of rows that are kept (default: half)")] = None
    label: Annotated[int | None, _flag("label of the images, for a model trained with labels", name="--class")] = None
    source: Annotated[Path | None, _flag("a small image file to enlarge (super-resolution)")] = None
    resize: Annotated[bool, _flag("scale and convert the image file to what the model reads")] = False

    def given(self) -> str | None:
        """The first of these flags that was given."""
        values = {"--out": self.out, "--complete": self.complete, "--rows": self.rows, "--class": self.label}
        values |= {"--source": self.source, "--resize": self.resize or None}
        return next((name for name, value in values.items() if value is not None), None)


def generate_images(
    model: "PixelModel",
    flags: ImageFlags,
    *,
    samples: int | None,
    temperature: float,
    seed: int,
    mark: Mark | None,
    json: bool,
) -> None:
    """Samples images with progress, and writes the grid."""
    import torch

    from longspan.data.images.grids import grid, read_image, write_png
    from longspan.models.pixel_base import ImageSampling

    count = SAMPLES if samples is None else samples
    if count < 1:
        raise InvalidOption(f"--samples must be at least 1, not {count}")
    if flags.rows is not None and flags.complete is None:
        raise InvalidOption("--rows is for --complete; give an image file by --complete too")
    labels = _labels(model, flags.label, count)
    source_size = model.source_size
    if (source_size is None) != (flags.source is None):
        raise InvalidOption(
            "this model enlarges no images; leave out --source"
            if source_size is None
            else f"this model enlarges images of {source_size[0]} × {source_size[1]}; give one by --source"
        )
    known = source = None
    if flags.complete is not None:
        known = _read(read_image(flags.complete, model.size, model.channels, resize=flags.resize), model.levels)
    if flags.source is not None and source_size is not None:
        pixels = read_image(flags.source, source_size, model.channels, resize=flags.resize)
        source = _read(pixels, model.levels).expand(count, -1, -1, -1)
    kept = (model.size[0] // 2 if flags.rows is None else flags.rows) if known is not None else 0
    out = Path("images.png") if flags.out is None else flags.out
    done = 0

    def advance(tokens: int) -> None:
        nonlocal done
        done += tokens
        tell(done)

    with progress("generating", count * model.tokens) as tell:
        sampling = ImageSampling(
            count,
            labels=labels,
            known=known,
            rows=kept,
            source=source,
            temperature=temperature,
            generator=torch.Generator().manual_seed(seed),
            progress=advance,
        )
        images = model.sample(sampling)
    with torch.inference_mode():
        nats = model.nats(images, labels, source)
    pixels = (images * 255 // (model.levels - 1)).to(torch.uint8).numpy()
    canvas, about = grid(pixels), None if mark is None else mark.chunks()
    write_png(out, canvas, enlarge=max(1, LEAST_SIDE // min(canvas.shape[:2])), about=about)
    if json:
        bits = [float(value) / (images[0].numel() * math.log(2)) for value in nats]
        return print_json({"file": str(out), "images": count, "seed": seed, "bits_per_dim": bits, **by(mark)})
    Console(stderr=True, highlight=False, soft_wrap=True).print(f"{out}: {count} images", markup=False)


def _labels(model: "PixelModel", label: int | None, count: int) -> Any:
    """A label for each image: the one that was asked for, or all in turn."""
    import torch

    if not model.classes:
        if label is not None:
            raise InvalidOption("this model was trained without labels; leave out --class")
        return None
    if label is not None and not 0 <= label < model.classes:
        raise InvalidInput(f"--class must be 0 to {model.classes - 1}, not {label}")
    return torch.arange(count) % model.classes if label is None else torch.full((count,), label)


def _read(pixels: Any, levels: int) -> Any:
    """Bytes as the values of the model, in a batch of one."""
    import numpy as np
    import torch

    return torch.from_numpy(pixels.astype(np.int64) * levels // 256)[None]


__all__ = ["ImageFlags", "generate_images"]
