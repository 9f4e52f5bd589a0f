"""Watches a model read one input, and keeps a record of each attention without ever holding a whole long map."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from longspan import config
from longspan.inspect.difference import DifferenceBuilder, Exact
from longspan.inspect.module_builder import ModuleBuilder
from longspan.inspect.patterns import head_patterns, module_pattern
from longspan.inspect.records import Axis, HeadRecord, ModuleRecord, Pattern, Rollout
from longspan.inspect.rollout import RolloutBuilder
from longspan.inspect.sentences import describe
from longspan.inspect.shelf import Shelf, lighten
from longspan.nn.attention_calls import AttentionCall, visiting
from longspan.nn.block import Block

Side = Literal["encoder", "decoder"]
Kind = Literal["self", "cross"]
Blocks = Iterator[tuple[int, int, Tensor]]


@dataclass
class Watcher:
    """Collects the records of one pass; `axes` has the tokens that each side's queries stand at."""

    axes: dict[str, Axis]  # by name; axes of other lengths are added as they appear
    sides: Mapping[Side, str]  # the name of the axis of each side's positions
    shelf: Shelf
    layers: frozenset[int] | None = None  # those wanted; None: all
    half: bool = False  # float16 where that is exact enough
    against: str = ""
    rows: tuple[int, ...] = ()  # positions of the decoder whose whole rows are kept
    progress: Callable[[str], None] = lambda what: None
    modules: list[ModuleRecord] = field(default_factory=list)
    rollouts: dict[Side, RolloutBuilder | None] = field(default_factory=dict)
    counts: dict[tuple[Side, Kind], int] = field(default_factory=dict)
    kinds: dict[nn.Module, Kind] = field(default_factory=dict)
    kept_rows: dict[int, Tensor] = field(default_factory=dict)  # by module: (heads, rows, keys)

    def watch(self, model: nn.Module, run: Callable[[], Any]) -> Any:
        """The result of `run`, with a record of each attention that it used."""
        from longspan.inspect.recurrent import watch_alignments, watch_memories  # they import this file

        for block in model.modules():
            if isinstance(block, Block):
                self.kinds[block.mixer.mechanism] = "self"
                if block.cross is not None:
                    self.kinds[block.cross.mechanism] = "cross"
        with ExitStack() as stack:
            stack.enter_context(visiting(model, self._visit))
            stack.enter_context(watch_alignments(model, self))
            stack.enter_context(watch_memories(model, self))
            return run()

    def finished_rollouts(self) -> tuple[Rollout, ...]:
        return tuple(builder.record() for builder in self.rollouts.values() if builder is not None and builder.layers)

    # One attention

    def _visit(self, call: AttentionCall) -> None:
        queries, keys = call.q.shape[2], call.k.shape[2]
        kind = self.kinds.get(call.mechanism, "self" if queries == keys else "cross")
        decodes = call.mechanism.causal or kind == "cross" or call.path.startswith("decoder")
        side: Side = "decoder" if decodes else "encoder"
        standing, sentence = describe(call.mechanism)
        module = self.begin(
            side,
            kind,
            (queries, keys),
            mechanism=call.mechanism.name,
            options=config.plain(call.mechanism.options),
            causal=call.mechanism.causal,
            standing=standing,
            sentence=sentence,
        )
        if module is None:
            return
        if standing == "none":
            self.rollouts[side] = None
            self.modules.append(replace(module, pattern=module_pattern(call)))
            return
        factors = call.factors()
        shape = (call.q.shape[1], queries, keys)
        difference = DifferenceBuilder(Exact.beside(call, self.against), call) if self.against else None
        builder = self.builder(module, shape, factors=factors, difference=difference)
        if factors is not None:
            for row, block in factors.row_blocks(builder.multiple):
                builder.add(row, 0, block[0])
        else:
            for key, block in call.columns():
                builder.add(0, key, block[0])
        self.finish(builder, head_patterns(call))

    def begin(self, side: Side, kind: Kind, lengths: tuple[int, int], **given: Any) -> ModuleRecord | None:
        """A module without heads, numbered; None if its layer is not wanted."""
        layer = self.counts.get((side, kind), 0)
        self.counts[side, kind] = layer + 1
        if self.layers is not None and layer not in self.layers:
            return None
        self.progress(f"{side} layer {layer}{' to source' if kind == 'cross' else ''}")
        queries = self._axis(side, lengths[0])
        keys = self._axis("encoder" if kind == "cross" else side, lengths[1])
        return ModuleRecord(layer=layer, kind=kind, side=side, queries=queries, keys=keys, heads=(), **given)

    def builder(self, module: ModuleRecord, shape: tuple[int, int, int], **given: Any) -> ModuleBuilder:
        """What collects the blocks of a module's maps."""
        rollout = None
        if module.kind == "self" and self.layers is None:
            rollout = self._rollout(module.side, shape[1])
        rows = self.rows if module.side == "decoder" else ()
        return ModuleBuilder(module, shape, half=self.half, rollout=rollout, rows=rows, **given)

    def finish(self, builder: ModuleBuilder, patterns: Mapping[int, Pattern]) -> None:
        """The end of a module: all its blocks were added."""
        module, number = builder.module, len(self.modules)
        if builder.rollout is not None:
            if builder.sums.normalised:
                builder.rollout.finish(causal=module.causal)
            else:
                self.rollouts[module.side] = None  # a product of maps that are no distributions says nothing
        if self.rows and module.side == "decoder":
            self.kept_rows[number] = builder.rows
        special = np.flatnonzero(self.axes[module.keys].special)
        records: list[HeadRecord] = []
        for head in range(builder.shape[0]):
            record = builder.head(head, special, patterns.get(head))
            leaving = self.shelf.offer(number, module.layer, record, builder.detail_bytes(head))
            stays = (number, head) not in leaving
            records.append(builder.add_detail(record) if stays else lighten(record))
            for evicted in leaving:
                if evicted != (number, head):
                    self._evict(evicted, records)
        self.modules.append(builder.record(records))

    def _axis(self, side: Side, length: int) -> str:
        name: str = self.sides.get(side, "")
        if name in self.axes and len(self.axes[name]) == length:
            return name
        name = f"{length} positions"
        if name not in self.axes:
            self.axes[name] = positions_axis(name, length)
        return name

    def _rollout(self, side: Side, length: int) -> RolloutBuilder | None:
        if side not in self.rollouts:
            self.rollouts[side] = RolloutBuilder(side, self._axis(side, length), length)
        builder = self.rollouts[side]
        if builder is not None and builder.length != length:  # layers of other lengths: no product of maps
            builder = self.rollouts[side] = None
        return builder

    def _evict(self, which: tuple[int, int], current: list[HeadRecord]) -> None:
        number, head = which
        if number == len(self.modules):
            current[head] = lighten(current[head])
            return
        module = self.modules[number]
        heads = tuple(lighten(record) if record.index == head else record for record in module.heads)
        self.modules[number] = replace(module, heads=heads)


def positions_axis(name: str, length: int) -> Axis:
    """An axis of positions that are no tokens of the text: slots, landmarks, sets."""
    tokens = tuple(str(position) for position in range(length))
    nothing = np.full(length, -1, np.int64)
    return Axis(name, tokens, np.arange(length), np.zeros(length, bool), nothing)


__all__ = ["Kind", "Side", "Watcher", "positions_axis"]
