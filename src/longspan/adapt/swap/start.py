"""How the weights that only the new attention has are started from those that the model has.

Everything that both have is copied before. Whatever is drawn at random or has no meaning yet is reported as untrained.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.attention.mechanisms.linformer import LinformerAttention
from longspan.attention.parts.kmeans import Centroids, on_sphere
from longspan.nn.multihead import MultiHead

# Why nothing of a trained map is left in these.
NEEDS_FORCE = {
    "synthesizer": "compares no queries and keys, so nothing of the trained maps is left",
    "memory_compressed": "reads keys through a convolution that the weights have nothing for",
    "inducing": "reads through points that the weights have nothing for",
}
# What to expect of a swap without training.
UNTRAINED = {
    "softmax": "exact",
    "window": "works",
    "image_local": "works",
    "longformer": "works",
    "bigbird": "works",
    "etc": "works",
    "nystrom": "works in encoders",
    "linformer": "short texts, in encoders",
    "performer": "poor where queries and keys are long",
    "routing": "poor",
    "sinkhorn": "as its local blocks",
    "sparse": "poor",
}
NEEDS_TRAINING = "needs training"
ITERATIONS = 10  # of k-means


@dataclass
class LayerStart:
    """What became of one layer."""

    layer: int
    before: object
    after: object
    expected: str  # of a swap without training
    started: dict[str, str] = field(default_factory=dict)  # new weights, and what they started from
    untrained: list[str] = field(default_factory=list)  # of those, what still needs training
    left_out: list[str] = field(default_factory=list)  # weights of the old attention that the new one has not
    kept_share: list[float] | None = None  # shared queries and keys: ‖positive symmetric part‖ / ‖scores‖, per head

    def record(self) -> dict[str, object]:
        share = {} if self.kept_share is None else {"kept_share": [round(share, 4) for share in self.kept_share]}
        return {
            "layer": self.layer,
            "before": self.before,
            "attention": self.after,
            "untrained_quality": self.expected,
            "started_from": self.started,
            "untrained": self.untrained,
            "left_out": self.left_out,
            **share,
        }


def expected(name: str) -> str:
    """What a swap to this mechanism does without training."""
    return UNTRAINED.get(name, NEEDS_TRAINING)


@torch.no_grad()
def start_layer(new: MultiHead, old: MultiHead, report: LayerStart) -> None:
    """Starts the weights of `new` that `old` has not; those they share are copied already."""
    for name, like in new.likes.items():
        if name in old.extra:
            continue
        new.extra[name].load_state_dict(new.project[like].state_dict())
        for leaf, _ in new.extra[name].named_parameters():
            report.started[f"extra.{name}.{leaf}"] = f"project.{like}.{leaf}"
            report.untrained.append(f"extra.{name}.{leaf}")
    if "k" in old.project and "q" in new.project and "k" not in new.project:
        report.kept_share = share_projection(new, old)
        for leaf, _ in new.project["q"].named_parameters():
            report.started[f"project.q.{leaf}"] = "symmetric part of project.q and project.k"
            report.untrained.append(f"project.q.{leaf}")
    known = (
        {name for name, _ in old.mechanism.named_parameters()} if old.mechanism.name == new.mechanism.name else set()
    )
    for name, how in start_mechanism(new.mechanism, known).items():
        report.started[f"mechanism.{name}"] = how
        report.untrained.append(f"mechanism.{name}")
    for name, buffer in new.mechanism.named_buffers():
        if old.mechanism.name != new.mechanism.name and buffer.is_floating_point():
            report.started[f"mechanism.{name}"] = "drawn, kept as a buffer"


# Mechanisms


@torch.no_grad()
def start_mechanism(mechanism: Attention, known: set[str] | frozenset[str] = frozenset()) -> dict[str, str]:
    """Starts a mechanism's own parameters except those `known`; returns how each was started."""
    starts = _STARTS.get(mechanism.name)
    how: dict[str, str] = {} if starts is None else starts(mechanism)
    names = [name for name, _ in mechanism.named_parameters() if name not in known]
    return {name: how.get(name, "drawn") for name in names}


def _start_linformer(mechanism: Attention) -> dict[str, str]:
    assert isinstance(mechanism, LinformerAttention)
    started = {}
    for name, weight in mechanism.named_parameters():
        length, rows = weight.shape[-1], weight.shape[-2] if weight.dim() == 3 else None
        if rows is None:  # a convolution over windows
            weight.fill_(1 / length)
        else:
            weight.zero_()
            for row, segment in enumerate(torch.arange(length).tensor_split(rows)):
                weight[:, row, segment] = 1 / max(len(segment), 1)
        started[name] = "mean of neighbours"
    return started


def _start_zeros(*names: str, how: str = "zeros") -> Callable[[Attention], dict[str, str]]:
    """Sets parameters whose names begin so to 0, where they change nothing."""

    def start(mechanism: Attention) -> dict[str, str]:
        started = {}
        for name, weight in mechanism.named_parameters():
            if name.startswith(names):
                weight.zero_()
                started[name] = how
        return started

    return start


def _start_feature_maps(mechanism: Attention) -> dict[str, str]:
    """Built so: feature maps are the identity, and the linear part counts a tenth."""
    return {name: "sigmoid = 0.1" if name == "mix" else "identity" for name, _ in mechanism.named_parameters()}


_STARTS: dict[str, Callable[[Attention], dict[str, str]]] = {
    "linformer": _start_linformer,
    "nystrom": _start_zeros("filters"),
    "etc": _start_zeros("labels."),
    "gated_linear": _start_zeros("gate.weight", how="zeros: constant gates"),
    "hedgehog": _start_feature_maps,
    "window_linear": _start_feature_maps,
}


# One projection for queries and keys


@torch.no_grad()
def share_projection(new: MultiHead, old: MultiHead) -> list[float]:
    """One projection for queries and keys, from two; returns the share of the scores kept in each head.

    Scores are xᵀMy with M = W_Qᵀ W_K, and those of a shared projection xᵀWᵀWy: symmetric, without negative
    eigenvalues. W takes the largest positive ones of M's symmetric part, at most as many as a head is wide. A bias is
    one more column of the weights. M has the rank of two heads, so all is done in a basis of that size.
    """
    q, k, shared = old.project["q"], old.project["k"], new.project["q"]
    assert isinstance(q, nn.Linear) and isinstance(k, nn.Linear) and isinstance(shared, nn.Linear)
    width, heads = old.widths["q"], old.heads["q"]
    with_bias = q.bias is not None
    columns = [torch.cat([layer.weight, layer.bias[:, None]], 1) if with_bias else layer.weight for layer in (q, k)]
    rows, shares = [], []
    for w_q, w_k in zip(*(matrix.double().unflatten(0, (heads, width)) for matrix in columns)):
        basis, inner = torch.linalg.qr(torch.cat([w_q, w_k]).mT)  # (inputs, r), (r, 2·width)
        scores = inner[:, :width] @ inner[:, width:].mT
        values, vectors = torch.linalg.eigh((scores + scores.mT) / 2)
        values, vectors = values.flip(0)[:width].clamp_min(0), vectors.flip(1)[:, :width]
        taken = values.sqrt()[:, None] * (basis @ vectors).mT
        rows.append(nn.functional.pad(taken, (0, 0, 0, width - len(taken))))
        shares.append(float(values.norm() / scores.norm().clamp_min(1e-300)))
    matrix = torch.cat(rows).to(shared.weight)
    shared.weight.copy_(matrix[:, : shared.weight.shape[1]])
    if with_bias:
        shared.bias.copy_(matrix[:, -1])
    return shares


# Centroids


@torch.no_grad()
def start_centroids(layer: MultiHead, states: Tensor) -> bool:
    """Centroids by k-means of real queries and keys, of hidden states (rows, length, width); False if it has none."""
    centroids = [module for module in layer.mechanism.modules() if isinstance(module, Centroids)]
    if not centroids:
        return False
    seen: list[tuple[Tensor, Tensor]] = []
    hook = layer.mechanism.register_forward_pre_hook(lambda _, heads: seen.append((heads[0], heads[1])))
    try:
        layer(states)
    finally:
        hook.remove()
    routing = centroids[0].means.shape[0]  # the last heads: those before them read neighbours
    pair = [on_sphere(x[:, -routing:].float()).transpose(0, 1).flatten(1, 2) for x in seen[0]]
    points = pair[0] if "k" not in layer.project else torch.cat(pair, 1)
    means = k_means(points, centroids[0].means.shape[1])
    centroids[0].means.copy_(means)
    centroids[0].sums.copy_(means)
    centroids[0].counts.fill_(1)
    return True


def k_means(points: Tensor, clusters: int) -> Tensor:
    """Spherical k-means of points (heads, points, width), from points spread evenly over the text."""
    first = torch.linspace(0, points.shape[1] - 1, clusters).round().long()
    means = points[:, first].clone()
    for _ in range(ITERATIONS):
        nearest = (points @ means.mT).argmax(-1)
        sums = torch.zeros_like(means).scatter_add_(1, nearest[..., None].expand_as(points), points)
        counts = torch.zeros(means.shape[:2]).scatter_add_(1, nearest, torch.ones(nearest.shape))
        means = torch.where(counts[..., None] > 0, on_sphere(sums), means)
    return means


__all__ = ["NEEDS_FORCE", "LayerStart", "expected", "k_means", "share_projection", "start_centroids", "start_layer"]
