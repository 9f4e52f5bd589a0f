"""What is kept of a map that passes by in blocks: a pyramid of pooled cells, and sums by row, column and offset."""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.inspect.records import Level, Pyramid, Sums, encode

LIMITS = (512, 256, 128, 64)  # cells on the longer side of each level of a pyramid
ROW_SUM = 1e-3  # rows whose weights sum to 1 within this are distributions


def cell_sizes(length: int) -> list[int]:
    """The side of a cell at each level, finest first: powers of 2, each size once."""
    sizes = []
    for limit in LIMITS:
        cell = 1
        while -(-length // cell) > limit:
            cell *= 2
        if cell not in sizes:
            sizes.append(cell)
    return sizes


class PyramidBuilder:
    """Pools blocks of maps (maps, rows, keys), in any order, to the finest level; the others follow from it."""

    def __init__(self, maps: int, queries: int, keys: int) -> None:
        self.queries, self.keys = queries, keys
        self.sizes = cell_sizes(max(queries, keys))
        cell = self.sizes[0]
        shape = (maps, -(-queries // cell), -(-keys // cell))
        self.largest, self.total = torch.zeros(shape), torch.zeros(shape)
        self.lowest: Tensor | None = None  # of the negated weights; None: no weight is negative

    def add(self, row: int, key: int, block: Tensor) -> None:
        cell = self.sizes[0]
        rows = slice(row // cell, -(-(row + block.shape[1]) // cell))
        keys = slice(key // cell, -(-(key + block.shape[2]) // cell))
        highest, total, least = _pool(block, row % cell, key % cell, cell)
        torch.maximum(self.largest[:, rows, keys], highest, out=self.largest[:, rows, keys])
        self.total[:, rows, keys] += total
        if least is not None:
            if self.lowest is None:
                self.lowest = torch.zeros_like(self.largest)
            torch.maximum(self.lowest[:, rows, keys], least, out=self.lowest[:, rows, keys])

    def pyramid(self, index: int) -> Pyramid:
        """The pyramid of one of the maps."""
        highest, total = self.largest[index], self.total[index]
        lowest = None if self.lowest is None else self.lowest[index]
        largest = float(highest.max() if lowest is None else torch.maximum(highest, lowest).max())
        scale, levels, finest = max(1.0, largest) if largest > 1 + ROW_SUM else 1.0, [], self.sizes[0]
        for cell in self.sizes:
            by = cell // finest
            counts = np.outer(_counts(self.queries, cell), _counts(self.keys, cell))
            levels.append(
                Level(
                    cell=cell,
                    max=encode(_shrink(highest, by, "max").numpy(), scale),
                    mean=encode(_shrink(total, by, "sum").numpy() / counts, scale),
                    low=None if lowest is None else encode(_shrink(lowest, by, "max").numpy(), scale),
                )
            )
        return Pyramid(tuple(levels), scale)


def _counts(length: int, cell: int) -> np.ndarray:
    """How many positions each cell has: the last one may have fewer."""
    starts = np.arange(0, length, cell)
    return np.minimum(cell, length - starts)


def _pool(block: Tensor, top: int, left: int, cell: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Largest, sum of magnitudes, and largest negated weight of each cell; the block starts inside its first cell."""
    block = block.float()
    least = float(block.amin()) if block.numel() else 0.0
    if cell > 1:
        bottom, right = -(top + block.shape[1]) % cell, -(left + block.shape[2]) % cell
        if top or left or bottom or right:
            block = pad(block, (left, right, top, bottom))
        block = block.unflatten(2, (-1, cell)).unflatten(1, (-1, cell))  # (maps, rows, cell, keys, cell)
        sums = block if least >= 0 else block.abs()
        lowest = None if least >= 0 else block.neg().amax(4).amax(2)
        return block.amax(4).amax(2), sums.sum(4).sum(2), lowest
    return block, block if least >= 0 else block.abs(), None if least >= 0 else block.neg()


def _shrink(level: Tensor, by: int, how: str) -> Tensor:
    if by == 1:
        return level
    padded = pad(level, (0, -level.shape[1] % by, 0, -level.shape[0] % by))
    cells = padded.unflatten(1, (-1, by)).unflatten(0, (-1, by))
    pooled: Tensor = cells.amax(3).amax(1) if how == "max" else cells.sum(3).sum(1)
    return pooled


class SumsBuilder:
    """Adds up blocks of the maps of a module (heads, rows, keys), in any order."""

    def __init__(self, heads: int, queries: int, keys: int) -> None:
        self.queries, self.keys = queries, keys
        self.received = torch.zeros(heads, keys, dtype=torch.float64)
        self.offsets = torch.zeros(heads, queries + keys - 1, dtype=torch.float64)
        self.signed = torch.zeros(heads, queries, dtype=torch.float64)  # row sums
        self.mass, self.logs = torch.zeros_like(self.signed), torch.zeros_like(self.signed)  # Σ|a|, -Σ|a| ln|a|
        self.peak = torch.full((heads, queries), -torch.inf)
        self.peak_key = torch.zeros(heads, queries, dtype=torch.long)

    def add(self, row: int, key: int, block: Tensor) -> None:
        rows, keys = slice(row, row + block.shape[1]), slice(key, key + block.shape[2])
        block = block.float()
        self.received[:, keys] += block.sum(1)
        sums = block.sum(2)
        self.signed[:, rows] += sums
        positive = bool(block.amin() >= 0)
        sizes = block if positive else block.abs()
        self.mass[:, rows] += sums if positive else sizes.sum(2)
        self.logs[:, rows] += torch.special.entr(sizes).sum(2)
        first = key - (row + block.shape[1] - 1) + self.queries - 1
        self.offsets[:, first : first + block.shape[1] + block.shape[2] - 1] += diagonal_sums(block)
        peak, at = block.max(2)
        better = peak > self.peak[:, rows]
        self.peak_key[:, rows] = torch.where(better, at + key, self.peak_key[:, rows])
        self.peak[:, rows] = torch.where(better, peak, self.peak[:, rows])

    @property
    def normalised(self) -> bool:
        """Whether every row that reads something is a distribution."""
        reads = self.mass > 0
        return bool(((self.signed - 1).abs() <= ROW_SUM)[reads].all()) and bool(((self.mass - 1) <= ROW_SUM).all())

    def sums(self, head: int, special: np.ndarray, *, own: bool) -> Sums:
        """The numbers of one head; `special` are positions of keys, `own` says that queries and keys are the same."""
        received, offsets = self.received[head].numpy(), self.offsets[head].numpy()
        mass = self.mass[head]
        entropy = self.logs[head] / mass.clamp_min(1e-300) + mass.clamp_min(1e-300).log()
        zero, count = self.queries - 1, max(1, self.queries)

        def near(offset: int) -> float:
            inside = own and 0 <= zero + offset < len(offsets)
            return float(offsets[zero + offset]) / count if inside else 0.0

        return Sums(
            received=received.astype(np.float32),
            entropy=torch.where(mass > 0, entropy, 0.0).clamp_min(0.0).numpy().astype(np.float32),
            offsets=offsets.astype(np.float32),
            previous=near(-1),
            next=near(1),
            self=near(0),
            first=float(received[0]) / count,
            special=(received[special] / count).astype(np.float32),
            largest=float(self.peak[head].max()),
            peak=self.peak[head].numpy(),
            peak_key=self.peak_key[head].numpy().astype(np.int32),
        )


def diagonal_sums(block: Tensor) -> Tensor:
    """Sums of (…, rows, keys) over the diagonals key - row, from -(rows - 1) to keys - 1."""
    rows, keys = block.shape[-2:]
    if rows > keys:
        return diagonal_sums(block.mT).flip(-1)
    # Row r, counted from the last one, is moved right by r: written into rows that are one longer than they are read.
    wide = pad(block.flip(-2), (0, rows)).flatten(-2)[..., :-rows]
    sums: Tensor = wide.unflatten(-1, (rows, rows + keys - 1)).sum(-2)
    return sums


__all__ = ["LIMITS", "PyramidBuilder", "SumsBuilder", "cell_sizes", "diagonal_sums"]
