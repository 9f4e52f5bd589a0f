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

MOST = 1.10  # times the parameters of the base Transformer; models with more are not compared
Grid = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class BuildContext:
    """What the options of a mechanism depend on."""

    length: int  # of the longest text, including an extra first position
    width: int
    layers: int
    grid: Grid | None = None  # of images without an extra first position


@dataclass(frozen=True)
class ArenaModel:
    """A model of the arena: its name in cells, its title in tables, and the kind of its mechanism."""

    name: str
    title: str
    kind: str  # dense, fixed pattern, memory, learned pattern, low rank, kernel, recurrent
    layers: Callable[[BuildContext], list[AttentionConfig]] = lambda context: [
        AttentionConfig("softmax")
    ]  # one per layer, repeated from the bottom up
    recurrent: str | None = None  # a recurrent cell instead of attention
    needs_grid: bool = False  # reads images as rows and columns: no extra first position
    speed_only: bool = False


def _mechanism(
    name: str, options: Callable[[BuildContext], Mapping[str, Any]]
) -> Callable[[BuildContext], list[AttentionConfig]]:
    return lambda context: [encoder_attention(name, dict(options(context)))]


def _share(context: BuildContext, parts: int, most: int, least: int = 2) -> int:
    """The length divided by `parts`, from `least` to `most`; never more than the length."""
    return min(context.length, max(least, min(most, context.length // parts)))


def _root(context: BuildContext) -> int:
    return max(2, math.isqrt(context.length))


def _axial(context: BuildContext) -> list[AttentionConfig]:
    """Rows in one layer and columns in the next; a text is folded into a square."""
    size: dict[str, Any] = {"axes": context.grid} if context.grid else {"width": _root(context)}
    return [encoder_attention("axial", {**size, "axis": axis}) for axis in (-1, 0)][: context.layers]


def _image_local(context: BuildContext) -> Mapping[str, Any]:
    if context.grid is None:
        return {"query_block": _share(context, 8, 256), "memory": _share(context, 8, 256)}
    height, width = context.grid
    block = tuple(max(1, side // 4) for side in context.grid)
    return {"query_block": block, "memory": block, "width": width, "height": height}


def _reformer(context: BuildContext) -> Mapping[str, Any]:
    chunk = _share(context, 8, 64, 4)
    rounds = 2 if context.length > 512 else 1  # each sorts, which dominates the time of short texts
    return {"rounds": rounds, "chunk": chunk, "buckets": 2 * max(1, math.ceil(context.length / chunk))}


def _synthesizer(context: BuildContext) -> Mapping[str, Any]:
    # The dense form has a weight per position and unit: for short texts no more than queries and keys would have.
    if context.length <= 2 * context.width:
        return {"form": "dense", "width": context.width}
    return {"form": "factorised_dense", "factor": _root(context), "width": context.width}


def _routing(context: BuildContext) -> Mapping[str, Any]:
    clusters = _root(context)
    return {"clusters": clusters, "window": math.ceil(context.length / clusters)}


def _etc(context: BuildContext) -> Mapping[str, Any]:
    # Vectors for relative labels would be a tenth of a narrow model, and take most of its time: it goes without them.
    labels = 12 if context.width >= 128 else 0
    return {"global_tokens": 1, "radius": _share(context, 8, 84), "labels": labels, "shared": True}


def _bigbird(context: BuildContext) -> Mapping[str, Any]:
    # Blocks of fewer than 8 positions are many times slower than dense attention.
    return {"block": _share(context, 16, 64, 8), "random": 3 if context.length > 512 else 1}


def _nystrom(context: BuildContext) -> Mapping[str, Any]:
    # In an image the convolution must reach every neighbour of a pixel: one row and one pixel in both directions.
    kernel = 33 if context.grid is None else 2 * context.grid[1] + 3
    # At least eight tokens per landmark: the inverse takes the cube of the landmarks.
    return {"landmarks": _share(context, 8, 64), "kernel": kernel}


def _sparse(context: BuildContext) -> Mapping[str, Any]:
    stride = min(50, _root(context))
    return {"pattern": "fixed", "stride": stride, "summary": max(1, stride // 5)}


_OPTIONS: dict[str, tuple[str, str, Callable[[BuildContext], Mapping[str, Any]]]] = {
    # name: title, kind, options
    "window": ("Local Attention", "fixed pattern", lambda context: {"window": _share(context, 8, 25)}),
    "longformer": ("Longformer", "fixed pattern", lambda context: {"window": _share(context, 8, 256)}),
    "etc": ("ETC", "fixed pattern", _etc),
    "bigbird": ("BigBird", "fixed pattern", _bigbird),
    "sparse": ("Sparse Transformer", "fixed pattern", _sparse),
    "image_local": ("Image Transformer", "fixed pattern", _image_local),
    "memory_compressed": ("Memory Compressed", "memory", lambda context: {"stride": 3}),
    "inducing": ("Set Transformer", "memory", lambda context: {"points": _share(context, 4, 32)}),
    "reformer": ("Reformer", "learned pattern", _reformer),
    "routing": ("Routing Transformer", "learned pattern", _routing),
    "sinkhorn": ("Sinkhorn Transformer", "learned pattern", lambda context: {"block": _share(context, 8, 50)}),
    "synthesizer": ("Synthesizer", "learned pattern", _synthesizer),
    "linformer": ("Linformer", "low rank", lambda context: {"rank": _share(context, 4, 16)}),
    "nystrom": ("Nyströmformer", "low rank", _nystrom),
    "linear": ("Linear Transformer", "kernel", lambda context: {}),
    "performer": ("Performer", "kernel", lambda context: {"features": _share(context, 1, 256, 16)}),
    "cosformer": ("cosFormer", "kernel", lambda context: {}),
    "retention": ("Retention", "kernel", lambda context: {}),
    "gated_linear": ("Gated Linear", "kernel", lambda context: {"width": context.width}),
    "hedgehog": ("Hedgehog", "kernel", lambda context: {}),
    "window_linear": ("LoLCATs", "kernel", lambda context: {"window": _share(context, 8, 63)}),
}


def _table() -> dict[str, ArenaModel]:
    models = {"dense": ArenaModel("dense", "Transformer", "dense")}
    for name in registry.names():
        if name == "axial":
            models[name] = ArenaModel(name, "Axial Transformer", "fixed pattern", _axial, needs_grid=True)
        elif name in _OPTIONS:
            title, kind, options = _OPTIONS[name]
            models[name] = ArenaModel(name, title, kind, _mechanism(name, options), needs_grid=name == "image_local")
        elif name != "softmax":  # a new mechanism, with its default options
            models[name] = _with_defaults(name)
    for cell, title in (("lstm", "LSTM"), ("gru", "GRU")):
        models[cell] = ArenaModel(cell, f"Bidirectional {title}", "recurrent", recurrent=cell)
    # The same function as `dense`, with its weights in memory; for speed cells. See `measure.naive`.
    models["naive"] = ArenaModel("naive", "Transformer, not fused", "dense", speed_only=True)
    return models


def _with_defaults(name: str) -> ArenaModel:
    """A mechanism that is not in the table above, such as a plugin, with its default options."""
    return ArenaModel(name, name.replace("_", " ").title(), "other", _mechanism(name, lambda context: {}))


ARENA_MODELS = _table()
ALIASES = {"transformer": "dense", "softmax": "dense"}


def names(kind: str = "accuracy") -> list[str]:
    """The models for cells of a kind, plugins included."""
    plugins = [name for name in registry.names() if name not in ARENA_MODELS and name not in ALIASES]
    return [*(name for name, model in ARENA_MODELS.items() if kind == "speed" or not model.speed_only), *plugins]


def find(name: str) -> ArenaModel:
    """A model by its name or alias."""
    name = ALIASES.get(name, name)
    if name not in ARENA_MODELS and name in registry.ATTENTION:
        return _with_defaults(name)
    if name not in ARENA_MODELS:
        raise UnknownName(f"no model of the arena is called {name!r}: {suggest(name, [*ARENA_MODELS, *ALIASES])}")
    return ARENA_MODELS[name]


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
    """All options of a model; `sizes` are a setting's, and `length` that of the longest text."""
    model, values = find(name), {**SHELL, **sizes}
    if values.get("pool", "cls") == "cls" and model.needs_grid and grid is not None:
        values["pool"] = "mean"  # an extra first position would shift the rows of the image by one
    longest = length + (values.get("pool", "cls") == "cls")
    context = BuildContext(length=longest, width=values["width"], layers=values["layers"], grid=grid)
    if values["width"] % values["heads"] and values.get("head_dim") is None:
        raise InvalidOption(f"{values['heads']} heads do not divide the width {values['width']}; give head_dim")
    values |= {
        "max_length": longest,
        "vocabulary": vocabulary,
        "classes": classes,
        "texts": texts,
        "spare": spare,
        "attention": model.layers(context),
        "recurrent": model.recurrent,
        "hidden_dropout": values.get("hidden_dropout", values.get("dropout", 0.1)),
        "axes": grid if values.get("position") == "rotary_grid" else None,
    }
    return config.make(ArenaEncoder.Options, values, model.name)


# Common to all settings.
SHELL: dict[str, Any] = {
    "norm_position": "pre",
    "activation": "gelu_tanh",  # as in the library of the released code
    "query_bias": False,
    "output_bias": False,
    "eps": 1e-6,
}


def build(name: str, sizes: Mapping[str, Any], **needs: Any) -> ArenaEncoder:
    """Build a model by its name; see `options`."""
    return ArenaEncoder(options(name, sizes, **needs))


def parameters(model: Any) -> int:
    """The number of trained parameters; shared ones count once."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def flag(ratio: float) -> str | None:
    """Why a model may not be compared, given its parameters relative to the base's; None if it may."""
    if ratio <= MOST:
        return None
    return f"{ratio:.2f} times the parameters of the base Transformer, where at most {MOST:.2f} are comparable"


__all__ = [
    "ARENA_MODELS",
    "MOST",
    "ArenaModel",
    "BuildContext",
    "build",
    "find",
    "flag",
    "names",
    "options",
    "parameters",
]
