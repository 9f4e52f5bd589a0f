"""Decoding states: what a mechanism remembers between steps.

A state is a value: `extend` returns a new one and the old one stays valid, so a prompt can be read once and continued
in many ways. `Rows` makes that cheap: it appends in place to a shared buffer unless another state has already appended
there; then it copies.
"""

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, Self, TypeVar

import torch
from torch import Tensor

from longspan.errors import InvalidInput

MINIMUM = 32  # rows that a new buffer has room for
STORED: dict[str, type] = {}  # classes that a checkpoint may hold, by name
Result = TypeVar("Result")
Stored = TypeVar("Stored", bound=type)


def stored(cls: Stored) -> Stored:
    """Decorator for a dataclass that is part of a state, so that checkpoints can hold it. States need no decorator."""
    STORED[stored_name(cls)] = cls
    return cls


def stored_name(cls: type) -> str:
    """The name of a class in checkpoints. For longspan's own it has no module, so that modules may move."""
    built_in = cls.__module__.partition(".")[0] == "longspan"
    name = cls.__qualname__ if built_in else f"{cls.__module__}:{cls.__qualname__}"
    known = STORED.get(name)
    if known is not None and known.__module__ != cls.__module__:
        raise TypeError(f"{known.__module__} and {cls.__module__} both have a state called {name}; rename one")
    return name


@dataclass(frozen=True)
class State:
    """The base of every state: tensors and `Rows` with the batch first, plain numbers, other states, tuples of them."""

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        stored(cls)

    @property
    def bytes(self) -> int:
        """The size of the tensors, without the spare room of growing buffers."""
        return sum(t.numel() * t.element_size() for t in self._tensors())

    def select(self, rows: "Tensor | Selection") -> Self:
        """The state of the batch rows `rows`, which may repeat. Beam search reorders with it."""
        selection = Selection.of(rows)
        return replace(self, **{name: _select(value, selection) for name, value in self._fields()})

    def detach(self) -> Self:
        """The same values without their graph: gradients stop here."""
        return replace(self, **{name: _detach(value) for name, value in self._fields()})

    def _fields(self) -> Iterator[tuple[str, Any]]:
        return ((item.name, getattr(self, item.name)) for item in fields(self))

    def _tensors(self) -> Iterator[Tensor]:
        for _, value in self._fields():
            yield from _tensors(value)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Rows):
        yield value.value
    elif isinstance(value, State):
        yield from value._tensors()
    elif isinstance(value, tuple):
        for item in value:
            yield from _tensors(item)


def _select(value: Any, rows: "Selection") -> Any:
    if isinstance(value, Tensor):
        return value.index_select(0, rows.rows)
    if isinstance(value, tuple):
        return tuple(_select(item, rows) for item in value)
    return value.select(rows) if isinstance(value, (Rows, State)) else value


def _detach(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_detach(item) for item in value)
    return value.detach() if isinstance(value, (Tensor, Rows, State)) else value


class Selection:
    """The batch rows that beam search keeps, with values derived from them, computed once for all layers."""

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self._known: dict[Hashable, Any] = {}

    @classmethod
    def of(cls, rows: "Tensor | Selection") -> "Selection":
        return rows if isinstance(rows, Selection) else cls(rows)

    def once(self, key: Hashable, compute: Callable[[], Result]) -> Result:
        """The result of `compute`, which runs only for the first layer that asks with this key."""
        if key not in self._known:
            self._known[key] = compute()
        result: Result = self._known[key]
        return result

    def owners(self, copies: int) -> list[int]:
        """The group of each row, if every `copies` consecutive rows form a group."""
        return self.once(("owners", copies), lambda: [row // copies for row in self.rows.tolist()])

    def families(self, copies: int) -> tuple[list[int], int] | None:
        """The groups that remain and their common size; None if their sizes differ."""
        return self.once(("families", copies), lambda: self._families(copies))

    def _families(self, copies: int) -> tuple[list[int], int] | None:
        runs = [(owner, len(list(same))) for owner, same in groupby(self.owners(copies))]
        sizes = {size for _, size in runs}
        return ([owner for owner, _ in runs], sizes.pop()) if len(sizes) == 1 else None

    def index(self, kept: list[int]) -> Tensor:
        return torch.tensor(kept, dtype=torch.long, device=self.rows.device)


def is_number(size: Any, number: int) -> bool:
    """Whether a size is this number, and not a variable of a program that is being exported."""
    return type(size) is int and size == number


class Rows:
    """An append-only tensor (batch, heads, rows, width); with `keep`, only the last `keep` rows.

    Growth is amortised: the buffer doubles when it is full, so n appends copy O(n) rows in all. With `keep`, the cost
    of a step does not depend on the length of the text.
    """

    def __init__(self, buffer: Tensor, begin: int, end: int, keep: int | None, mark: list[int]) -> None:
        self._buffer, self._begin, self._end, self._keep = buffer, begin, end, keep
        self._mark = mark  # how far the shared buffer is filled; only `Rows` that end there may append in place

    @classmethod
    def empty(cls, batch: int, keep: int | None = None) -> "Rows":
        """No rows yet; the first append sets the number of heads and the width."""
        return cls(torch.empty(batch, 1, 0, 1), 0, 0, keep, [0])

    @classmethod
    def of(cls, value: Tensor, keep: int | None = None) -> "Rows":
        """The rows of a tensor (batch, heads, rows, width)."""
        return cls(value, 0, value.shape[2], keep, [value.shape[2]])

    @property
    def keep(self) -> int | None:
        """How many rows `trim` keeps; None: all."""
        return self._keep

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def count(self) -> int:
        """The number of rows; unlike `len`, it stays a variable in an exported program."""
        return self._end - self._begin

    @property
    def batch(self) -> int:
        return self._buffer.shape[0]

    @property
    def value(self) -> Tensor:
        """The rows, oldest first: a view; do not write to it."""
        return self._buffer.narrow(2, self._begin, self._end - self._begin)

    def append(self, new: Tensor) -> "Rows":
        """These rows followed by `new`. All stay visible until `trim` drops those beyond `keep`."""
        count = new.shape[2]
        self._check(new)
        if torch.compiler.is_exporting():  # a program has no buffers to write to
            empty = is_number(self.count, 0)
            rows = new if empty else torch.cat([self.value, new], dim=2)
            return Rows(rows, 0, rows.shape[2], self._keep, [0])
        if not count:
            return self
        if new.requires_grad or self._buffer.requires_grad:  # autograd forbids in-place writes
            rows = torch.cat([self.value, new], dim=2) if len(self) else new
            return Rows(rows, 0, rows.shape[2], self._keep, [rows.shape[2]])
        buffer, begin, end, mark = self._buffer, self._begin, self._end, self._mark
        foreign = buffer.is_inference() and not torch.is_inference_mode_enabled()  # torch forbids writing to it here
        if mark[0] != end or end + count > buffer.shape[2] or foreign:
            room = max(MINIMUM, 2 * (len(self) + count))
            buffer = new.new_empty(*new.shape[:2], room, new.shape[3])
            if len(self):
                buffer[:, :, : len(self)] = self.value
            begin, end, mark = 0, len(self), [0]
        # Through .data, so that autograd does not treat earlier rows of the buffer as modified.
        buffer.data.narrow(2, end, count).copy_(new)
        mark[0] = end + count
        return Rows(buffer, begin, end + count, self._keep, mark)

    def _check(self, new: Tensor) -> None:
        if new.shape[0] != self._buffer.shape[0]:
            raise InvalidInput(
                f"the state has batch {self._buffer.shape[0]} and the new tokens {new.shape[0]}; they must be equal"
            )
        if not torch.compiler.is_exporting() and len(self) and new.dtype != self._buffer.dtype:
            raise InvalidInput(
                f"the state is {self._buffer.dtype} and the new tokens {new.dtype}; they must be of one type"
            )

    def trim(self, keep: int | None = None) -> "Rows":
        """The last `keep` rows; by default as many as the constructor said, or all."""
        keep = self._keep if keep is None else keep
        # A state that is exported always has `keep` rows: those before the first token are masked.
        if keep is None or (not torch.compiler.is_exporting() and len(self) <= keep):
            return self
        return Rows(self._buffer, self._end - keep, self._end, self._keep, self._mark)

    def select(self, rows: Tensor | Selection) -> "Rows":
        """The batch rows `rows`, with spare room so that the next append does not copy again."""
        value, count, rows = self.value, len(self), Selection.of(rows).rows
        if value.requires_grad or not count:
            chosen = value.index_select(0, rows)
            return Rows(chosen, 0, count, self._keep, [count])
        buffer = value.new_empty(len(rows), value.shape[1], count + MINIMUM, value.shape[3])
        torch.index_select(value, 0, rows, out=buffer[:, :, :count])
        return Rows(buffer, 0, count, self._keep, [count])

    def detach(self) -> "Rows":
        """The same rows without their graph."""
        if not self._buffer.requires_grad:
            return self
        return Rows(self._buffer.detach(), self._begin, self._end, self._keep, self._mark)

    def gather(self, kept: Tensor) -> "Rows":
        """For each batch row, the rows that `kept` (batch, count) lists."""
        value = self.value
        index = kept[:, None, :, None].expand(-1, value.shape[1], -1, value.shape[3])
        return Rows.empty(len(kept), self._keep).append(value.gather(2, index))


def append_mask(
    seen: Rows | None, past: int, key_mask: Tensor | None, like: Tensor, keep: int | None = None
) -> Rows | None:
    """The mask of all keys so far; None until a step brings a mask."""
    if key_mask is None and seen is None:
        return None
    batch, new = like.shape[0], like.shape[2]
    if seen is None:
        seen = Rows.empty(batch, keep).append(torch.ones(batch, 1, past, 1, dtype=torch.bool, device=like.device))
    if key_mask is None:
        key_mask = torch.ones(batch, new, dtype=torch.bool, device=like.device)
    return seen.append(key_mask[:, None, :, None])
