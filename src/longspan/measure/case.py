"""Cases to measure, and their measurements."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from longspan.data.json_lines import fields_of
from longspan.errors import InvalidInput

NAIVE, FUSED = "naive", "sdpa"  # dense attention with its n×n weights in memory; torch's own fused kernel
Kind = Literal["forward", "training", "decode"]  # a forward pass; forward and backward; one more token


@dataclass(frozen=True, kw_only=True)
class Case:
    """One mechanism, one kind of call, one size; without projections."""

    mechanism: str  # a registered name, NAIVE or FUSED
    length: int  # of the queries; when decoding, tokens already read
    kind: Kind = "forward"
    keys: int | None = None  # cross-attention: length of the other sequence
    causal: bool = False
    padding: bool = False  # a tenth of the keys is masked
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    options: Mapping[str, Any] = field(default_factory=dict)  # of the mechanism, if not its defaults
    threads: int = 1

    @property
    def key(self) -> str:
        """A string that identifies the case, independent of the order of its options."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        return cls(**fields_of(cls, _known(cls, row), "a case"))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The measurement of a case on this machine, in its own process, in turns with a matrix product."""

    case: Case
    # "memory": does not fit; "unsupported": the mechanism has no such form; "slow": would take too long
    state: Literal["done", "memory", "unsupported", "slow", "failed"]
    seconds: tuple[float, ...] = ()  # of each repeat by `timing.timed`, in order
    memory: int | None = None  # peak bytes above what the process held with its inputs made; decoding: of its state
    flops: int | None = None  # of the matrix products that were counted while it ran
    gemm: float | None = None  # FLOP/s of a large matrix product on this machine, in turns with the case
    exponent: float | None = None  # the power of the length that the mechanism declares
    error: str | None = None
    began: str = ""

    @property
    def least(self) -> float:
        return min(self.seconds)

    @property
    def spread(self) -> float:
        """How much longer the slowest repeat took than the fastest, relative to the fastest."""
        return max(self.seconds) / self.least - 1

    @property
    def work(self) -> float:
        """The least time in units of FLOPs that a large matrix product makes in that time.

        Comparable between processes: if the machine is slower for a while, so is the matrix product.
        """
        assert self.gemm is not None
        return self.least * self.gemm

    @property
    def share(self) -> float | None:
        """The FLOP rate of the case, relative to that of a large matrix product."""
        return None if self.flops is None or not self.seconds else self.flops / self.work

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        known = _known(cls, row)
        if "case" in known:
            known["case"] = Case.read(known["case"])
        return cls(**fields_of(cls, known, "a measurement"))


def _known(cls: type, row: Any) -> dict[str, Any]:
    """The fields that this version knows; another version may have written more."""
    if not isinstance(row, Mapping):
        raise InvalidInput(f"expected an object, not {type(row).__name__}")
    return {item.name: row[item.name] for item in fields(cls) if item.name in row}


__all__ = ["FUSED", "NAIVE", "Case", "Kind", "Measured"]
