"""A little language model learns to copy while one watches, with three kinds of attention.

A text is 20 random symbols, a separator, and the same symbols again; only the second half is predicted. The answer
always stands 21 tokens back. Two layers of a window of 8 reach 16 tokens back, so they cannot know it. Linear attention
must hold all symbols in a state of fixed size, and learns slowly.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.models.decoder import Decoder
from longspan.nn.recorder import recording

SYMBOLS, HALF, BATCH, STEPS, RATE = 32, 20, 64, 140, 3e-3
ATTENTION: Mapping[str, Any] = {"softmax": "softmax", "window": {"name": "window", "window": 8}, "linear": "linear"}
SIZES = {"width": 64, "layers": 2, "heads": 4, "hidden": 128, "dropout": 0.0, "max_length": 2 * HALF + 1}
EVERY = 5
Tell = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Learned:
    """How one model learned, and where its heads read in the end."""

    name: str
    steps: Sequence[int]
    accuracy: Sequence[float]  # share of copied symbols predicted right, of the batch before each update
    maps: Tensor  # (layers, heads, queries, keys), of one text


def learn(tell: Tell, names: Sequence[str] = tuple(ATTENTION), steps: int = STEPS) -> list[Learned]:
    """Train one model for each kind of attention, on the same texts."""
    results = []
    for number, name in enumerate(names):

        def told(step: int, accuracy: float, number: int = number, name: str = name) -> None:
            tell(number * steps + step, len(names) * steps, f"{name}: {accuracy:.0%} copied")

        results.append(_learn(name, steps, told))
    return results


def _learn(name: str, steps: int, told: Callable[[int, float], None]) -> Learned:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)
    options = {**SIZES, "vocabulary": SYMBOLS + 1, "position": "rotary", "norm_position": "pre"}
    model = Decoder.build(**options, attention=ATTENTION[name])
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0)
    at: list[int] = []
    accuracy: list[float] = []
    for step in range(steps):
        ids = texts(BATCH, draw)
        logits, targets = model(ids[:, :-1])[:, HALF:], ids[:, HALF + 1 :]
        loss = cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % EVERY == 0 or step == steps - 1:
            at.append(step)
            accuracy.append(float((logits.argmax(-1) == targets).float().mean()))
            told(step, accuracy[-1])
    return Learned(name, at, accuracy, _maps(model.eval(), texts(1, draw)))


def texts(count: int, draw: torch.Generator) -> Tensor:
    """Texts of random symbols, a separator, and the same symbols again."""
    symbols = torch.randint(SYMBOLS, (count, HALF), generator=draw)
    return torch.cat([symbols, torch.full((count, 1), SYMBOLS), symbols], 1)


def _maps(model: Decoder, ids: Tensor) -> Tensor:
    with torch.no_grad(), recording(model.stack) as seen:
        model(ids)
    return torch.cat(seen.maps)
