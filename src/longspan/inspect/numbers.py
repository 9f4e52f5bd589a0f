"""A record as plain numbers and text, for JSON: everything but the pictures."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from longspan.inspect.records import Errors, HeadRecord, ModuleRecord, Record, Step

ERRORS = ("kl", "variation", "output", "top1", "nowhere")


def as_numbers(record: Record) -> dict[str, Any]:
    """For `json.dumps`: no number is infinite or NaN (those are None)."""
    written: dict[str, Any] = {
        "model": asdict(record.model),
        "text": record.text,
        "axes": {
            name: {"tokens": list(axis.tokens), "words": axis.words.tolist(), "special": axis.special.tolist()}
            for name, axis in record.axes.items()
        },
        "modules": [_module(module, record) for module in record.modules],
        "detail": {
            "heads": [list(pair) for pair in record.budget.detailed],
            "without": record.budget.omitted,
            "bytes": record.budget.spent,
        },
        "notes": list(record.notes),
        "caution": record.caution,
    }
    if record.against:
        written["against"] = record.against
    if record.by_length is not None:
        written["by_length"] = {
            "lengths": list(record.by_length.lengths),
            "errors": list(ERRORS),
            "values": record.by_length.errors.tolist(),
        }
    if record.generated is not None:
        made = record.generated
        written["generated"] = {
            "prompt": made.prompt,
            "settings": dict(made.settings),
            "stopped": made.stopped,
            "steps": [_step(step) for step in made.steps],
        }
    plain: dict[str, Any] = _plain(written)
    return plain


def _module(module: ModuleRecord, record: Record) -> dict[str, Any]:
    names = ("layer", "kind", "side", "mechanism", "causal", "standing", "sentence", "signed", "normalised")
    special = [record.axes[module.keys].tokens[i] for i in np.flatnonzero(record.axes[module.keys].special)]
    return {
        **{name: getattr(module, name) for name in names},
        "options": dict(module.options),
        "queries": module.queries,
        "keys": module.keys,
        "heads": [_head(head, special) for head in module.heads],
    }


def _head(head: HeadRecord, special: list[str]) -> dict[str, Any]:
    sums = head.sums
    written: dict[str, Any] = {
        "head": head.index,
        **{name: getattr(sums, name) for name in ("previous", "next", "self", "first", "largest")},
        "entropy": float(sums.entropy.mean()),
        "special": [{"token": token, "mass": float(mass)} for token, mass in zip(special, sums.special)],
        "received": sums.received.tolist(),
    }
    if head.difference is not None:
        difference = head.difference
        written["difference"] = {
            **errors_of(difference.errors),
            "control": errors_of(difference.control),
            "blocks": [errors_of(block) for block in difference.blocks],
        }
    return written


def errors_of(errors: Errors) -> dict[str, float | None]:
    return {name: getattr(errors, name) for name in ERRORS}


def _step(step: Step) -> dict[str, Any]:
    return {
        "position": step.position,
        "id": step.id,
        "token": step.token,
        "choices": [asdict(choice) for choice in step.choices],
        "draw": step.draw,
        "kept": step.kept,
        "reads": [{"module": each.module, "weights": each.weights.astype(float).tolist()} for each in step.readings],
        "lens": [asdict(line) for line in step.lens],
        "first_led": step.first_led,
        "cache_bytes": step.cache_bytes,
        "cached": None if step.cached is None else step.cached.tolist(),
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


__all__ = ["ERRORS", "as_numbers", "errors_of"]
