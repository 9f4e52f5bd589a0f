"""Training steps of a small GPT against a plain PyTorch loop of the same model, in one run.

    python -m benchmarks.training [--repeats 5] [--steps 20]

nanoGPT's setting for a CPU: 4 layers of 128, 4 heads, 64 characters, batches of 12, vocabulary 65, no dropout; forward,
backward, clipping and AdamW. The plain model has one projection for queries, keys and values, torch's own attention and
nothing else.
"""

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

from benchmarks.timing import compare
from longspan.models.decoder import Decoder

VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 65, 128, 4, 4, 64, 12


class PlainBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_change = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.heads, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.inner, self.outer = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        heads = self.heads(self.before_attention(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.outer(gelu(self.inner(self.before_change(x))))


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(PlainBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.blocks(self.tokens(ids) + self.places(torch.arange(ids.shape[1])))
        return self.norm(x) @ self.tokens.weight.T


def ours() -> Decoder:
    kind = {"place": "pre", "activation": "gelu", "position": "learned", "dropout": 0.0, "scale": False}
    sizes = {"vocabulary": VOCABULARY, "width": WIDTH, "layers": LAYERS, "heads": HEADS, "hidden": 4 * WIDTH}
    return Decoder.build(**sizes, **kind, max_length=LENGTH)


def stepper(model: nn.Module, steps: int) -> Callable[[], None]:
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def run() -> None:
        for _ in range(steps):
            ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))
            loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    models = {"plain": Plain(), "longspan": ours()}
    counts = {name: sum(parameter.numel() for parameter in model.parameters()) for name, model in models.items()}
    assert len(set(counts.values())) == 1, counts
    best = compare({name: partial(stepper(model, given.steps)) for name, model in models.items()}, given.repeats)
    for name, seconds in best.items():
        print(f"{name:10}{given.steps / seconds:8.1f} steps/s{best['plain'] / seconds:8.2f} times the plain loop")


if __name__ == "__main__":
    main()
