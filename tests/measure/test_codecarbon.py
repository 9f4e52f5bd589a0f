"""Our energy model and CO2 beside codecarbon 3, offline: its formulas and tables, with no tracker and no network."""

from types import SimpleNamespace
from typing import Any

import pytest

from longspan.measure.carbon import Assumptions
from longspan.measure.energy import POWER, watts_per_core


@pytest.fixture(scope="module")
def powers() -> dict[str, str]:
    from codecarbon.input import DataSource

    table = DataSource().get_cpu_power_data()
    return dict(zip(table["Name"], map(str, table["TDP"])))  # some rows are no numbers, such as 27.29.5


OTHERS = {"Core i9-12900K": 241.0, "Core i9-13900K": 253.0}  # theirs is the turbo power, ours the base power


def test_our_table_of_processors_is_theirs(powers: dict[str, str]) -> None:
    theirs = {}
    for name in POWER:
        maker = "AMD" if name.startswith(("EPYC", "Ryzen")) else "Intel"
        if f"{maker} {name}" in powers:
            theirs[name] = float(powers[f"{maker} {name}"])
    assert len(theirs) >= 20
    different = {name: watts for name, watts in theirs.items() if watts != POWER[name][0]}
    assert different == {name: watts for name, watts in OTHERS.items() if name in different}


@pytest.mark.parametrize("busy", [1.0, 4.0, 20.0])
def test_cpu_time_gives_the_energy_that_they_model(busy: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process mode: TDP × CPU time / wall time / processors. They count logical processors, so this has one a core."""
    from codecarbon.external.hardware import CPU

    name, wall = "Xeon Gold 6248", 10.0
    watts, cores = POWER[name]
    cpu: Any = CPU("", "cpu_load", name, int(watts), tracking_mode="process")
    cpu._cpu_count, cpu._last_measurement_time, cpu._last_cpu_times = cores, 100.0, {1: 0.0}
    monkeypatch.setattr(cpu, "_get_process_cpu_times", lambda: {1: busy * wall})
    monkeypatch.setattr("codecarbon.external.hardware.time", SimpleNamespace(time=lambda: 100.0 + wall))
    theirs = cpu._get_power_from_cpu_load().W * wall
    assert busy * wall * watts_per_core(f"Intel(R) {name} CPU")[0] == pytest.approx(theirs)


@pytest.mark.parametrize("country", ["USA", "FRA", "POL"])
def test_co2_is_theirs_at_their_intensity(country: str) -> None:
    from codecarbon.core.emissions import Emissions
    from codecarbon.core.units import Energy
    from codecarbon.external.geography import GeoMetadata
    from codecarbon.input import DataSource

    emissions = Emissions(DataSource())
    place = GeoMetadata(country_iso_code=country, country_name=country)
    intensity = emissions.get_private_infra_emissions(Energy.from_energy(1.0), place)
    theirs = emissions.get_private_infra_emissions(Energy.from_energy(2.5), place)
    assert Assumptions(pue=1, intensity=intensity).kilograms(2.5 * 3.6e6) == pytest.approx(theirs)
    assert 0.01 < intensity < 1.0  # kg per kWh, not grams
