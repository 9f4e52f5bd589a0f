"""Energy and CO2 of a benchmark, with its child processes: a line at the end, and a field for its JSON."""

import atexit
import sys
from typing import Any

from longspan.measure.carbon import Assumptions
from longspan.measure.energy import Meter

_meter: Meter | None = None


def report_at_exit() -> None:
    """Measure from now on, and print the energy when the program ends."""
    global _meter
    _meter = Meter()
    _meter.__enter__()
    atexit.register(lambda: print(line(spent()), file=sys.stderr))


def spent() -> dict[str, Any] | None:
    """The energy of this benchmark so far, as runs record it; None if nothing is being measured."""
    if _meter is None:
        return None
    _meter.__exit__(None, None, None)
    energy = _meter.energy() | {"pue": Assumptions().pue, "kg_per_kwh": Assumptions().intensity}
    return energy | {"kg_co2e": Assumptions().kilograms(energy["joules"])}


def line(energy: dict[str, Any] | None) -> str:
    """For people."""
    if energy is None:
        return "energy: not measured"
    return (
        f"energy: {energy['joules'] / 3600:.3g} Wh, {1000 * energy['kg_co2e']:.3g} g CO2e with PUE {energy['pue']:.3g} "
        f"and {energy['kg_per_kwh']:.3g} kg per kWh ({energy['by']})"
    )
