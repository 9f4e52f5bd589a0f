"""The efficiency table from the records of its cells.

Ratios are to `naive`, which holds n×n weights as the paper's Transformer did, and to `dense`, the fused kernel.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from longspan.arena.runs.cell import Record

NAIVE, FUSED = "naive", "dense"  # the reference models


def table(records: Iterable[Record | Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each model and length: its metrics, and their ratios to `naive` and to `dense` (`…_to_fused`).

    Only cells of the same setting, length, batch, number of threads and machine are compared. A speed of 2 is twice as
    fast, a memory of 2 twice as large. The last record of a cell counts.
    """
    read = [record if isinstance(record, Record) else Record.read(record) for record in records]
    last = {record.cell.key: record for record in read if record.cell.kind == "speed"}
    by_conditions = {(conditions(record), record.cell.model): record for record in last.values()}
    rows = []
    for record in last.values():
        naive, fused = (by_conditions.get((conditions(record), model)) for model in (NAIVE, FUSED))
        row: dict[str, Any] = {
            "setting": record.cell.setting,
            "length": record.cell.length,
            "model": record.cell.model,
            "batch": record.options.get("batch"),
            "state": record.state,
            "error": record.error,
            "memory_by": record.memory_by,
        }
        for name in ("steps_per_second", "memory", "saved"):
            row[name] = _metric(record, name)
            for other, reference in (("naive", naive), ("fused", fused)):
                row[f"{name}_to_{other}"] = _ratio(row[name], _metric(reference, name))
        rows.append(row)
    models = list(dict.fromkeys([NAIVE, FUSED, *(row["model"] for row in rows)]))
    return sorted(rows, key=lambda row: (row["setting"], models.index(row["model"]), row["length"]))


def conditions(record: Record) -> tuple[object, ...]:
    """What must be equal for speeds to compare: setting, length, batch, threads and machine."""
    cell, on = record.cell, record.machine
    gpu = on.get("gpu")
    cards = [card.get("name") for card in gpu if isinstance(card, Mapping)] if isinstance(gpu, list | tuple) else []
    own = (on.get("processor"), on.get("instructions"), cards, record.options.get("batch"))
    return cell.setting, cell.length, cell.threads, *map(str, own)


def _metric(record: Record | None, name: str) -> float | None:
    if record is None or record.state != "done":
        return None
    return record.options.get("saved_bytes") if name == "saved" else getattr(record, name)


def _ratio(value: float | None, reference: float | None) -> float | None:
    return None if value is None or not reference else value / reference


__all__ = ["FUSED", "NAIVE", "conditions", "table"]
