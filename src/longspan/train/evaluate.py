"""Metrics of a model on data, the same for any number of processes."""

from typing import Any

import torch

from longspan.data.base import Data
from longspan.models.base import Model
from longspan.tasks.base import Metrics, Objective
from longspan.train.processes import Processes


def evaluate(model: Model, data: Data, objective: Objective, processes: Processes) -> dict[str, float]:
    """The metrics of a model over all of `data`."""
    metrics = collect_metrics(model, data, objective, processes)
    return {} if metrics is None else metrics.result()


@torch.no_grad()
def collect_metrics(model: Model, data: Data, objective: Objective, processes: Processes) -> Metrics | None:
    """The sums from which metrics are computed; None if there are no data."""
    model.eval()
    total: Metrics | None = None
    carried: Any = None
    for numbers in data.batches(0):
        share = list(processes.share(numbers))
        if not share:
            continue
        batch = {name: tensor.to(processes.device) for name, tensor in data.load(share, 0).items()}
        metrics, carried = objective.measure(model, batch, carried)
        if total is None:
            total = metrics
        else:
            total.add(metrics)
    return _sum(total, processes)


@torch.no_grad()
def evaluate_final(model: Model, data: Data, objective: Objective, processes: Processes) -> dict[str, float]:
    """Metrics that are too slow to compute during training, such as BLEU with beam search; {} if there are none."""
    model.eval()
    batches = data.batches(0)
    share = range(processes.rank, len(batches), processes.world)
    metrics = _sum(objective.final(model, data, [batches[index] for index in share]), processes)
    return {} if metrics is None else metrics.result()


def _sum(metrics: Metrics | None, processes: Processes) -> Metrics | None:
    """Over all processes."""
    gathered = [item for item in processes.gather(metrics) if item is not None]
    for item in gathered[1:]:
        gathered[0].add(item)
    return gathered[0] if gathered else None


__all__ = ["collect_metrics", "evaluate", "evaluate_final"]
