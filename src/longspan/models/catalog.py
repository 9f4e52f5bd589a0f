"""Everything that has a name, described: mechanisms, models and presets; what `longspan list` and `show` print."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from longspan import attention, config
from longspan.errors import InvalidInput, UnknownName, Unsupported, suggest
from longspan.models import presets, registry
from longspan.models.base import CausalModel, Model
from longspan.models.cost import blank, cost, count, longest

LENGTHS = (1024, 4096, 16384)  # at which every model that can hold them is costed, beside the paper's own


def describe(name: str, lengths: Sequence[int] = ()) -> dict[str, Any]:
    """A mechanism, a model or a preset, ready for JSON; `kind` says which. `lengths` are for presets."""
    if lengths and name not in presets.PRESETS:
        raise InvalidInput(f"lengths are for presets, which {name!r} is not; leave them out")
    if name in attention.names():
        return {"kind": "attention", **attention.describe(name)}
    if name in registry.MODELS:
        return {"kind": "model", **describe_model(name)}
    if name in presets.PRESETS:
        return {"kind": "preset", **describe_preset(name, lengths)}
    raise UnknownName(f"no attention, model or preset is called {name!r}: {suggest(name, known())}")


def known() -> list[str]:
    """All names."""
    return [*attention.names(), *registry.names(), *presets.names()]


def describe_model(name: str) -> dict[str, Any]:
    """What a model is, and its options with their help and limits."""
    found = registry.find(name)
    return {
        "name": name,
        "summary": _summary(found),
        "paper": found.paper,
        "decodes": issubclass(found, CausalModel),
        "reads_source": getattr(found, "reads_source", False),
        "presets": [preset for preset, row in presets.PRESETS.items() if row.model == name],
        "options": [{**row, "default": config.plain(row["default"])} for row in config.describe(found.Options)],
    }


def list_presets() -> list[dict[str, Any]]:
    """What the papers say of every preset; nothing is built."""
    return [
        {
            "name": name,
            "model": row.model,
            "paper": row.paper,
            "printed_parameters": row.parameters,
            "lengths": list(row.lengths),
            "remarks": row.remarks,
        }
        for name, row in presets.PRESETS.items()
    ]


def describe_preset(name: str, lengths: Sequence[int] = ()) -> dict[str, Any]:
    """What a preset weighs by part and costs by length, beside what its paper says."""
    row = presets.find(name)
    with blank():
        model = registry.build(name)
    parts = count(model)
    costs, notes = _costs(model, lengths, row.lengths)
    return {
        "name": name,
        "model": row.model,
        "summary": _summary(type(model)),
        "paper": row.paper,
        "remarks": row.remarks,
        "parameters": sum(parts.values()),
        "printed_parameters": row.parameters,
        "parts": parts,
        "printed_lengths": list(row.lengths),
        "costs": costs,
        "cost_notes": notes,
        "options": {
            item["name"]: config.plain(getattr(model.options, item["name"]))
            for item in config.describe(type(model.options))
            if getattr(model.options, item["name"]) != item["default"]
        },
        "python": f'longspan.models.build("{name}")',
    }


def _costs(model: Model, asked: Sequence[int], own: Sequence[int]) -> tuple[list[dict[str, Any]], list[str]]:
    """At the lengths asked for, or else at the paper's and at some that all models can be compared at; and notes."""
    most = longest(model)
    wanted = asked or [length for length in sorted({*own, *LENGTHS}) if most is None or length <= most]
    try:
        found = [cost(model, length) for length in wanted]
    except Unsupported as error:
        return [], [str(error)]
    rows = [
        {
            "length": each.length,
            "flops": each.flops,
            "attention_flops": sum(part.flops for name, part in each.parts.items() if name.endswith("attention")),
            "activation_bytes": each.bytes,
        }
        for each in found
    ]
    return rows, list(dict.fromkeys(note for each in found for note in each.notes))


def _summary(found: type[Model]) -> str:
    return (found.__doc__ or import_module(found.__module__).__doc__ or "").strip().splitlines()[0]


__all__ = ["describe", "describe_model", "describe_preset", "known", "list_presets"]
