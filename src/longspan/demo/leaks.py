"""Leaks of well-known packages as they were measured, and the same measurement of our mechanisms, made now.

A leak is the largest change of outputs that must not change: at earlier positions when later tokens change, or at real
positions when what stands in the padding changes.
"""

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import torch

from longspan.attention import find
from longspan.audit.settings import SMALL
from longspan.nn.multihead import MultiHead

WIDTH, HEADS, LENGTH, KEPT = 32, 2, 96, 64


@dataclass(frozen=True)
class Leak:
    """A package's fault, and what the same measurement gives for our mechanism."""

    package: str
    mechanism: str
    what: str
    change: float
    ours: float | None  # None: we have no such form and refuse it


def leaks() -> list[Leak]:
    """The recorded faults, worst first, each beside our mechanism."""
    rows = tomllib.loads((files(__package__) / "leaks.toml").read_text(encoding="utf-8"))["leak"]
    found = [Leak(**row, ours=measure(row["mechanism"], causal="future" in row["what"])) for row in rows]
    return sorted(found, key=lambda leak: -leak.change)


def measure(name: str, *, causal: bool, **options: Any) -> float | None:
    """The largest change of the first outputs when the last inputs change, which are the future or padding.

    The mechanism has the audit's small options, so that a text of this length fills many windows, chunks and clusters.
    """
    if causal and not find(name).supports.causal:
        return None
    torch.manual_seed(0)
    options = {**SMALL.get(name, ({},))[0], **options}
    layer = MultiHead(WIDTH, heads=HEADS, attention=name, causal=causal, max_length=LENGTH, **options).eval()
    x = torch.randn(1, LENGTH, WIDTH)
    other = torch.cat([x[:, :KEPT], 10 * torch.randn(1, LENGTH - KEPT, WIDTH)], 1)
    mask = None if causal else (torch.arange(LENGTH) < KEPT)[None]
    with torch.no_grad():
        before, after = (layer(inputs, key_mask=mask) for inputs in (x, other))
    return float((before - after)[:, :KEPT].abs().max())
