"""Rank collapse (Dong et al. 2021): do the states of different tokens become one vector with depth?"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from longspan.errors import Unsupported
from longspan.inspect.head_masks import AttentionGroup
from longspan.inspect.measures.findings import Finding, Grid, Line, LineChart
from longspan.inspect.measures.subject import Passages, Subject
from longspan.models.base import Model
from longspan.nn.block import Block
from longspan.nn.inputs import BlockInputs
from longspan.nn.residual import Residual
from longspan.nn.stack import Stack

# Name, skip connections, feed-forward layers.
VARIANTS = (
    ("full", True, True),
    ("without feed-forward", True, False),
    ("without skips", False, True),
    ("attention alone", False, False),
)


def composite_norm(x: Tensor) -> float:
    """√(‖X‖₁·‖X‖∞): the largest column sum and the largest row sum of magnitudes (section 2)."""
    size = x.abs()
    return float((size.sum(0).max() * size.sum(1).max()).sqrt())


def residual_ratio(x: Tensor) -> float:
    """‖X − 1xᵀ‖ / ‖X‖ with x the mean row: 0 if all tokens are one vector."""
    return composite_norm(x - x.mean(0)) / max(composite_norm(x), 1e-300)


def mean_cosine(x: Tensor) -> float:
    """The mean cosine of two different tokens."""
    unit = normalize(x.double(), dim=-1)
    count = len(x)
    return float((unit.sum(0).square().sum() - count) / (count * (count - 1)))


def effective_rank(x: Tensor) -> float:
    """exp of the entropy of the normalised singular values (Roy & Vetterli 2007)."""
    values = torch.linalg.svdvals(x.double())
    share = values / values.sum().clamp_min(1e-300)
    return float((-torch.xlogy(share, share).sum()).exp())


@dataclass(frozen=True)
class Captured:
    x: Tensor
    inputs: BlockInputs


def capture(subject: Subject, group: AttentionGroup, passages: Passages, model: Model | None = None) -> Captured:
    """What a stack is given in a pass."""
    taken: list[Captured] = []

    def hook(_: Any, args: tuple[Any, ...]) -> None:
        taken.append(Captured(args[0], args[1] if len(args) > 1 else BlockInputs()))

    handle = group.body.register_forward_pre_hook(hook)
    try:
        with torch.no_grad():
            subject.run(passages, model)
    finally:
        handle.remove()
    return taken[0]


@torch.no_grad()
def states(stack: Stack, given: Captured, skips: bool = True, feedforward: bool = True) -> list[Tensor]:
    """The input and the output of each layer, with the forward pass edited: no skips, or no feed-forward layers."""
    x = given.x
    found = [x]
    for block in stack.layers():
        x = _block(block, x, given.inputs, skips, feedforward)
        found.append(x)
    found[-1] = stack.norm(x)
    return found


def _block(block: Block, x: Tensor, inputs: BlockInputs, skips: bool, feedforward: bool) -> Tensor:
    mixer, cross, change = block.mixer, block.cross, block.feedforward
    x = _around(
        block.around_mixer,
        x,
        lambda y: mixer(y, key_mask=inputs.key_mask, streams=inputs.streams, positions=inputs.positions),
        skips,
    )
    if cross is not None and block.around_cross is not None:
        x = _around(block.around_cross, x, lambda y: cross(y, inputs.context, key_mask=inputs.context_mask), skips)
    if feedforward and change is not None and block.around_feedforward is not None:
        x = _around(block.around_feedforward, x, change, skips)
    return x


def _around(residual: Residual, x: Tensor, function: Callable[[Tensor], Tensor], skips: bool) -> Tensor:
    """The residual connection, or the same norms without the sum."""
    if skips:
        out: Tensor = residual(x, function)
    elif residual.norm_position == "pre":
        out = function(residual.norm(x))
    else:
        out = residual.norm(function(x))
    return out


@torch.no_grad()
def random_attention(
    layers: int,
    *,
    n: int = 32,
    width: int = 64,
    heads: int = 4,
    skips: bool = False,
    feedforward: bool = False,
    seed: int = 0,
) -> list[float]:
    """The ratio after each layer of attention with weights N(0, 1/width), without norms, in float64."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, std: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * std

    x, std = draw(n, width), width**-0.5
    ratios = [residual_ratio(x)]
    for _ in range(layers):
        q, k, v = ((x @ draw(width, width, std=std)).view(n, heads, -1).transpose(0, 1) for _ in range(3))
        weights = (q @ k.transpose(1, 2) * (width // heads) ** -0.5).softmax(-1)
        out = (weights @ v).transpose(0, 1).flatten(1) @ draw(width, width, std=std)
        x = x + out if skips else out
        if feedforward:
            inner = (x @ draw(width, 4 * width, std=std)).relu() @ draw(4 * width, width, std=(4 * width) ** -0.5)
            x = x + inner if skips else inner
        ratios.append(residual_ratio(x))
    return ratios


def measure_collapse(subject: Subject) -> Finding:
    """The ratio by layer for the model, its variants, and random weights of the same width."""
    group = subject.groups[0]
    if not isinstance(group.body, Stack):
        raise Unsupported(f"{type(group.body).__name__} has no plain residual blocks, whose skips could be left out")
    given = capture(subject, group, subject.long)
    found = {name: [x[0].float() for x in states(group.body, given, skips, ff)] for name, skips, ff in VARIANTS}
    layers = len(found["full"]) - 1
    depth = min(layers, 6)
    width, heads = group.layers[0].width, group.heads
    heads = heads if width % heads == 0 else 1
    alone_random, skipping = (
        random_attention(depth, width=width, heads=heads, skips=skips, seed=subject.seed) for skips in (False, True)
    )
    random = {"random, attention alone": alone_random, "random, with skips": skipping}
    third = min(3, depth)
    ratios = {name: [residual_ratio(x) for x in xs] for name, xs in found.items()}
    cosines = [mean_cosine(x) for x in found["full"]]
    ranks = [effective_rank(x) for x in found["full"]]
    lines = [Line(name, _shown(ratio)) for name, ratio in ratios.items()]
    lines += [Line(name, _shown(ratio), control=True) for name, ratio in random.items()]
    last, alone = ratios["full"][-1], ratios["attention alone"][-1]
    rows = [
        [layer, ratios["full"][layer], cosines[layer], ranks[layer], *(ratios[n][layer] for n, *_ in VARIANTS[1:])]
        for layer in range(layers + 1)
    ]
    head = ("after layer", "ratio", "mean cosine", "effective rank", *(name for name, *_ in VARIANTS[1:]))
    verdict = "does not collapse" if last > 0.1 else "collapses"
    return Finding(
        "collapse",
        "Rank collapse with depth",
        f"The model {verdict}: after {layers} layers tokens still differ by {last:.3g} of their size, and attention "
        f"without skips and feed-forward layers would leave {alone:.2g}.",
        f"Random weights of the same width on random input: attention alone falls to {alone_random[third]:.1g} at "
        f"layer {third}, with skips {skipping[-1]:.2g} remains at layer {depth}. "
        "Layer 0 is the input, the last is normed; below 1e-6 float32 rounds.",
        [
            LineChart(
                f"{group.name}: ‖X − mean‖ / ‖X‖ after each layer",
                "layer",
                "ratio",
                lines,
                log_up=True,
            ),
            Grid(f"{group.name}: {given.x.shape[1]} tokens", head, rows),
        ],
        {
            "group": group.name,
            "tokens": given.x.shape[1],
            "ratio": ratios,
            "random": random,
            "mean_cosine": cosines,
            "effective_rank": ranks,
        },
    )


def _shown(ratios: list[float]) -> list[tuple[float, float]]:
    """Points for a logarithmic axis, down to where float64 ends."""
    return [(layer, max(ratio, 1e-16)) for layer, ratio in enumerate(ratios)]


__all__ = ["effective_rank", "mean_cosine", "measure_collapse", "random_attention", "residual_ratio", "states"]
