"""How far a mechanism's map is from exact attention with the same queries, keys and values.

The control is exact attention beside exact attention whose keys are permuted: the error of a map that reads nonsense.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from longspan.attention.base import share_heads
from longspan.attention.map_factors import MapFactors, SoftmaxMap
from longspan.attention.mechanisms.reformer import ReformerAttention
from longspan.attention.registry import build
from longspan.errors import InvalidOption, Unsupported
from longspan.inspect import details
from longspan.inspect.records import Detail, Errors, HeadDifference
from longspan.inspect.summary import PyramidBuilder
from longspan.nn.attention_calls import AttentionCall

BLOCKS = 8  # of positions
SMALL = 1e-4  # a weight that exact attention does not mean to read
TINY = 1e-12  # exact weights below it are left out of KL: they underflow
SEED = 0  # of the permutation, and of random features
MOST_MEASURED = 1024  # tokens up to which a mechanism without factors can be the one to compare with


@dataclass(frozen=True)
class Exact:
    """The map to compare with: as factors, or all of it if it is short."""

    factors: MapFactors | None
    weights: Tensor | None = None  # (heads, queries, keys)

    @classmethod
    def beside(cls, call: AttentionCall, name: str) -> "Exact":
        """The map of the mechanism `name` on the same queries and keys."""
        mechanism, q = call.mechanism, call.q
        k = share_heads(call.k, q.shape[1])
        if name == "softmax":
            scale = mechanism.shape.head_dim**-0.5
            if isinstance(mechanism, ReformerAttention):
                k, scale = mechanism.unit_keys(q), 1.0
            return cls(SoftmaxMap(q, k, scale, mechanism.causal, call.key_mask, call.bias))
        with torch.random.fork_rng(devices=[]):  # random features are the same in every run
            torch.default_generator.manual_seed(SEED)
            other = build(
                name,
                heads=mechanism.shape.heads,
                head_dim=mechanism.shape.head_dim,
                value_dim=mechanism.shape.value_dim,
                max_length=mechanism.shape.max_length or max(q.shape[2], k.shape[2]),
                causal=mechanism.causal,
            ).to(q)
        if any(True for _ in other.parameters()):
            raise InvalidOption(f"--against {name} has weights of its own, which this model lacks; try softmax")
        if not other.supports.map:
            raise Unsupported(f"--against {name} has no map; try softmax")
        mask, bias = call.key_mask, call.bias if other.supports.bias else None
        factors = other.map_factors(q, k, key_mask=mask, bias=bias)
        if factors is not None:
            return cls(factors)
        if max(q.shape[2], k.shape[2]) > MOST_MEASURED:
            raise Unsupported(f"--against {name} works up to {MOST_MEASURED:,} tokens; try softmax, or a shorter text")
        return cls(None, other.weights(q, k, key_mask=mask, bias=bias)[0])

    def tile(self, rows: Tensor, keys: Tensor) -> Tensor:
        if self.factors is not None:
            return self.factors.tile(rows, keys)[0]
        assert self.weights is not None
        return self.weights[:, rows][..., keys]

    def permuted(self) -> "Exact":
        """The same with its keys permuted, under the same mask."""
        if isinstance(self.factors, SoftmaxMap):
            order = _permutation(self.factors.shape[3])
            return Exact(replace(self.factors, k=self.factors.k[:, :, order]))
        if self.weights is not None:
            return Exact(None, self.weights[..., _permutation(self.weights.shape[-1])])
        assert self.factors is not None
        return _Reordered(self.factors, order=_permutation(self.factors.shape[3]))


@dataclass(frozen=True)
class _Reordered(Exact):
    order: Tensor | None = None

    def tile(self, rows: Tensor, keys: Tensor) -> Tensor:
        assert self.order is not None
        return super().tile(rows, self.order[keys])


def _permutation(count: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(SEED))


class ErrorSums:
    """Errors by head and row, added up over blocks of two maps (heads, rows, keys)."""

    def __init__(self, heads: int, queries: int, values: Tensor) -> None:
        shape = (heads, queries)
        self.kl, self.variation, self.nowhere = (torch.zeros(shape, dtype=torch.float64) for _ in range(3))
        self.change, self.exact = torch.zeros(*shape, values.shape[-1]), torch.zeros(*shape, values.shape[-1])
        self.peaks = [torch.full(shape, -torch.inf), torch.full(shape, -torch.inf)]
        self.keys = [torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)]
        self.values, self.signed = values, False

    def add(self, row: int, key: int, ours: Tensor, exact: Tensor) -> None:
        rows, keys = slice(row, row + ours.shape[1]), slice(key, key + ours.shape[2])
        ours, exact = ours.float(), exact.float()
        self.signed = self.signed or bool(ours.amin() < 0) or bool(exact.amin() < 0)
        if not self.signed:
            ratio = exact.log() - ours.log()
            self.kl[:, rows] += torch.where(exact > TINY, exact * ratio, 0.0).sum(-1)
        change = ours - exact
        self.variation[:, rows] += change.abs().sum(-1) / 2
        self.nowhere[:, rows] += torch.where(exact < SMALL, ours.abs(), 0.0).sum(-1)
        self.change[:, rows] += change @ self.values[:, keys]
        self.exact[:, rows] += exact @ self.values[:, keys]
        for number, weights in enumerate((ours, exact)):
            peak, at = weights.max(-1)
            better = peak > self.peaks[number][:, rows]
            self.keys[number][:, rows] = torch.where(better, at + key, self.keys[number][:, rows])
            self.peaks[number][:, rows] = torch.where(better, peak, self.peaks[number][:, rows])

    def errors(self, head: int, rows: slice = slice(None)) -> Errors:
        """Mean over the rows."""
        change, exact = self.change[head, rows].norm(), self.exact[head, rows].norm()
        same = self.keys[0][head, rows] == self.keys[1][head, rows]
        return Errors(
            kl=None if self.signed else max(0.0, float(self.kl[head, rows].mean())),
            variation=float(self.variation[head, rows].mean()),
            output=float(change / exact.clamp_min(1e-30)),
            top1=float(same.float().mean()),
            nowhere=float(self.nowhere[head, rows].mean()),
        )


class DifferenceBuilder:
    """One module's map beside the exact one, block by block."""

    def __init__(self, exact: Exact, call: AttentionCall) -> None:
        heads, queries, keys = call.q.shape[1], call.q.shape[2], call.k.shape[2]
        values = share_heads(call.v, heads)[0].float()
        self.exact, self.permuted, self.queries, self.keys = exact, exact.permuted(), queries, keys
        self.sums, self.control = ErrorSums(heads, queries, values), ErrorSums(heads, queries, values)
        self.pyramids, self.changes = (PyramidBuilder(heads, queries, keys) for _ in range(2))
        short = max(queries, keys) <= details.MOST_DENSE
        self.dense = torch.zeros(heads, queries, keys) if short else None

    def add(self, row: int, key: int, block: Tensor) -> None:
        rows, keys = torch.arange(row, row + block.shape[1]), torch.arange(key, key + block.shape[2])
        exact = self.exact.tile(rows, keys)
        self.sums.add(row, key, block, exact)
        self.control.add(row, key, self.permuted.tile(rows, keys), exact)
        self.pyramids.add(row, key, exact)
        self.changes.add(row, key, block - exact)
        if self.dense is not None:
            self.dense[:, row : row + block.shape[1], key : key + block.shape[2]] = exact

    def record(self, head: int) -> HeadDifference:
        """The numbers of one head, without the exact map's detail."""
        size = -(-self.queries // min(BLOCKS, self.queries))
        starts = range(0, self.queries, size)
        return HeadDifference(
            errors=self.sums.errors(head),
            blocks=tuple(self.sums.errors(head, slice(begin, begin + size)) for begin in starts),
            control=self.control.errors(head),
            exact=self.pyramids.pyramid(head),
            exact_detail=None,
            change=self.changes.pyramid(head),
        )

    def detail(self, head: int, *, half: bool) -> Detail | None:
        """What cells of the exact map can be computed from."""
        possible: list[Detail] = []
        if self.dense is not None:
            possible.append(details.dense(self.dense[head], half=half))
        if self.exact.factors is not None:
            possible.append(details.from_factors(self.exact.factors, head, half=half))
        return min(possible, key=details.size_of, default=None)


__all__ = ["DifferenceBuilder", "ErrorSums", "Exact"]
