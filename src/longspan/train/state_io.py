"""Save and restore the state that a model carries from batch to batch.

A state is a tree of `State` dataclasses, tensors, `Rows`, tuples and plain values. Its tensors are written by number,
and its structure as JSON that names each dataclass. Reading creates only classes that are registered as states
(`attention.state.stored`); nothing is imported by name.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from longspan.attention.state import STORED, Rows, stored_name
from longspan.errors import InvalidInput

PLAIN = (bool, int, float, str, type(None))
RENAMED = {  # names in checkpoints of early versions
    "longspan.models.transformer_xl:Memory": "SegmentMemory",
    "longspan.models.transformer_xl:MemoryState": "SegmentState",
    "longspan.attention.memory_compressed:MemoryState": "CompressedState",
    "longspan.nn.alignment:Memory": "AlignmentMemory",
    "longspan.nn.shared:SharedState": "UniversalState",
    "longspan.nn.shared:Waiting": "PendingState",
}


def flatten_state(value: Any, tensors: dict[str, Tensor]) -> Any:
    """The structure of a state as JSON data; its tensors are added to `tensors`."""
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
        name = stored_name(type(value))
        assert STORED.get(name) is type(value), f"{name} is not registered as part of a state"
        return {"state": name, "fields": parts}
    assert isinstance(value, PLAIN), f"{type(value)} cannot be saved"
    return {"value": value}


def restore_state(shape: Any, tensors: Mapping[str, Tensor], source: str) -> Any:
    """The inverse of `flatten_state`; errors name `source`."""
    try:
        return _restore(shape, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, RuntimeError) as error:
        raise InvalidInput(f"{source} is not a saved state of a model: {error}") from None


def _restore(shape: Any, tensors: Mapping[str, Tensor]) -> Any:
    if "tensor" in shape:
        return tensors[shape["tensor"]]
    if "rows" in shape:
        return Rows.of(_restore(shape["rows"], tensors), shape["keep"])
    if "tuple" in shape:
        return tuple(_restore(part, tensors) for part in shape["tuple"])
    if "table" in shape:
        return {_restore(key, tensors): _restore(part, tensors) for key, part in shape["table"]}
    if "state" in shape:
        return _class(shape["state"])(**{name: _restore(part, tensors) for name, part in shape["fields"].items()})
    if not isinstance(shape["value"], PLAIN):
        raise ValueError(f"{shape['value']!r} is not a plain value")
    return shape["value"]


def _class(name: str) -> type:
    name = RENAMED.get(name, name)
    if name.startswith("longspan."):  # as checkpoints of early versions have it: module:class
        name = name.partition(":")[2]
    if name not in STORED:
        raise ValueError(f"{name} is not a state")
    return STORED[name]


__all__ = ["flatten_state", "restore_state"]
