"""Shortcuts: measures that could reveal the label without following a curve, and their accuracies."""

import numpy as np

from longspan.arena.tasks.examples import LabelledSequences

INK = 48  # intensities above this are ink; antialiasing leaves fainter ones around lines
BINS = 16  # of intensities
LEARNED_FROM = 10_000  # most images to fit on; three numbers need no more
STEPS = 12  # of Newton's method, which converges in a few


def measures(pixels: np.ndarray, radius: float) -> np.ndarray:
    """The ink, the number of components and the distance of the discs of each image."""
    return np.stack([ink(pixels), components(pixels > INK), disc_distance(pixels, radius)], axis=1)


def ink(pixels: np.ndarray) -> np.ndarray:
    total: np.ndarray = pixels.sum((1, 2), dtype=np.int64)
    return total / 255


def components(on: np.ndarray) -> np.ndarray:
    """The number of connected components of each image, with eight neighbours per pixel.

    An image is one integer with a bit for each pixel; shifting it gives the neighbours of a component.
    """
    height, width = on.shape[1] + 2, on.shape[2] + 2
    padded = np.zeros((len(on), height, width), dtype=np.uint8)
    padded[:, 1:-1, 1:-1] = on
    packed = np.packbits(padded.reshape(len(on), -1), axis=1, bitorder="little")
    counts = np.zeros(len(on))
    for number, row in enumerate(packed):
        remaining = int.from_bytes(row.tobytes(), "little")
        while remaining:
            component = remaining & -remaining
            while True:
                wider = component | component << 1 | component >> 1
                grown = (wider | wider << width | wider >> width) & remaining
                if grown == component:
                    break
                component = grown
            remaining ^= component
            counts[number] += 1
    return counts


def disc_distance(pixels: np.ndarray, radius: float) -> np.ndarray:
    """The distance between the two discs: unlike lines, they are bright in all four directions."""
    count, height, width = pixels.shape
    reach = max(int(radius - 0.5), 1)
    padded = np.pad(pixels, ((0, 0), (reach, reach), (reach, reach))).astype(np.int16)
    around = [(down, 0) for down in range(-reach, reach + 1)] + [(0, right) for right in range(-reach, reach + 1)]
    shifted = [
        padded[:, reach + down : reach + down + height, reach + right : reach + right + width] for down, right in around
    ]
    light = np.minimum.reduce(shifted).astype(np.int32) * 256 + pixels  # the centre breaks ties
    reach = max(round(radius), 1)
    centres = []
    rows, columns = np.arange(height)[None, :, None], np.arange(width)[None, None]
    for _ in range(2):
        row, column = np.divmod(light.reshape(count, -1).argmax(1), width)
        centres.append((row, column))
        disc = np.maximum(abs(rows - row[:, None, None]), abs(columns - column[:, None, None])) <= reach
        light[disc] = -1
    (row, column), (other_row, other_column) = centres
    distance: np.ndarray = np.hypot(row - other_row, column - other_column)
    return distance


def histogram(pixels: np.ndarray) -> np.ndarray:
    """A bag of pixels: the number of pixels in each range of intensities."""
    flat = pixels.reshape(len(pixels), -1) // (256 // BINS)
    return np.stack([(flat == level).sum(1) for level in range(1, BINS)], axis=1).astype(np.float64)


def learned(values: np.ndarray, labels: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The labels that a logistic regression on `values` and their squares gives to `others`."""
    mean, deviation = values.mean(0), np.maximum(values.std(0), 1e-9)

    def inputs(of: np.ndarray) -> np.ndarray:
        scaled = (of - mean) / deviation
        return np.concatenate([np.ones((len(of), 1)), scaled, scaled**2], axis=1)

    features = inputs(values)
    weights = np.zeros(features.shape[1])
    for _ in range(STEPS):
        probability = 1 / (1 + np.exp(-np.clip(features @ weights, -30, 30)))
        gradient = features.T @ (labels - probability) - 1e-3 * weights
        hessian = (features * (probability * (1 - probability))[:, None]).T @ features + 1e-3 * np.eye(len(weights))
        weights += np.linalg.solve(hessian, gradient)
    return np.asarray(inputs(others) @ weights > 0).astype(np.int64)


def accuracies(train: LabelledSequences, test: LabelledSequences, size: int, radius: float) -> dict[str, float]:
    """Test accuracies of the majority, of a regression on the three measures, and of one on intensities."""
    majority = int(train.labels.mean() > 0.5)
    accuracies_by_name = {"majority": float((test.labels == majority).mean())}
    count_fitted = min(len(train), LEARNED_FROM)
    for name in ("ink_components_distance", "bag_of_pixels"):
        features = [
            np.concatenate(
                [
                    measures(images, radius) if name == "ink_components_distance" else histogram(images)
                    for images in _chunks(examples, count, size)
                ]
            )
            for examples, count in ((train, count_fitted), (test, len(test)))
        ]
        accuracies_by_name[name] = float(
            (test.labels == learned(features[0], train.labels[:count_fitted], features[1])).mean()
        )
    return accuracies_by_name


def _chunks(examples: LabelledSequences, count: int, size: int) -> list[np.ndarray]:
    """The images in chunks of about 4 million pixels, without copies."""
    pixels = examples.tokens[: count * size**2].reshape(count, size, size)
    step = max(1, 2**22 // size**2)
    return [pixels[first : first + step] for first in range(0, count, step)]


__all__ = ["accuracies", "components", "disc_distance", "histogram", "ink", "learned", "measures"]
