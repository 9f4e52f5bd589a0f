"""Pairs with packages of single methods: kernels, low rank, memory, and dense."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.pair import AGAIN, NO_CAUSAL, Pair, Side, Size, copy, heads, hidden, our_heads, our_layer
from longspan.nn.compression import Compression
from longspan.nn.memory_layer import LayerMemory, MemoryLayer, Reach
from longspan.nn.multihead import MultiHead
from longspan.nn.relative_multihead import RelativeAttention
from longspan.nn.residual import Residual

RATIO = 4  # memories that become one slot


def performer(size: Size, causal: bool) -> Side:
    from performer_pytorch import FastAttention

    module = FastAttention(size.head_dim, nb_features=size.fit(256), causal=causal)
    return Side(module, heads(size), module)


def linear(size: Size, causal: bool) -> Side:
    from linear_attention_transformer.linear_attention_transformer import SelfAttention

    module = SelfAttention(size.width, size.heads, causal=causal)
    return Side(module, (hidden(size),), module)


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


def compressed(size: Size) -> Side:
    from memory_compressed_attention import MemoryCompressedAttention

    module = MemoryCompressedAttention(size.width, size.heads, causal=True, compression_factor=3)
    return Side(module, (hidden(size),), module)


class Segments(nn.Module):
    """Their layer on a whole text, segment by segment, with their model's relative positions."""

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
        residual=partial(Residual, size.width, norm_position="none"),
        compression=Compression(size.width, RATIO),
        loss="attention",
    )
    furthest = slots + 2 * segment
    reach = Reach(segment=segment, memory=segment, slots=slots, furthest=furthest - 1)
    held = LayerMemory(torch.zeros(1, segment, size.width), torch.zeros(1, slots, size.width))
    return Side(lambda x: layer(x, held, reach, attention.distances(furthest))[0], (hidden(size),), layer)


def dense(size: Size) -> Side:
    from x_transformers.x_transformers import Attention

    module = Attention(dim=size.width, heads=size.heads, dim_head=size.head_dim, flash=True)
    return Side(module, (hidden(size),), module)


def tie_dense(theirs: Any, ours: MultiHead) -> None:
    copy(ours, q=theirs.to_q, k=theirs.to_k, v=theirs.to_v, out=theirs.to_out)


PACKAGES = (
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
