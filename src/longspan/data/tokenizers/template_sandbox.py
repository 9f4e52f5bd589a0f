"""Templates of Jinja that come with a model, run with limits: they are programs that somebody else wrote.

Jinja's sandbox keeps them from everything but the conversation. Here, loops, calls and texts are limited as well, so
that a template ends soon, whatever it does.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, wraps
from typing import Any

from longspan.errors import InvalidInput, Unsupported

STEPS = 200_000  # turns of loops, and calls, of one rendering
SIZE = 10_000_000  # characters of a text, or items of a list; and how large a number may be that is given to a call
GROWING = frozenset({"+", "*", "**", "%"})
FILTERS = ("replace", "center", "indent", "format", "batch", "slice", "tojson")  # what may make much of little


class TooMuch(Exception):
    """A template went past a limit."""


class _Count:
    """What a rendering did so far."""

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise TooMuch(f"it takes more than {STEPS} steps")

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item


def render(source: str, names: Mapping[str, Any]) -> str:
    """The text of a template; what it refuses or cannot do is an error of one line."""
    environment, count = _environment(), _Count()
    try:
        pieces, size = [], 0
        for piece in environment.template(source, count).generate(**names):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
        return "".join(pieces)
    except TooMuch as error:
        raise InvalidInput(f"the tokenizer's template for chats does too much: {error}") from None
    except Exception as error:  # a template can fail in every way that a program can
        said = str(error) if type(error).__module__.startswith("jinja2") else f"{type(error).__name__}: {error}"
        raise InvalidInput(f"the tokenizer's template for chats does not take this conversation: {said}") from None


def _check_size(size: int) -> None:
    if size > SIZE:
        raise TooMuch(f"it makes a text or a list of more than {SIZE} items")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0


def _check_numbers(values: Iterable[Any]) -> None:
    """Refuses numbers that ask for a huge result, such as the width of `center`."""
    for value in values:
        if isinstance(value, int) and abs(value) > SIZE:
            raise TooMuch(f"it gives a number of more than {SIZE} to a function")


def _check_format(pattern: str, values: Iterable[Any]) -> None:
    _check_numbers(values)
    if re.search(r"[%{:.][^}%\s]*\d{7,}", pattern):
        raise TooMuch("it asks for more than 6 digits of width in a format")


def _check_product(first: Any, *rest: Any) -> None:
    """Refuses what may put as much as one value is large in place of every item of another."""
    sizes = [abs(value) if isinstance(value, int) else _length(value) for value in rest]
    _check_size(max(_length(first), 1) * max([1, *sizes]))


def _check_joined(between: Any, values: Any) -> None:
    if isinstance(values, (list, tuple)):
        _check_size(sum(_length(value) + _length(between) for value in values))


@lru_cache(maxsize=1)
def _environment() -> Any:
    try:
        from jinja2 import TemplateError, nodes
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise Unsupported("templates for chats need the package jinja2: `pip install jinja2`") from None

    class Environment(ImmutableSandboxedEnvironment):
        intercepted_binops = GROWING
        count = _Count()

        def template(self, source: str, count: _Count) -> Any:
            made = self.overlay()
            made.count = count
            made.filters = {**self.filters, "_count": count.over, "_join": _join}
            return made.from_string(source)

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            for loop in list(tree.find_all(nodes.For)):
                loop.iter = nodes.Filter(loop.iter, "_count", [], [], None, None)
            _replace_joins(tree, nodes)
            return tree

        def call(self, context: Any, called: Any, *args: Any, **given: Any) -> Any:
            self.count.step()
            _check_numbers([*args, *given.values()])
            called_on = getattr(getattr(called, "__wrapped__", called), "__self__", None)
            if isinstance(called_on, str):
                name = getattr(called, "__name__", "")
                if name in ("replace", "expandtabs"):
                    _check_product(called_on, *args, *given.values())
                elif name == "join":
                    _check_joined(called_on, *args)
                elif name in ("format", "format_map"):
                    _check_format(called_on, [])
            result = super().call(context, called, *args, **given)
            _check_size(_length(result))
            return result

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if operator == "*" and (_length(left) or _length(right)):
                number = right if _length(left) else left
                _check_size((_length(left) or _length(right)) * (number if isinstance(number, int) else 1))
            elif operator == "+":
                _check_size(_length(left) + _length(right))
            elif operator == "%" and isinstance(left, str):
                _check_format(left, right if isinstance(right, tuple) else [right])
            elif operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
                bits = left.bit_length() * (max(right, 0) if operator == "**" else 1)
                if bits + right.bit_length() > 10_000:
                    raise TooMuch("it computes a number of more than 10000 bits")
            return super().call_binop(context, operator, left, right)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    made = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    made.globals["raise_exception"] = refuse
    made.filters["tojson"] = lambda value, **given: json.dumps(value, ensure_ascii=False, **given)
    for name in FILTERS:
        made.filters[name] = _limited(name, made.filters[name])
    joined = made.filters["join"]

    @wraps(joined)
    def join(context: Any, values: Any, d: str = "", attribute: Any = None) -> Any:
        values = list(values)
        _check_joined(d, values)
        return joined(context, values, d, attribute)

    made.filters["join"] = join
    del made.globals["lipsum"]  # makes as much text as it is asked for
    return made


def _limited(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks what it is given before it makes much of it."""

    @wraps(filter)  # with the marks by which Jinja knows what else it gives to a filter
    def limited(*args: Any, **given: Any) -> Any:
        values = [value for value in (*args, *given.values()) if isinstance(value, (str, int, list, tuple, dict))]
        if name == "format" and isinstance(values[0], str):
            _check_format(values[0], values[1:])
        elif len(values) > 1:
            _check_product(values[0], *values[1:])
        result = filter(*args, **given)
        _check_size(_length(result))
        return result

    return limited


def _join(values: list[Any]) -> str:
    """What `~` does."""
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _replace_joins(tree: Any, nodes: Any) -> None:
    """Every `a ~ b` goes through `_join`."""
    for parent in [tree, *tree.find_all(nodes.Node)]:
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _joined(value, nodes))
            elif isinstance(value, list):
                setattr(parent, field, [_joined(v, nodes) if isinstance(v, nodes.Concat) else v for v in value])


def _joined(node: Any, nodes: Any) -> Any:
    return nodes.Filter(nodes.List(node.nodes), "_join", [], [], None, None)


__all__ = ["render"]
