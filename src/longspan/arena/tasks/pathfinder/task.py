"""Pathfinder and Path-X (Linsley et al. 2018; Tay et al. 2020): do two discs lie on the same dashed curve?

Images are drawn here as the original generator does, or read from the folders of its release. Each pixel is a token.
None is padding: the background has intensity 0 and is read like any other pixel.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from random import Random
from typing import Any, ClassVar, NamedTuple

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.pathfinder import drawing as pathfinder_drawing
from longspan.arena.tasks.pathfinder import shortcuts as pathfinder_shortcuts
from longspan.arena.tasks.pathfinder.folders import PathfinderImages, find_files, read_images
from longspan.arena.tasks.pathfinder.stencils import Drawing
from longspan.arena.tasks.registry import ArenaTask, DataFolders
from longspan.arena.tasks.shards import load_or_generate
from longspan.errors import InvalidInput

SHARD_PIXELS = 2**20  # of a shard: 1024 images of 32 × 32
SHARES = {"train": 0.8, "held_out": 0.1, "test": 0.1}  # of files, in the order in which they are stored


class DrawingSizes(NamedTuple):
    """The parameters of the released images of one size."""

    seed_distance: int
    marker_radius: float
    paddle_length: int
    thickness: float
    margins: tuple[int, ...]
    continuity: float
    distractor_paddles: int  # in all distractors together
    curve_contrast: float
    paddle_contrast: float
    padding: int


RECIPES = {
    16: DrawingSizes(3, 1.0, 1, 0.5, (1,), 1.0, 4, 2.0, 0.75, 1),  # not in the release
    32: DrawingSizes(7, 1.5, 2, 0.5, (1,), 1.0, 20, 2.0, 0.75, 1),
    64: DrawingSizes(12, 2.5, 5, 1.0, (1,), 1.8, 22, 0.8, 1.0, 1),
    128: DrawingSizes(20, 3.0, 5, 1.5, (2, 3), 1.8, 35, 0.9, 1.0, 1),
    256: DrawingSizes(27, 5.0, 5, 2.0, (3,), 1.8, 30, 1.0, 1.0, 22),
}
SMALL = 32  # smaller images are not in the release, and have shorter curves


@dataclass(frozen=True, kw_only=True)
class PathfinderOptions(config.Options):
    """Options of the images; what is not given follows from the size."""

    size: int = config.option(32, "height and width in pixels", low=12, high=512)
    contour_length: int | None = config.option(None, "paddles of each of the two targets (14; below 32: 6)", low=2)
    distractor_length: int | None = config.option(None, "paddles of the other curves (a third of a target's)", low=1)
    distractors: int | None = config.option(None, "other curves at most, where there is room (by size)", low=0)
    seed_distance: int | None = config.option(None, "pixels between the starts of the two targets (by size)", low=1)
    marker_radius: float | None = config.option(None, "of the discs, in pixels (by size)", low=0.5, high=64)
    paddle_length: int | None = config.option(None, "of a dash, in pixels (by size)", low=1, high=64)
    thickness: float | None = config.option(None, "of a dash, in pixels (by size)", low=0.1, high=16)
    margins: tuple[int, ...] | None = config.option(
        None, "half the gap between dashes, one drawn for an image (by size)", low=0, high=32
    )
    continuity: float | None = config.option(None, "1 turns up to 90°, 1.8 up to 50° (by size)", low=0.5, high=20)
    curve_contrasts: tuple[float, ...] | None = config.option(
        None, "one is drawn for each curve (by size)", low=0.05, high=10
    )
    paddle_contrasts: tuple[float, ...] | None = config.option(
        None, "one is drawn for each dash of a target, and multiplies its curve's (by size)", low=0.05, high=10
    )
    antialias: int = config.option(2, "how many times larger lines are drawn and then reduced", low=1, high=8)
    padding: int | None = config.option(None, "pixels at the border to which no dash points (by size)", low=0, high=64)
    balanced: bool = config.option(
        True, "equal distances of the discs in both classes; in the original they differ and give short contours away"
    )
    train: int = config.option(160_000, "images to learn from (of files: at most)", low=1)
    held_out: int = config.option(20_000, "images that choose the best step (of files: at most)", low=1)
    test: int = config.option(20_000, "test images (of files: at most)", low=1)
    files: str | None = config.option(
        None, "read these instead: a folder of the original release, or one of .npz files, or one .npz file"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.drawing

    @property
    def drawing(self) -> Drawing:
        """All parameters; a size between two released ones scales the distances of the smaller."""
        released = max(size for size in RECIPES if size <= max(self.size, 16))
        recipe, scale = RECIPES[released], self.size / released
        contour = self.contour_length or (6 if self.size < SMALL else 14)
        length = self.distractor_length or max(contour // 3, 1)
        defaults = {
            **recipe._asdict(),
            "distractors": int(recipe.distractor_paddles * scale**2) // length,
            "seed_distance": min(int(recipe.seed_distance * scale), (self.size - 1) // 4),
            "curve_contrasts": (recipe.curve_contrast,),
            "paddle_contrasts": (recipe.paddle_contrast,),
        }
        names = {item.name for item in fields(Drawing)} & defaults.keys()
        values = {name: defaults[name] if getattr(self, name) is None else getattr(self, name) for name in names}
        return Drawing(
            size=self.size,
            contour_length=contour,
            distractor_length=length,
            antialias=self.antialias,
            **values,
        )


def make(options: Mapping[str, Any], seed: int, number: int, count: int) -> LabelledSequences:
    """One shard."""
    values: dict[str, Any] = {item.name: options[item.name] for item in fields(Drawing)}
    for name, value in values.items():
        values[name] = tuple(value) if isinstance(value, list) else value  # JSON has no tuples
    drawing = Drawing(**values)
    random = Random(f"{options['split']} {seed} {number}")  # a text gives the same seed on every machine
    balance = pathfinder_drawing.Balance() if options["balanced"] else None
    images = [pathfinder_drawing.draw(drawing, random, balance) for _ in range(count)]
    tokens = np.concatenate([image.pixels.ravel() for image in images])
    labels = np.array([image.label for image in images], dtype=np.int64)
    return LabelledSequences(tokens, np.arange(count + 1, dtype=np.int64) * drawing.size**2, labels, "pathfinder")


class Pathfinder(ArenaTask):
    """Two classes; 1: both discs are on the same curve."""

    name: ClassVar[str] = "pathfinder"
    title: ClassVar[str] = "Pathfinder"
    generated: ClassVar[bool] = True
    pixels: ClassVar[bool] = True

    @dataclass(frozen=True, kw_only=True)
    class Options(PathfinderOptions):
        pass

    def splits(self, folders: DataFolders, seed: int = 0) -> Splits:
        options: PathfinderOptions = self.options
        sizes = {name: getattr(options, name) for name in SHARES}
        if options.files is None:
            splits, notes = self._generate(folders, seed, sizes)
        else:
            splits, notes = self._read(folders, sizes)
        notes |= {"sizes": {name: len(examples) for name, examples in splits.items()}}
        notes |= {"label_shares": {name: round(float(examples.labels.mean()), 4) for name, examples in splits.items()}}
        return Splits(
            splits["train"],
            splits["held_out"],
            splits["test"],
            vocabulary=256,
            classes=2,
            length=options.size**2,
            padded=False,
            grid=(options.size, options.size),
            notes=notes,
        )

    def baselines(self, splits: Splits) -> dict[str, float]:
        """`majority`, `ink_components_distance` and `bag_of_pixels`: what is visible without following a curve."""
        size, radius = self.options.size, self.options.drawing.marker_radius
        return pathfinder_shortcuts.accuracies(splits.train, splits.test, size, radius)

    def _generate(
        self, folders: DataFolders, seed: int, sizes: Mapping[str, int]
    ) -> tuple[dict[str, LabelledSequences], dict[str, Any]]:
        drawing = config.plain(self.options.drawing)
        parameters = {"generator": pathfinder_drawing.VERSION, "balanced": self.options.balanced, **drawing}
        splits, hashes = {}, {}
        for split, count in sizes.items():  # separately, so that the test split does not depend on the size of train
            splits[split], manifest = load_or_generate(
                self.name,
                {**parameters, "split": split},
                make,
                count=count,
                shard=max(1, SHARD_PIXELS // self.options.size**2),
                seed=seed,
                cache=folders.cache,
                processes=folders.processes,
            )
            hashes[split] = manifest["sha256"][:16]
        return splits, {"source": f"generated by longspan, seed {seed}", "options": parameters, "hashes": hashes}

    def _read(
        self, folders: DataFolders, sizes: Mapping[str, int]
    ) -> tuple[dict[str, LabelledSequences], dict[str, Any]]:
        options: PathfinderOptions = self.options
        assert options.files is not None
        images = read_images(find_files(options.files, folders.data), options.size, options.contour_length)
        splits, first = {}, 0
        for split, share in SHARES.items():
            count = len(images.labels) - first if split == "test" else int(len(images.labels) * share)
            splits[split] = _examples(images, first, first + min(count, sizes[split]))
            first += count
            if not len(splits[split]):
                raise InvalidInput(f"{images.source} has {len(images.labels)} images, too few for three splits")
        hashes = {split: examples.digest() for split, examples in splits.items()}
        return splits, {"source": f"files of {images.source}", "empty": images.empty, "hashes": hashes}


def _examples(images: PathfinderImages, first: int, last: int) -> LabelledSequences:
    pixels = images.pixels[first:last]
    starts = np.arange(len(pixels) + 1, dtype=np.int64) * (pixels.shape[1] * pixels.shape[2])
    return LabelledSequences(np.ascontiguousarray(pixels).ravel(), starts, images.labels[first:last], images.source)


class PathX(Pathfinder):
    """The same with 128 × 128 pixels."""

    name: ClassVar[str] = "pathx"
    title: ClassVar[str] = "Path-X"

    @dataclass(frozen=True, kw_only=True)
    class Options(PathfinderOptions):
        size: int = config.option(128, "height and width in pixels", low=12, high=512)


__all__ = ["PathX", "Pathfinder", "PathfinderOptions", "make"]
