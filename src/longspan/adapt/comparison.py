"""Size, speed and quality of models side by side, on the held-out data of a run."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from longspan.data.tokenizers.tokenizer_files import read_tokenizer
from longspan.errors import LongspanError
from longspan.hub.locate import locate
from longspan.measure import timing
from longspan.models.adapters import HEADS
from longspan.models.base import Model
from longspan.models.folder import unique
from longspan.tasks.base import DataPaths, Objective
from longspan.train.evaluate import evaluate
from longspan.train.processes import Processes
from longspan.train.recipe import of_run
from longspan.train.run import SPLIT, Run

ROUNDS = 7  # timings of each model, of which the least counts


def compare(models: Mapping[str, Model], run: Path, *, data: Path | None = None) -> list[dict[str, Any]]:
    """A row for each model: parameters, bytes, milliseconds of a batch, and the metrics of the run's task.

    Models take turns at the same batch, so that a busy machine slows all of them. A model without a head for the task
    has no metrics and no time.
    """
    recipe = of_run(Run(run))
    with TemporaryDirectory() as work:
        paths = DataPaths(recipe.data if data is None else data, Path(work), recipe.options().seed, run / SPLIT)
        prepared = recipe.build_task().prepare(paths, read_tokenizer(locate(run)))
        rows = {name: {"name": name, **size(model)} for name, model in models.items()}
        readers: dict[str, Model] = {}
        for name, model in models.items():
            try:
                rows[name]["metrics"] = evaluate(model, prepared.held_out, prepared.objective, Processes())
                readers[name] = model
            except LongspanError as error:
                rows[name]["left_out"] = str(error)
        batch = prepared.held_out.load(prepared.held_out.batches(0)[0], 0)
        for name, milliseconds in _times(readers, prepared.objective, batch).items():
            rows[name]["milliseconds"] = milliseconds
    return list(rows.values())


def size(model: Model) -> dict[str, Any]:
    """Parameters (a shared one once), those of the adapter, and bytes."""
    tensors, adapter = unique(model), model.adapter
    added = 0
    if adapter is not None:
        added = sum(tensor.numel() for name, tensor in adapter.small(model)[1].items() if not name.startswith(HEADS))
    count = sum(parameter.numel() for parameter in model.parameters())
    return {"parameters": count, "adapter": added, "bytes": sum(tensor.nbytes for tensor in tensors.values())}


@torch.no_grad()
def _times(models: Mapping[str, Model], objective: Objective, batch: Any) -> dict[str, float]:
    cases = {name: partial(objective.measure, model.eval(), batch) for name, model in models.items()}
    return {name: seconds * 1000 for name, seconds in timing.compare(cases, ROUNDS).items()}


__all__ = ["compare", "size"]
