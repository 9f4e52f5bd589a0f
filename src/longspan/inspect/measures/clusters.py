"""Heads that behave alike: Jensen–Shannon distances and their picture in the plane (Clark et al. 2019, section 6)."""

from typing import Any

import torch
from torch import Tensor

from longspan.inspect.measures.findings import Finding, Grid, Scatter
from longspan.inspect.measures.subject import Subject
from longspan.tasks.metrics import pearson

SMOOTHING = 0.001  # the share of a uniform row that is mixed in, as in the released analysis
QUERIES = 32  # rows of each map that are compared
LONGEST = 256
STEPS = 200  # of stress majorisation


def smoothed(maps: Tensor, share: float = SMOOTHING) -> Tensor:
    rows = maps.abs()
    rows = rows / rows.sum(-1, keepdim=True).clamp_min(1e-30)
    return (1 - share) * rows + share / maps.shape[-1]


def jensen_shannon(maps: Tensor) -> Tensor:
    """The mean Jensen–Shannon divergence of each pair of heads, in nats (at most ln 2): (heads, queries, keys) in."""
    entropies = -torch.xlogy(maps, maps).sum(-1)
    rows = []
    for index in range(len(maps)):
        mixed = (maps[index] + maps) / 2
        rows.append((-torch.xlogy(mixed, mixed).sum(-1) - (entropies[index] + entropies) / 2).mean(-1))
    return torch.stack(rows).clamp_min(0).fill_diagonal_(0)


def mds(distances: Tensor, steps: int = STEPS) -> Tensor:
    """Points in the plane with about these distances: classical scaling, then stress majorisation (SMACOF)."""
    d = distances.double()
    count = len(d)
    centre = torch.eye(count, dtype=d.dtype) - 1 / count
    values, vectors = torch.linalg.eigh(-0.5 * centre @ d.square() @ centre)
    points: Tensor = vectors[:, -2:].flip(1) * values[-2:].flip(0).clamp_min(0).sqrt()
    for _ in range(steps):
        between = torch.cdist(points, points)
        ratio = torch.where(between > 1e-12, d / between.clamp_min(1e-12), 0.0)
        guttman = torch.diag(ratio.sum(1)) - ratio
        points = torch.matmul(guttman, points) / count
    return points


def off_diagonal(matrix: Tensor) -> list[float]:
    """The entries above the diagonal."""
    rows, columns = torch.triu_indices(len(matrix), len(matrix), 1)
    return [float(x) for x in matrix[rows, columns]]


def mean_distances(subject: Subject, rows: range) -> Tensor:
    """The mean over passages of the divergence of all pairs of heads of the model's first group."""
    name, total = subject.groups[0].name, None
    for row in rows:
        maps = subject.maps(subject.passages.row(row).first(LONGEST))[name].flatten(0, 1)
        chosen = torch.linspace(0, maps.shape[1] - 1, min(QUERIES, maps.shape[1])).long()
        found = jensen_shannon(smoothed(maps[:, chosen]))
        total = found if total is None else total + found
    assert total is not None
    return total / len(rows)


def measure_clusters(subject: Subject) -> Finding:
    """Distances of heads on both halves of the passages, and their picture."""
    half = max(1, len(subject.passages) // 2)
    one, other = mean_distances(subject, range(half)), mean_distances(subject, range(half, 2 * half))
    distances = (one + other) / 2
    agreement = pearson(off_diagonal(one), off_diagonal(other))
    points = mds(distances)
    kept = pearson(off_diagonal(torch.cdist(points, points)), off_diagonal(distances))
    heads = subject.groups[0].heads
    layers = len(distances) // heads
    names = [f"layer {index // heads} head {index % heads}" for index in range(len(distances))]
    block = torch.arange(len(distances)) // heads
    same = block[:, None] == block[None, :]
    apart = ~torch.eye(len(distances), dtype=torch.bool)
    within, between = float(distances[same & apart].mean()), float(distances[~same].mean()) if layers > 1 else 0.0
    nearest = distances + torch.eye(len(distances)) * 9
    pair = divmod(int(nearest.argmin()), len(distances))
    near = "nearer to" if within < between else "no nearer to"
    values: dict[str, Any] = {
        "group": subject.groups[0].name,
        "distances": distances.tolist(),
        "points": points.tolist(),
        "split_half": agreement,
        "picture": kept,
        "within_layers": within,
        "between_layers": between,
    }
    return Finding(
        "clusters",
        "Heads that behave alike",
        f"Heads of one layer are {near} each other ({within:.3f} nats on average) than heads of different layers "
        f"({between:.3f}); the most alike are {names[pair[0]]} and {names[pair[1]]}.",
        f"The distances of the first half of the passages correlate with those of the second half by {agreement:.3f}, "
        f"and distances in the picture with the real ones by {kept:.2f}.",
        [
            Scatter(
                f"{subject.groups[0].name}: heads by Jensen–Shannon distance, coloured by layer",
                [(float(x), float(y)) for x, y in points],
                names,
                [f"layer {index // heads}" for index in range(len(distances))],
            ),
            Grid(
                "Mean distance, nats",
                ("of heads", "distance"),
                [("of one layer", within), ("of different layers", between)],
            ),
        ],
        values,
    )


__all__ = ["jensen_shannon", "mds", "measure_clusters", "smoothed"]
