"""Pairs with the packages that have one method each."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.pair import Pair, Side, Size, copy, heads, hidden, our_heads, our_layer
from longspan.attention import build
from longspan.nn.compression import Compression
from longspan.nn.memory import LayerMemory, MemoryLayer, Reach
from longspan.nn.multihead import MultiHead
from longspan.nn.relative import RelativeAttention
from longspan.nn.residual import Residual

AGAIN = "reads the whole text again for each token"
NO_CAUSAL = "no causal form"
RATIO = 4  # memories that become one slot


# Windows


def local(size: Size, causal: bool) -> Side:
    from local_attention import LocalAttention

    window = size.fit(256 if causal else 128)
    module = LocalAttention(window, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False)
    return Side(module, heads(size), module)


# Kernels


def performer(size: Size, causal: bool) -> Side:
    from performer_pytorch import FastAttention

    module = FastAttention(size.head_dim, nb_features=size.fit(256), causal=causal)
    return Side(module, heads(size), module)


def linear(size: Size, causal: bool) -> Side:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    module = SelfAttention(size.width, size.heads, causal=causal)
    return Side(module, (hidden(size),), module)


# Low rank


def linformer(size: Size) -> Side:
    from linformer.linformer import LinformerSelfAttention

    module = LinformerSelfAttention(size.width, size.length, k=size.fit(256), heads=size.heads)
    return Side(module, (hidden(size),), module)


@torch.no_grad()
def tie_linformer(theirs: Any, ours: MultiHead) -> None:
    copy(ours, q=theirs.to_q, k=theirs.to_k, v=theirs.to_v, out=theirs.to_out)
    own: Any = ours.mechanism
    own.projection.keys.copy_(theirs.proj_k.T)
    own.projection.values.copy_(theirs.proj_v.T)


def nystrom(size: Size) -> Side:
    from nystrom_attention import NystromAttention

    module = NystromAttention(size.width, size.head_dim, size.heads, num_landmarks=size.fit(64))
    return Side(module, (hidden(size),), module)


@torch.no_grad()
def tie_nystrom(theirs: Any, ours: MultiHead) -> None:
    q, k, v = theirs.to_qkv.weight.chunk(3)
    copy(ours, q=q, k=k, v=v, out=theirs.to_out[0])
    own: Any = ours.mechanism
    own.filters.copy_(theirs.res_conv.weight[:, 0, :, 0])


# Learned patterns


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


# A grid


class Axes(nn.Module):
    """Attention along the columns and along the rows of a square, added: what axial-attention does by default."""

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


# Memory


def compressed(size: Size) -> Side:
    from memory_compressed_attention import MemoryCompressedAttention

    module = MemoryCompressedAttention(size.width, size.heads, causal=True, compression_factor=3)
    return Side(module, (hidden(size),), module)


class Segments(nn.Module):
    """Their layer on a whole text, segment by segment, with the codes of distances that their model has."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        from compressive_transformer_pytorch.compressive_transformer_pytorch import SelfAttention

        self.segment = size.fit(512)
        slots = self.segment // RATIO
        self.layer = SelfAttention(size.width, self.segment, self.segment, slots, RATIO, size.heads)
        self.codes = nn.Parameter(torch.randn(size.heads, 2 * self.segment + slots, size.head_dim))

    def forward(self, x: Tensor) -> Tensor:
        held, outs = None, []
        for part in x.split(self.segment, 1):
            out, held, _ = self.layer(part, held, pos_emb=self.codes)
            held = tuple(each.detach() for each in held)
            outs.append(out)
        return torch.cat(outs, 1)


def compressive(size: Size) -> Side:
    module = Segments(size)
    return Side(module, (hidden(size),), module)


def our_compressive(size: Size) -> Side:
    torch.manual_seed(0)
    segment = size.fit(512)
    slots, u, w = segment // RATIO, *(nn.Parameter(torch.randn(size.heads, size.head_dim)) for _ in range(2))
    attention = RelativeAttention(size.width, size.heads, size.head_dim, u, w)
    layer = MemoryLayer(
        attention,
        nn.Identity(),
        residual=partial(Residual, size.width, place="none"),
        compression=Compression(size.width, RATIO),
        loss="attention",
    )
    furthest = slots + 2 * segment
    reach = Reach(segment=segment, memory=segment, slots=slots, furthest=furthest - 1)
    held = LayerMemory(torch.zeros(1, segment, size.width), torch.zeros(1, slots, size.width))
    return Side(lambda x: layer(x, held, reach, attention.distances(furthest))[0], (hidden(size),), layer)


# Dense


def dense(size: Size) -> Side:
    from x_transformers.x_transformers import Attention

    module = Attention(dim=size.width, heads=size.heads, dim_head=size.head_dim, flash=True)
    return Side(module, (hidden(size),), module)


def tie_dense(theirs: Any, ours: MultiHead) -> None:
    copy(ours, q=theirs.to_q, k=theirs.to_k, v=theirs.to_v, out=theirs.to_out)


PACKAGES = (
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
        peer="performer-pytorch",
        what="256 features",
        equal="as many features; theirs adds 1e-4 to each (without that, the same outputs on the same rows)",
        theirs=partial(performer, causal=False),
        ours=our_heads("performer", lambda size: {"features": size.fit(256)}),
        decodes=NO_CAUSAL + " of this",
        kind="kernel",
    ),
    Pair(
        peer="performer-pytorch",
        what="256 features, causal",
        equal="as many features; theirs adds 1e-4 to each, and runs without its CUDA code, as it does on any CPU",
        theirs=partial(performer, causal=True),
        ours=our_heads("performer", lambda size: {"features": size.fit(256)}, causal=True),
        decodes=AGAIN,
        ours_decodes=True,
        kind="kernel",
    ),
    Pair(
        peer="linear-attention-transformer",
        what="linear attention, layer",
        equal="products of the same sizes; theirs takes a softmax of keys over the text, ours elu + 1",
        theirs=partial(linear, causal=False),
        ours=our_layer("linear", bias=False, out_bias=True),
        decodes=NO_CAUSAL + " of this",
        kind="kernel",
    ),
    Pair(
        peer="linear-attention-transformer",
        what="linear attention, causal, layer",
        equal="each token reads itself and all before (their blindspot_size of 1); feature maps as above",
        theirs=partial(linear, causal=True),
        ours=our_layer("linear", causal=True, bias=False, out_bias=True),
        decodes=AGAIN,
        ours_decodes=True,
        kind="kernel",
    ),
    Pair(
        peer="linformer",
        what="rank 256, layer",
        equal="the same weights, the same outputs; one matrix for keys and one for values",
        theirs=linformer,
        ours=our_layer(
            "linformer", lambda size: {"rank": size.fit(256), "sharing": "headwise"}, bias=False, out_bias=True
        ),
        tie=tie_linformer,
        close=1e-4,
        decodes=NO_CAUSAL,
        kind="low-rank",
    ),
    Pair(
        peer="nystrom-attention",
        what="64 landmarks, convolution of 33, layer",
        equal="the same weights; the inverse starts from a norm over all heads there, of each head here",
        theirs=nystrom,
        ours=our_layer("nystrom", lambda size: {"landmarks": size.fit(64), "kernel": 33}, bias=False, out_bias=True),
        tie=tie_nystrom,
        decodes=NO_CAUSAL,
        kind="low-rank",
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
    Pair(
        peer="memory-compressed-attention",
        what="3 positions to a slot, causal, layer",
        equal="as many slots; their convolution has a group per head, an eighth of the products, and one for both",
        theirs=compressed,
        ours=our_layer("memory_compressed", lambda size: {"stride": 3}, causal=True, bias=False, out_bias=True),
        decodes="a layer only",
        ours_decodes=True,
        kind="memory",
    ),
    Pair(
        peer="compressive-transformer-pytorch",
        what="segments and memory of 512, 128 slots, layer",
        equal="as many keys from the third segment on (before, ours reads zeros); theirs has no biases u and w",
        theirs=compressive,
        ours=our_compressive,
        decodes="reads its segment again for each token",
        ours_decodes=True,
        kind="memory",
    ),
    Pair(
        peer="x-transformers",
        what="dense, layer",
        equal="the same weights, the same outputs",
        theirs=dense,
        ours=our_layer("softmax", bias=False),
        tie=tie_dense,
        close=1e-4,
        decodes="with a cache",
        ours_decodes=True,
        kind="dense",
    ),
)
