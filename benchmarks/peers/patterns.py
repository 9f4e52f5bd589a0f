"""Pairs with packages of single sparse methods: windows, buckets, axes."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.pair import AGAIN, NO_CAUSAL, Pair, Side, Size, copy, heads, hidden, our_heads
from longspan.attention import build
from longspan.nn.multihead import MultiHead


def local(size: Size, causal: bool) -> Side:
    from local_attention import LocalAttention

    window = size.fit(256 if causal else 128)
    module = LocalAttention(window, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False)
    return Side(module, heads(size), module)


def hashed(size: Size, paper: bool) -> Side:
    from reformer_pytorch import LSHAttention

    module = LSHAttention(
        bucket_size=size.fit(64), n_hashes=4, attend_across_buckets=not paper, allow_duplicate_attention=not paper
    )
    return Side(lambda qk, v: module(qk[0], v[0])[0][None], heads(size, 2), module)


def hashing(size: Size, paper: bool) -> dict[str, Any]:
    chunk = size.fit(64)
    return {
        "rounds": 4,
        "chunk": chunk,
        "buckets": size.length // chunk,
        "bucket_mask": paper,
        "count_correction": paper,
    }


def routing(size: Size) -> Side:
    from routing_transformer.routing_transformer import KmeansAttention

    window = size.fit(128)
    module = KmeansAttention(size.length // window, window, size.heads, size.head_dim)
    return Side(lambda q, k, v: module(q, k, v)[0], heads(size), module)


def sinkhorn(size: Size) -> Side:
    from sinkhorn_transformer.sinkhorn_transformer import SinkhornAttention

    sorting = {"non_permutative": False, "sinkhorn_iter": 7, "temperature": 0.75, "use_simple_sort_net": True}
    module = SinkhornAttention(size.fit(128), size.width, size.head_dim, size.heads, size.length, **sorting)
    return Side(module, heads(size), module)


class Axes(nn.Module):
    """The sum of attention along columns and along rows of a square, as axial-attention does by default."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        side, sizes = math.isqrt(size.length), {"heads": size.heads, "head_dim": size.head_dim}
        self.along = nn.ModuleList(
            MultiHead(size.width, build("axial", **sizes, axes=(side, side), axis=axis), bias=False, out_bias=True)
            for axis in (0, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.along[0](x) + self.along[1](x)


def our_axes(size: Size) -> Side:
    torch.manual_seed(0)
    module = Axes(size)
    return Side(module, (hidden(size),), module)


def axial(size: Size) -> Side:
    from axial_attention import AxialAttention

    side = math.isqrt(size.length)
    module = AxialAttention(size.width, num_dimensions=2, heads=size.heads)
    return Side(lambda x: module(x.unflatten(1, (side, side))).flatten(1, 2), (hidden(size),), module)


def tie_axial(theirs: Any, ours: Axes) -> None:
    for own, other in zip(ours.along, (each.fn for each in theirs.axial_attentions)):
        assert isinstance(own, MultiHead)
        k, v = other.to_kv.weight.chunk(2)
        copy(own, q=other.to_q, k=k, v=v, out=other.to_out)


PATTERNS = (
    Pair(
        peer="local-attention",
        what="window of ±128",
        equal="the same keys, the same outputs",
        theirs=partial(local, causal=False),
        ours=our_heads("window", lambda size: {"window": size.fit(128)}),
        tie=lambda theirs, ours: None,
        close=1e-5,
        decodes=NO_CAUSAL + " of this window; the causal one has a cache",
        kind="fixed-pattern",
    ),
    Pair(
        peer="local-attention",
        what="causal window of 256",
        equal="the same keys, the same outputs",
        theirs=partial(local, causal=True),
        ours=our_heads("window", lambda size: {"window": size.fit(256)}, causal=True),
        tie=lambda theirs, ours: None,
        close=1e-5,
        decodes="with a cache",
        ours_decodes=True,
        kind="fixed-pattern",
    ),
    Pair(
        peer="reformer-pytorch",
        what="4 rounds of chunks of 64, as in the paper",
        equal="as many keys, hidden in other buckets and counted once, on both sides; other random rotations",
        theirs=partial(hashed, paper=True),
        ours=our_heads("reformer", partial(hashing, paper=True)),
        decodes=AGAIN + "; its causal form sees the future",
        ours_decodes=True,
        kind="learned-pattern",
    ),
    Pair(
        peer="reformer-pytorch",
        what="4 rounds of chunks of 64, its defaults",
        equal="as many keys, of any bucket and counted as often as seen, on both sides; other random rotations",
        theirs=partial(hashed, paper=False),
        ours=our_heads("reformer", partial(hashing, paper=False)),
        decodes=AGAIN + "; its causal form sees the future",
        ours_decodes=True,
        kind="learned-pattern",
    ),
    Pair(
        peer="routing-transformer",
        what="clusters of 128",
        equal="as many clusters, of as many tokens; theirs leaves the length of queries and keys, ours as in the paper",
        theirs=routing,
        ours=our_heads("routing", lambda size: {"window": size.fit(128), "clusters": size.length // size.fit(128)}),
        decodes=AGAIN + "; its causal form sees the future",
        ours_decodes=True,
        kind="learned-pattern",
    ),
    Pair(
        peer="sinkhorn-transformer",
        what="blocks of 128",
        equal="the block and one that 7 rounds of balancing mix, by a linear sorting network; theirs mixes no values",
        theirs=sinkhorn,
        ours=our_heads("sinkhorn", lambda size: {"block": size.fit(128), "iterations": 7, "network": "linear"}),
        decodes=AGAIN,
        ours_decodes=True,
        kind="learned-pattern",
    ),
    Pair(
        peer="axial-attention",
        what="both axes of a square, layer",
        equal="the same weights, the same outputs",
        theirs=axial,
        ours=our_axes,
        tie=tie_axial,
        close=1e-4,
        decodes=NO_CAUSAL,
        ours_decodes=True,
        kind="fixed-pattern",
    ),
)
