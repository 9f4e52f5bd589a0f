"""What a model does when its positions are shifted, permuted, or all the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import LongspanError, Unsupported
from longspan.inspect.measures.drift import relative
from longspan.inspect.measures.findings import Finding, Grid
from longspan.inspect.measures.losses import row_losses
from longspan.inspect.measures.subject import Subject
from longspan.nn.biases import DistanceBias
from longspan.nn.positions import AbsolutePositions
from longspan.nn.rotary import Rotary

SHIFT = 64


@contextmanager
def moved(model: nn.Module, positions: Tensor) -> Iterator[None]:
    """Gives every token of a pass the position in `positions` (length,), whatever the model would count."""

    def hook(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        x = args[0]
        length = x.shape[-2]
        return args, {**given, "start": 0, "positions": positions[:length].to(x.device).expand(x.shape[0], -1)}

    modules = {m for m in model.modules() if isinstance(m, (AbsolutePositions, Rotary))}
    handles = [module.register_forward_pre_hook(hook, with_kwargs=True) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def measure_changes(subject: Subject) -> Finding:
    """The loss and the change of the output for each change of positions."""
    model, passages = subject.model, subject.passages
    if not any(isinstance(m, (AbsolutePositions, Rotary)) for m in model.modules()):
        if any(isinstance(m, DistanceBias) for m in model.modules()):
            raise Unsupported("biases depend on offsets alone: shifting positions changes nothing by construction")
        raise Unsupported(f"this {model.name!r} has no positions to change")
    n = max(passages.length, 0 if passages.targets is None else passages.targets.shape[1])
    rows = [getattr(m, "length", None) for m in model.modules() if isinstance(m, AbsolutePositions)]
    room = min((size - n for size in rows if size is not None), default=SHIFT)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(subject.seed))
    changes = {"as they are": torch.arange(n)}
    if room > 0:
        changes[f"shifted by {min(room, SHIFT)}"] = torch.arange(n) + min(room, SHIFT)
    changes |= {"permuted": order, "all 0": torch.zeros(n, dtype=torch.long)}
    try:
        losses = row_losses(subject)
    except LongspanError:
        losses = None
    values: dict[str, Any] = {"loss_name": None if losses is None else losses.name, "changes": {}}
    table = []
    with torch.no_grad():
        plain = subject.run(passages)
        for name, positions in changes.items():
            with moved(model, positions):
                change = relative(subject.run(passages), plain)
                loss = None if losses is None else losses.mean()
            values["changes"][name] = {"output_change": change, "loss": loss}
            table.append([name, change, loss])
    shifted = next((row for row in table if str(row[0]).startswith("shifted")), None)
    zero = table[-1]
    told = (
        "There was no room in the table for a shift"
        if shifted is None
        else f"Shifting all positions changes the output by {shifted[1]:.2g} of its size"
    )
    return Finding(
        "changes",
        "Without its positions",
        f"{told}; with all positions 0 it changes by {zero[1]:.2g}"
        + (f" and the {values['loss_name']} goes from {table[0][2]:.3g} to {zero[2]:.3g}." if losses else "."),
        "The positions as they are. Rotary positions and relative ones must not care about a shift.",
        [
            Grid(
                "Changed positions",
                ("positions", "relative change of the output", values["loss_name"] or "loss"),
                table,
            )
        ],
        values,
    )


__all__ = ["measure_changes", "moved"]
