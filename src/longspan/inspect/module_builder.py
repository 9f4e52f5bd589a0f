"""The record of one attention, built from blocks of its maps as they pass by."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from longspan.attention.map_factors import MapFactors
from longspan.inspect import details
from longspan.inspect.difference import DifferenceBuilder
from longspan.inspect.records import Detail, HeadRecord, ModuleRecord, Pattern
from longspan.inspect.rollout import RolloutBuilder
from longspan.inspect.summary import PyramidBuilder, SumsBuilder


class ModuleBuilder:
    """Adds blocks (heads, rows, keys), in any order, to everything that is kept of a module."""

    def __init__(
        self,
        module: ModuleRecord,
        shape: tuple[int, int, int],
        *,
        half: bool,
        factors: MapFactors | None = None,
        rollout: RolloutBuilder | None = None,
        difference: DifferenceBuilder | None = None,
        rows: tuple[int, ...] = (),
    ) -> None:
        heads, queries, keys = shape
        self.module, self.shape, self.half, self.factors = module, shape, half, factors
        self.rollout, self.difference = rollout, difference
        self.pyramids, self.sums = PyramidBuilder(heads, queries, keys), SumsBuilder(heads, queries, keys)
        self.means, self.largest = PyramidBuilder(1, queries, keys), PyramidBuilder(1, queries, keys)
        short = max(queries, keys) <= details.MOST_DENSE
        self.dense = torch.zeros(heads, queries, keys) if short else None
        self.listed = details.RowsBuilder(heads, queries, keys) if factors is None and not short else None
        self.wanted = torch.tensor(rows, dtype=torch.long)
        self.rows = torch.zeros(heads, len(rows), keys)

    @property
    def multiple(self) -> int:
        """Blocks of rows that start at multiples of it need no padding."""
        return self.pyramids.sizes[0]

    def add(self, row: int, key: int, block: Tensor) -> None:
        here = (self.wanted >= row) & (self.wanted < row + block.shape[1])
        if bool(here.any()):
            self.rows[:, here, key : key + block.shape[2]] = block[:, self.wanted[here] - row].float()
        if self.rollout is not None:
            self.rollout.add(row, key, block.mean(0))
        self.pyramids.add(row, key, block)
        self.sums.add(row, key, block)
        self.means.add(row, key, block.mean(0, keepdim=True))
        self.largest.add(row, key, block.amax(0, keepdim=True))
        if self.dense is not None:
            self.dense[:, row : row + block.shape[1], key : key + block.shape[2]] = block
        if self.listed is not None:
            self.listed.add(row, key, block)
        if self.difference is not None:
            self.difference.add(row, key, block)

    def head(self, head: int, special: np.ndarray, pattern: Pattern | None) -> HeadRecord:
        _, queries, keys = self.shape
        return HeadRecord(
            index=head,
            pyramid=self.pyramids.pyramid(head),
            sums=self.sums.sums(head, special, own=self.module.kind == "self" and queries == keys),
            pattern=pattern,
            difference=None if self.difference is None else self.difference.record(head),
        )

    def add_detail(self, record: HeadRecord) -> HeadRecord:
        """The head with what its cells can be computed from; this takes another pass over its scores."""
        difference = record.difference
        if difference is not None and self.difference is not None:
            difference = replace(difference, exact_detail=self.difference.detail(record.index, half=self.half))
        return replace(record, detail=self._detail(record.index), difference=difference)

    def detail_bytes(self, head: int) -> int:
        """About how large the detail of a head will be."""
        _, queries, keys = self.shape
        item, possible = 2 if self.half else 4, []
        if self.factors is not None:
            possible.append((queries + keys) * details.width_of(self.factors) * item)
        if self.dense is not None:
            possible.append(queries * keys * item)
        if self.listed is not None and self.listed.counts[head] <= self.listed.most:
            possible.append(self.listed.counts[head] * (item + 2))
        return min(possible, default=0) * (1 if self.difference is None else 2)

    def record(self, heads: list[HeadRecord]) -> ModuleRecord:
        return replace(
            self.module,
            heads=tuple(heads),
            mean=self.means.pyramid(0),
            max=self.largest.pyramid(0),
            signed=self.pyramids.lowest is not None,
            normalised=self.sums.normalised,
        )

    def _detail(self, head: int) -> Detail | None:
        """The smallest of those that are possible."""
        possible: list[Detail] = []
        if self.factors is not None:
            possible.append(details.from_factors(self.factors, head, half=self.half))
        if self.dense is not None:
            possible.append(details.dense(self.dense[head], half=self.half))
        if self.listed is not None:
            listed = self.listed.rows(head, half=self.half)
            possible += [] if listed is None else [listed]
        return min(possible, key=details.size_of, default=None)


__all__ = ["ModuleBuilder"]
