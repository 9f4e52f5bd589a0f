"""What a model remembers from batch to batch, as tensors and back.

A state is a tree of `State` dataclasses, tensors, `Rows`, tuples and plain values. Its tensors are written by number,
and its shape as JSON that names each dataclass; nothing but a `State` of longspan is ever made from it.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from longspan.attention.state import Rows, State
from longspan.errors import InvalidInput

PLAIN = (bool, int, float, str, type(None))


def flatten_state(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The shape of a state; its tensors are put into `tensors`."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach()
        return {"tensor": name}
    if isinstance(value, Rows):
        return {"rows": flatten_state(value.value, tensors), "keep": value.keep}
    if isinstance(value, tuple):
        return {"tuple": [flatten_state(part, tensors) for part in value]}
    if isinstance(value, dict):
        return {"table": [[flatten_state(key, tensors), flatten_state(part, tensors)] for key, part in value.items()]}
    if is_dataclass(value) and not isinstance(value, type):
        parts = {item.name: flatten_state(getattr(value, item.name), tensors) for item in fields(value)}
        return {"state": f"{type(value).__module__}:{type(value).__qualname__}", "fields": parts}
    assert isinstance(value, PLAIN), f"{type(value)} cannot be saved"
    return {"value": value}


def restore_state(shape: Any, tensors: Mapping[str, Tensor], source: str) -> Any:
    """The state again; `source` is named where it is not one."""
    try:
        return _made(shape, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, ImportError, RecursionError, RuntimeError) as error:
        raise InvalidInput(f"{source} holds no state of a model: {error}") from None


def _made(shape: Any, tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in shape:
        return tensors[shape["tensor"]]
    if "rows" in shape:
        return Rows.of(_made(shape["rows"], tensors), shape["keep"])
    if "tuple" in shape:
        return tuple(_made(part, tensors) for part in shape["tuple"])
    if "table" in shape:
        return {_made(key, tensors): _made(part, tensors) for key, part in shape["table"]}
    if "state" in shape:
        return _class(shape["state"])(**{name: _made(part, tensors) for name, part in shape["fields"].items()})
    if not isinstance(shape["value"], PLAIN):
        raise ValueError(f"{shape['value']!r} is no plain value")
    return shape["value"]


def _class(name: str) -> type:
    module, _, attribute = name.partition(":")
    if not module.startswith("longspan."):
        raise ValueError(f"{name} is not longspan's")
    found = getattr(import_module(module), attribute)
    # Beside states there are plain dataclasses inside them, such as a table of distances; both only hold values.
    if not (isinstance(found, type) and (issubclass(found, State) or is_dataclass(found))):
        raise ValueError(f"{name} is no state")
    return found


__all__ = ["flatten_state", "restore_state"]
