"""The error of another mechanism in place of the model's own, by layer and length.

Teacher-forced: each layer reads the original model's states, so its error is its own. Free-running: layers read what
the changed model made, so errors add up.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.config import AttentionConfig
from longspan.errors import LongspanError, Unsupported
from longspan.hub.changed_options import rebuild
from longspan.inspect.head_masks import attention_groups
from longspan.inspect.measures.findings import Finding, Grid, Line, LineChart
from longspan.inspect.measures.subject import Passages, Subject
from longspan.models.base import Model
from longspan.nn.recorder import recorded_states

DEFAULT = (AttentionConfig("window", window=16), AttentionConfig("linear"))
SHORTEST = 32


def relative(changed: Tensor, exact: Tensor) -> float:
    return float((changed - exact).norm() / exact.norm().clamp_min(1e-30))


def swapped(subject: Subject, attention: AttentionConfig) -> Model:
    """The model with another attention in every layer and the same weights."""
    model = subject.model
    changed, _ = rebuild(model, {"attention": [attention.plain()]}, f"{model.name} with {attention.name}")
    return changed.to(model.device).eval()


@torch.no_grad()
def drift(subject: Subject, other: Model, passages: Passages) -> dict[str, list[float]]:
    """Relative errors of each layer: teacher-forced, free-running, and of nonsense (outputs of other tokens)."""
    exact, changed = attention_groups(subject.model)[0], attention_groups(other)[0]
    forced: list[float] = []
    nonsense: list[float] = []
    count = passages.length
    order = torch.randperm(count, generator=torch.Generator().manual_seed(subject.seed))
    partners = dict(zip(exact.layers, changed.layers))

    def hook(mixer: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Tensor) -> None:
        forced.append(relative(partners[mixer](*args, **given), out))  # type: ignore[index]
        nonsense.append(relative(out[:, order.to(out.device)], out))

    handles = [mixer.register_forward_hook(hook, with_kwargs=True) for mixer in partners]
    try:
        states = recorded_states(exact.body, lambda: subject.run(passages))
    finally:
        for handle in handles:
            handle.remove()
    free = recorded_states(changed.body, lambda: subject.run(passages, other))
    return {
        "teacher_forced": forced,
        "free_running": [relative(a, b) for a, b in zip(free[1:], states[1:])],
        "nonsense": nonsense,
    }


def lengths(longest: int) -> list[int]:
    """Powers of two up to the longest, which is the last."""
    powers = [1 << power for power in range(SHORTEST.bit_length() - 1, longest.bit_length()) if 1 << power < longest]
    return [*powers, longest]


def measure_drift(
    subject: Subject, attentions: Sequence[AttentionConfig] = DEFAULT, tell: Callable[[str], None] = lambda _: None
) -> Finding:
    """Errors of each mechanism by layer, on the long passage and on its beginnings."""
    if not hasattr(subject.model.options, "attention"):
        raise Unsupported(f"{subject.model.name!r} has no single attention that another could replace")
    figures: list[Any] = []
    values: dict[str, Any] = {}
    by_length: list[Line] = []
    rows: list[list[object]] = []
    worst: tuple[float, str] | None = None
    for attention in attentions:
        name = attention.name + "".join(f" {key}={value}" for key, value in attention.options.items())
        tell(f"{name} in place of the model's attention")
        try:
            other = swapped(subject, attention)
            found = {n: drift(subject, other, subject.long.first(n)) for n in lengths(subject.long.length)}
        except LongspanError as error:
            if len(attentions) == 1:
                raise
            values[name] = {"skipped": str(error)}
            rows.append([name, "–", "–", "–", "–", str(error)])
            continue
        longest = found[subject.long.length]
        layers = range(len(longest["teacher_forced"]))
        values[name] = {str(n): errors for n, errors in found.items()}
        figures.append(
            LineChart(
                f"{name}: relative error by layer, {subject.long.length} tokens",
                "layer",
                "relative error",
                [
                    Line("teacher-forced (attention)", [(i, longest["teacher_forced"][i]) for i in layers]),
                    Line("free-running (states)", [(i, longest["free_running"][i]) for i in layers]),
                    Line("nonsense", [(i, longest["nonsense"][i]) for i in layers], control=True),
                ],
            )
        )
        by_length.append(Line(name, [(n, errors["free_running"][-1]) for n, errors in found.items()]))
        forced = sum(longest["teacher_forced"]) / len(layers)
        end, control = longest["free_running"][-1], sum(longest["nonsense"]) / len(layers)
        rows.append([name, subject.long.length, forced, end, control, ""])
        worst = (end, name) if worst is None or end > worst[0] else worst
    head = ("mechanism", "tokens", "teacher-forced, mean", "free-running, last layer", "nonsense, mean", "")
    if by_length:
        figures.append(
            LineChart("Error of the last states by length, free-running", "tokens", "relative error", by_length, True)
        )
    figures.append(Grid("In place of the model's own attention, with its weights and no training", head, rows))
    return Finding(
        "drift",
        "Drift of approximations",
        "No mechanism could take the place of the model's own."
        if worst is None
        else f"With the same weights and no training, {worst[1]} leaves the largest error: {worst[0]:.2f} of the size "
        f"of the last states at {subject.long.length} tokens.",
        "The error of nonsense: each token gets the exact attention output of another token.",
        figures,
        values,
    )


__all__ = ["drift", "lengths", "measure_drift", "swapped"]
