"""The gallery's numbers for its page: pictures as bytes on a log scale, and the index that finds them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longspan import config
from longspan.inspect.gallery import Entry, Picture
from longspan.inspect.visibility import Sight
from longspan.report.payload import Payload
from longspan.report.profile import kind_of

DECADES = 4  # a picture's smallest weight is at least 10 ** -DECADES of its largest, or shown as that


def encode(read: NDArray[np.floating[Any]]) -> tuple[NDArray[np.uint8], float, bool]:
    """The bytes of a picture, its largest magnitude, and whether some weights are negative.

    0 is exactly 0. Otherwise codes 1 to 255 are magnitudes on a log scale, or 1 to 127 in pictures with negative
    weights, to whose codes 128 is added.
    """
    size = np.abs(read).astype(np.float64)
    peak, signed = float(size.max()), bool((read < 0).any())
    steps = 126 if signed else 254
    with np.errstate(divide="ignore"):
        place = 1 + steps * (1 + np.log10(size / (peak or 1.0)) / DECADES)
    codes = np.where(size == 0, 0, np.clip(np.rint(place), 1, steps + 1)).astype(np.uint8)
    return np.where(read < 0, codes | 128, codes).astype(np.uint8), peak, signed


def decode(codes: NDArray[np.uint8], peak: float, signed: bool) -> NDArray[np.float64]:
    """The weights that the page shows."""
    steps = 126 if signed else 254
    place = (codes & 127 if signed else codes).astype(np.float64)
    size = np.where(place == 0, 0.0, peak * 10 ** (DECADES * ((place - 1) / steps - 1)))
    return np.where((codes >= 128) & signed, -size, size)


def index_of(payload: Payload, entries: Sequence[Entry]) -> dict[str, Any]:
    """What the page knows of each mechanism, with the places of all pictures, which are added to the payload."""
    codes, could, peaks, signed = [], [], [], []

    def add(picture: Picture) -> int:
        code, peak, has_negative = encode(picture.read.numpy())
        codes.append(code)
        could.append(np.packbits(picture.could.numpy(), axis=-1, bitorder="little"))
        peaks.append(peak)
        signed.append(has_negative)
        return len(codes) - 1

    rows = [_row(entry) | {"forms": _forms(entry, add)} for entry in entries]
    arrays = {"codes": np.stack(codes), "could": np.stack(could)}
    arrays |= {"peaks": np.array(peaks, np.float32), "signed": np.array(signed, np.uint8)}
    return {"mechanisms": rows, "pictures": {name: payload.array("pictures", array) for name, array in arrays.items()}}


def _forms(entry: Entry, add: Any) -> dict[str, dict[str, list[int]]]:
    return {
        form: {
            ",".join(map(str, indices)): [add(picture) for picture in pictures] for indices, pictures in found.items()
        }
        for form, found in entry.pictures.items()
    }


def _row(entry: Entry) -> dict[str, Any]:
    facts = entry.facts
    return {
        "name": entry.name,
        "kind": entry.kind,
        "css": f"k-{kind_of(entry.name)}",
        "shown": entry.shown,
        "moves": entry.moves,
        **{key: facts[key] for key in ("summary", "paper", "order", "exponent", "supports")},
        "options": [
            {key: config.plain(item[key]) for key in ("name", "type", "default", "help")} for item in facts["options"]
        ],
        "other_options": config.plain(dict(entry.options)),
        "dials": [
            {
                "name": dial.name,
                "help": dial.help,
                "start": dial.start,
                "values": [spell(value) for value in dial.values],
            }
            for dial in entry.dials
        ],
        "costs": [[length, *cost] for length, cost in entry.costs.items()],
        "state": None if entry.state is None else [[length, size] for length, size in entry.state.items()],
    }


def spell(value: Any) -> str:
    """A value of an option, in words."""
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(spell, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def plain(entries: Sequence[Entry], sights: Sequence[Sight]) -> dict[str, Any]:
    """What `--json` prints: facts, and of each first picture what was read; maps are in the page."""
    rows = []
    for entry in entries:
        forms = {}
        for form, found in entry.pictures.items():
            picture = found[entry.start][0]
            forms[form] = {
                "could_read": int(picture.could.sum()),
                "cells": picture.could.numel(),
                "largest": float(picture.read.abs().max()),
                "outside": max(one.outside for several in found.values() for one in several),
                "settings": len(found),
            }
        rows.append({**_row(entry), "forms": forms})
    visible = {sight.name: {title: int(seen.sum()) for title, seen in sight.layers} for sight in sights}
    return {"mechanisms": rows, "visible": visible}


__all__ = ["decode", "encode", "index_of", "plain", "spell"]
