"""Training steps per second of the recipe shakespeare-char, against nanoGPT's loop and model.

    python -m benchmarks.nanogpt [--data DATA] [--rounds 6] [--steps 50]

nanoGPT is not a package, so this file reimplements its CPU configuration from its README and source: fused attention,
one linear layer for queries, keys and values, tied embeddings, no biases, two AdamW groups, random blocks from a memory
map, the loss read at every step (log_interval 1). Both loops alternate in one process.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.data.sets import named as named_sets
from longspan.train import recipe
from longspan.train.malloc import keep_memory

LAYERS, HEADS, WIDTH, BLOCK, BATCH, VOCABULARY = 4, 4, 128, 64, 12, 65


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.into(x).split(WIDTH, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).contiguous().view(batch, length, WIDTH))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(WIDTH, bias=False), nn.LayerNorm(WIDTH, bias=False)
        self.attention = Attention()
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.tokens.weight = self.out.weight
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.out(self.norm(x)).view(-1, VOCABULARY), targets.view(-1))


def theirs(data: Path, work: Path) -> Iterator[float]:
    """One update after the other, with its loss."""
    text = named_sets.files("tinyshakespeare", data)["train"].read_text(encoding="utf-8")
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = np.array([numbers[character] for character in text], dtype=np.uint16)
    ids[: int(len(ids) * 0.9)].tofile(work / "train.bin")
    model = Model().train()
    groups = [
        {"params": [each for each in model.parameters() if each.ndim >= 2], "weight_decay": 0.1},
        {"params": [each for each in model.parameters() if each.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
    while True:
        held = np.memmap(work / "train.bin", dtype=np.uint16, mode="r")
        starts = torch.randint(len(held) - BLOCK, (BATCH,)).tolist()
        x = torch.stack([torch.from_numpy(held[start : start + BLOCK].astype(np.int64)) for start in starts])
        y = torch.stack([torch.from_numpy(held[start + 1 : start + 1 + BLOCK].astype(np.int64)) for start in starts])
        loss = model(x, y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        yield loss.item()


def ours(data: Path, work: Path) -> Iterator[float]:
    """The same with the recipe's own loop."""
    read = recipe.read(Path(__file__).parents[1] / "recipes" / "shakespeare-char.toml", {"train.steps": 10**6})
    trainer = recipe.begin(read, work / "run", data=data)
    for row in trainer.updates():
        yield row["loss"]


def take(updates: Iterator[float], steps: int) -> Callable[[], float]:
    def run() -> float:
        began = time.perf_counter()
        for _ in range(steps):
            next(updates)
        return steps / (time.perf_counter() - began)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("LONGSPAN_DATA"))
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--give-back", action="store_true", help="leave the C library's memory settings as they are")
    given = parser.parse_args()
    if given.data is None:
        raise SystemExit("--data, or LONGSPAN_DATA, must name the folder of data sets")
    if not given.give_back:
        keep_memory()  # for both
    with tempfile.TemporaryDirectory() as work:
        torch.manual_seed(0)
        both = {"nanoGPT": theirs, "longspan": ours}
        cases = {name: take(make(given.data, Path(work)), given.steps) for name, make in both.items()}
        found: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(given.rounds + 1):
            for name, case in cases.items():
                rate = case()
                if turn:  # the first turn warms up
                    found[name].append(rate)
    for name, rates in found.items():
        print(f"{name:9} {max(rates):6.1f} steps/s at best, {sorted(rates)[len(rates) // 2]:6.1f} in the middle")
    print(f"longspan / nanoGPT: {max(found['longspan']) / max(found['nanoGPT']):.2f} at best", end=", ")
    print(f"{sorted(a / b for a, b in zip(found['longspan'], found['nanoGPT']))[given.rounds // 2]:.2f} in the middle")


if __name__ == "__main__":
    main()
