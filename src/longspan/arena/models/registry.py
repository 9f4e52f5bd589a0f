"""The arena's models by name: every registered mechanism, dense attention, and recurrent networks.

Windows, blocks and ranks have the sizes of the released configurations (Tay et al. 2020) if texts are long enough. They
shrink with shorter texts, so that no window covers the whole text and becomes dense attention.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from longspan import config
from longspan.arena.models.arena_encoder import ArenaEncoder
from longspan.arena.models.bidirectional import encoder_attention
from longspan.attention import registry
from longspan.attention.config import AttentionConfig
from longspan.errors import InvalidOption, UnknownName, suggest

MOST = 1.10  # times the parameters of the base Transformer: what has more may not be compared
Grid = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a mechanism's options depend on."""

    length: int  # of the longest text, the position in front included
    width: int
    layers: int
    grid: Grid | None = None  # of images, where nothing stands in front of them


@dataclass(frozen=True)
class ArenaModel:
    """A model by the name that cells have, as tables print it, and what kind of mechanism it is."""

    name: str
    title: str
    kind: str  # dense, fixed pattern, memory, learned pattern, low rank, kernel, recurrent
    layers: Callable[[Room], list[AttentionConfig]] = lambda room: [
        AttentionConfig("softmax")
    ]  # repeated from the bottom up
    recurrent: str | None = None  # the cell, where that stands in place of attention
    needs_grid: bool = False  # reads images as rows and columns, so that nothing may stand in front of them
    speed_only: bool = False


def _mechanism(name: str, options: Callable[[Room], Mapping[str, Any]]) -> Callable[[Room], list[AttentionConfig]]:
    return lambda room: [encoder_attention(name, dict(options(room)))]


def _share(room: Room, parts: int, most: int, least: int = 2) -> int:
    """One of so many parts of the text, within limits; never more than the text."""
    return min(room.length, max(least, min(most, room.length // parts)))


def _root(room: Room) -> int:
    return max(2, math.isqrt(room.length))


def _axial(room: Room) -> list[AttentionConfig]:
    """Rows in one layer and columns in the next; a text is folded into a square."""
    size: dict[str, Any] = {"axes": room.grid} if room.grid else {"width": _root(room)}
    return [encoder_attention("axial", {**size, "axis": axis}) for axis in (-1, 0)][: room.layers]


def _image_local(room: Room) -> Mapping[str, Any]:
    if room.grid is None:
        return {"query_block": _share(room, 8, 256), "memory": _share(room, 8, 256)}
    height, width = room.grid
    block = tuple(max(1, side // 4) for side in room.grid)
    return {"query_block": block, "memory": block, "width": width, "height": height}


def _reformer(room: Room) -> Mapping[str, Any]:
    chunk = _share(room, 8, 64, 4)
    rounds = 2 if room.length > 512 else 1  # each takes a sort, most of the time of short texts
    return {"rounds": rounds, "chunk": chunk, "buckets": 2 * max(1, math.ceil(room.length / chunk))}


def _synthesizer(room: Room) -> Mapping[str, Any]:
    # Dense has a weight for each position and unit: as many as it saves in queries and keys where texts are short.
    if room.length <= 2 * room.width:
        return {"form": "dense", "width": room.width}
    return {"form": "factorised_dense", "factor": _root(room), "width": room.width}


def _routing(room: Room) -> Mapping[str, Any]:
    clusters = _root(room)
    return {"clusters": clusters, "window": math.ceil(room.length / clusters)}


def _etc(room: Room) -> Mapping[str, Any]:
    # Labels have vectors of their own, a tenth of a narrow model, and their loop over rows and heads takes most of its
    # time; a narrow model has the positions of the shell alone.
    labels = 12 if room.width >= 128 else 0
    return {"global_tokens": 1, "radius": _share(room, 8, 84), "labels": labels, "shared": True}


def _bigbird(room: Room) -> Mapping[str, Any]:
    # Blocks of fewer positions than 8 are slower than dense attention many times over.
    return {"block": _share(room, 16, 64, 8), "random": 3 if room.length > 512 else 1}


def _nystrom(room: Room) -> Mapping[str, Any]:
    # The convolution of an image reaches each neighbour of a pixel: the rows above and below with one more at each end.
    kernel = 33 if room.grid is None else 2 * room.grid[1] + 3
    # Eight tokens to a landmark at least: inverting costs their cube, most of the time of short texts otherwise.
    return {"landmarks": _share(room, 8, 64), "kernel": kernel}


def _sparse(room: Room) -> Mapping[str, Any]:
    stride = min(50, _root(room))
    return {"pattern": "fixed", "stride": stride, "summary": max(1, stride // 5)}


_OPTIONS: dict[str, tuple[str, str, Callable[[Room], Mapping[str, Any]]]] = {
    # name: title, kind, options
    "window": ("Local Attention", "fixed pattern", lambda room: {"window": _share(room, 8, 25)}),
    "longformer": ("Longformer", "fixed pattern", lambda room: {"window": _share(room, 8, 256)}),
    "etc": ("ETC", "fixed pattern", _etc),
    "bigbird": ("BigBird", "fixed pattern", _bigbird),
    "sparse": ("Sparse Transformer", "fixed pattern", _sparse),
    "image_local": ("Image Transformer", "fixed pattern", _image_local),
    "memory_compressed": ("Memory Compressed", "memory", lambda room: {"stride": 3}),
    "inducing": ("Set Transformer", "memory", lambda room: {"points": _share(room, 4, 32)}),
    "reformer": ("Reformer", "learned pattern", _reformer),
    "routing": ("Routing Transformer", "learned pattern", _routing),
    "sinkhorn": ("Sinkhorn Transformer", "learned pattern", lambda room: {"block": _share(room, 8, 50)}),
    "synthesizer": ("Synthesizer", "learned pattern", _synthesizer),
    "linformer": ("Linformer", "low rank", lambda room: {"rank": _share(room, 4, 16)}),
    "nystrom": ("Nyströmformer", "low rank", _nystrom),
    "linear": ("Linear Transformer", "kernel", lambda room: {}),
    "performer": ("Performer", "kernel", lambda room: {"features": _share(room, 1, 256, 16)}),
    "cosformer": ("cosFormer", "kernel", lambda room: {}),
    "retention": ("Retention", "kernel", lambda room: {}),
    "gated_linear": ("Gated Linear", "kernel", lambda room: {"width": room.width}),
}


def _table() -> dict[str, ArenaModel]:
    found = {"dense": ArenaModel("dense", "Transformer", "dense")}
    for name in registry.names():
        if name == "axial":
            found[name] = ArenaModel(name, "Axial Transformer", "fixed pattern", _axial, needs_grid=True)
        elif name in _OPTIONS:
            title, kind, options = _OPTIONS[name]
            found[name] = ArenaModel(name, title, kind, _mechanism(name, options), needs_grid=name == "image_local")
        elif name != "softmax":  # what is new in the registry takes part as it is
            found[name] = _with_defaults(name)
    for cell, title in (("lstm", "LSTM"), ("gru", "GRU")):
        found[cell] = ArenaModel(cell, f"Bidirectional {title}", "recurrent", recurrent=cell)
    # The same function as `dense`, whose weights the speed cells keep in memory: see `measure.naive`.
    found["naive"] = ArenaModel("naive", "Transformer, not fused", "dense", speed_only=True)
    return found


def _with_defaults(name: str) -> ArenaModel:
    """A mechanism that is not in the table above, such as a plugin: with its default options."""
    return ArenaModel(name, name.replace("_", " ").title(), "other", _mechanism(name, lambda room: {}))


ENTRANTS = _table()
ALSO = {"transformer": "dense", "softmax": "dense"}  # other names of the same


def names(kind: str = "accuracy") -> list[str]:
    """All that take part in cells of this kind."""
    plugins = [name for name in registry.names() if name not in ENTRANTS and name not in ALSO]
    return [*(name for name, entrant in ENTRANTS.items() if kind == "speed" or not entrant.speed_only), *plugins]


def find(name: str) -> ArenaModel:
    """An entrant by its name, or by another name of it."""
    name = ALSO.get(name, name)
    if name not in ENTRANTS and name in registry.ATTENTION:
        return _with_defaults(name)
    if name not in ENTRANTS:
        raise UnknownName(f"no model of the arena is called {name!r}: {suggest(name, [*ENTRANTS, *ALSO])}")
    return ENTRANTS[name]


def options(
    name: str,
    sizes: Mapping[str, Any],
    *,
    length: int,
    vocabulary: int,
    classes: int,
    texts: int = 1,
    grid: Grid | None = None,
    spare: int = 0,
) -> ArenaEncoder.Options:
    """All options of an entrant; `sizes` are those of a setting, and `length` that of the longest text."""
    entrant, given = find(name), {**SHELL, **sizes}
    if given.get("pool", "cls") == "cls" and entrant.needs_grid and grid is not None:
        given["pool"] = "mean"  # a position in front would move each row of the image by one
    longest = length + (given.get("pool", "cls") == "cls")
    room = Room(length=longest, width=given["width"], layers=given["layers"], grid=grid)
    if given["width"] % given["heads"] and given.get("head_dim") is None:
        raise InvalidOption(f"{given['heads']} heads do not divide the width {given['width']}; give head_dim")
    given |= {
        "max_length": longest,
        "vocabulary": vocabulary,
        "classes": classes,
        "texts": texts,
        "spare": spare,
        "attention": entrant.layers(room),
        "recurrent": entrant.recurrent,
        "hidden_dropout": given.get("hidden_dropout", given.get("dropout", 0.1)),
        "axes": grid if given.get("position") == "rotary_grid" else None,
    }
    return config.make(ArenaEncoder.Options, given, entrant.name)


# What all settings have in common.
SHELL: dict[str, Any] = {
    "norm_position": "pre",
    "activation": "gelu_tanh",  # the form that the released code's library has
    "query_bias": False,
    "output_bias": False,
    "eps": 1e-6,
}


def build(name: str, sizes: Mapping[str, Any], **needs: Any) -> ArenaEncoder:
    """The model of an entrant; see `options`."""
    return ArenaEncoder(options(name, sizes, **needs))


def parameters(model: Any) -> int:
    """Numbers that are trained, those that are shared once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flag(ratio: float) -> str | None:
    """Why a model of so many times the base's parameters may not be compared."""
    if ratio <= MOST:
        return None
    return f"{ratio:.2f} times the parameters of the base Transformer, where at most {MOST:.2f} are comparable"


__all__ = ["ENTRANTS", "MOST", "ArenaModel", "Room", "build", "find", "flag", "names", "options", "parameters"]
