"""Frozen dataclasses to plain JSON values and back."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from math import isfinite
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from longspan.errors import InvalidInput

Record = TypeVar("Record")


def to_plain(value: Any) -> Any:
    """Dataclasses become mappings, tuples lists; JSON has no infinities and no NaN, so they become null."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: to_plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value


def from_plain(cls: type[Record], record: Any, where: str = "report") -> Record:
    """The dataclass that `to_plain` wrote; anything missing, unknown or of another type is an error."""
    made: Record = _read(cls, record, where)
    return made


def _read(kind: Any, value: Any, where: str) -> Any:
    if kind is Any:
        return value
    origin = get_origin(kind)
    if origin in (UnionType, Union):
        choices = get_args(kind)
        if value is None and NoneType in choices:
            return None
        return _read(next(choice for choice in choices if choice is not NoneType), value, where)
    if is_dataclass(kind):
        return _read_record(kind, value, where)
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(where, "a list", value)
        first, *rest = get_args(kind)
        if rest == [Ellipsis]:
            return tuple(_read(first, item, f"{where}[{index}]") for index, item in enumerate(value))
        if len(value) != 1 + len(rest):
            raise _wrong(where, f"a list of {1 + len(rest)}", value)
        return tuple(
            _read(each, item, f"{where}[{index}]") for index, (each, item) in enumerate(zip((first, *rest), value))
        )
    if origin is dict:
        if not isinstance(value, dict):
            raise _wrong(where, "a mapping", value)
        return {key: _read(get_args(kind)[1], item, f"{where}.{key}") for key, item in value.items()}
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise _wrong(where, f"a {kind.__name__}", value)
    return value


def _read_record(cls: Any, value: Any, where: str) -> Any:
    if not isinstance(value, Mapping):
        raise _wrong(where, "a mapping", value)
    kinds = get_type_hints(cls)
    names = [item.name for item in fields(cls)]
    for name in [*names, *value]:
        if name not in value or name not in names:
            what = "has no" if name not in value else "has an unknown"
            raise InvalidInput(f"{where} {what} entry {name!r}; expected {', '.join(names)}; measure again")
    return cls(**{name: _read(kinds[name], value[name], f"{where}.{name}") for name in names})


def _wrong(where: str, expected: str, value: Any) -> InvalidInput:
    return InvalidInput(f"{where} must be {expected}, not {value!r:.60}; measure again")


__all__ = ["from_plain", "to_plain"]
