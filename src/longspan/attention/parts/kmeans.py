"""Spherical k-means with centroids that are moving averages (Routing Transformer, Roy et al. 2020, section 4.1)."""

from collections.abc import Sequence

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import layer_norm, mse_loss

from longspan.attention.layouts.base import wide
from longspan.attention.parts.clusters import take_rows
from longspan.recompute import remember

SMOOTH = 1e-5  # avoids a division by 0 for an empty cluster


def on_sphere(x: Tensor) -> Tensor:
    """Vectors of length √width and mean 0: a layer norm without weights."""
    return layer_norm(x, x.shape[-1:])


def nearest_cluster(scores: Tensor) -> Tensor:
    """The best cluster of each token, (batch, heads, length), by `Centroids.scores`; -1 for masked ones."""
    best = scores.max(dim=2)
    return best.indices.masked_fill(best.values == float("-inf"), -1)


class Centroids(nn.Module):
    """`clusters` centroids per head. They are buffers: optimisers do not update them, and checkpoints contain them.

    `sums` and `counts` are moving averages over training steps of the points assigned to each cluster, and a centroid
    is their ratio. Every centroid starts as one random point, counted once.
    """

    def __init__(self, heads: int, clusters: int, width: int, decay: float) -> None:
        super().__init__()
        self.decay = decay
        start = on_sphere(torch.randn(heads, clusters, width))
        self.register_buffer("means", start)
        self.register_buffer("sums", start.clone())
        self.register_buffer("counts", torch.ones(heads, clusters))
        self.means: Tensor
        self.sums: Tensor
        self.counts: Tensor

    def scores(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        """Products with the centroids, (batch, heads, clusters, length); -inf for masked tokens."""
        scores = self.means.to(wide(x.dtype)) @ x.to(wide(x.dtype)).mT
        return scores if keep is None else scores.masked_fill(~keep[:, None, None, :], float("-inf"))

    def follow(self, points: Sequence[Tensor], clusters: Sequence[Tensor], *, masked: bool) -> Tensor:
        """The mean squared distance to the centroids that routed; then these move, once for a forward pass."""

        def move() -> Tensor:
            means = self.means.clone()
            self.update(points, clusters)
            return means

        means = remember(move)
        apart, count = points[0].new_zeros(()), points[0].new_zeros(())
        for x, cluster in zip(points, clusters):
            nearest = take_rows(means.to(x.dtype).expand(x.shape[0], -1, -1, -1), cluster.clamp_min(0))
            real = cluster >= 0
            if masked:  # so that these are not pulled
                nearest = torch.where(real[..., None], nearest, x.detach())
            apart = apart + mse_loss(x, nearest, reduction="sum")
            count = count + real.sum() * x.shape[-1]
        return apart / count.clamp_min(1)

    @torch.no_grad()
    def update(self, points: Sequence[Tensor], clusters: Sequence[Tensor]) -> None:
        """Update the averages with points (batch, heads, length, width) and the cluster of each, -1 for none."""
        heads, number, width = self.means.shape
        rows = heads * (number + 1)  # one more per head, for points without a cluster
        counts, sums = self.sums.new_zeros(rows), self.sums.new_zeros(rows, width)
        first = torch.arange(heads, device=sums.device)[:, None] * (number + 1)
        for x, cluster in zip(points, clusters):
            flat = (cluster.masked_fill(cluster < 0, number) + first).flatten()
            counts.scatter_add_(0, flat, counts.new_ones(flat.shape))
            sums.index_add_(0, flat, x.flatten(0, 2).to(sums.dtype))
        counts, sums = (total.unflatten(0, (heads, number + 1))[:, :-1].contiguous() for total in (counts, sums))
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(counts)
            distributed.all_reduce(sums)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        total = self.counts.sum(dim=-1, keepdim=True)
        smoothed = (self.counts + SMOOTH) / (total + number * SMOOTH) * total
        self.means.copy_(self.sums / smoothed[..., None])
