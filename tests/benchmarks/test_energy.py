"""Benchmarks report their energy: what is printed, and what is in their JSON."""

import pytest

from benchmarks import energy


def test_nothing_is_measured_in_tests() -> None:
    assert energy.spent() is None
    assert energy.line(None) == "energy: not measured"


def test_the_energy_of_a_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = []
    monkeypatch.setattr(energy.atexit, "register", ended.append)
    monkeypatch.setattr(energy, "_meter", None)
    energy.report_at_exit()
    found = energy.spent()
    assert found is not None and len(ended) == 1
    assert found["kg_co2e"] == pytest.approx(found["joules"] / 3.6e6 * 1.58 * 0.954 * 0.45359237)
    assert (found["pue"], found["estimated"]) == (1.58, found["by"].startswith("modelled"))
    later = energy.spent()
    assert later is not None and later["joules"] >= found["joules"]


def test_the_line_names_what_was_assumed() -> None:
    found = {"joules": 7200.0, "kg_co2e": 0.001, "pue": 1.58, "kg_per_kwh": 0.4327, "by": "modelled: x"}
    assert energy.line(found) == ("energy: 2 Wh, 1 g CO2e with PUE 1.58 and 0.433 kg per kWh (modelled: x)")
