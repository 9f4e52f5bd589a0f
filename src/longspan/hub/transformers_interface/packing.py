"""Borders of packed texts: several texts in one row, each read by itself.

transformers separates them by their positions only where a causal model gets no mask and keeps no cache, and never in
an encoder. Here the positions count in every case: they are noted before a model's forward pass and read by the mask
function.
"""

import threading
from collections.abc import Callable, Iterator
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput
from longspan.hub.transformers_interface.layers import number_layers


class _Noted(threading.local):
    """The `position_ids` of the forward passes that are running, the innermost last."""

    def __init__(self) -> None:
        self.passes: list[Tensor | None] = []


_noted = _Noted()


def watch_positions(model: nn.Module) -> None:
    """Lets the mask function see the `position_ids` of a model's forward passes."""
    if note_positions not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(note_positions, with_kwargs=True)
        model.register_forward_hook(forget_positions, always_call=True)


def note_positions(model: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> None:
    number_layers(model)
    positions = given.get("position_ids")
    if positions is None and args:
        positions = signature(model.forward).bind_partial(*args, **given).arguments.get("position_ids")
    _noted.passes.append(positions if isinstance(positions, Tensor) and positions.dim() == 2 else None)


def forget_positions(model: nn.Module, args: Any, output: Any) -> None:
    if _noted.passes:
        _noted.passes.pop()


def noted_positions(batch: int, queries: int) -> Tensor | None:
    """The positions of the current pass, if there is one for each query."""
    positions = _noted.passes[-1] if _noted.passes else None
    if positions is None or positions.shape[1] != queries or positions.shape[0] not in (1, batch):
        return None
    return positions.expand(batch, -1)


def texts_of_positions(positions: Tensor, real: Tensor, past: int) -> Tensor:
    """The number of the text of each key, from 1 on, (batch, keys), from the positions of the last keys.

    `real` (batch, keys) is False for padding; the keys before `past` were read earlier and have no positions any more.
    A text begins where positions do not rise, and where the first position says that it began within the past.
    """
    rising = positions[:, 1:] > positions[:, :-1]
    starts = torch.zeros_like(real)
    starts[:, past + 1 :] = ~rising & real[:, past:-1] & real[:, past + 1 :]
    if past:
        rank = real.cumsum(1) - 1  # of each key among the row's tokens
        begin = rank[:, past : past + 1] - positions[:, :1].to(rank)
        starts |= (rank == begin) & real & (begin > 0)
    return starts.cumsum(1) + 1


def texts_of_lengths(lengths: Tensor, batch: int, keys: int) -> Tensor:
    """The same from cumulative lengths (`cu_seq_lens_k`), which count through all rows."""
    if lengths.dim() != 1 or int(lengths[-1]) != batch * keys:
        raise InvalidInput(
            f"cu_seq_lens_k must end at {batch * keys}, the number of tokens, not {lengths.tolist()[-1:]}"
        )
    starts = torch.zeros(batch * keys, dtype=torch.long, device=lengths.device)
    starts[lengths[:-1].long()] = 1
    rows = starts.view(batch, keys).clone()
    rows[:, 0] = 1
    return rows.cumsum(1)


def each_text(texts: Tensor) -> Iterator[tuple[int, int, int]]:
    """(row, begin, end) of every run of keys that belong to one text."""
    for row, numbers in enumerate(texts.tolist()):
        begin = 0
        for end in range(1, len(numbers) + 1):
            if end == len(numbers) or numbers[end] != numbers[begin]:
                if numbers[begin]:
                    yield row, begin, end
                begin = end


def separately(compute: Callable[[int, slice, slice], Tensor], texts: Tensor, out: Tensor) -> Tensor:
    """Fills `out` (batch, heads, queries, width) with `compute(row, queries, keys)` of each text.

    The queries are those of the last keys.
    """
    past = texts.shape[1] - out.shape[2]
    for row, begin, end in each_text(texts):
        if end > past:
            queries = slice(max(begin - past, 0), end - past)
            out[row : row + 1, :, queries] = compute(row, queries, slice(begin, end))
    return out


__all__ = ["each_text", "noted_positions", "separately", "texts_of_lengths", "texts_of_positions", "watch_positions"]
