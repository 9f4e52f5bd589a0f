"""The rows of metrics.jsonl as TensorBoard curves: `tensorboard --logdir RUN`."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longspan.errors import Unsupported

FOLDER = "tensorboard"


class TensorBoard:
    """Writes rows as curves. Points after the step from which a run is resumed are hidden."""

    def __init__(self, run: Path, step: int = 0) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise Unsupported(
                "train.tensorboard needs the package tensorboard, which is not installed: "
                "pip install longspan[tensorboard], or leave it out; metrics.jsonl has the same"
            ) from None
        self._writer: Any = SummaryWriter(str(run / FOLDER), purge_step=step + 1)

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a row of the metrics: one curve per number; those of an evaluation form a group."""
        for name, value in _numbers(row):
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        self._writer.close()


def _numbers(row: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, float]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{start}{name}/")
        elif isinstance(value, (int, float)) and name != "step":
            yield f"{start}{name}" if start else f"train/{name}", float(value)


__all__ = ["FOLDER", "TensorBoard"]
