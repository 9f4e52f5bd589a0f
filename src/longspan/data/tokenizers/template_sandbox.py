"""A sandbox for chat templates: Jinja programs from strangers, run with limits on steps, time and memory.

Jinja's own sandbox gives a template access to the conversation only. The limits here make every template end soon.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, wraps
from time import thread_time
from typing import Any

from longspan.errors import InvalidInput, Unsupported

STEPS = 200_000  # turns of loops, calls and filters of one rendering
SECONDS = 10.0  # of processor time of one rendering
SIZE = 10_000_000  # characters of a text, items of a list, or the value of a number that a call gets
GROWING = frozenset({"+", "*", "**", "%"})
EXPANDING = ("replace", "center", "indent", "format", "batch", "slice", "tojson")  # filters: large output, small input
QUADRATIC = ("striptags", "urlize", "wordwrap")  # filters whose time grows with the square of the text
QUADRATIC_SIZE = 20_000  # characters of a text that these filters get


class LimitExceeded(Exception):
    """A template exceeded a limit."""


class _Count:
    """The steps and the time that one rendering took so far."""

    def __init__(self) -> None:
        self.steps = 0
        self.deadline = thread_time() + SECONDS

    def step(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise LimitExceeded(f"it takes more than {STEPS} steps")
        if thread_time() > self.deadline:
            raise LimitExceeded(f"it takes more than {SECONDS:g} seconds")

    def counted(self, filter: Callable[..., Any]) -> Callable[..., Any]:
        """A filter whose calls count as steps."""

        @wraps(filter)  # keeps the attributes that tell Jinja which arguments a filter needs
        def counted(*args: Any, **given: Any) -> Any:
            self.step()
            return filter(*args, **given)

        return counted

    def over(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item


def render(source: str, names: Mapping[str, Any]) -> str:
    """The text of a template; any exception in it becomes an `InvalidInput` of one line."""
    environment, count = _environment(), _Count()
    try:
        pieces, size = [], 0
        for piece in environment.template(source, count).generate(**names):
            size += len(piece)
            _check_size(size)
            pieces.append(piece)
        return "".join(pieces)
    except LimitExceeded as error:
        raise InvalidInput(f"the tokenizer's template for chats does too much: {error}") from None
    except Exception as error:  # arithmetic, lookup, recursion, memory: a template fails in any way a program can
        reason = str(error) if type(error).__module__.startswith("jinja2") else f"{type(error).__name__}: {error}"
        reason = " ".join(reason.split())
        raise InvalidInput(f"the tokenizer's template for chats does not take this conversation: {reason}") from None


def _check_size(size: int) -> None:
    if size > SIZE:
        raise LimitExceeded(f"it makes a text or a list of more than {SIZE} items")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple, dict)) else 0


def _check_numbers(values: Iterable[Any]) -> None:
    """Refuses numbers that ask for a huge result, such as the width of `center`."""
    for value in values:
        if isinstance(value, int) and abs(value) > SIZE:
            raise LimitExceeded(f"it gives a number of more than {SIZE} to a function")


def _check_format(pattern: str, values: Iterable[Any]) -> None:
    _check_numbers(values)
    if re.search(r"[%{:.][^}%\s]*\d{7,}", pattern):
        raise LimitExceeded("it asks for more than 6 digits of width in a format")


def _check_product(first: Any, *rest: Any) -> None:
    """Refuses a call that may replace every item of one value by all of another."""
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
            environment = self.overlay()
            environment.count = count
            environment.filters = {name: count.counted(filter) for name, filter in self.filters.items()}
            environment.filters |= {"_count": count.over, "_join": _join}
            return environment.from_string(source)

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
                    raise LimitExceeded("it computes a number of more than 10000 bits")
            return super().call_binop(context, operator, left, right)

    def refuse(message: str) -> None:
        raise TemplateError(message)

    environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, **given: json.dumps(value, ensure_ascii=False, **given)
    for name in EXPANDING:
        environment.filters[name] = _limited(name, environment.filters[name])
    for name in QUADRATIC:
        environment.filters[name] = _for_short_texts(name, environment.filters[name])
    joined = environment.filters["join"]

    @wraps(joined)
    def join(context: Any, values: Any, d: str = "", attribute: Any = None) -> Any:
        values = list(values)
        _check_joined(d, values)
        return joined(context, values, d, attribute)

    environment.filters["join"] = join
    del environment.globals["lipsum"]  # makes any amount of text
    return environment


def _limited(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that checks the size of its output before it makes it."""

    @wraps(filter)
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


def _for_short_texts(name: str, filter: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(filter)
    def limited(*args: Any, **given: Any) -> Any:
        if any(_length(value) > QUADRATIC_SIZE for value in (*args, *given.values())):
            raise LimitExceeded(f"it gives more than {QUADRATIC_SIZE} characters to {name}")
        return filter(*args, **given)

    return limited


def _join(values: list[Any]) -> str:
    """The operator `~`."""
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _replace_joins(tree: Any, nodes: Any) -> None:
    """Replaces every `a ~ b` by a call of `_join`."""
    for parent in [tree, *tree.find_all(nodes.Node)]:
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _joined(value, nodes))
            elif isinstance(value, list):
                setattr(parent, field, [_joined(v, nodes) if isinstance(v, nodes.Concat) else v for v in value])


def _joined(node: Any, nodes: Any) -> Any:
    return nodes.Filter(nodes.List(node.nodes), "_join", [], [], None, None)


__all__ = ["render"]
