"""Watches a model read one input, and keeps a record of each attention without ever holding a whole long map."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.map_factors import MapFactors
from longspan.inspect import details
from longspan.inspect.difference import DifferenceBuilder, Exact
from longspan.inspect.patterns import head_patterns, module_pattern
from longspan.inspect.records import Axis, Detail, HeadRecord, ModuleRecord, Rollout
from longspan.inspect.rollout import RolloutBuilder
from longspan.inspect.sentences import describe
from longspan.inspect.shelf import Shelf, lighten
from longspan.inspect.summary import PyramidBuilder, SumsBuilder
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
    patterns: bool = True
    rows: tuple[int, ...] = ()  # positions of the decoder whose whole rows are kept
    progress: Callable[[str], None] = lambda what: None
    modules: list[ModuleRecord] = field(default_factory=list)
    rollouts: dict[Side, RolloutBuilder | None] = field(default_factory=dict)
    counts: dict[tuple[Side, Kind], int] = field(default_factory=dict)
    kinds: dict[nn.Module, Kind] = field(default_factory=dict)
    kept_rows: dict[int, Tensor] = field(default_factory=dict)  # by module: (heads, rows, keys)

    def watch(self, model: nn.Module, run: Callable[[], Any]) -> Any:
        """The result of `run`, with a record of each attention that it used."""
        for block in model.modules():
            if isinstance(block, Block):
                self.kinds[block.mixer.mechanism] = "self"
                if block.cross is not None:
                    self.kinds[block.cross.mechanism] = "cross"
        with visiting(model, self._visit):
            return run()

    def finished_rollouts(self) -> tuple[Rollout, ...]:
        return tuple(builder.record() for builder in self.rollouts.values() if builder is not None and builder.layers)

    # One attention

    def _visit(self, call: AttentionCall) -> None:
        queries, keys = call.q.shape[2], call.k.shape[2]
        kind = self.kinds.get(call.mechanism, "self" if queries == keys else "cross")
        decodes = call.mechanism.causal or kind == "cross" or call.path.startswith("decoder")
        side: Side = "decoder" if decodes else "encoder"
        layer = self.counts.get((side, kind), 0)
        self.counts[side, kind] = layer + 1
        if self.layers is not None and layer not in self.layers:
            return
        self.progress(f"{side} layer {layer}{' to source' if kind == 'cross' else ''}")
        standing, sentence = describe(call.mechanism)
        module = ModuleRecord(
            layer=layer,
            kind=kind,
            side=side,
            mechanism=call.mechanism.name,
            options=config.plain(call.mechanism.options),
            causal=call.mechanism.causal,
            standing=standing,
            sentence=sentence,
            queries=self._axis(side, queries),
            keys=self._axis("encoder" if kind == "cross" else side, keys),
            heads=(),
        )
        if standing == "none":
            self.rollouts[side] = None
            self.modules.append(replace(module, pattern=module_pattern(call)))
            return
        rollout = self._rollout(side, queries) if kind == "self" and self.layers is None else None
        self._summarise(module, CallMaps(call), rollout)

    def _axis(self, side: Side, length: int) -> str:
        name: str = self.sides.get(side, "")
        if name in self.axes and len(self.axes[name]) == length:
            return name
        for other, axis in self.axes.items():
            if len(axis) == length and other.endswith("positions"):
                return other
        name = f"{length} positions"
        self.axes[name] = positions_axis(name, length)
        return name

    def _rollout(self, side: Side, length: int) -> RolloutBuilder | None:
        if side not in self.rollouts:
            self.rollouts[side] = RolloutBuilder(side, self._axis(side, length), length)
        builder = self.rollouts[side]
        if builder is not None and builder.length != length:  # layers of other lengths: no product of maps
            builder = self.rollouts[side] = None
        return builder

    def _summarise(self, module: ModuleRecord, maps: "CallMaps", rollout: RolloutBuilder | None) -> None:
        heads, queries, keys = maps.shape
        pyramids, sums = PyramidBuilder(heads, queries, keys), SumsBuilder(heads, queries, keys)
        means, largest = PyramidBuilder(1, queries, keys), PyramidBuilder(1, queries, keys)
        short = max(queries, keys) <= details.MOST_DENSE
        dense = torch.zeros(heads, queries, keys) if short else None
        rows = details.RowsBuilder(heads, queries, keys) if maps.factors is None and not short else None
        difference = None
        if self.against:
            difference = DifferenceBuilder(Exact.beside(maps.call, self.against), maps.call, short=short)
        wanted = torch.tensor(self.rows if module.side == "decoder" else ())
        kept = torch.zeros(heads, len(wanted), keys)
        for row, key, block in maps.blocks(pyramids.sizes[0]):
            here = (wanted >= row) & (wanted < row + block.shape[1])
            if bool(here.any()):
                kept[:, here, key : key + block.shape[2]] = block[:, wanted[here] - row].float()
            if rollout is not None:
                rollout.add(row, key, block.mean(0))
            pyramids.add(row, key, block)
            sums.add(row, key, block)
            means.add(row, key, block.mean(0, keepdim=True))
            largest.add(row, key, block.amax(0, keepdim=True))
            if dense is not None:
                dense[:, row : row + block.shape[1], key : key + block.shape[2]] = block
            if rows is not None:
                rows.add(row, key, block)
            if difference is not None:
                difference.add(row, key, block)
        if rollout is not None:
            if not sums.normalised:
                self.rollouts[module.side] = None  # a product of maps that are no distributions says nothing
            else:
                rollout.finish(causal=module.causal)
        if len(wanted):
            self.kept_rows[len(self.modules)] = kept
        number, special = len(self.modules), np.flatnonzero(self.axes[module.keys].special)
        patterns = head_patterns(maps.call) if self.patterns else {}
        records = []
        for head in range(heads):
            record = HeadRecord(
                index=head,
                pyramid=pyramids.pyramid(head),
                sums=sums.sums(head, special, own=module.kind == "self" and queries == keys),
                detail=self._detail(maps.factors, head, dense, rows),
                pattern=patterns.get(head),
                difference=None if difference is None else difference.record(head, half=self.half),
            )
            records.append(record)
            for evicted in self.shelf.offer(number, module.layer, record):
                self._evict(evicted, records)
        self.modules.append(
            replace(
                module,
                heads=tuple(records),
                mean=means.pyramid(0),
                max=largest.pyramid(0),
                signed=pyramids.lowest is not None,
                normalised=sums.normalised,
            )
        )

    def _detail(
        self, factors: MapFactors | None, head: int, dense: Tensor | None, rows: "details.RowsBuilder | None"
    ) -> Detail | None:
        """The smallest of those that are possible."""
        possible: list[Detail] = []
        if factors is not None:
            possible.append(details.from_factors(factors, head, half=self.half))
        if dense is not None:
            possible.append(details.dense(dense[head], half=self.half))
        if rows is not None:
            listed = rows.rows(head, half=self.half)
            possible += [] if listed is None else [listed]
        return min(possible, key=details.size_of, default=None)

    def _evict(self, which: tuple[int, int], current: list[HeadRecord]) -> None:
        number, head = which
        if number == len(self.modules):
            current[head] = lighten(current[head])
            return
        module = self.modules[number]
        heads = tuple(lighten(record) if record.index == head else record for record in module.heads)
        self.modules[number] = replace(module, heads=heads)


class CallMaps:
    """The maps of one call, (heads, queries, keys), in blocks: by rows from factors, else by measured columns."""

    def __init__(self, call: AttentionCall) -> None:
        self.call, self.factors = call, call.factors()
        self.shape = (call.q.shape[1], call.q.shape[2], call.k.shape[2])

    def blocks(self, multiple: int) -> Blocks:
        if self.factors is not None:
            for row, block in self.factors.row_blocks(multiple):
                yield row, 0, block[0]
        else:
            for key, block in self.call.columns():
                yield 0, key, block[0]


def positions_axis(name: str, length: int) -> Axis:
    """An axis of positions that are no tokens of the text: slots, landmarks, sets."""
    tokens = tuple(str(position) for position in range(length))
    nothing = np.full(length, -1, np.int64)
    return Axis(name, tokens, np.arange(length), np.zeros(length, bool), nothing)


__all__ = ["CallMaps", "Watcher", "positions_axis"]
