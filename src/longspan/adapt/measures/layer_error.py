"""How far each head of a swapped model is from the original's, on the same texts.

Teacher-forced: the swapped layer reads what the original's layer reads, so the error is the layer's own. Free-running:
it reads what the swapped model hands it, so the error is what has drifted so far. Only some rows of each map are kept,
so memory does not grow with the square of the length.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import Attention
from longspan.errors import InvalidInput
from longspan.models.base import CausalModel, Model, TextStates
from longspan.nn.attention_calls import AttentionCall
from longspan.nn.block import Block
from longspan.nn.multihead import MultiHead

FLOOR = 1e-6  # weights below it count as this, so that a key that is never read costs nats and not infinity
LONGEST = 4096  # tokens of a text
MOST_ROWS = 128  # of a map, per text
CELLS = 1 << 25  # numbers of all kept maps together
DENSE = 1024  # tokens up to which a map without factors is computed whole
DIFFERENT = "the two models have different numbers of layers: compare a model with its own swap"


@dataclass(frozen=True)
class HeadError:
    """Means over rows and texts."""

    kl: float | None  # nats; None: one of the maps is no distribution
    missed: float | None  # share of the exact weight on keys that the swapped map does not read at all
    output: float  # relative error of the head's output


@dataclass(frozen=True)
class LayerError:
    layer: int
    mechanism: str  # with its options
    swapped: bool  # whether its mechanism differs from the original's
    forced: tuple[HeadError, ...]  # one for each head, teacher-forced
    free: tuple[HeadError, ...]
    forced_output: float  # relative error of the whole sub-layer's output
    free_output: float


@dataclass(frozen=True)
class _Seen:
    """One attention of one pass, at the chosen rows."""

    mixer: MultiHead
    args: tuple[Any, ...]
    given: dict[str, Any]
    heads: Tensor  # (heads, rows, width)
    out: Tensor  # (rows, width)
    map: Tensor | None  # (heads, rows, keys)


class _Sums:
    """Errors of one layer, added up over texts."""

    def __init__(self, heads: int) -> None:
        self.kl, self.missed = torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
        self.change, self.exact = torch.zeros(heads, dtype=torch.float64), torch.zeros(heads, dtype=torch.float64)
        self.whole = torch.zeros(2, dtype=torch.float64)
        self.rows, self.has_map = 0, True

    def add(self, exact: _Seen, ours: _Seen) -> None:
        self.rows += exact.heads.shape[1]
        self.change += (ours.heads.double() - exact.heads.double()).square().sum((1, 2))
        self.exact += exact.heads.double().square().sum((1, 2))
        self.whole += torch.stack(
            [(ours.out.double() - exact.out.double()).square().sum(), exact.out.double().square().sum()]
        )
        if exact.map is None or ours.map is None or exact.map.shape != ours.map.shape:
            self.has_map = False
            return
        p, q = exact.map.double(), ours.map.double()
        if bool(p.amin() < -FLOOR) or bool(q.amin() < -FLOOR):
            self.has_map = False
            return
        ratio = p.clamp_min(FLOOR).log() - q.clamp_min(FLOOR).log()
        self.kl += (p * ratio).sum(-1).clamp_min(0.0).sum(-1)
        self.missed += torch.where(q <= 0, p, 0.0).sum((1, 2))

    def heads(self) -> tuple[HeadError, ...]:
        output = (self.change / self.exact.clamp_min(1e-30)).sqrt().tolist()
        if not self.has_map:
            return tuple(HeadError(None, None, error) for error in output)
        kl, missed = (self.kl / self.rows).tolist(), (self.missed / self.rows).tolist()
        return tuple(HeadError(*each) for each in zip(kl, missed, output))

    @property
    def output(self) -> float:
        return float((self.whole[0] / self.whole[1].clamp_min(1e-30)).sqrt())


@torch.inference_mode()
def layer_errors(
    original: Model, swapped: Model, rows: Tensor, *, progress: Callable[[str], None] = lambda what: None
) -> tuple[LayerError, ...]:
    """The errors of every self-attention layer, those that were kept exact too: they drift."""
    limits = [limit for limit in map(_longest, (original, swapped)) if limit is not None]
    rows = rows[:, : min(LONGEST, *limits)] if limits else rows[:, :LONGEST]
    layers: list[_Layer] = []
    for number, text in enumerate(rows):
        progress(f"errors of each layer, text {number + 1} of {len(rows)}")
        _compare_text(original, swapped, text[None], layers)
    return tuple(layer.record(index) for index, layer in enumerate(layers))


class _Layer:
    """The sums of one layer, and what it runs."""

    def __init__(self, exact: MultiHead, ours: MultiHead) -> None:
        self.name, heads = _spelled(ours.mechanism), exact.mechanism.shape.heads
        self.swapped = self.name != _spelled(exact.mechanism)
        self.forced, self.free = _Sums(heads), _Sums(heads)

    def record(self, index: int) -> LayerError:
        heads = (self.forced.heads(), self.free.heads())
        return LayerError(index, self.name, self.swapped, *heads, self.forced.output, self.free.output)


def _compare_text(original: Model, swapped: Model, ids: Tensor, layers: list[_Layer]) -> None:
    chosen = _chosen_rows(original, ids.shape[1])
    drifted: list[_Seen] = []
    # The inputs of its layers are not needed, and would fill the memory.
    _watch(swapped, ids, chosen, lambda seen: drifted.append(replace(seen, args=(), given={})))
    done = 0

    def compare(exact: _Seen) -> None:
        nonlocal done
        if done == len(drifted):
            raise InvalidInput(DIFFERENT)
        free = drifted[done]
        if done == len(layers):
            layers.append(_Layer(exact.mixer, free.mixer))
        layers[done].free.add(exact, free)
        layers[done].forced.add(exact, _at_rows(free.mixer, exact.args, exact.given, chosen))
        done += 1

    _watch(original, ids, chosen, compare)
    if done < len(drifted):
        raise InvalidInput(DIFFERENT)


def _longest(model: Model) -> int | None:
    longest: int | None = getattr(model, "max_length", None) or getattr(model.options, "max_length", None)
    return longest


def _spelled(mechanism: Attention) -> str:
    plain = config.plain(mechanism.options)
    usual = config.plain(type(mechanism).Options())
    options = ", ".join(f"{key} {value}" for key, value in plain.items() if usual.get(key) != value)
    return mechanism.name + (f" ({options})" if options else "")


def _chosen_rows(model: Model, length: int) -> Tensor:
    """Evenly spaced rows, the last one among them; few if the maps are many and long."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    maps = sum(block.mixer.mechanism.shape.heads for block in blocks) or 1
    count = min(length, MOST_ROWS, max(8, CELLS // (maps * length)))
    return torch.linspace(0, length - 1, count).round().long()


def _watch(model: Model, ids: Tensor, rows: Tensor, visit: Callable[[_Seen], None]) -> None:
    """Runs a model, and shows each self-attention to `visit` when its layer is done."""
    busy = False

    def after(mixer: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Tensor) -> None:
        nonlocal busy
        assert isinstance(mixer, MultiHead)
        if busy:
            return
        busy = True
        try:
            visit(_at_rows(mixer, args, given, rows))
        finally:
            busy = False

    mixers = {module.mixer for module in model.modules() if isinstance(module, Block)}
    hooks = [mixer.register_forward_hook(after, with_kwargs=True) for mixer in mixers]
    try:
        if isinstance(model, CausalModel) and not model.reads_source:
            model.text_logits(ids.to(model.device))
        else:
            TextStates.require(model, "swap").text_states(ids.to(model.device))
    finally:
        for hook in hooks:
            hook.remove()


def _at_rows(mixer: MultiHead, args: tuple[Any, ...], given: dict[str, Any], rows: Tensor) -> _Seen:
    """What an attention makes of an input, at the chosen rows."""
    with _called(mixer.mechanism) as calls:
        out = mixer(*args, **given)
    call, heads = calls[0]
    return _Seen(mixer, args, given, heads[0][:, rows], out[0, rows], _map_rows(call, rows))


@contextmanager
def _called(mechanism: Attention) -> Iterator[list[tuple[AttentionCall, Tensor]]]:
    calls: list[tuple[AttentionCall, Tensor]] = []

    def after(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Tensor) -> None:
        q, k, v = (args[i] if i < len(args) else given[name] for i, name in enumerate(("q", "k", "v")))
        extras = (given.get(name) for name in ("key_mask", "bias", "streams"))
        calls.append((AttentionCall("", mechanism, q, k, v, *extras), out))

    hook = mechanism.register_forward_hook(after, with_kwargs=True)
    try:
        yield calls
    finally:
        hook.remove()


def _map_rows(call: AttentionCall, rows: Tensor) -> Tensor | None:
    """The weights of the chosen queries, (heads, rows, keys); None if the mechanism has no map."""
    mechanism = call.mechanism
    if not mechanism.supports.map:
        return None
    factors = call.factors()
    if factors is not None:
        return factors.rows(rows)[0]
    keys = call.k.shape[2]
    if keys <= DENSE and mechanism.persistent is None:
        dense = mechanism.oracle(call.q, call.k, call.v, **call.extras)
        if dense.shape[2:] == (call.q.shape[2], keys):
            return dense[0][:, rows]
    return torch.cat([block[0][:, rows] for _, block in call.columns()], -1)


__all__ = ["FLOOR", "HeadError", "LayerError", "layer_errors"]
