"""Routing Transformer: tokens are clustered by content (online k-means), and each reads the tokens of its cluster.

Queries and keys are normalised to one sphere, where the nearest centroid has the largest product (Roy et al. 2020,
section 4). In training, centroids follow the data by a moving average, not by gradients; the commitment loss in
`auxiliary_loss` pulls the data towards them. Two ways to belong to a cluster:

- `sequence` (the paper): each cluster takes its `window` best tokens of the whole sequence. A token may be in several
  clusters, whose outputs are averaged, or in none, and then its output is 0. Later tokens can displace earlier ones, so
  the future changes what the past reads.
- `strict`: a query belongs to its best cluster. It reads the `window` tokens that were the cluster's best before the
  query's block of `block` positions began; in its own block, the earlier tokens with the same best cluster; and itself.
  No later token can change that, so this form decodes. It is the default for causal=True.

Causal routing heads share queries and keys, as in the paper: they ignore the argument k. The first `local_heads` heads
do not route: they read their neighbours, with q and k as given. A masked token is in no cluster: in the routing heads
no token reads it, and it reads nothing.

`relative` adds learned vectors of relative positions to keys and values, in both kinds of heads (Shaw et al. 2018). As
in the authors' code, the distance within a cluster of the sequence is that of ranks in its sorted list; with `strict`
membership, whose queries and keys are not one list, and in local heads, it is that of positions.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan import config
from longspan.attention.base import Attention, Cost, Extras, Shape, Supports, masked_softmax, readable
from longspan.attention.devices import host_may_read
from longspan.attention.kernels import sdpa
from longspan.attention.kernels.flash import BLOCKED
from longspan.attention.kernels.multi_source_softmax import KeySource, joint
from longspan.attention.kernels.top_k import largest
from longspan.attention.layouts import Band, Dense, Routed, Sorted, ceil_div
from longspan.attention.layouts.base import blocked_where, wide
from longspan.attention.parts.clusters import average_rows, extend_lists, lists_at_once, take_rows
from longspan.attention.parts.kmeans import Centroids, nearest_cluster, on_sphere
from longspan.attention.parts.relative_positions import RelativePositions, append_offsets, define_scores
from longspan.attention.state import Rows, State, append_mask
from longspan.config import option
from longspan.errors import InvalidOption, Unsupported
from longspan.precision import state_type
from longspan.recompute import remember
from longspan.shapes import Defined, Keys, Output, Queries, Values

FEW = 16  # up to so many new tokens, decoding gathers the list of each


@dataclass(frozen=True)
class Lists(State):
    """The best tokens of each cluster up to some block."""

    index: Tensor  # (batch, heads, clusters, window): positions; -1 for none
    score: Tensor  # likewise: products with the centroid; -inf for none


@dataclass(frozen=True)
class RoutingState(State):
    x: Rows  # on the sphere, of the heads that route
    v: Rows
    cluster: Rows  # (batch, heads, tokens, 1): the best cluster; -1 if masked
    lists: Lists  # before the block that is being read
    local_k: Rows  # of the last `local_window` positions, for the heads that do not route
    local_v: Rows
    seen: Rows | None  # which of those may be read; None while all may


class RoutingAttention(Attention):
    name = "routing"
    paper = "Roy et al. 2020"
    survey_class = ("LP",)
    order = "n·(clusters + window)"
    exponent = 1.0
    running_statistics = True  # its centroids follow the data
    supports = Supports(causal=True, streaming=True, dropout=True)
    one_head_each = "each head routes its keys by its own centroids, and causal heads use their queries as keys"

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        clusters: int = option(32, "centroids per head; length / window balances them", low=1)
        window: int = option(128, "tokens that a cluster takes", low=1)
        block: int = option(512, "strict only: positions between which the clusters' lists stay as they are", low=1)
        membership: str | None = option(
            None, "who is in a cluster; strict if causal and sequence otherwise", choices=("sequence", "strict")
        )
        decay: float = option(0.999, "how slowly centroids follow the data", low=0.0, high=1.0)
        commitment: float = option(1e-4, "weight of the loss that pulls tokens to their centroids", low=0.0)
        scale: float | None = option(
            None, "what products on the sphere are multiplied by; 1/sqrt(head_dim) if not said"
        )
        local_heads: int = option(0, "heads that read their neighbours instead", low=0)
        local_window: int = option(128, "neighbours that those read on each side, causal: before them", low=1)
        relative: int = option(
            0, "relative positions in keys and values: the farthest distance with vectors of its own; 0: none", low=0
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given = self.options
        if given.local_heads >= shape.heads:
            raise InvalidOption(
                f"option local_heads must be below the {shape.heads} heads, so that one routes, not {given.local_heads}"
            )
        if given.membership == "strict" and not causal:
            raise InvalidOption("option membership strict goes with causal=True; without a direction, nothing leaks")
        self.strict = causal and given.membership != "sequence"
        self.routing_heads = shape.heads - given.local_heads
        self.scale = shape.head_dim**-0.5 if given.scale is None else given.scale
        if causal and not given.local_heads:
            self.projects = ("q", "v")
        if causal and not self.strict:
            self.supports = replace(self.supports, streaming=False)
        self.relative = self.local_relative = None
        if given.relative:
            sizes = (given.relative, shape.head_dim, shape.value_dim)
            self.relative = RelativePositions(*sizes)
            self.local_relative = RelativePositions(*sizes) if given.local_heads else None
            self.supports = replace(self.supports, map=False)  # the output has terms besides values
        self.centroids = Centroids(self.routing_heads, given.clusters, shape.head_dim, given.decay)

    # The definition

    def define(self, q: Queries, k: Keys, extras: Extras) -> Defined:
        """The weights of all keys; with relative positions also those of each offset, summed over the keys."""
        local, length = self.options.local_heads, q.shape[2]
        may = readable(length, length, self.causal, extras.key_mask, q.device)
        x = on_sphere(self._routed(q, extras.key_mask))
        y = x if self.causal else on_sphere(k[:, local:])
        real = torch.ones(q.shape[0], length, dtype=torch.bool, device=q.device)
        real = real if extras.key_mask is None else extras.key_mask
        products = torch.einsum("bhid,bhjd->bhij", x, y) * self.scale
        position = torch.arange(length, device=q.device)
        offsets = position - position[:, None]
        if self.strict:
            products = define_scores(self.relative, products, x, offsets, self.scale)
            routed = masked_softmax(products, self._members_of_prefix(x, real) & may)
            routed = append_offsets(self.relative, routed, offsets)
        else:
            queries, keys = (self._members(z, real) for z in (x, y))  # batch heads clusters length
            ranks = keys.cumsum(-1)[..., None, :] - queries.cumsum(-1)[..., None]
            products = define_scores(self.relative, products[:, :, None], x[:, :, None], ranks, self.scale)
            parts = masked_softmax(products, keys[..., None, :] & may[:, :, None]) * queries[..., None]
            parts = append_offsets(self.relative, parts, ranks)
            routed = parts.sum(dim=2) / queries.sum(dim=2).clamp_min(1)[..., None]
        if not local:
            return routed
        scale = self.shape.head_dim**-0.5
        scores = torch.einsum("bhid,bhjd->bhij", q[:, :local], k[:, :local]) * scale
        scores = define_scores(self.local_relative, scores, q[:, :local], offsets, scale)
        near = masked_softmax(scores, (offsets.abs() <= self.options.local_window) & may)
        return torch.cat([append_offsets(self.local_relative, near, offsets), routed], dim=1)

    def apply_weights(self, weights: Tensor, v: Values, extras: Extras) -> Output:
        if self.relative is None:
            return weights @ v
        tables = [self.local_relative] * self.options.local_heads + [self.relative] * self.routing_heads
        vectors = torch.stack([table.values for table in tables if table is not None])
        return weights @ torch.cat([v, vectors.expand(len(v), -1, -1, -1)], dim=2)

    def _members(self, x: Tensor, real: Tensor) -> Tensor:
        """(batch, heads, clusters, length): whether a token is among a cluster's `window` best of the sequence."""
        products = torch.einsum("bhid,hcd->bhci", x, self.centroids.means.to(x.dtype))
        products = products.masked_fill(~real[:, None, None], float("-inf"))
        rank = products.argsort(dim=-1, descending=True).argsort(dim=-1)
        return (rank < self.options.window) & real[:, None, None]

    def _members_of_prefix(self, x: Tensor, real: Tensor) -> Tensor:
        """(batch, heads, queries, keys): by the lists as they stood when the query's block began, or in its block."""
        length, block = x.shape[2], self.options.block
        products = torch.einsum("bhid,hcd->bhci", x, self.centroids.means.to(x.dtype))
        best = products.argmax(dim=2)  # batch heads length
        number = torch.arange(length, device=x.device) // block
        same = best[..., :, None] == best[..., None, :]
        read = same & (number[:, None] == number)
        for begin in range(block, length, block):
            earlier = real & (torch.arange(length, device=x.device) < begin)
            members = self._members(x, earlier)  # batch heads clusters keys
            chosen = members.gather(2, best[..., begin : begin + block, None].expand(-1, -1, -1, length))
            read[:, :, begin : begin + block] |= chosen
        return read & real[:, None, :, None]

    # The fast path

    def attend(self, q: Queries, k: Keys, v: Values, extras: Extras) -> Output:
        local = self.options.local_heads
        x = on_sphere(self._routed(q, extras.key_mask))
        y = x if self.causal else on_sphere(k[:, local:])
        values, keep = v[:, local:], extras.key_mask
        if self.strict:
            cluster, lists = remember(lambda: self._route_strictly(x, keep))
            nearest = [cluster]
            out = self._read_lists(x, x, values, cluster, lists)
        else:
            queries, keys, nearest = remember(lambda: self._route(x, y, keep))
            if self._holds_all(x.shape[2]):
                out = self._read_all(x, y, values, keep)
            else:
                out = self._read_clusters(x, y, values, queries, keys)
        if self.training:
            loss = self.centroids.follow([x, y][: len(nearest)], nearest, masked=keep is not None)
            self.auxiliary_loss = self.options.commitment * loss
        if not local:
            return out
        return torch.cat([self._read_neighbours(q[:, :local], k[:, :local], v[:, :local], keep), out], dim=1)

    def bucket_ids(self, q: Queries, k: Keys) -> tuple[Tensor, Tensor]:
        """The nearest cluster of each token; local heads have none."""
        local = self.options.local_heads
        x = on_sphere(self._routed(q, None))
        y = x if self.causal else on_sphere(k[:, local:])
        nearest = (torch.einsum("bhid,hcd->bhci", z, self.centroids.means.to(z.dtype)).argmax(2) for z in (x, y))
        queries, keys = (pad(cluster, (0, 0, local, 0), value=-1)[:, :, None] for cluster in nearest)
        return queries, keys

    def _routed(self, q: Tensor, keep: Tensor | None) -> Tensor:
        """The queries of the heads that route. When causal they are the keys too, so masked ones are 0."""
        routed = q[:, self.options.local_heads :]
        if keep is None or not self.causal or "k" not in self.projects:  # cleared already, or not keys
            return routed
        return routed.masked_fill(~keep[:, None, :, None], 0.0)

    def _read_neighbours(self, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, past: int = 0) -> Tensor:
        window, scale = self.options.local_window, self.shape.head_dim**-0.5
        source = KeySource(Band(window, 0 if self.causal else window, past), k, v, keep)
        if self.local_relative is None:
            return joint(q, [source], scale=scale, dropout=self._dropout)
        at = torch.arange(k.shape[2], device=q.device)
        return self.local_relative.attend(q, [source], at[past : past + q.shape[2]], [at], scale, self._dropout)

    @property
    def _dropout(self) -> float:
        return self.dropout if self.training else 0.0

    # Clusters of the whole sequence

    def _route(self, x: Tensor, y: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor, list[Tensor]]:
        """The queries and keys of each cluster, (batch, heads, clusters, window), the length standing for none, in the
        order of positions if causal; and in training the best clusters of x and of y, where that is another."""
        scores = [self.centroids.scores(z, keep) for z in ([x] if self.causal else [x, y])]
        best = [self._best(score) for score in scores]
        return best[0], best[-1], [nearest_cluster(score) for score in scores] if self.training else []

    def _best(self, score: Tensor) -> Tensor:
        length, window = score.shape[-1], self.options.window
        if torch.compiler.is_compiling():  # as many as are wanted, however short the sequence
            score = pad(score, (0, window), value=float("-inf"))
        else:
            window = min(window, length)
        values, places = largest(score, window)
        index = places.masked_fill(values == float("-inf"), length)
        return index.sort(dim=-1).values if self.causal or self.relative is not None else index

    def _holds_all(self, length: int) -> bool:
        """Whether every cluster takes the whole text, so that all of them say the same."""
        return not torch.compiler.is_compiling() and length <= self.options.window and self.relative is None

    def _read_all(self, x: Tensor, y: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
        out = joint(x, [KeySource(Dense(self.causal), y, v, keep)], scale=self.scale, dropout=self._dropout)
        return out if keep is None else out.masked_fill(~keep[:, None, :, None], 0.0)

    def _read_clusters(self, x: Tensor, y: Tensor, v: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
        length = x.shape[2]
        found_q, found_k, found_v = take_rows(x, queries), take_rows(y, keys), take_rows(v, keys)
        none = keys == length
        if self.relative is not None:
            source = KeySource(Dense(self.causal), *(x.flatten(0, 1) for x in (found_k, found_v, ~none)))
            rank = torch.arange(keys.shape[3], device=x.device)
            own = self.relative.attend(found_q.flatten(0, 1), [source], rank, [rank], self.scale, self._dropout)
            return average_rows(own.unflatten(0, found_q.shape[:2]), queries, length)
        mask, triangle = None, False
        if not host_may_read(none) or bool(none.any()):
            mask = blocked_where(none, x)[..., None, :]
            if self.causal:
                mask = mask.masked_fill(queries[..., :, None] < keys[..., None, :], BLOCKED)
            mask = mask.to(x.dtype).flatten(0, 1)
        elif self.causal:
            triangle = True  # queries and keys are one list in the order of positions
        out = sdpa.attend(
            found_q.flatten(0, 1),
            found_k.flatten(0, 1),
            found_v.flatten(0, 1),
            mask=mask,
            dropout=self._dropout,
            causal=triangle,
            scale=self.scale,
        ).unflatten(0, found_q.shape[:2])
        return average_rows(out, queries, length)

    # Lists of the prefix

    def _route_strictly(self, x: Tensor, keep: Tensor | None) -> tuple[Tensor, Tensor]:
        """The best cluster of each token, and the lists of all blocks, (batch, heads, blocks, clusters, window)."""
        score = self.centroids.scores(x, keep)
        if torch.compiler.is_compiling():
            return nearest_cluster(score), lists_at_once(score, self.options.block, self.options.window)
        count = ceil_div(x.shape[2], self.options.block)
        lists = self._lists(score, self._no_lists(x.shape[0], score), 0)[:count]
        return nearest_cluster(score), torch.stack([entry.index for entry in lists], dim=2)

    def _no_lists(self, batch: int, like: Tensor) -> Lists:
        shape = (batch, self.routing_heads, self.options.clusters, self.options.window)
        none = torch.full(shape, -1, dtype=torch.long, device=like.device)
        return Lists(none, like.new_full(shape, float("-inf")))

    def _lists(self, score: Tensor, before: Lists, first: int) -> list[Lists]:
        """Those before the first block, and those after each whole block; the scores are of positions from `first`."""
        sizes = (self.options.block, self.options.window)
        return [before, *(Lists(*x) for x in extend_lists(before.index, before.score, score, first, *sizes))]

    def _read_lists(self, x: Tensor, y: Tensor, v: Tensor, cluster: Tensor, lists: Tensor, first: int = 0) -> Tensor:
        """Queries x at the positions from `first` on, where a block begins; keys y and values v from 0 on."""
        length, clusters = x.shape[2], self.options.clusters
        blocks = self._blocks(length)
        number = torch.arange(length, device=x.device) // blocks
        slot = (number * clusters + cluster).masked_fill(cluster < 0, -1)
        order = torch.arange(length, device=x.device).expand_as(cluster)[:, :, None]
        own = Sorted(order, slot[:, :, None], cluster >= 0, blocks, 0, causal=True, before=False)
        sources = [KeySource(own, y[:, :, first:], v[:, :, first:])]
        if torch.compiler.is_compiling() or first or length > blocks:
            sources.append(KeySource(Routed(slot, lists.flatten(2, 3)), y, v))
        if self.relative is None:
            return joint(x, sources, scale=self.scale, dropout=self._dropout)
        at = torch.arange(y.shape[2], device=x.device)
        return self.relative.attend(x, sources, at[first:], [at[first:], at], self.scale, self._dropout)

    def _blocks(self, length: int) -> int:
        """The block, or the length where it is shorter: one block of any size is the same."""
        return self.options.block if torch.compiler.is_compiling() else min(self.options.block, length)

    def cost(self, queries: int, keys: int) -> Cost:
        heads, width, local = self.routing_heads, self.shape.fused_width, self.options.local_heads
        clusters = self.options.clusters
        sides = 1 if self.causal else 2
        flops = 2 * sides * heads * clusters * queries * self.shape.head_dim
        kept = 2 * sides * heads * queries  # the means and deviations of the layer norms
        if self.strict:
            block = self._blocks(queries)
            count = ceil_div(queries, block)
            order = torch.empty(1, heads, 1, queries, device="meta")
            pairs = Sorted(order, order, order, block, 0, causal=True).pairs(heads, queries, keys)
            if count > 1:
                lists = torch.empty(1, heads, count * clusters, self.options.window, device="meta")
                pairs += Routed(lists, lists).pairs(heads, queries, keys)
            # Tokens on the sphere; the output and its log-sum-exp, unless these are computed again.
            kept += heads * queries * (2 * width + 1 if self.relative is None else self.shape.head_dim)
        elif self._holds_all(queries):
            pairs = heads * queries * queries
            kept += heads * queries * ((sides + 1) * width + 1)
        else:  # gathered queries, keys, values and answers; how many answers each token has
            window = self.options.window
            pairs = heads * clusters * window * window
            kept += heads * clusters * window * (4 * width + (self.relative is None)) + heads * (queries + 1)
        if local:
            pairs += Band(self.options.local_window, 0 if self.causal else self.options.local_window).pairs(
                local, queries, keys
            )
            kept += local * queries * (width + 1) if self.relative is None else 0
        return Cost(flops + (4 * pairs * width if self.relative is None else self._relative_flops(queries)), kept)

    def _relative_flops(self, queries: int) -> int:
        """The products of plain scores, whose layouts have a block to spare, and of the tables."""
        assert self.relative is not None
        heads, clusters, local = self.routing_heads, self.options.clusters, self.options.local_heads
        if self.strict:
            block, rows = self._blocks(queries), heads * queries
            pairs = heads * (ceil_div(queries, block) + 1) * block**2
            if queries > block:
                lists = torch.empty(1, heads, ceil_div(queries, block) * clusters, self.options.window, device="meta")
                pairs += Routed(lists, lists).pairs(heads, queries, queries)
        else:
            window = min(self.options.window, queries)
            rows, pairs = heads * clusters * window, heads * clusters * window**2
        if local:
            band = Band(self.options.local_window, 0 if self.causal else self.options.local_window)
            rows += local * queries
            pairs += local * (ceil_div(queries, band.block) + 1) * band.block * band.span
        return self.relative.flops(rows, pairs)

    # Decoding

    def _refuse_streaming(self) -> None:
        if self.causal and not self.strict:
            raise Unsupported(f"{self.name} decodes with strict membership only, where the future changes nothing")
        super()._refuse_streaming()

    def start(
        self, batch: int, *, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> RoutingState:
        self._refuse_streaming()
        dtype, device = state_type(self, dtype, device)
        rows, window = Rows.empty(batch), self.options.local_window
        lists = self._no_lists(batch, torch.empty(0, dtype=dtype, device=device))
        near = Rows.empty(batch, window)
        return RoutingState(rows, rows, rows, lists, near, near, None)

    def extend_heads(self, q: Queries, k: Keys, v: Values, state: RoutingState, extras: Extras) -> tuple[Output, State]:
        local, keep = self.options.local_heads, extras.key_mask
        out, state = self._route_on(self._routed(q, keep), v[:, local:], keep, state)
        if not local:
            return out, state
        past, window = len(state.local_k), self.options.local_window
        seen = append_mask(state.seen, past, keep, q, window)
        keys, values = state.local_k.append(k[:, :local]), state.local_v.append(v[:, :local])
        may = None if seen is None else seen.value[:, 0, :, 0]
        near = self._read_neighbours(q[:, :local], keys.value, values.value, may, past)
        trimmed = None if seen is None else seen.trim()
        state = replace(state, local_k=keys.trim(), local_v=values.trim(), seen=trimmed)
        return torch.cat([near, out], dim=1), state

    def _route_on(self, q: Tensor, v: Tensor, keep: Tensor | None, state: RoutingState) -> tuple[Tensor, RoutingState]:
        new, past, block = q.shape[2], len(state.x), self.options.block
        begin = past - past % block
        x = on_sphere(q)
        cluster = remember(lambda: nearest_cluster(self.centroids.scores(x, keep)))
        state = replace(
            state, x=state.x.append(x), v=state.v.append(v), cluster=state.cluster.append(cluster[..., None])
        )
        points, values, clusters = state.x.value, state.v.value, state.cluster.value[..., 0]
        lists = [state.lists]
        if past + new >= begin + block:  # a block is full
            here = clusters[:, :, begin:]
            score = remember(lambda: self.centroids.scores(points[:, :, begin:]))
            score = score.masked_fill((here < 0)[:, :, None], float("-inf"))
            lists = self._lists(score, state.lists, begin)
        if new <= FEW and past + new <= begin + block:
            out = self._read_few(x, points, values, clusters, lists[0].index, begin)
        else:  # the parallel way from the block's beginning; queries answered before stand in front once more
            count = ceil_div(past + new - begin, block)
            index = torch.stack([entry.index for entry in lists[:count]], dim=2)
            out = self._read_lists(points[:, :, begin:], points, values, clusters[:, :, begin:], index, begin)
            out = out[:, :, past - begin :]
        return out, replace(state, lists=lists[-1])

    def _read_few(
        self, x: Tensor, points: Tensor, values: Tensor, clusters: Tensor, lists: Tensor, begin: int
    ) -> Tensor:
        """A few queries, the last tokens, all of them in the block that began at `begin`."""
        new, window = x.shape[2], self.options.window
        cluster = clusters[:, :, -new:]
        index = lists.gather(
            2, cluster.clamp_min(0)[..., None].expand(-1, -1, -1, window)
        )  # batch heads queries window
        far = [take_rows(rows, index.clamp_min(0)) for rows in (points, values)]
        near = [rows[:, :, begin:] for rows in (points, values)]
        position = torch.arange(begin, points.shape[2], device=x.device)
        same = (clusters[:, :, None, begin:] == cluster[..., None]) & (position <= position[-new:, None])
        scores = torch.cat([(x[..., None, :] @ far[0].mT)[..., 0, :], x @ near[0].mT], dim=-1).to(wide(x.dtype))
        may, scores = torch.cat([index >= 0, same], dim=-1) & (cluster >= 0)[..., None], scores * self.scale
        offsets = torch.cat([index, position.expand_as(same)], dim=-1) - position[-new:, None]
        if self.relative is not None:
            scores = scores + self.relative.scores(x, self.relative.rows(offsets), self.scale)
        weights = masked_softmax(scores, may).to(values.dtype)
        first, rest = weights[..., :window], weights[..., window:]
        out = (first[..., None, :] @ far[1])[..., 0, :] + rest @ near[1]
        return out if self.relative is None else out + self.relative.mix(weights, self.relative.rows(offsets))
