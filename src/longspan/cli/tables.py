"""How numbers and limits are written in the tables of the command line."""

from typing import Any

LIMITS = (("≥", "low"), (">", "above"), ("≤", "high"), ("<", "below"))


def limits(item: dict[str, Any]) -> str:
    """The limits of an option: its choices, or its bounds."""
    if item["choices"]:
        return ", ".join(item["choices"])
    bounds = [f"{word} {item[key]:g}" for word, key in LIMITS if item.get(key) is not None]
    return " ".join(bounds)


def short_number(number: float) -> str:
    """Three digits and the thousands: 1.23 T."""
    return _short(number, 1000.0, ("", " k", " M", " G", " T", " P", " E"))


def short_bytes(number: float) -> str:
    """Three digits and the unit: 1.23 GiB."""
    return _short(number, 1024.0, (" B", " KiB", " MiB", " GiB", " TiB", " PiB"))


def short_seconds(number: float) -> str:
    """Three digits and the unit: 1.23 ms."""
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if number >= 0.9995 * size:
            return f"{number / size:.3g} {unit}"
    return f"{number / 1e-9:.3g} ns"


def _short(number: float, step: float, units: tuple[str, ...]) -> str:
    power = 0
    while number >= 999.5 and power < len(units) - 1:
        number, power = number / step, power + 1
    return f"{number:.3g}{units[power]}"
