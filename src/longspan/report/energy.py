"""The energy that runs and arenas recorded, as rows."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from longspan.arena.runs.results import RESULTS, read_records
from longspan.measure.carbon import KILOWATT_HOUR, Assumptions, equivalents, predict
from longspan.train.history import read_history
from longspan.train.seeds import is_set, read_set


@dataclass(frozen=True)
class EnergyRow:
    """One run, or one cell of an arena; `joules` is None if a part of it is unknown."""

    name: str
    joules: float | None
    by: str | None  # RAPL, NVML or modelled
    steps: int | None
    seconds: float | None
    targets: float | None = None  # tokens, labels or others that were learned from

    @property
    def targets_per_kwh(self) -> float | None:
        """How much was learned from a kilowatt-hour at the machine."""
        return None if not self.joules or self.targets is None else self.targets / (self.joules / KILOWATT_HOUR)

    def forecast(self, steps: int) -> float | None:
        """Joules at that many steps; None if nothing is known to start from."""
        return None if self.joules is None or not self.steps else predict(self.joules, self.steps, steps)


def read_energy(folder: Path) -> list[EnergyRow]:
    """The rows of a run, of a set of seeds, or of an arena (every attempt of every cell)."""
    if (folder / RESULTS).is_file():
        return [
            EnergyRow(f"{folder}: {record.cell.key}", *_known(record.energy), record.steps, record.seconds)
            for record in read_records(folder / RESULTS).records
        ]
    runs = [folder]
    if is_set(folder):
        group = read_set(folder)
        runs = [group.run(seed) for seed in group.seeds if group.run(seed).is_dir()]
    rows = []
    for run in runs:
        history = read_history(run)
        rows.append(EnergyRow(str(run), *_known(history.energy), history.step, history.seconds, history.targets))
    return rows


def _known(energy: Any) -> tuple[float | None, str | None]:
    joules = energy.get("joules") if energy else None
    if not isinstance(joules, (int, float)):
        return None, None
    return float(joules), str(energy.get("by", "")).partition(":")[0] or None


def energy_json(rows: list[EnergyRow], assumed: Assumptions, steps: int | None = None) -> dict[str, Any]:
    """Every number, for programs."""
    joules = sum(row.joules for row in rows if row.joules is not None)
    kilograms = assumed.kilograms(joules)

    def record(row: EnergyRow) -> dict[str, Any]:
        found = asdict(row) | {
            "kg_co2e": None if row.joules is None else assumed.kilograms(row.joules),
            "targets_per_kwh": row.targets_per_kwh,
        }
        then = None if steps is None else row.forecast(steps)
        if steps is not None:
            found["forecast"] = {
                "steps": steps,
                "joules": then,
                "kg_co2e": None if then is None else assumed.kilograms(then),
            }
        return found

    return {
        "pue": assumed.pue,
        "kg_per_kwh": assumed.intensity,
        "runs": [record(row) for row in rows],
        "hours": sum(row.seconds for row in rows if row.seconds is not None) / 3600,
        "unknown": sum(row.joules is None for row in rows),
        "joules": joules,
        "kwh_with_building": assumed.kilowatt_hours(joules),
        "kg_co2e": kilograms,
        "times": equivalents(kilograms),
    }


__all__ = ["EnergyRow", "energy_json", "read_energy"]
