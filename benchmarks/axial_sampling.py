"""Semi-parallel sampling of the Axial Transformer beside the slow one, which reads the whole image for every pixel.

    python -m benchmarks.axial_sampling                       # grey images of 8, 16 and 28 pixels a side
    python -m benchmarks.axial_sampling --run runs/mnist-pixels-axial --images 4

Both draw the same images (checked), so only time differs. Run it on a quiet machine.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch

from longspan import hub
from longspan.models import build
from longspan.models.pixel_base import ImageSampling, Pixels
from longspan.models.vision.axial_transformer import AxialTransformer

SIDES = (8, 16, 28)
SIZES = {"channels": 1, "levels": 256, "width": 96, "heads": 4, "outer_layers": 4, "inner_layers": 4, "dropout": 0.0}


def timed(sample: Callable[[ImageSampling], Pixels], count: int) -> tuple[Pixels, float]:
    """Images, and the seconds that they took."""
    begin = time.perf_counter()
    images = sample(ImageSampling(count, generator=torch.Generator().manual_seed(0)))
    return images, time.perf_counter() - begin


def compare(model: AxialTransformer, count: int) -> None:
    """Prints a line for a model."""
    timed(model.sample, 1)  # warm up
    fast, fast_seconds = timed(model.sample, count)
    slow, slow_seconds = timed(model.sample_slow, count)
    same = "the same images" if torch.equal(fast, slow) else "images differ by rounding"
    height, width = model.size
    print(
        f"{height} × {width} × {model.channels}: {fast_seconds:.2f} s, slow {slow_seconds:.2f} s, "
        f"{slow_seconds / fast_seconds:.1f} times as fast; {same}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a trained axial_transformer, instead of new ones")
    parser.add_argument("--images", type=int, default=4)
    arguments = parser.parse_args()
    if arguments.run is not None:
        models = [hub.load(arguments.run).model]
    else:
        models = [build("axial_transformer", **SIZES, image_size=side, output_scale=1.0) for side in SIDES]
    for model in models:
        assert isinstance(model, AxialTransformer), f"{arguments.run} is no axial_transformer"
        compare(model.eval(), arguments.images)


if __name__ == "__main__":
    main()
