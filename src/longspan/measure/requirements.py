"""Requirements for an attention, and which mechanisms meet them."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from longspan.attention import build, find, names
from longspan.attention.base import Attention, Supports
from longspan.errors import InvalidOption, LongspanError
from longspan.measure.case import Case, Kind
from longspan.models.cost import blank

# Options that, by the papers, grow with the length; the defaults are for one length.
GROWING: dict[str, Callable[[int], Mapping[str, Any]]] = {
    "axial": lambda length: {"width": _root(length)},  # a square
    "reformer": lambda length: {"buckets": _buckets(length)},
    "routing": lambda length: {"clusters": math.ceil(length / 128)},  # clusters of 128 tokens
    "sparse": lambda length: {"stride": _root(length)},
}

# Mechanisms that need the rows and columns of images.
OF_IMAGES = ("axial", "image_local")

# Options that must alternate between layers: with one value alone, tokens never see the whole sequence.
ALTERNATING: dict[str, tuple[Mapping[str, Any], ...]] = {"axial": ({"axis": -1}, {"axis": 0})}


@dataclass(frozen=True, kw_only=True)
class Requirements:
    """What an attention must support, and its sizes."""

    length: int  # of the sequence; when decoding, of the tokens already read
    causal: bool = False
    decode: bool = False  # one token at a time
    keys: int | None = None  # cross-attention: length of the other sequence
    padding: bool = False
    training: bool = True  # forward and backward; otherwise forward only
    memory: int | None = None  # limit in bytes; None: the machine's free memory
    batch: int = 1
    heads: int = 8
    head_dim: int = 64
    threads: int = 1
    images: bool = False  # include mechanisms for images

    def __post_init__(self) -> None:
        for name in ("length", "keys", "memory", "batch", "heads", "head_dim", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidOption(f"{name} must be at least 1, not {value}")
        if self.keys is not None and (self.causal or self.decode):
            raise InvalidOption(
                "cross-attention cannot be causal or decoded, as the other sequence has no past: leave out one"
            )

    @property
    def kind(self) -> Kind:
        return "decode" if self.decode else "training" if self.training else "forward"

    def case(self, mechanism: str) -> Case:
        """The case to measure for a mechanism, with its default options."""
        return Case(
            mechanism=mechanism,
            length=self.length,
            kind=self.kind,
            keys=self.keys,
            causal=self.causal or self.decode,
            padding=self.padding,
            batch=self.batch,
            heads=self.heads,
            head_dim=self.head_dim,
            options=GROWING[mechanism](self.length) if mechanism in GROWING else {},
            threads=self.threads,
        )


def shorter(case: Case, length: int) -> Case:
    """The same case at another length; the other sequence of cross-attention shrinks in proportion."""
    if length == case.length:
        return case
    keys = None if case.keys is None else max(1, round(case.keys * length / case.length))
    return replace(case, length=length, keys=keys)


def candidates(question: Requirements) -> tuple[list[Case], dict[str, str]]:
    """A case for each suitable mechanism, in the order of the registry, and the reasons against the others."""
    able, unable = list[Case](), dict[str, str]()
    for name in names():
        case = question.case(name)
        reason = _missing(case, find(name).supports)
        if reason is None and name in OF_IMAGES and not question.images:
            reason = "is for images: --images includes it"
        if reason is None:
            try:
                reason = _missing(case, blank_module(case).supports)  # an instance may support less than its class
            except LongspanError as error:  # such as options for longer sequences
                reason = str(error)
        if reason is None:
            able.append(case)
        else:
            unable[name] = reason
    return able, unable


def _missing(case: Case, supports: Supports) -> str | None:
    needs = (
        (case.causal, supports.causal, "has no causal form"),
        (not case.causal, supports.bidirectional, "is causal only"),
        (case.kind == "decode", supports.streaming, "cannot decode step by step"),
        (case.keys is not None, supports.cross, "has no cross-attention"),
        (case.padding, supports.key_mask, "cannot mask padding"),
    )
    return next((reason for required, has, reason in needs if required and not has), None)


def blank_module(case: Case) -> Attention:
    """The mechanism of a case, without weights (on the meta device)."""
    sizes = {"heads": case.heads, "head_dim": case.head_dim, "max_length": max(case.length, case.keys or 0)}
    with blank():
        return build(case.mechanism, **sizes, causal=case.causal, **case.options)


def _buckets(length: int) -> int | tuple[int, int]:
    """Two buckets per chunk of 64 tokens, an even number; above 64 buckets, the product of two small hashes."""
    count = 2 * math.ceil(length / 64)
    side = 2 * math.ceil(math.sqrt(count) / 2)
    return count if count <= 64 else (side, side)


def _root(length: int) -> int:
    return max(1, math.isqrt(length))


__all__ = ["ALTERNATING", "GROWING", "OF_IMAGES", "Requirements", "blank_module", "candidates", "shorter"]
