"""Pairs with the efficient models of Hugging Face: their attention layers, each with a projection out."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.peers.pair import NO_CAUSAL, Pair, Side, Size, copy, hidden, our_layer
from longspan.attention import build
from longspan.nn.multihead import MultiHead

PEER = "transformers"
GLOBALS = 16
KEY_EPS, NORM_EPS = 1e-6, 1e-12  # of their Reformer


def marked(size: Size) -> Tensor:
    """Which tokens are global."""
    return (torch.arange(size.length) % (size.length // GLOBALS) == 0)[None]


class Out(nn.Module):
    """Their attention with its output projection, which their models have elsewhere."""

    def __init__(self, width: int, attention: nn.Module, given: Mapping[str, Any]) -> None:
        super().__init__()
        self.attention, self.given, self.out = attention, given, nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.attention(x, **self.given)[0])


def longformer(size: Size) -> Side:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    sizes = {"hidden_size": size.width, "num_attention_heads": size.heads, "attention_probs_dropout_prob": 0.0}
    config = LongformerConfig(attention_window=[2 * size.fit(128)], **sizes)
    mark = marked(size)
    given = {
        "attention_mask": mark * 10000.0,
        "is_index_masked": torch.zeros_like(mark),
        "is_index_global_attn": mark,
        "is_global_attn": True,
    }
    module = Out(size.width, LongformerSelfAttention(config, 0), given)
    return Side(module, (hidden(size),), module)


def tie_longformer(theirs: Any, ours: MultiHead) -> None:
    from_, to = theirs.attention, {"q": "query", "k": "key", "v": "value"}
    copy(ours, out=theirs.out, **{name: getattr(from_, there) for name, there in to.items()})
    copy(ours, **{f"global_{name}": getattr(from_, f"{there}_global") for name, there in to.items()})


def big_bird(size: Size) -> Side:
    from transformers import BigBirdConfig, BigBirdModel
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention

    block, sizes = _block(size), {"hidden_size": size.width, "num_attention_heads": size.heads}
    config = BigBirdConfig(block_size=block, num_random_blocks=3, max_position_embeddings=size.length, **sizes)
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.ones(1, size.length), block
    )
    given = {
        "band_mask": band,
        "from_mask": from_mask,
        "to_mask": to_mask,
        "from_blocked_mask": blocked,
        "to_blocked_mask": blocked,
    }
    module = Out(size.width, BigBirdBlockSparseAttention(config, seed=0), given)
    return Side(module, (hidden(size),), module)


def _block(size: Size) -> int:
    return min(64, size.length // 16)


def _hashing(size: Size) -> dict[str, Any]:
    chunk = size.fit(64)
    return {"rounds": 4, "chunk": chunk, "buckets": size.length // chunk, "seed": 0}


def reformer(size: Size) -> Side:
    from transformers import ReformerConfig
    from transformers.models.reformer.modeling_reformer import ReformerAttention

    given = _hashing(size)
    config = ReformerConfig(
        hidden_size=size.width,
        num_attention_heads=size.heads,
        attention_head_size=size.head_dim,
        attn_layers=["lsh"],
        num_hashes=given["rounds"],
        lsh_attn_chunk_length=given["chunk"],
        num_buckets=given["buckets"],
        hash_seed=given["seed"],
        lsh_attention_probs_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        is_decoder=False,
        max_position_embeddings=size.length,
    )
    module = ReformerAttention(config)
    return Side(lambda x: module(x).hidden_states, (hidden(size),), module)


class Normed(nn.Sequential):
    """A norm and attention, as in their model."""

    def __init__(self, size: Size) -> None:
        sizes = {"heads": size.heads, "head_dim": size.head_dim, "max_length": size.length}
        mechanism = build("reformer", **sizes, form="released", eps=KEY_EPS, **_hashing(size))
        super().__init__(nn.LayerNorm(size.width, eps=NORM_EPS), MultiHead(size.width, mechanism, bias=False))


def our_reformer(size: Size) -> Side:
    torch.manual_seed(0)
    module = Normed(size)
    return Side(module, (hidden(size),), module)


def tie_reformer(theirs: Any, ours: Any) -> None:
    inside = theirs.self_attention
    copy(ours[1], q=inside.query_key, v=inside.value, out=theirs.output.dense)


HUB = (
    Pair(
        peer=PEER,
        what="Longformer, window of ±128, 16 global tokens, layer",
        equal="the same weights, the same outputs",
        theirs=longformer,
        ours=our_layer(
            "longformer", lambda size: {"window": size.fit(128)}, streams=lambda size: {"global_mask": marked(size)}
        ),
        tie=tie_longformer,
        close=1e-4,
        decodes=NO_CAUSAL,
        ours_decodes=True,
        kind="fixed-pattern",
    ),
    Pair(
        peer=PEER,
        what="BigBird, blocks of 64, 3 random, layer",
        equal="as many blocks: 3 around, 2 global, 3 random (theirs draws them in training, and none otherwise)",
        theirs=big_bird,
        ours=our_layer("bigbird", lambda size: {"block": _block(size), "random": 3}),
        decodes="its causal form sees the future",
        kind="fixed-pattern",
    ),
    Pair(
        peer=PEER,
        what="Reformer, 4 rounds of chunks of 64, layer with its norm",
        equal="the same weights and rotations, the same outputs, but for keys that hash alike",
        theirs=reformer,
        ours=our_reformer,
        tie=tie_reformer,
        close=1e-3,
        decodes="with a cache of buckets, which gives other numbers than the whole text does",
        ours_decodes=True,
        kind="learned-pattern",
    ),
)
