"""What decoding costs after texts of several lengths: bytes of the state, milliseconds for one more token."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.adapt.measures.loss_by_position import readable_length
from longspan.errors import InvalidOption
from longspan.measure.timing import timed
from longspan.models.base import CausalModel

LENGTHS = (1024, 4096, 16384)
CHUNK = 512
STEPS = 32  # timed tokens at each length
WARM = 2  # tokens before them: the first one copies the state
FLAT = 1.1  # the last length costs at most this many times the first
SECONDS = 300.0  # of reading, shared equally by the models


@dataclass(frozen=True)
class DecodingPoint:
    length: int
    state_bytes: int  # of one text
    milliseconds: float  # one more token: the least of several


@dataclass(frozen=True)
class DecodingCost:
    """The cost of one model, by length."""

    points: tuple[DecodingPoint, ...]
    note: str = ""  # why lengths are missing

    @property
    def memory(self) -> str:
        """Whether the state keeps its size."""
        return growth([point.state_bytes for point in self.points])

    @property
    def time(self) -> str:
        return growth([point.milliseconds for point in self.points])


def growth(values: Sequence[float]) -> str:
    """The verdict on values at growing lengths."""
    if len(values) < 2:
        return "measured at one length only" if values else "not measured"
    return "flat within 10 %" if values[-1] <= FLAT * values[0] else "grows"


@torch.inference_mode()
def decoding_cost(
    models: Mapping[str, CausalModel],
    rows: Tensor,
    lengths: Sequence[int] = LENGTHS,
    *,
    steps: int = STEPS,
    seconds: float = SECONDS,
    progress: Callable[[str], None] = lambda what: None,
) -> dict[str, DecodingCost]:
    """The cost of each model after real tokens: the rows one after the other, again and again.

    Models and lengths take turns at every timed token, so that a busy machine slows all of them alike. A length that
    would take a model beyond its share of the `seconds`, by its speed so far, is left out, as are lengths that its
    positions do not reach.
    """
    if not lengths or min(lengths) < 1 or list(lengths) != sorted(set(lengths)):
        raise InvalidOption(f"lengths must be positive and grow, not {tuple(lengths)}")
    if steps < 1:
        raise InvalidOption(f"steps must be 1 or more, not {steps}")
    tokens = rows.flatten().cpu()
    kept: dict[tuple[str, int], Any] = {}
    notes = dict.fromkeys(models, "")
    readers = {name: _Reader(name, model, tokens, progress) for name, model in models.items()}
    for length in lengths:
        for name, model in models.items():
            limit, reader = readable_length(model), readers[name]
            if notes[name]:
                continue
            if limit is not None and length + WARM + steps > limit:
                notes[name] = f"its positions end at {limit:,}"
            elif reader.read and reader.spent + reader.expected(length) > seconds / len(models):
                notes[name] = f"{length:,} tokens would take more than {seconds / len(models):g} s"
            else:
                kept[name, length] = reader.read_to(length)
    sizes = {key: state.bytes for key, state in kept.items()}
    progress("decoding, single tokens")
    spent = _timed(models, kept, tokens, steps)
    return {
        name: DecodingCost(
            tuple(DecodingPoint(key[1], sizes[key], spent[key]) for key in sizes if key[0] == name), notes[name]
        )
        for name in models
    }


class _Reader:
    """A model that reads on, chunk by chunk."""

    def __init__(self, name: str, model: CausalModel, tokens: Tensor, progress: Callable[[str], None]) -> None:
        self.name, self.model, self.tokens, self.progress = name, model, tokens, progress
        self.state: Any = model.start(1)
        self.read, self.spent, self.speed = 0, 0.0, 0.0  # tokens; seconds; seconds a token, since the last length
        self.grows = True

    def expected(self, length: int) -> float:
        """The seconds that reading on to `length` takes: as n² if the state grows, else as n."""
        return self.speed * (length - self.read) * (length / self.read if self.grows else 1.0)

    def read_to(self, length: int) -> Any:
        """Reads on to `length`; returns the state."""
        self.progress(f"decoding, {self.name}, {length:,} tokens")
        start, bytes_before = time.monotonic(), 0
        for begin in range(self.read, length, CHUNK):
            ids = _cut(self.tokens, begin, min(begin + CHUNK, length)).to(self.model.device)
            bytes_before = self.state.bytes if begin else 0
            _, self.state = self.model.extend(ids, self.state, last=True, beyond=True)
        took = time.monotonic() - start
        self.spent, self.speed = self.spent + took, took / (length - self.read)
        self.read, self.grows = length, self.state.bytes > bytes_before  # by the last chunk
        return self.state


def _timed(
    models: Mapping[str, CausalModel], states: dict[tuple[str, int], Any], tokens: Tensor, steps: int
) -> dict[tuple[str, int], float]:
    """The least milliseconds of single tokens, all models and lengths in turns, by CPU time: others may be busy."""
    spent: dict[tuple[str, int], list[float]] = {key: [] for key in states}
    for step in range(-WARM, steps):
        for key, times in spent.items():
            model, at = models[key[0]], key[1] + step + WARM
            ids = _cut(tokens, at, at + 1).to(model.device)

            def read(model: CausalModel = model, ids: Tensor = ids, key: tuple[str, int] = key) -> None:
                _, states[key] = model.extend(ids, states[key], last=True, beyond=True)

            seconds = timed(read, model.device.type).busy
            if step >= 0:
                times.append(1e3 * seconds)
    return {key: min(each) for key, each in spent.items()}


def _cut(tokens: Tensor, begin: int, end: int) -> Tensor:
    return tokens[torch.arange(begin, end) % len(tokens)][None]


__all__ = ["LENGTHS", "DecodingCost", "DecodingPoint", "decoding_cost", "growth"]
