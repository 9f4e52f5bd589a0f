"""How far information travels (Vaswani et al. 2017, table 1), measured by gradients instead of counted on paper."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.registry import ATTENTION
from longspan.audit.settings import small
from longspan.errors import LongspanError
from longspan.inspect.measures.findings import Finding, Grid, Line, LineChart
from longspan.inspect.measures.subject import Subject, captured_embeddings
from longspan.models.base import EncoderDecoder
from longspan.nn.block import Block
from longspan.nn.feedforward import FeedForward
from longspan.nn.multihead import MultiHead
from longspan.nn.norm import build_norm
from longspan.nn.recorder import recording
from longspan.nn.residual import Residual
from longspan.nn.stack import Stack

WIDTH, HEADS, LENGTH = 16, 2, 64
DEPTHS = (1, 2, 3)
DEEPEST = 16


def reach(run: Callable[[Tensor], Tensor], length: int, width: int, seed: int = 0) -> int:
    """How far before the last position a change of the input is still seen there: by the first non-zero gradient."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(1, length, width, generator=generator, dtype=torch.float64).requires_grad_()
    with torch.enable_grad():
        out = run(x)[0, -1]
        direction = torch.randn(out.shape, generator=generator, dtype=torch.float64)
        (gradient,) = torch.autograd.grad((out * direction).sum(), x)
    return farthest(gradient[0].norm(dim=-1))


def farthest(gradients: Tensor) -> int:
    """The distance from the last position of the first gradient that is not 0."""
    seen = gradients > 0
    return len(gradients) - 1 - int(seen.int().argmax())


def attention_stack(name: str, layers: int, *, length: int = LENGTH, seed: int = 0, **options: Any) -> Stack:
    """Random layers of a mechanism, causal if it has a causal form, in float64."""
    causal = ATTENTION.find(name).supports.causal
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        blocks = [
            Block(
                MultiHead(WIDTH, name, heads=HEADS, causal=causal, max_length=length, **options),
                FeedForward(WIDTH, 2 * WIDTH, "gelu"),
                residual=lambda: Residual(WIDTH),
            )
            for _ in range(layers)
        ]
    return Stack(blocks, build_norm("layer", WIDTH, 1e-5)).double().eval()


def mechanism_reach(name: str, layers: int, *, length: int = LENGTH, **options: Any) -> int:
    """The reach of so many random layers of a mechanism."""
    return reach(attention_stack(name, layers, length=length, **options), length, WIDTH)


def recurrent_reach(layers: int, length: int = LENGTH) -> int:
    """The same of an LSTM."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        lstm = nn.LSTM(WIDTH, WIDTH, layers, batch_first=True).double()

    def run(x: Tensor) -> Tensor:
        out: Tensor = lstm(x)[0]
        return out

    return reach(run, length, WIDTH)


def mechanism_table(tell: Callable[[str], None] = lambda _: None) -> list[dict[str, Any]]:
    """For each registered mechanism at small options: the reach by depth, and the layers that cross the text."""
    rows: list[dict[str, Any]] = []
    for name in ATTENTION.names():
        options = small(name)[0]
        tell(f"path lengths of {name}")
        row: dict[str, Any] = {"mechanism": name, "options": options, "steps": 1}
        try:
            row["reach"] = [mechanism_reach(name, depth, **options) for depth in DEPTHS]
            row["layers"] = _layers_to_cross(name, options, row["reach"])
        except LongspanError as error:
            row["skipped"] = str(error)
        rows.append(row)
    far = [recurrent_reach(depth) for depth in DEPTHS]
    rows.append({"mechanism": "lstm", "options": {}, "steps": LENGTH, "reach": far, "layers": 1})
    return rows


def _layers_to_cross(name: str, options: dict[str, Any], reached: list[int]) -> int | None:
    for depth in range(1, DEEPEST + 1):
        far = reached[depth - 1] if depth <= len(reached) else mechanism_reach(name, depth, **options)
        if far == LENGTH - 1:
            return depth
    return None


def layer_gradients(subject: Subject) -> list[Tensor]:
    """The gradient of the last token's state after each layer with respect to each input, as norms: (tokens,) each."""
    group, passage = subject.groups[0], subject.passages.row(0)
    generator = torch.Generator().manual_seed(subject.seed)
    found = []
    with torch.enable_grad(), captured_embeddings(subject.model) as taken, recording(group.body, maps=False) as seen:
        subject.run(passage)
        for state in seen.states[1:]:
            direction = torch.randn(state.shape[-1], generator=generator).to(state)
            (gradient,) = torch.autograd.grad((state[0, -1] * direction).sum(), taken[0], retain_graph=True)
            found.append(gradient[0].norm(dim=-1).double().cpu())
    return found


def measure_paths(subject: Subject, tell: Callable[[str], None] = lambda _: None) -> Finding:
    """The reach of the model by layer, and of every mechanism by depth."""
    table = mechanism_table(tell)
    values: dict[str, Any] = {"length": LENGTH, "mechanisms": table}
    rows = [
        [
            row["mechanism"],
            ", ".join(f"{key} {value}" for key, value in row["options"].items()),
            *(row["reach"] if "reach" in row else ["–"] * len(DEPTHS)),
            (f"more than {DEEPEST}" if row["layers"] is None else row["layers"]) if "layers" in row else row["skipped"],
            row["steps"],
        ]
        for row in table
    ]
    head = ("mechanism", "options", *(f"{depth} layer{'s' * (depth > 1)}" for depth in DEPTHS))
    grid = Grid(
        f"Positions back that random layers read, text of {LENGTH}",
        (*head, "layers to cross it", "steps in turn"),
        rows,
    )
    figures: list[Any] = [grid]
    sentence = "Self-attention sees every earlier token after one layer"
    if isinstance(subject.model, EncoderDecoder):
        values["model"] = {"skipped": "the source reaches the target through cross-attention in one layer"}
    else:
        gradients = layer_gradients(subject)
        far = [farthest(gradient) for gradient in gradients]
        last = len(gradients[0]) - 1
        values["model"] = {"reach": far, "gradients": [gradient.tolist() for gradient in gradients]}
        drawn = sorted({0, len(gradients) // 2, len(gradients) - 1})
        figures.insert(
            0,
            LineChart(
                "This model: gradient of the last token's state at each distance, by layer",
                "positions back",
                "gradient, share of the sum",
                [
                    Line(
                        f"after layer {layer}",
                        [
                            (distance, max(float(gradients[layer][last - distance] / gradients[layer].sum()), 1e-12))
                            for distance in range(last + 1)
                        ],
                    )
                    for layer in drawn
                ],
                log_up=True,
            ),
        )
        crossed = next((layer + 1 for layer, distance in enumerate(far) if distance == last), None)
        sentence = f"In this model a change of the first of {last + 1} tokens reaches the last one " + (
            f"in {crossed} layer{'s' * (crossed > 1)}" if crossed else f"in none of {len(far)} layers"
        )
    return Finding(
        "paths",
        "Path lengths",
        f"{sentence}; a window of w over L layers reaches L·w tokens back and no farther.",
        "An LSTM, which crosses the text in one layer but needs as many steps in turn as there are tokens. Weights are "
        "random: the reach is the mechanism's, not the training's.",
        figures,
        values,
    )


__all__ = [
    "attention_stack",
    "farthest",
    "measure_paths",
    "mechanism_reach",
    "mechanism_table",
    "reach",
    "recurrent_reach",
]
