"""Singular values of attention maps (Wang et al. 2020, figure 1), beside matrices that nobody trained."""

from typing import Any

import torch
from torch import Tensor

from longspan.inspect.measures.findings import Finding, Grid, HeatMap, Line, LineChart
from longspan.inspect.measures.subject import Subject

SHARE = 4  # C(n/4): 128 of 512, as in the paper
WINDOW = 16  # the window of the baseline reaches n/16 to each side
POINTS = 32  # of a drawn curve


def cumulative(values: Tensor) -> Tensor:
    """The running sum of singular values, divided by their sum: C(1), C(2), …"""
    sums = values.cumsum(-1)
    return sums / sums[..., -1:].clamp_min(1e-300)


def needed(curve: Tensor, share: float) -> int:
    """The number of singular values that hold this share of their sum."""
    return int((curve < share - 1e-12).sum()) + 1


def summary(values: Tensor, k: int) -> dict[str, float]:
    """Numbers of one spectrum: the sum, C(k), the same of squares, and the counts for 90 and 95 %."""
    curve, energy = cumulative(values), cumulative(values.square())
    share = values / values.sum().clamp_min(1e-300)
    return {
        "sum": float(values.sum()),
        "c": float(curve[k - 1]),
        "energy": float(energy[k - 1]),
        "k90": needed(curve, 0.9),
        "k95": needed(curve, 0.95),
        "effective_rank": float((-torch.xlogy(share, share).sum()).exp()),
    }


def baselines(n: int, width: int, causal: bool, seed: int = 0) -> dict[str, Tensor]:
    """Singular values of matrices that were not learned, n × n; `width` is that of a head.

    Two are the usual random baselines: a normal matrix, and the Gram matrix of n × n/4 normal numbers.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    thin = draw(n, max(n // SHARE, 1))
    scores = draw(n, width) @ draw(n, width).T * width**-0.5
    past = torch.ones(n, n, dtype=torch.bool).tril()
    reach = max(n // WINDOW, 1)
    band = ((torch.arange(n)[:, None] - torch.arange(n)).abs() <= reach).double()
    band = band.tril() if causal else band
    matrices = {
        "normal": draw(n, n),
        f"Gram of {thin.shape[1]} columns": thin @ thin.T,
        "softmax of random q, k": scores.softmax(-1),
        "the same, causal": scores.masked_fill(~past, -torch.inf).softmax(-1),
        f"uniform window of {reach}": band / band.sum(-1, keepdim=True),
        "permutation": torch.eye(n, dtype=torch.float64)[torch.randperm(n, generator=generator)],
    }
    return {name: torch.linalg.svdvals(matrix) for name, matrix in matrices.items()}


def measure_spectrum(subject: Subject) -> Finding:
    """The spectrum of every head on the long passage."""
    group = subject.groups[0]
    maps = subject.maps(subject.long)[group.name]
    layers, heads, n, _ = maps.shape
    k = max(n // SHARE, 1)
    values = torch.linalg.svdvals(maps.double())
    fresh = torch.linalg.svdvals(subject.maps(subject.long, subject.untrained)[group.name].double())
    base = baselines(n, group.layers[0].mechanism.shape.head_dim, group.causal, subject.seed)
    each = [[summary(values[layer, head], k) for head in range(heads)] for layer in range(layers)]
    controls = {name: summary(singular, k) for name, singular in base.items()}
    untrained = [summary(row, k) for row in fresh.flatten(0, 1)]
    controls["untrained, mean of heads"] = {key: _mean([one[key] for one in untrained]) for key in untrained[0]}
    by_layer = [{key: _mean([one[key] for one in row]) for key in row[0]} for row in each]
    figures = _figures(group.name, values, base, each, by_layer, controls, k)
    flat = [one["c"] for row in each for one in row]
    random = controls["the same, causal" if group.causal else "softmax of random q, k"]["c"]
    below = sum(c < controls["normal"]["c"] for c in flat)
    return Finding(
        "spectrum",
        "Singular values of the maps",
        f"The {k} largest of {n} singular values hold {_mean(flat):.0%} of the sum on average (random softmax: "
        f"{random:.0%}), and from {min(flat):.0%} to {max(flat):.0%} by head; {below} of {len(flat)} heads have fuller "
        "rank than a normal matrix.",
        "A normal matrix, a Gram matrix of rank n/4, softmax of random queries and keys, a uniform window, a "
        "permutation (C(n/4) is exactly 1/4: a sharp previous-token head is close to it), and an untrained model. "
        "Curves are sums of singular values, not of their squares; squares look far more low-rank.",
        figures,
        {
            "group": group.name,
            "tokens": n,
            "k": k,
            "layers": by_layer,
            "heads": each,
            "baselines": controls,
        },
    )


def _figures(
    name: str,
    values: Tensor,
    base: dict[str, Tensor],
    each: list[list[dict[str, float]]],
    by_layer: list[dict[str, float]],
    controls: dict[str, dict[str, float]],
    k: int,
) -> list[Any]:
    layers, heads, n = values.shape
    # Beyond the middle all curves run together towards 1.
    chosen = sorted({0, *torch.linspace(0, n // 2 - 1, POINTS).round().int().tolist()})
    drawn = sorted({0, layers - 1, *torch.linspace(0, layers - 1, min(layers, 6)).round().int().tolist()})

    def line(title: str, curve: Tensor, control: bool = False) -> Line:
        return Line(title, [(index + 1, float(curve[index])) for index in chosen], control)

    curves = [line(f"layer {layer}", cumulative(values[layer]).mean(0)) for layer in drawn]
    curves += [line(title, cumulative(singular), control=True) for title, singular in base.items()]
    head = ("", "sum", f"C({k})", f"squares, C({k})", "k for 90 %", "k for 95 %", "effective rank")
    keys = ("sum", "c", "energy", "k90", "k95", "effective_rank")
    rows: list[list[object]] = [[f"layer {i}", *(row[key] for key in keys)] for i, row in enumerate(by_layer)]
    rows += [[title, *(row[key] for key in keys)] for title, row in controls.items()]
    return [
        LineChart(f"{name}: C(k), share of the sum of singular values in the k largest", "k", "C(k)", curves),
        HeatMap(
            f"{name}: C({k}) of each head",
            [str(layer) for layer in range(layers)],
            [str(head) for head in range(heads)],
            [[one["c"] for one in row] for row in each],
        ),
        Grid(f"{name}: means over heads, and the baselines", head, rows),
    ]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


__all__ = ["baselines", "cumulative", "measure_spectrum", "needed", "summary"]
