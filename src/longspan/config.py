"""Options: frozen dataclasses that are the only schema.

Each field carries its help and its limits; the builders, the command line, `longspan show` and the docs all read them
from here. An option that does not fit is refused when the dataclass is made, before any work is done.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from longspan.errors import InvalidOption, suggest

T = TypeVar("T", bound="Options")


def option(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] | None = None,
) -> Any:
    """A field with its help; `low` and `high` are inclusive, and hold for each number of a tuple."""
    return field(default=default, metadata={"help": help, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True, kw_only=True)
class Options:
    """The base of every mechanism's options."""

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for item in fields(self):
            _check(item.name, getattr(self, item.name), kinds[item.name], item.metadata)


def make(cls: type[T], given: Mapping[str, Any], owner: str) -> T:
    """The options of `owner`; an unknown key is an error that names the nearest known one."""
    known = [item.name for item in fields(cls)]
    for key in given:
        if key not in known:
            hint = suggest(key, known) if known else "it has no options"
            raise InvalidOption(f"{owner} has no option {key!r}: {hint}")
    return cls(**given)


def describe(cls: type[Options]) -> list[dict[str, Any]]:
    """What `longspan show` prints: name, type, default, help and limits of each option."""
    kinds = get_type_hints(cls)
    return [
        {
            "name": item.name,
            "type": _spell(kinds[item.name]),
            "default": item.default,
            **{key: item.metadata[key] for key in ("help", "low", "high", "choices")},
        }
        for item in fields(cls)
    ]


def _check(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> None:
    if not _fits(value, kind):
        raise InvalidOption(f"option {name} must be {_spell(kind)}, not {value!r} ({type(value).__name__})")
    choices, low, high = limits["choices"], limits["low"], limits["high"]
    if choices and value is not None and value not in choices:
        raise InvalidOption(f"option {name} must be one of {', '.join(choices)}, not {value!r}")
    for number in value if isinstance(value, tuple) else (value,):
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            continue
        if (low is not None and not number >= low) or (high is not None and not number <= high):  # so NaN fits nowhere
            bounds = (
                f"at least {low:g}" if high is None else f"at most {high:g}" if low is None else f"{low:g} to {high:g}"
            )
            raise InvalidOption(f"option {name} must be {bounds}, not {value!r}")


def _fits(value: Any, kind: Any) -> bool:
    if get_origin(kind) is UnionType:
        return any(_fits(value, member) for member in get_args(kind))
    if get_origin(kind) is tuple:
        item = get_args(kind)[0]
        return isinstance(value, tuple) and bool(value) and all(_fits(part, item) for part in value)
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
