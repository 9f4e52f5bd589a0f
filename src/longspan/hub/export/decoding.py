"""The two programs of a causal model: `prefill` reads a prompt, `step` one more token; the state is named tensors.

    prefill   input_ids, attention_mask (batch, length)                        → logits, state
    step      input_ids, position_ids (batch, 1), state                        → logits, state

A state is flattened to its tensors. Those of full attention grow by a row a token; those of windows and of linear
attention have a constant size: a window's rows before the first token are there from the start, and masked.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from longspan.attention.state import Rows, State
from longspan.errors import Unsupported
from longspan.hub.export.graphs import Axes, Graph, Values, random_text
from longspan.models.base import CausalModel
from longspan.models.body import mechanisms
from longspan.models.cost import blank
from longspan.nn.multihead import Context, MultiHeadState
from longspan.nn.stack import StackState

Run = Callable[[Values], Values]  # a program
CANNOT = "the state of this attention cannot be exported"
ROOM = 4  # tokens that may follow a prompt
SOURCE = 5  # tokens of the source with which an encoder–decoder's state is probed


@dataclass(frozen=True)
class Entry:
    """One tensor of a state."""

    name: str  # "state.0.k"
    shape: tuple[int, ...]  # without the batch; of a growing one, the rows at the probe
    dtype: torch.dtype
    grows: bool  # whether it has a row for each token read
    keep: int | None  # a window's rows
    context: bool  # whether it belongs to the source, which no step changes

    def axes(self) -> Axes:
        if self.context:
            at = 1 if len(self.shape) == 1 else 2
            return Axes({0: "batch", at: "source"})
        return Axes({0: "batch", 2: "past"} if self.grows else {0: "batch"})


class StateLayout:
    """How the state of a model becomes tensors and back, found by probing it with texts of three lengths."""

    def __init__(self, model: CausalModel) -> None:
        if not all(m.supports.streaming for m in mechanisms(model) if m.causal):
            names = sorted({m.name for m in mechanisms(model) if m.causal and not m.supports.streaming})
            raise Unsupported(f"{', '.join(names)} cannot decode step by step, so there is no state to export")
        for path in _numbers(_probe(model, 2)):
            raise Unsupported(f"{CANNOT}: it counts positions in {_plain_name(path)}, a plain number and not a tensor")
        windows = [rows.keep for _, rows in _leaves(_probe(model, 2)) if isinstance(rows, Rows) and rows.keep]
        most = model.max_length or 1 << 20
        length = min(max([9, *(2 * keep + 3 for keep in windows)]), (most - 1) // 2)
        if length < 2:
            raise Unsupported(f"a state cannot be exported for texts of at most {most} tokens")
        probes = [dict(_leaves(_probe(model, n))) for n in (length, length + 1, 2 * length + 1)]
        self.entries = {path: _entry(path, [p[path] for p in probes], length) for path in probes[0]}
        if any(set(probe) != set(self.entries) for probe in probes):
            raise Unsupported(_changes("its parts"))
        self.model = model

    @property
    def inputs(self) -> list[Entry]:
        return list(self.entries.values())

    @property
    def outputs(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if not entry.context]

    def flatten(self, state: Any) -> Values:
        """The tensors of a state that a step changes."""
        leaves = dict(_leaves(state))
        return tuple(_tensor(leaves[path]) for path, entry in self.entries.items() if not entry.context)

    def restore(self, template: Any, values: Values) -> Any:
        """A state like the template, with these tensors for `inputs`."""
        tensors = dict(zip(self.entries, values))

        def fill(path: str, leaf: Any) -> Any:
            keep = self.entries[path].keep
            return Rows.of(tensors[path], keep) if isinstance(leaf, Rows) else tensors[path]

        return _lengths(_rebuild("", template, fill))

    def begin(self, state: Any, batch: int) -> Any:
        """The state before the first token, with windows that are full of masked rows."""
        device = self.model.device

        def fill(path: str, leaf: Any) -> Any:
            entry = self.entries.get(path)
            if entry is None or entry.keep is None:
                return leaf
            return Rows.of(torch.zeros(batch, *entry.shape, dtype=entry.dtype, device=device), entry.keep)

        return _lengths(_rebuild("", state, fill, self._missing()))

    def _missing(self) -> dict[str, Any]:
        """Fields that are None in a fresh state and that a window has: its mask."""
        return {path: Rows.empty(1, entry.keep) for path, entry in self.entries.items() if entry.keep is not None}


class DecodingGraph(Graph):
    """What both programs share."""

    model: CausalModel

    def __init__(self, model: CausalModel, layout: StateLayout) -> None:
        super().__init__(model)
        self.layout = layout
        self.template = _probe(model, 2)


class Prefill(DecodingGraph):
    """Reads a prompt: the logits after each of its tokens, and the state."""

    name = "prefill"

    def __init__(self, model: CausalModel, layout: StateLayout) -> None:
        super().__init__(model, layout)
        prompt = ["decoder_input_ids", "decoder_attention_mask"] if model.reads_source else []
        self.inputs = ["input_ids", "attention_mask", *prompt]
        self.outputs = ["logits", *(entry.name for entry in layout.inputs)]

    def axes(self) -> list[Axes]:
        tokens, target = Axes({0: "batch", 1: "length"}), Axes({0: "batch", 1: "target"})
        return [tokens, tokens, target, target] if self.model.reads_source else [tokens, tokens]

    def sample(self, batch: int, length: int, seed: int) -> Values:
        if not self.model.reads_source:
            return random_text(self.model, batch, length, seed)
        room = length if self.model.max_length is None else self.model.max_length - ROOM
        prompt = random_text(self.model, batch, max(2, min(length - 3, room)), seed + 1)
        return (*random_text(self.model, batch, length, seed, source=True), prompt[0], torch.ones_like(prompt[1]))

    def forward(self, *inputs: Tensor) -> Values:
        *source, ids, mask = inputs
        model, batch = self.model, ids.shape[0]
        options: dict[str, Any] = {"source": source[0], "source_mask": source[1] != 0} if source else {}
        state = self.layout.begin(model.start(batch, **options), batch)
        logits, state = model.extend(ids, state, key_mask=mask != 0, positions=positions_of(mask))
        leaves = dict(_leaves(state))
        return (logits, *(_tensor(leaves[path]) for path in self.layout.entries))

    def expected(self, inputs: Values) -> Values:
        """Only the logits: an ordinary state has other shapes. The check of `step` shows what the state is good for."""
        return (self.read_prompt(inputs)[0],)

    def read_prompt(self, inputs: Values) -> tuple[Tensor, Any]:
        """The model's own logits and state."""
        *source, ids, mask = inputs
        options: dict[str, Any] = {"source": source[0], "source_mask": source[1] != 0} if source else {}
        state = self.model.start(ids.shape[0], **options)
        return self.model.extend(ids, state, key_mask=mask != 0, positions=positions_of(mask))

    def real(self, inputs: Values) -> Tensor | None:
        return inputs[-1] != 0


class Step(DecodingGraph):
    """Reads one token after a state: the logits after it, and the new state."""

    name = "step"

    def __init__(self, model: CausalModel, layout: StateLayout, prefill: Prefill, run: Run) -> None:
        """`run` is the prefill's program: it makes states of the shape that this one reads."""
        super().__init__(model, layout)
        self.run_prefill, self.prompt = run, prefill.sample
        self.inputs = ["input_ids", "position_ids", *(entry.name for entry in layout.inputs)]
        self.outputs = ["logits", *(f"new.{entry.name}" for entry in layout.outputs)]

    def axes(self) -> list[Axes]:
        token = Axes({0: "batch"})
        return [token, token, *(entry.axes() for entry in self.layout.inputs)]

    def sample(self, batch: int, length: int, seed: int) -> Values:
        inputs = self.prompt(batch, length, seed)
        mask, ids = inputs[-1], inputs[-2]
        return (ids[:, -1:], positions_of(mask)[:, -1:] + 1, *self.run_prefill(inputs)[1:])

    def forward(self, ids: Tensor, positions: Tensor, *state: Tensor) -> Values:
        restored = self.layout.restore(self.template, state)
        seen = torch.ones_like(ids, dtype=torch.bool)
        logits, after = self.model.extend(ids, restored, key_mask=seen, positions=positions)
        return (logits, *self.layout.flatten(after))

    def expected(self, inputs: Values) -> Values:
        raise NotImplementedError("a step is checked after a prefill: see `check.steps`")


def positions_of(mask: Tensor) -> Tensor:
    """The position of each token among the real ones of its row."""
    return (mask.cumsum(1) - 1).clamp_min(0)


# Probing


def _probe(model: CausalModel, length: int) -> Any:
    """The state after a text of this length, without values."""
    with torch.no_grad(), blank():
        empty = type(model)(model.options).to(model.dtype).eval()
        ids = torch.zeros(2, length, dtype=torch.int64)
        source = torch.zeros(2, SOURCE, dtype=torch.int64)
        options: dict[str, Any] = {"source": source, "source_mask": source == 0} if model.reads_source else {}
        positions = torch.zeros(2, length, dtype=torch.int64)
        return empty.extend(ids, empty.start(2, **options), key_mask=ids == 0, positions=positions)[1]


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The tensors and rows of a state, by the path of their fields."""
    if isinstance(value, Tensor | Rows):
        yield path, value
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    elif is_dataclass(value):
        for field in fields(value):
            yield from _leaves(getattr(value, field.name), f"{path}.{field.name}")


def _rebuild(path: str, value: Any, fill: Callable[[str, Any], Any], missing: dict[str, Any] | None = None) -> Any:
    """The same state with other tensors; `missing` stand where it has None."""
    if isinstance(value, Tensor | Rows):
        return fill(path, value)
    if isinstance(value, tuple):
        return tuple(_rebuild(f"{path}.{index}", item, fill, missing) for index, item in enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        changed = {name: _rebuild(f"{path}.{name}", item, fill, missing) for name, item in named.items()}
        return replace(value, **changed)
    if value is None and missing and path in missing:
        return fill(path, missing[path])
    return value


def _lengths(state: Any) -> Any:
    """Lengths as the numbers of rows, which are variables of the program; positions are given to each call."""
    if isinstance(state, tuple):
        return tuple(_lengths(item) for item in state)
    if not is_dataclass(state) or isinstance(state, type):
        return state
    changed = {field.name: _lengths(getattr(state, field.name)) for field in fields(state)}
    if isinstance(state, MultiHeadState):
        rows = [leaf.count for _, leaf in _leaves(state.inner) if isinstance(leaf, Rows)]
        changed["length"] = rows[0] if rows else 0
    return replace(state, **changed)


def _entry(path: str, leaves: list[Any], length: int) -> Entry:
    """What is the same in all probes, and whether it grows by a row a token."""
    first, second, third = (tuple(_tensor(leaf).shape[1:]) for leaf in leaves)
    keep = leaves[0].keep if isinstance(leaves[0], Rows) else None
    name, context = _plain_name(path), ".context." in path
    dtype = _tensor(leaves[0]).dtype
    if keep is not None:
        return Entry(name, (first[0], keep, *first[2:]), dtype, False, keep, context)
    if first == second == third:
        return Entry(name, first, dtype, False, None, context)
    growth = [[b - a for a, b in zip(first, other)] for other in (second, third)]
    if len(first) == 3 and growth == [[0, 1, 0], [0, length + 1, 0]]:
        return Entry(name, first, dtype, True, None, context)
    raise Unsupported(_changes(name))


def _changes(what: str) -> str:
    return f"{CANNOT}: the shape of {what} changes where a block or a row ends, and a program has one shape"


def _plain_name(path: str) -> str:
    kept = [part for part in path.strip(".").split(".") if part not in ("blocks", "mixer", "inner", "context")]
    return f"{'context' if '.context.' in path else 'state'}.{'.'.join(kept)}"


def _tensor(leaf: Tensor | Rows) -> Tensor:
    return leaf.value if isinstance(leaf, Rows) else leaf


def _numbers(value: Any, path: str = "") -> Iterator[str]:
    """Where a state counts positions in a plain number, which a program would hold as a constant."""
    if isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from _numbers(item, f"{path}.{index}")
    elif isinstance(value, State) and not isinstance(value, Context):
        given = isinstance(value, MultiHeadState | StackState)  # their lengths are given anew at every call
        for field in fields(value):
            item = getattr(value, field.name)
            if type(item) is int and not given:
                yield f"{path}.{field.name}"
            yield from _numbers(item, f"{path}.{field.name}")


__all__ = ["ROOM", "Entry", "Prefill", "Run", "StateLayout", "Step", "positions_of"]
