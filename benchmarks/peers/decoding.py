"""Tokens per second of greedy generation: the same sizes and number of tokens, in wall-clock time on a quiet machine.

A decoder of GPT-2's kind, 6 layers of 512, random weights, 128 new tokens after a prompt of 128. More cells, with beams
and other models, are in `benchmarks.generate`.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from benchmarks.generate import NEW, PROMPT, VOCABULARY, models, ours, theirs
from longspan.measure.timing import compare, wall

LAYERS, WIDTH, HEADS, PLACES = 6, 512, 8, 1024
BATCHES = (1, 8)


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, *new = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(self.first(x)).chunk(3, -1))
        k, v = torch.cat([k, new[0]], 2), torch.cat([v, new[1]], 2)
        read = scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        return x + self.outer(gelu(self.inner(self.second(x)), approximate="tanh")), k, v


class Plain(nn.Module):
    """A plain implementation: the same model over torch's attention, with a cache that grows by torch.cat."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(PLACES, WIDTH)
        self.blocks, self.norm = nn.ModuleList(PlainBlock() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)

    @torch.inference_mode()
    def generate(self, ids: Tensor, new: int) -> Tensor:
        empty = torch.zeros(len(ids), HEADS, 0, WIDTH // HEADS)
        caches, given, out, place = [(empty, empty)] * LAYERS, ids, [], 0
        for _ in range(new):
            x = self.tokens(given) + self.places(torch.arange(place, place + given.shape[1]))
            place += given.shape[1]
            for index, block in enumerate(self.blocks):
                x, *grown = block(x, *caches[index])
                caches[index] = (grown[0], grown[1])
            given = (self.norm(x[:, -1:]) @ self.tokens.weight.T).argmax(-1)
            out.append(given)
        return torch.cat(out, 1)


def x_transformers() -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    layers = Decoder(dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=WIDTH // HEADS, attn_flash=True)
    return AutoregressiveWrapper(
        TransformerWrapper(num_tokens=VOCABULARY, max_seq_len=PLACES, attn_layers=layers, tie_embedding=True)
    )


def measure(repeats: int) -> dict[str, Any]:
    """Tokens per second of each, by batch."""
    logging.disable(logging.WARNING)
    torch.manual_seed(0)
    own, gpt2 = models("gpt2", LAYERS, WIDTH)
    plain, other, new = Plain(), x_transformers(), NEW["gpt2"]
    for model in (own, gpt2, plain, other):
        model.eval()
    rates: dict[str, dict[str, float]] = {}
    for batch in BATCHES:
        ids = torch.randint(3, VOCABULARY, (batch, PROMPT))
        cases: dict[str, Callable[[], object]] = {
            "transformers, GPT-2's generate": partial(theirs, gpt2, ids, new, 1),
            "x-transformers, generate with its cache": partial(other.generate, ids, new, temperature=0.0),
            "a plain loop over torch's attention": partial(plain.generate, ids, new),
            "longspan": partial(ours, own, ids, new, 1),
        }
        rates[str(batch)] = {name: batch * new / least for name, least in compare(cases, repeats, wall).items()}
    return {"rates": rates, "prompt": PROMPT, "new": new, "layers": LAYERS, "width": WIDTH}
