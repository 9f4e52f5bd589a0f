"""Options as frozen dataclasses: the single schema of every configuration.

Each field has its help text and its limits; the builders, the command line, `longspan show`, configuration files and
the docs read them from here. An invalid option is refused when the dataclass is created, before any work is done.
"""

import math
import operator
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from longspan.errors import InvalidOption, suggest

OptionsT = TypeVar("OptionsT", bound="Options")
LARGEST = 2**63 - 1  # the largest integer of TOML and of a tensor


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    choices: tuple[str, ...] | None = None,
    formerly: str | None = None,
    column: bool = False,
) -> Any:
    """A field with its help text; `low` and `high` are inclusive limits, `above` and `below` exclusive ones.

    Limits apply to each number of a tuple. Every number must be finite, and every int must fit into 64 bits. If
    `default` is a class, each instance gets a new object of that class. `formerly` is the old name of a renamed
    option: `make` still reads it, so that old folders and recipes load. `column` marks the name of a column of a
    table, which a command may guess.
    """
    limits: dict[str, Any] = {"low": low, "high": high, "above": above, "below": below, "choices": choices}
    metadata = {"help": help, **limits, "formerly": formerly, "column": column}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base class of all options; it checks types and limits."""

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for item in fields(self):
            _check(item.name, getattr(self, item.name), kinds[item.name], item.metadata)


def make(cls: type[OptionsT], values: Mapping[str, Any], owner: str) -> OptionsT:
    """The options of `owner` from a mapping; an unknown key is an error that names the nearest known one.

    Values may be as in a configuration file: lists for tuples, tables for nested options, and whatever a type's class
    method `read` accepts.
    """
    values = current_names(cls, values, owner)
    known = [item.name for item in fields(cls)]
    for key in values:
        if key not in known:
            hint = suggest(key, known) if known else "it has no options"
            raise InvalidOption(f"{owner} has no option {key!r}: {hint}")
    kinds = get_type_hints(cls)
    return cls(**{key: _read(value, kinds[key], f"{owner}: {key}") for key, value in values.items()})


def current_names(cls: type[Options], values: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """`values` by the current names of their options. Call it before merging `values` into other options.

    An option given by both its names is an error.
    """
    renamed = {old: item.name for item in fields(cls) if (old := item.metadata.get("formerly"))}
    for old, new in renamed.items():
        if old in values and new in values:
            raise InvalidOption(f"{owner} has both {new} and its former name {old}; keep {new}")
    return {renamed.get(key, key): value for key, value in values.items()}


def plain(value: Any) -> Any:
    """Options as plain tables, lists, numbers and text, for JSON and TOML; `make` reads them back."""
    if hasattr(value, "plain"):
        return value.plain()
    if is_dataclass(value):
        return {item.name: plain(getattr(value, item.name)) for item in fields(value)}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def _read(value: Any, kind: Any, owner: str) -> Any:
    if get_origin(kind) is UnionType:
        members = [member for member in get_args(kind) if member is not NoneType]
        tuples = [member for member in members if get_origin(member) is tuple]
        if value is None or (len(members) > 1 and not (tuples and isinstance(value, list))):
            return value
        return _read(value, (tuples or members)[0], owner)
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        if isinstance(value, (list, tuple)):
            return tuple(_read(element, item, owner) for element in value)
        return (_read(value, item, owner),) if hasattr(item, "read") else value
    if hasattr(kind, "read"):
        return value if isinstance(value, kind) else kind.read(value)
    if isinstance(kind, type) and issubclass(kind, Options) and isinstance(value, Mapping):
        return make(kind, value, owner)
    return value


def describe(cls: type[Options]) -> list[dict[str, Any]]:
    """Name, type, default, help and limits of each option, as `longspan show` prints them."""
    kinds = get_type_hints(cls)
    return [
        {
            "name": item.name,
            "type": _spell(kinds[item.name]),
            "default": _default(item),
            **{key: item.metadata[key] for key in ("help", "low", "high", "choices")},
            **{key: item.metadata[key] for key in ("above", "below") if item.metadata[key] is not None},
        }
        for item in fields(cls)
    ]


def _default(item: Field[Any]) -> Any:
    return item.default if item.default_factory is MISSING else item.default_factory()


def _check(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> None:
    if not _fits(value, kind):
        listed = isinstance(value, str) and "," in value and "a tuple of" in _spell(kind)
        hint = '; write a list in brackets, text in quotes: [1, 2] or ["a", "b"]' if listed else ""
        raise InvalidOption(f"option {name} must be {_spell(kind)}, not {value!r} ({type(value).__name__}){hint}")
    choices = limits["choices"]
    for item in value if isinstance(value, tuple) else (value,):
        if choices and item is not None and item not in choices:
            raise InvalidOption(f"option {name} must be one of {', '.join(choices)}, not {item!r}")
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        if not _within(number, limits):
            raise InvalidOption(f"option {name} must be {_bounds(limits)}, not {value!r}")
        if isinstance(number, int) and abs(number) > LARGEST:
            raise InvalidOption(f"option {name} must fit into 64 bits, not {value!r}")
        if not math.isfinite(number):
            raise InvalidOption(f"option {name} must be a finite number, not {value!r}")


def _within(number: float, limits: Mapping[str, Any]) -> bool:
    """Whether a number is within its limits; NaN never is."""
    comparisons = {"low": operator.ge, "above": operator.gt, "high": operator.le, "below": operator.lt}
    return all(limits[key] is None or compare(number, limits[key]) for key, compare in comparisons.items())


def _bounds(limits: Mapping[str, Any]) -> str:
    low, high = limits["low"], limits["high"]
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    words = {"low": "at least", "above": "above", "high": "at most", "below": "below"}
    return " and ".join(f"{word} {limits[key]:g}" for key, word in words.items() if limits[key] is not None)


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_fits(value, member) for member in get_args(kind))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return isinstance(value, tuple) and bool(value) and all(_fits(element, item) for element in value)
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _spell(kind: Any) -> str:
    if get_origin(kind) is UnionType:
        return " or ".join(_spell(member) for member in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a tuple of {_spell(get_args(kind)[0])}"
    return "none" if kind is NoneType else kind.__name__
