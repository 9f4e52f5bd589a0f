"""`longspan energy`: energy and CO2 of training runs and arenas."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from longspan.cli.inputs import AsJson, print_json
from longspan.cli.tables import output, short_number
from longspan.errors import InvalidInput, InvalidOption

if TYPE_CHECKING:
    from longspan.measure.carbon import Assumptions
    from longspan.report.energy import EnergyRow


def energy(
    *runs: Path,
    pue: Annotated[
        float | None, Parameter(help="energy of the building per energy of the machine (default: 1.58)")
    ] = None,
    intensity: Annotated[
        float | None, Parameter(help="kg CO2e per kWh of your electricity (default: 0.433, the USA in 2018)")
    ] = None,
    steps: Annotated[
        int | None, Parameter(help="forecast each run at this many steps, from what it has done so far")
    ] = None,
    json: AsJson = False,
) -> int:
    """Energy and CO2 of training runs, added up, beside well-known amounts.

    Every start of a run records its energy: measured by hardware counters where the machine has them, modelled from
    CPU time otherwise. The table says which. Failed and interrupted runs count too: give them all. A run whose energy
    is partly unknown is listed and not added, and the exit code is 1.

    **Examples:**

        longspan energy runs/char runs/bert
        longspan energy runs/trial --steps 100000 --intensity 0.05 --pue 1.1
        longspan energy runs/arena --json

    Parameters
    ----------
    runs
        Folders of runs, of sets of seeds, or of arenas.
    """
    from longspan.measure import carbon
    from longspan.report.energy import energy_json, read_energy

    if not runs:
        raise InvalidOption("give the folder of one run at least")
    if steps is not None and steps < 1:
        raise InvalidOption(f"--steps must be at least 1, not {steps}")
    assumed = carbon.Assumptions(
        carbon.PUE if pue is None else pue, carbon.INTENSITY if intensity is None else intensity
    )
    rows = [row for folder in dict.fromkeys(runs) for row in read_energy(folder)]
    for row in rows:
        if steps is not None and row.forecast(steps) is None:
            raise InvalidInput(f"{row.name} has no known energy or no step yet, so nothing can be forecast from it")
    if json:
        print_json(energy_json(rows, assumed, steps))
    else:
        _show(rows, assumed, steps)
    return 1 if any(row.joules is None for row in rows) else 0


def _show(rows: "Sequence[EnergyRow]", assumed: "Assumptions", steps: int | None) -> None:
    from longspan.measure.carbon import POUND, SCALE, equivalents

    console = output()
    table = Table(box=None, pad_edge=False)
    for name in ("run", "steps", "energy", "CO2e", "targets/kWh", "how it is known"):
        table.add_column(name, justify="left" if name in ("run", "how it is known") else "right")
    if steps is not None:
        table.add_column(f"at {steps:,} steps")
    for row in rows:
        spent, then = row.joules, None if steps is None else row.forecast(steps)
        table.add_row(
            escape(row.name),
            "–" if row.steps is None else f"{row.steps:,}",
            "unknown" if spent is None else _energy(spent),
            "–" if spent is None else _mass(assumed.kilograms(spent)),
            "–" if row.targets_per_kwh is None else short_number(row.targets_per_kwh),
            escape(row.by or "not recorded"),
            *([] if then is None else [f"{_energy(then)}, {_mass(assumed.kilograms(then))} CO2e"]),
        )
    console.print(table)
    joules = sum(row.joules for row in rows if row.joules is not None)
    unknown = sum(row.joules is None for row in rows)
    kilograms = assumed.kilograms(joules)
    left_out = f"; {unknown} of unknown energy not included" if unknown else ""
    print(f"\nTogether {_energy(joules)} at the machine, {_mass(kilograms)} CO2e{left_out}.")
    print(f"Assumed: PUE {assumed.pue:.3g} and {assumed.intensity:.3g} kg CO2e per kWh.\n")
    shares = equivalents(kilograms)
    scale = Table(box=None, pad_edge=False)
    scale.add_column("for scale (Strubell et al. 2019)")
    scale.add_column("CO2e", justify="right")
    scale.add_column("this is", justify="right")
    for name, pounds in SCALE.items():
        scale.add_row(name, _mass(pounds * POUND), f"{100 * shares[name]:.2g} %")
    console.print(scale)


def _energy(joules: float) -> str:
    hours = joules / 3600
    return f"{hours / 1000:,.3g} kWh" if hours >= 1000 else f"{hours:.3g} Wh"


def _mass(kilograms: float) -> str:
    if kilograms >= 1000:
        return f"{kilograms / 1000:,.1f} t"
    return f"{kilograms:,.3g} kg" if kilograms >= 1 else f"{1000 * kilograms:.3g} g"


__all__ = ["energy"]
