"""JSON lines from a file that may be damaged: every line is checked before it is used.

`parse` turns any fault of a line into an `InvalidInput`; `fields_of` checks the types of a record's fields. A reader
skips a faulty line, counts it, and reports it with `skipped`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from longspan.errors import InvalidInput
from longspan.parsing import parse_json

DEEPEST = 40  # levels of nesting; records have five
LARGEST = 2**63


def parse(line: bytes | str) -> Any:
    """The value of a line: finite 64-bit numbers, valid Unicode text, no deep nesting."""
    value = parse_json(line, "it", constants=False)
    _check(value, 0)
    return value


def fields_of(cls: type, values: Any, what: str) -> dict[str, Any]:
    """The values for a dataclass, each checked against the type of its field; lists become tuples."""
    if not isinstance(values, Mapping):
        raise InvalidInput(f"{what} is an object, not {_short(values)}")
    hints = _hints(cls)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise InvalidInput(f"{what} has no {', '.join(unknown)}"[:200])
    needed = [item.name for item in fields(cls) if item.default is MISSING and item.default_factory is MISSING]
    lacking = [name for name in needed if name not in values]
    if lacking:
        raise InvalidInput(f"{what} lacks {', '.join(lacking)}")
    for name, value in values.items():
        if not _fits(value, hints[name]):
            raise InvalidInput(f"{name} of {what} must be {_spell(hints[name])}, not {_short(value)}")
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def skipped(name: str, reasons: Sequence[tuple[int, str]]) -> str:
    """One line about skipped lines, each given by its number and its fault."""
    number, reason = reasons[0]
    if len(reasons) == 1:
        return f"line {number} of {name} is not usable and was skipped: {reason}"
    return f"{len(reasons)} lines of {name} are not usable and were skipped; the first is line {number}: {reason}"


def _check(value: Any, depth: int) -> None:
    if depth > DEEPEST:
        raise InvalidInput("it is nested too deep")
    if isinstance(value, dict):
        for name, part in value.items():
            _check(name, depth)
            _check(part, depth + 1)
    elif isinstance(value, list):
        for part in value:
            _check(part, depth + 1)
    elif isinstance(value, str):
        if not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise InvalidInput("its text has half of a surrogate pair")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput("it has an infinite number")
    elif isinstance(value, int) and abs(value) >= LARGEST:
        raise InvalidInput("it has an integer of more than 64 bits")


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


def _fits(value: Any, kind: Any) -> bool:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return any(_fits(value, member) for member in inside)
    if origin is Literal:
        return isinstance(value, str) and value in inside
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(part, inside[0]) for part in value)
    if origin is not None:  # a mapping
        # A number that was not finite is null in the file.
        part = inside[1] | None if inside[1] is float else inside[1]
        return isinstance(value, Mapping) and all(_fits(each, part) for each in value.values())
    if kind is Any:
        return True
    if kind in (int, float):
        return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
    return isinstance(value, kind if isinstance(kind, type) else object)


def _spell(kind: Any) -> str:
    origin, inside = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return " or ".join(_spell(member) for member in inside)
    if origin is Literal:
        return " or ".join(map(str, inside))
    if origin is tuple:
        return f"a list of {_spell(inside[0])}"
    if origin is not None:
        return "an object" + (" of numbers" if inside[1] is float else "")
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", NoneType: "null"}
    return names.get(kind, getattr(kind, "__name__", "a value"))


def _short(value: Any) -> str:
    said = json.dumps(value, ensure_ascii=True, default=str)
    return said if len(said) <= 60 else f"{said[:57]}..."


__all__ = ["fields_of", "parse", "skipped"]
