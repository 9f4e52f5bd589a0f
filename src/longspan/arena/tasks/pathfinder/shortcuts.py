"""What could give an image's label away without following a curve, and what is learned from that alone."""

import numpy as np

from longspan.arena.tasks.examples import LabelledSequences

INK = 48  # intensities above are ink: antialiasing leaves fainter ones around every line
BINS = 16  # of intensities
LEARNED_FROM = 10_000  # images at most: three numbers need no more
STEPS = 12  # of Newton's method, which is exact after a few


def measures(pixels: np.ndarray, radius: float) -> np.ndarray:
    """Of each image: its ink, its number of components, and how far apart the two discs are."""
    return np.stack([ink(pixels), components(pixels > INK), disc_distance(pixels, radius)], axis=1)


def ink(pixels: np.ndarray) -> np.ndarray:
    total: np.ndarray = pixels.sum((1, 2), dtype=np.int64)
    return total / 255


def components(on: np.ndarray) -> np.ndarray:
    """How many pieces each image has; pixels belong together that touch at a side or a corner.

    An image is one integer with a bit for each pixel, and all neighbours of a piece are found by shifting it.
    """
    height, width = on.shape[1] + 2, on.shape[2] + 2
    padded = np.zeros((len(on), height, width), dtype=np.uint8)
    padded[:, 1:-1, 1:-1] = on
    packed = np.packbits(padded.reshape(len(on), -1), axis=1, bitorder="little")
    found = np.zeros(len(on))
    for number, row in enumerate(packed):
        left = int.from_bytes(row.tobytes(), "little")
        while left:
            piece = left & -left
            while True:
                beside = piece | piece << 1 | piece >> 1
                grown = (beside | beside << width | beside >> width) & left
                if grown == piece:
                    break
                piece = grown
            left ^= piece
            found[number] += 1
    return found


def disc_distance(pixels: np.ndarray, radius: float) -> np.ndarray:
    """Between the two places that are bright in all four directions, as no line is; they do not overlap."""
    count, height, width = pixels.shape
    reach = max(int(radius - 0.5), 1)
    padded = np.pad(pixels, ((0, 0), (reach, reach), (reach, reach))).astype(np.int16)
    around = [(down, 0) for down in range(-reach, reach + 1)] + [(0, right) for right in range(-reach, reach + 1)]
    parts = [
        padded[:, reach + down : reach + down + height, reach + right : reach + right + width] for down, right in around
    ]
    light = np.minimum.reduce(parts).astype(np.int32) * 256 + pixels  # the middle decides between equals
    reach = max(round(radius), 1)
    places = []
    rows, columns = np.arange(height)[None, :, None], np.arange(width)[None, None]
    for _ in range(2):
        row, column = np.divmod(light.reshape(count, -1).argmax(1), width)
        places.append((row, column))
        near = np.maximum(abs(rows - row[:, None, None]), abs(columns - column[:, None, None])) <= reach
        light[near] = -1
    (row, column), (other_row, other_column) = places
    distance: np.ndarray = np.hypot(row - other_row, column - other_column)
    return distance


def histogram(pixels: np.ndarray) -> np.ndarray:
    """A bag of pixels: how many have which intensity."""
    flat = pixels.reshape(len(pixels), -1) // (256 // BINS)
    return np.stack([(flat == each).sum(1) for each in range(1, BINS)], axis=1).astype(np.float64)


def learned(values: np.ndarray, labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The labels that a logistic regression on `values` and their squares gives to `others`."""
    mean, deviation = values.mean(0), np.maximum(values.std(0), 1e-9)

    def inputs(of: np.ndarray) -> np.ndarray:
        scaled = (of - mean) / deviation
        return np.concatenate([np.ones((len(of), 1)), scaled, scaled**2], axis=1)

    known = inputs(values)
    weights = np.zeros(known.shape[1])
    for _ in range(STEPS):
        chance = 1 / (1 + np.exp(-np.clip(known @ weights, -30, 30)))
        slope = known.T @ (labels - chance) - 1e-3 * weights
        bend = (known * (chance * (1 - chance))[:, None]).T @ known + 1e-3 * np.eye(len(weights))
        weights += np.linalg.solve(bend, slope)
    return np.asarray(inputs(others) @ weights > 0).astype(np.int64)


def accuracies(train: LabelledSequences, test: LabelledSequences, size: int, radius: float) -> dict[str, float]:
    """On the test: of the majority, of a regression on ink, components and distance, and of one on intensities."""
    majority = int(train.labels.mean() > 0.5)
    found = {"majority": float((test.labels == majority).mean())}
    some = min(len(train), LEARNED_FROM)
    for name in ("ink_components_distance", "bag_of_pixels"):
        of = [
            np.concatenate(
                [
                    measures(part, radius) if name == "ink_components_distance" else histogram(part)
                    for part in _parts(examples, count, size)
                ]
            )
            for examples, count in ((train, some), (test, len(test)))
        ]
        found[name] = float((test.labels == learned(of[0], train.labels[:some], of[1])).mean())
    return found


def _parts(examples: LabelledSequences, count: int, size: int) -> list[np.ndarray]:
    """Images, as views of about 4 million pixels."""
    pixels = examples.tokens[: count * size**2].reshape(count, size, size)
    step = max(1, 2**22 // size**2)
    return [pixels[first : first + step] for first in range(0, count, step)]


__all__ = ["accuracies", "components", "disc_distance", "histogram", "ink", "learned", "measures"]
