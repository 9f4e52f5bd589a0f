"""Spherical k-means whose centroids follow the data by moving averages (Roy et al. 2020, section 4.1)."""

import torch
from torch import Tensor, distributed, nn
from torch.nn.functional import layer_norm

from longspan.attention.layouts.base import wide

SMOOTH = 1e-5  # keeps a cluster that nobody chose from being divided by 0


def on_sphere(x: Tensor) -> Tensor:
    """Vectors of length √width and mean 0: a layer norm without weights."""
    return layer_norm(x, x.shape[-1:])


class Centroids(nn.Module):
    """Per head, `clusters` centroids. They are buffers: no optimiser moves them, and checkpoints hold them.

    `sums` and `counts` are moving averages of what each cluster was given in a training step, and a centroid is their
    ratio. At the start every centroid is one random point, counted once.
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
        found = self.means.to(wide(x.dtype)) @ x.to(wide(x.dtype)).mT
        return found if keep is None else found.masked_fill(~keep[:, None, None, :], float("-inf"))

    @torch.no_grad()
    def update(self, x: Tensor, cluster: Tensor) -> None:
        """One step of the averages, given points (batch, heads, length, width) and their clusters; -1: left out."""
        heads, clusters, width = self.means.shape
        x, cluster = x.transpose(0, 1).flatten(1, 2).to(self.sums.dtype), cluster.transpose(0, 1).flatten(1)
        counts, sums = x.new_zeros(heads, clusters + 1), x.new_zeros(heads, clusters + 1, width)  # the last: left out
        at = cluster.masked_fill(cluster < 0, clusters)
        counts.scatter_add_(1, at, torch.ones_like(at, dtype=x.dtype))
        sums.scatter_add_(1, at[..., None].expand_as(x), x)
        counts, sums = counts[:, :-1].contiguous(), sums[:, :-1].contiguous()
        if distributed.is_available() and distributed.is_initialized():
            distributed.all_reduce(counts)
            distributed.all_reduce(sums)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        total = self.counts.sum(dim=-1, keepdim=True)
        smoothed = (self.counts + SMOOTH) / (total + clusters * SMOOTH) * total
        self.means.copy_(self.sums / smoothed[..., None])
