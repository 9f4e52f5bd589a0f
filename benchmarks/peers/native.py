"""Pairs with layers of torch."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.peers.pair import Pair, Side, Size, copy, heads, hidden, our_heads
from longspan.attention import build
from longspan.nn.block import Block
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.residual import Residual
from longspan.nn.stack import Stack

PEER = "torch"
LAYERS = 2
LOOP = "by a loop of one's own, measured below"


def fused(size: Size, causal: bool) -> Side:
    return Side(partial(scaled_dot_product_attention, is_causal=causal), heads(size))


def encoder(size: Size) -> Side:
    layer = nn.TransformerEncoderLayer(size.width, size.heads, 4 * size.width, dropout=0.0, batch_first=True)
    module = nn.TransformerEncoder(layer, LAYERS)
    return Side(module, (hidden(size),), module)


def our_encoder(size: Size) -> Side:
    torch.manual_seed(0)

    def block() -> Block:
        mixer = MultiHead(size.width, build("softmax", heads=size.heads, head_dim=size.head_dim))
        change = FeedForward(size.width, 4 * size.width)
        return Block(mixer, change, residual=partial(Residual, size.width, norm_position="post"))

    module = Stack([block() for _ in range(LAYERS)], nn.Identity())
    return Side(module, (hidden(size),), module)


@torch.no_grad()
def tie_encoder(theirs: Any, ours: Stack) -> None:
    for there, block in zip(theirs.layers, ours.layers()):
        q, k, v = there.self_attn.in_proj_weight.chunk(3)
        copy(block.mixer, q=q, k=k, v=v, out=there.self_attn.out_proj)  # biases in are 0 on both sides
        change: Any = block.feedforward
        change.inner.load_state_dict(there.linear1.state_dict())
        change.outer.load_state_dict(there.linear2.state_dict())


def flex(size: Size) -> Side:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    window, length = size.fit(256), size.length

    def near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query - key <= window)

    mask = create_block_mask(near, None, None, length, length, device="cpu")
    compiled = torch.compile(flex_attention)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = compiled(q, k, v, block_mask=mask)
        assert isinstance(out, Tensor)
        return out

    return Side(run, heads(size))


NATIVE = (
    Pair(
        peer=PEER,
        what="scaled_dot_product_attention",
        equal="the same outputs; ours calls it",
        theirs=partial(fused, causal=False),
        ours=our_heads("softmax"),
        tie=lambda theirs, ours: None,
        close=1e-5,
        decodes=LOOP,
        ours_decodes=True,
        kind="dense",
    ),
    Pair(
        peer=PEER,
        what="scaled_dot_product_attention, causal",
        equal="the same outputs; ours calls it",
        theirs=partial(fused, causal=True),
        ours=our_heads("softmax", causal=True),
        tie=lambda theirs, ours: None,
        close=1e-5,
        decodes=LOOP,
        ours_decodes=True,
        kind="dense",
    ),
    Pair(
        peer=PEER,
        what=f"nn.TransformerEncoder, {LAYERS} layers, inner width 2048",
        equal="the same weights, the same outputs",
        theirs=encoder,
        ours=our_encoder,
        tie=tie_encoder,
        close=1e-4,
        decodes=LOOP,
        ours_decodes=True,
        kind="dense",
    ),
    Pair(
        peer=PEER,
        what="FlexAttention, compiled, causal window of 256",
        equal="the same keys, the same outputs",
        theirs=flex,
        ours=our_heads("window", lambda size: {"window": size.fit(256)}, causal=True),
        tie=lambda theirs, ours: None,
        close=1e-5,
        decodes=LOOP,
        ours_decodes=True,
        kind="fixed-pattern",
    ),
)
