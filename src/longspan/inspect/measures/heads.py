"""Head statistics (Clark et al. 2019, sections 3.1 to 3.3): where each head looks, and how broadly."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from longspan.inspect.measures.findings import Finding, Grid, HeatMap, Line, LineChart
from longspan.inspect.measures.subject import Passages, Subject
from longspan.models.base import Model

BROAD = 0.8  # a head is broad if its entropy is above this share of the uniform one
STRONG = 0.5  # a mass that names a head
MARKS = ("self", "previous", "next", "first")

Statistics = dict[str, Tensor]  # (layers, heads) each


def entropy(weights: Tensor) -> Tensor:
    """-Σ a ln a over the last axis, in nats; signed or unnormalised rows are |a| / Σ|a|."""
    share = weights.abs()
    share = share / share.sum(-1, keepdim=True).clamp_min(1e-30)
    return -torch.xlogy(share, share).sum(-1)


def head_statistics(maps: Tensor, special: Mapping[str, Tensor] | None = None) -> Statistics:
    """Mean mass per query on some keys, and the mean entropy, of maps (layers, heads, queries, keys).

    `special` says where named tokens are among the keys. Offsets exist only for square maps (self-attention).
    """
    queries, keys = maps.shape[-2:]
    found: Statistics = {}
    if queries == keys:
        for name, offset in (("self", 0), ("previous", -1), ("next", 1)):
            found[name] = maps.diagonal(offset, -2, -1).sum(-1) / queries
    found["first"] = maps[..., 0].mean(-1)
    for name, mask in (special or {}).items():
        found[name] = maps[..., mask].sum(-1).mean(-1)
    found["entropy"] = entropy(maps).mean(-1)
    return found


def uniform_entropy(queries: int, keys: int, causal: bool) -> float:
    """The entropy of a head that reads all it may equally: ln n, or the mean of ln(i + 1) where it reads the past."""
    return sum(math.log(i + 1) for i in range(queries)) / queries if causal else math.log(keys)


def mean_statistics(subject: Subject, passages: Passages, model: Model | None = None) -> dict[str, Statistics]:
    """The mean over the passages, for each group of attention layers."""
    sums: dict[str, Statistics] = {}
    counts: dict[str, dict[str, int]] = {}
    for row in range(len(passages)):
        one = passages.row(row)
        for name, maps in subject.maps(one, model).items():
            ids = one.targets if name == "decoder" and one.targets is not None else one.ids
            found = head_statistics(maps, subject.special(ids[0]))
            for key, value in found.items():
                group, seen = sums.setdefault(name, {}), counts.setdefault(name, {})
                group[key] = group[key] + value if key in group else value
                seen[key] = seen.get(key, 0) + 1
    return {name: {key: value / counts[name][key] for key, value in group.items()} for name, group in sums.items()}


def measure_heads(subject: Subject) -> Finding:
    """The statistics of the text, of the same tokens shuffled, and of an untrained model."""
    passages = subject.passages
    real = mean_statistics(subject, passages)
    shuffled = mean_statistics(subject, subject.shuffled(passages))
    untrained = mean_statistics(subject, passages, subject.untrained)
    figures: list[Any] = []
    values: dict[str, Any] = {"passages": len(passages), "tokens": passages.length, "groups": {}}
    for group in subject.groups:
        name, found = group.name, real[group.name]
        targets = passages.length if passages.targets is None else passages.targets.shape[1]
        queries = passages.length if name == "encoder" else targets
        keys = passages.length if name in ("encoder", "cross") else targets
        line = uniform_entropy(queries, keys, group.causal)
        figures += _figures(name, found, shuffled[name], untrained[name], line)
        values["groups"][name] = {
            "uniform_entropy": line,
            "broad": [[bool(x) for x in row] for row in (found["entropy"] > BROAD * line)],
            "text": {key: value.tolist() for key, value in found.items()},
            "shuffled": {key: value.tolist() for key, value in shuffled[name].items()},
            "untrained": {key: value.tolist() for key, value in untrained[name].items()},
        }
    first = subject.groups[0].name
    return Finding(
        "heads",
        "Where heads look",
        _sentence(real[first], shuffled[first]),
        "The same tokens in random order (heads that follow positions keep their mass), an untrained model of the same "
        "shape, and a head that reads everything equally.",
        figures,
        values,
    )


def place(values: Tensor) -> tuple[int, int, float]:
    """Layer, head and value of the largest entry."""
    layer, head = divmod(int(values.argmax()), values.shape[1])
    return layer, head, float(values[layer, head])


def _sentence(real: Statistics, shuffled: Statistics) -> str:
    parts = []
    if "previous" in real:
        layer, head, mass = place(real["previous"])
        kept = float(shuffled["previous"][layer, head])
        follows = "so it follows position, not content" if kept > 0.8 * mass else "so content matters to it"
        parts.append(
            f"Layer {layer} head {head} puts {mass:.0%} of its weight on the previous token ({kept:.0%} on shuffled "
            f"text, {follows})"
        )
    tokens = {name: value for name, value in real.items() if name not in (*MARKS, "entropy")} or {
        "first": real["first"]
    }
    name, most = max(tokens.items(), key=lambda item: float(item[1].mean(1).max()))
    layer = int(most.mean(1).argmax())
    shown = "the first token" if name == "first" else name
    parts.append(f"layer {layer} puts {float(most[layer].mean()):.0%} of its weight on {shown}")
    return "; ".join(parts) + "."


def _figures(name: str, real: Statistics, shuffled: Statistics, untrained: Statistics, line: float) -> list[Any]:
    layers = range(len(real["entropy"]))
    rows = [str(layer) for layer in layers]
    columns = [str(head) for head in range(real["entropy"].shape[1])]
    masses = [key for key in real if key != "entropy"]
    maps = [
        HeatMap(f"{name}: mean weight on {_named(key)}", rows, columns, real[key].tolist())
        for key in masses
        if float(real[key].max()) >= 0.1
    ]
    spread = [
        Line("mean of heads", [(x, float(real["entropy"][x].mean())) for x in layers]),
        Line("lowest head", [(x, float(real["entropy"][x].min())) for x in layers]),
        Line("highest head", [(x, float(real["entropy"][x].max())) for x in layers]),
        Line("shuffled text", [(x, float(shuffled["entropy"][x].mean())) for x in layers], control=True),
        Line("untrained", [(x, float(untrained["entropy"][x].mean())) for x in layers], control=True),
        Line("uniform", [(x, line) for x in layers], control=True),
    ]
    table = [
        [
            _named(key),
            *place(real[key]),
            float(shuffled[key][place(real[key])[:2]]) if key in shuffled else None,
            float(untrained[key][place(real[key])[:2]]) if key in untrained else None,
            int((real[key] > STRONG).sum()),
        ]
        for key in masses
    ]
    broad = int((real["entropy"] > BROAD * line).sum())
    table.append([f"broad (entropy above {BROAD:.0%} of uniform)", "", "", "", "", "", broad])
    head = ("on", "layer", "head", "largest mass", "shuffled", "untrained", f"heads above {STRONG:.0%}")
    return [
        *maps,
        LineChart(f"{name}: entropy by layer", "layer", "nats", spread),
        Grid(f"{name}: the head with the largest mass", head, table),
    ]


def _named(key: str) -> str:
    return {"self": "itself", "previous": "the previous token", "next": "the next token", "first": "position 0"}.get(
        key, key
    )


__all__ = ["entropy", "head_statistics", "mean_statistics", "measure_heads", "uniform_entropy"]
