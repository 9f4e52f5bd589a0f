"""Learned vectors for relative positions, in keys and values (Shaw et al. 2018), over any layouts of keys.

    score(i, j) = scale · q_i·(k_j + a_t),    out_i = Σ_j w_ij (v_j + b_t),    t = clip(p_j - p_i, ±reach)

The vectors are shared by all heads that use a table. Scores are computed by plain products, and once more in the
backward pass, since the fused kernel gives no gradient of them.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout as drop
from torch.utils.checkpoint import checkpoint

from longspan.attention.kernels.flash import DEAD
from longspan.attention.kernels.multi_source_softmax import KeySource
from longspan.attention.layouts.base import wide


class RelativePositions(nn.Module):
    """Tables with a row for each offset from -reach to reach; farther offsets share the last rows."""

    def __init__(self, reach: int, head_dim: int, value_dim: int) -> None:
        super().__init__()
        self.reach = reach
        self.keys, self.values = (nn.Parameter(torch.empty(2 * reach + 1, size)) for size in (head_dim, value_dim))
        for table in (self.keys, self.values):
            nn.init.xavier_uniform_(table)

    def rows(self, offsets: Tensor) -> Tensor:
        """The rows of the tables for offsets key - query."""
        return (offsets.clamp(-self.reach, self.reach) + self.reach).long()

    def terms(self, q: Tensor, scale: float) -> Tensor:
        """scale · q·a for each row of the tables: (…, queries, 2·reach + 1)."""
        return (q @ self.keys.to(q.dtype).mT * scale).to(wide(q.dtype))

    def scores(self, q: Tensor, rows: Tensor, scale: float) -> Tensor:
        """scale · q·a for each pair: (…, queries, keys) from q (…, queries, width) and the pairs' rows."""
        return _pick(self.terms(q, scale), rows)

    def by_offset(self, weights: Tensor, rows: Tensor) -> Tensor:
        """The weights summed for each row of the tables: (…, queries, 2·reach + 1)."""
        total = weights.new_zeros(*weights.shape[:-1], 2 * self.reach + 1)
        return total.scatter_add(-1, rows.expand_as(weights), weights)

    def mix(self, weights: Tensor, rows: Tensor) -> Tensor:
        """Σ w·b for each query."""
        return self.by_offset(weights, rows) @ self.values.to(weights.dtype)

    def attend(
        self,
        q: Tensor,
        sources: Sequence[KeySource],
        at: Tensor,
        keys_at: Sequence[Tensor],
        scale: float,
        dropout: float,
    ) -> Tensor:
        """One softmax over the sources. Queries are at positions `at`, the keys of each source at `keys_at`."""

        def read(q: Tensor, *pairs: Tensor) -> Tensor:
            parts, rows, terms = [], [], self.terms(q, scale)
            for source, k, places in zip(sources, pairs[::2], keys_at):
                rows.append(self.rows(_offsets(source, q, k, at, places)))
                scores = source.layout.scores(q, k, source.keep, None, scale)
                parts.append(scores + _pick(terms, rows[-1]))
            scores = torch.cat(parts, -1)
            weights = scores.softmax(-1).masked_fill(scores < DEAD, 0.0).to(q.dtype)
            weights = drop(weights, dropout, training=bool(dropout))
            out = self.mix(weights, torch.cat([x.expand(*q.shape[:3], -1) for x in rows], -1))
            for source, v, piece in zip(sources, pairs[1::2], weights.split([x.shape[-1] for x in parts], -1)):
                out = out + source.layout.mix(piece, v)
            return out

        pairs = [x for source in sources for x in (source.k, source.v)]
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            out: Tensor = checkpoint(read, q, *pairs, use_reentrant=False, preserve_rng_state=bool(dropout))
            return out
        return read(q, *pairs)

    def flops(self, queries: int, scores: int) -> int:
        """The products of `attend` for so many queries and scores, each over all heads."""
        width = self.keys.shape[1] + self.values.shape[1]
        return 2 * scores * (width + 2) + 2 * queries * (2 * self.reach + 1) * width


def _pick(terms: Tensor, rows: Tensor) -> Tensor:
    return terms.gather(-1, rows.expand(*terms.shape[:-1], -1))


def define_scores(
    relative: RelativePositions | None, scores: Tensor, q: Tensor, offsets: Tensor, scale: float
) -> Tensor:
    """For definitions: scores (…, queries, keys) with the term of each pair."""
    if relative is None:
        return scores
    vectors = relative.keys[relative.rows(offsets)]  # one for each pair
    return scores + scale * (q[..., None, :] * vectors).sum(-1)


def append_offsets(relative: RelativePositions | None, weights: Tensor, offsets: Tensor) -> Tensor:
    """For definitions: the weights of keys, and after them the sum for each row of the tables."""
    if relative is None:
        return weights
    return torch.cat([weights, relative.by_offset(weights, relative.rows(offsets))], dim=-1)


def _offsets(source: KeySource, q: Tensor, k: Tensor, at: Tensor, places: Tensor) -> Tensor:
    """Key - query in the layout of the scores: the products of (1, -p_i) and (p_j, 1), which any layout computes."""
    with torch.no_grad():
        kind = torch.float64 if q.dtype == torch.float64 else torch.float32
        rows, keys = at.to(kind), places.to(kind)
        queries = torch.stack([torch.ones_like(rows), -rows], -1).expand(*q.shape[:3], 2)
        pairs = torch.stack([keys, torch.ones_like(keys)], -1).expand(*k.shape[:3], 2)
        return source.layout.scores(queries, pairs, None, None, 1.0)


__all__ = ["RelativePositions", "append_offsets", "define_scores"]
