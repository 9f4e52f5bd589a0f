"""CO2 of energy, and how much that is (Strubell et al. 2019).

    kg CO2e = kWh at the machine × PUE × kg per kWh

PUE is what the building adds for cooling and power supply. Memory, network and the making of the machine are not
included unless the energy was measured with them.
"""

from dataclasses import dataclass
from math import isfinite

from longspan.errors import InvalidOption

POUND = 0.45359237  # kg
KILOWATT_HOUR = 3.6e6  # joules
PUE = 1.58  # Strubell et al. 2019: the average of data centres in 2018
INTENSITY = 0.954 * POUND  # kg per kWh: the average of the United States that they use

# Strubell et al. 2019, tables 1 and 3, in pounds of CO2e.
SCALE = {
    "Transformer (base), trained once": 26,
    "Transformer (big), trained once": 192,
    "ELMo, trained once": 262,
    "BERT (base), trained once": 1_438,
    "a return flight New York–San Francisco, one passenger": 1_984,
    "an average human life, one year": 11_023,
    "an average American life, one year": 36_156,
    "a car with its fuel, lifetime": 126_000,
    "neural architecture search of the Transformer": 626_155,
}


@dataclass(frozen=True)
class Assumptions:
    """What turns joules of a machine into CO2."""

    pue: float = PUE
    intensity: float = INTENSITY  # kg CO2e per kWh

    def __post_init__(self) -> None:
        if not (isfinite(self.pue) and self.pue >= 1):
            raise InvalidOption(f"pue must be 1 (nothing beside the machine) or more, not {self.pue:g}")
        if not (isfinite(self.intensity) and self.intensity >= 0):
            raise InvalidOption(f"intensity must be kg CO2e per kWh, 0 or more, not {self.intensity:g}")

    def kilowatt_hours(self, joules: float) -> float:
        """Energy including the building's."""
        return joules / KILOWATT_HOUR * self.pue

    def kilograms(self, joules: float) -> float:
        """CO2 equivalents."""
        return self.kilowatt_hours(joules) * self.intensity


def equivalents(kilograms: float) -> dict[str, float]:
    """How many times each entry of the scale this is."""
    return {name: kilograms / (pounds * POUND) for name, pounds in SCALE.items()}


def predict(joules: float, done: int, planned: int) -> float:
    """Joules of a whole run, from the first `done` of `planned` steps; start-up is counted as if it recurred."""
    if done < 1 or planned < 1:
        raise InvalidOption(f"a forecast needs at least one step done and one planned, not {done} and {planned}")
    return joules * planned / done


__all__ = ["INTENSITY", "KILOWATT_HOUR", "POUND", "PUE", "SCALE", "Assumptions", "equivalents", "predict"]
