"""Descriptions of mechanisms, models and presets, as `longspan list` and `longspan show` print them."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from longspan import attention, config
from longspan.errors import InvalidInput, UnknownName, Unsupported, suggest
from longspan.models import presets, registry
from longspan.models.base import CausalModel, Model
from longspan.models.cost import blank, cost, count, longest
from longspan.models.image_base import ImageHeads
from longspan.models.pixel_base import PixelModel
from longspan.models.table_base import TableModel

LENGTHS = (1024, 4096, 16384)  # costs are given at these, if the model can hold them, and at the paper's own


def describe(name: str, lengths: Sequence[int] = ()) -> dict[str, Any]:
    """Describes a mechanism, a model or a preset, ready for JSON; `kind` says which. `lengths` are for presets."""
    if lengths and name not in presets.PRESETS:
        raise InvalidInput(f"lengths are for presets, and {name!r} is not a preset; leave them out")
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
    """A model: its paper, its abilities, and its options with their help and limits."""
    model = registry.find(name)
    return {
        "name": name,
        "summary": _summary(model),
        "paper": model.paper,
        "decodes": issubclass(model, CausalModel),
        "reads_source": getattr(model, "reads_source", False),
        "presets": [preset for preset, row in presets.PRESETS.items() if row.model == name],
        "options": [{**row, "default": config.plain(row["default"])} for row in config.describe(model.Options)],
    }


def list_presets() -> list[dict[str, Any]]:
    """Every preset as its paper describes it; nothing is built."""
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
    """A preset: parameters by part and costs by length, next to what its paper prints."""
    row = presets.find(name)
    with blank():
        model = registry.build(name)
    parts = count(model)
    costs, notes = costs_by_length(model, lengths, row.lengths)
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


def costs_by_length(
    model: Model, requested: Sequence[int] = (), printed: Sequence[int] = ()
) -> tuple[list[dict[str, Any]], list[str]]:
    """Costs at the requested lengths, or else at the paper's and at `LENGTHS`; and notes."""
    most = longest(model)
    sized = isinstance(model, (ImageHeads, PixelModel, TableModel))  # an image and a row have their own size
    usual = () if sized and printed else LENGTHS
    lengths = requested or [length for length in sorted({*printed, *usual}) if most is None or length <= most]
    try:
        costs = [cost(model, length) for length in lengths]
    except Unsupported as error:
        return [], [str(error)]
    rows = [
        {
            "length": total.length,
            "flops": total.flops,
            "attention_flops": sum(part.flops for name, part in total.parts.items() if name.endswith("attention")),
            "activation_bytes": total.bytes,
        }
        for total in costs
    ]
    return rows, list(dict.fromkeys(note for total in costs for note in total.notes))


def _summary(model: type[Model]) -> str:
    return (model.__doc__ or import_module(model.__module__).__doc__ or "").strip().splitlines()[0]


__all__ = ["costs_by_length", "describe", "describe_model", "describe_preset", "known", "list_presets"]
