"""One look inside a model: reads the input, watches every attention, and returns a `Record`."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

import torch

from longspan.decode.batch import evaluating
from longspan.errors import InvalidOption
from longspan.hub import Pretrained
from longspan.inspect.capture import Watcher
from longspan.inspect.reading import Given, Reading, load, model_card, read
from longspan.inspect.records import Record
from longspan.inspect.shelf import DEFAULT_SIZE, SHARE, Shelf, fit
from longspan.models.base import Model

FLOAT32_SHARE = 0.5  # of the room that float32 details may take before float16 is used


def look(
    model: Model | Pretrained | str | Path,
    text: Given | None = None,
    *,
    pair: Given | None = None,
    image: Path | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[tuple[int, int]] = (),
    against: str = "",
    size: int = DEFAULT_SIZE,
    name: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Record:
    """Where each head of the model reads on this input.

    `layers` limits what is recorded; `heads` (layer, head) get their detail first. `against` compares every map with
    that of another mechanism on the same queries and keys: "softmax" is exact attention. `size` is how many bytes a
    page of the record may have: it decides how many heads have detail.
    """
    pretrained = load(model)
    reading = read(pretrained, text, pair=pair, image=image)
    named = name or (str(pretrained.path) if pretrained.path is not None else pretrained.model.name)
    return watch(reading, named, layers=layers, heads=heads, against=against, size=size, progress=progress)


def watch(
    reading: Reading,
    name: str,
    *,
    layers: Collection[int] | None = None,
    heads: Collection[tuple[int, int]] = (),
    against: str = "",
    size: int = DEFAULT_SIZE,
    progress: Callable[[str], None] = lambda what: None,
) -> Record:
    """The record of an input that is ready."""
    card = model_card(reading.model, name)
    longest = max(map(len, reading.axes.values()))
    expected = card.layers * card.heads * min(longest * longest, longest * 2 * 64) * 4
    watcher = Watcher(
        axes=dict(reading.axes),
        sides=reading.sides,
        shelf=Shelf(size * SHARE * 0.9, frozenset(heads)),
        layers=None if layers is None else frozenset(layers),
        half=expected > size * SHARE * FLOAT32_SHARE,
        against=against,
        progress=progress,
    )
    with evaluating(reading.model), torch.no_grad():
        watcher.watch(reading.model, reading.run)
    _check_choice(watcher, layers, heads)
    modules, budget = fit(watcher.modules, size)
    return Record(
        model=card,
        text=reading.text,
        axes=watcher.axes,
        modules=modules,
        budget=budget,
        rollouts=watcher.finished_rollouts(),
        picture=reading.picture,
        against=against,
        notes=tuple(_notes(reading)),
    )


def _check_choice(watcher: Watcher, layers: Collection[int] | None, heads: Collection[tuple[int, int]]) -> None:
    count = max(watcher.counts.values(), default=0)
    for layer in layers or ():
        if layer >= count:
            raise InvalidOption(f"there is no layer {layer}; layers are 0 to {count - 1}")
    known = {(module.layer, head.index) for module in watcher.modules for head in module.heads}
    for layer, head in heads:
        if known and (layer, head) not in known:
            raise InvalidOption(f"there is no head {layer}.{head} among those recorded; the last is {_last(known)}")


def _last(known: set[tuple[int, int]]) -> str:
    layer, head = max(known)
    return f"{layer}.{head}"


def _notes(reading: Reading) -> Sequence[str]:
    return ["The target was written by the model itself, greedily."] if reading.written else []


__all__ = ["look", "watch"]
