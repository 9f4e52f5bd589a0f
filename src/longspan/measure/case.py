"""What is measured, and what was found: the values that measuring, profiles and advice are made of."""

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
    """One mechanism doing one thing at one size, heads already projected."""

    mechanism: str  # a registered name, NAIVE or FUSED
    length: int  # of the queries; when decoding, of what was read before
    kind: Kind = "forward"
    keys: int | None = None  # cross-attention: of what is read, where it is another text
    causal: bool = False
    padding: bool = False  # a tenth of the keys is hidden
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    options: Mapping[str, Any] = field(default_factory=dict)  # of the mechanism, where they are not its defaults
    threads: int = 1

    @property
    def key(self) -> str:
        """The same for the same case, whatever order its options came in."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        return cls(**fields_of(cls, _known(cls, row), "a case"))


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a case took on this machine, in a process of its own, taking turns with a matrix product."""

    case: Case
    # "memory": it does not fit, or would not; "unsupported": the mechanism has no such form; "slow": not waited for
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
        """How much longer the longest repeat took than the shortest, as a share of that."""
        return max(self.seconds) / self.least - 1

    @property
    def work(self) -> float:
        """The least time, in multiplications and additions that the machine's matrix products do in it.

        This is what is compared between processes: a machine that is slower for a while is slower in both.
        """
        assert self.gemm is not None
        return self.least * self.gemm

    @property
    def share(self) -> float | None:
        """Of the rate of the machine's matrix products, how much its own come to."""
        return None if self.flops is None or not self.seconds else self.flops / self.work

    @classmethod
    def read(cls, row: Mapping[str, Any]) -> Self:
        known = _known(cls, row)
        if "case" in known:
            known["case"] = Case.read(known["case"])
        return cls(**fields_of(cls, known, "a measurement"))


def _known(cls: type, row: Any) -> dict[str, Any]:
    """The fields that this version has; another version may have written more."""
    if not isinstance(row, Mapping):
        raise InvalidInput(f"expected an object, not {type(row).__name__}")
    return {each.name: row[each.name] for each in fields(cls) if each.name in row}


__all__ = ["FUSED", "NAIVE", "Case", "Kind", "Measured"]
