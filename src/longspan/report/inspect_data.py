"""A record (`inspect.records`) as the numbers of a page: an index, and blocks that the page opens when it needs them.

The index is the record itself, with the place of each array instead of the array. Blocks: `grid` has the coarsest level
of every head, which all thumbnails need at once. Each head has a block of finer levels and sums, one of its detail, and
one of its difference; so a page of 400 heads opens only what is looked at.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from longspan.inspect.records import HeadRecord, ModuleRecord, Pyramid, Record
from longspan.report.payload import Payload, finite

SHOWN_SUMS = ("received", "entropy", "offsets")  # sums by position; the page has no use for the others


def index_of(payload: Payload, record: Record) -> dict[str, Any]:
    """What the page knows at once; arrays are added to the payload."""
    modules = [_module(payload, number, module) for number, module in enumerate(record.modules)]
    return {
        "model": plain(payload, "rest", record.model),
        "text": record.text,
        "axes": {name: _axis(payload, axis) for name, axis in record.axes.items()},
        "modules": modules,
        "rollouts": [plain(payload, f"rollout{number}", item) for number, item in enumerate(record.rollouts)],
        "picture": plain(payload, "picture", record.picture),
        "generated": plain(payload, "generated", record.generated),
        "by_length": plain(payload, "lengths", record.by_length),
        "budget": plain(payload, "rest", record.budget),
        "against": record.against,
        "notes": list(record.notes),
        "caution": record.caution,
    }


def _axis(payload: Payload, axis: Any) -> dict[str, Any]:
    special = np.flatnonzero(axis.special).tolist()
    words = payload.array("axes", axis.words.astype(np.int32))
    return {"name": axis.name, "tokens": list(axis.tokens), "words": words, "special": special}


def _module(payload: Payload, number: int, module: ModuleRecord) -> dict[str, Any]:
    heads = [_head(payload, f"{number}-{head.index}", head) for head in module.heads]
    rest = {
        item.name: plain(payload, f"all{number}", getattr(module, item.name))
        for item in fields(module)
        if item.name not in ("heads", "mean", "max")
    }
    together = {name: _pyramid(payload, f"all{number}", getattr(module, name)) for name in ("mean", "max")}
    return {**rest, **together, "title": module.title, "heads": heads}


def _head(payload: Payload, name: str, head: HeadRecord) -> dict[str, Any]:
    sums: dict[str, Any] = {}
    for item in fields(head.sums):
        value = getattr(head.sums, item.name)
        if item.name in SHOWN_SUMS:
            sums[item.name] = payload.array(f"map{name}", value)
        elif item.name == "special":
            sums[item.name] = [finite(number) for number in value]
        elif np.ndim(value) == 0:
            sums[item.name] = finite(value)
    sums["mean_entropy"] = finite(head.sums.entropy.mean()) if len(head.sums.entropy) else None
    difference = head.difference
    return {
        "index": head.index,
        "pyramid": _pyramid(payload, f"map{name}", head.pyramid, coarsest="grid"),
        "sums": sums,
        "detail": plain(payload, f"detail{name}", head.detail),
        "pattern": plain(payload, f"pattern{name}", head.pattern),
        "difference": None
        if difference is None
        else {
            **{key: plain(payload, "rest", getattr(difference, key)) for key in ("errors", "blocks", "control")},
            **{key: _pyramid(payload, f"change{name}", getattr(difference, key)) for key in ("exact", "change")},
            "exact_detail": plain(payload, f"change{name}", difference.exact_detail),
        },
    }


def _pyramid(payload: Payload, block: str, pyramid: Pyramid | None, coarsest: str | None = None) -> Any:
    if pyramid is None:
        return None
    last = pyramid.levels[-1]
    levels = []
    for level in pyramid.levels:
        place = coarsest if coarsest is not None and level is last else block
        levels.append(plain(payload, place, level) | {"shape": list(level.max.shape)})
    return {"scale": finite(pyramid.scale), "levels": levels}


def plain(payload: Payload, block: str, value: Any) -> Any:
    """A value of the record for JSON; arrays go to `block`, and their place stands for them."""
    if is_dataclass(value):
        return {item.name: plain(payload, block, getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, np.ndarray):
        return payload.array(block, value)
    if isinstance(value, Mapping):
        return {str(key): plain(payload, block, item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(payload, block, item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return finite(value) if isinstance(value, float) else value


__all__ = ["index_of", "plain"]
