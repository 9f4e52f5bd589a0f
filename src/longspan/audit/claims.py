"""The claims about a module that an audit checks."""

from dataclasses import dataclass

from longspan.attention.base import Attention
from longspan.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class Claims:
    """The claims to check. Determinism and batch invariance are always checked."""

    causal: bool = False  # no output depends on a later input
    padding: bool = False  # masked positions, whatever they hold and how many there are, do not affect other outputs
    packing: bool = False  # texts that share a row do not affect each other, in each way to name their borders
    streaming: bool = False  # reading in chunks gives the same outputs as reading at once
    order: float | None = None  # FLOPs and memory grow at most by this power of the length
    any_length: bool = False  # lengths 1, 2, 7, 33 … work
    half_precision: bool = False  # outputs are finite in float16 and bfloat16, forward and backward
    save_load: bool = False  # saved weights reproduce the outputs
    compile: bool = False  # torch.compile captures one graph and does not change the outputs
    export: bool = False  # torch.export with a dynamic length works, and is right at other lengths
    contract: bool = False  # a longspan mechanism: its oracle, its declared cost, its refusals
    dropout: bool = False  # contract only: drops attention weights in training
    side_inputs: bool = False  # contract only: decodes with a bias or with grouped heads
    subquadratic: bool = False  # contract only: makes no tensor of n²/8 elements
    stateless: bool = False  # contract only: a pass in training mode changes no later output
    map: bool = False  # contract only: applies one map to the values

    def __post_init__(self) -> None:
        if self.order is not None and not 0 <= self.order <= 4:
            raise InvalidOption(f"order must be a power of the length, 0 to 4, not {self.order!r}")

    @classmethod
    def of(cls, mechanism: Attention) -> "Claims":
        """What a mechanism of longspan claims by its `supports` and `exponent`, and by the contract."""
        supports = mechanism.supports
        return cls(
            causal=mechanism.causal,
            padding=supports.key_mask,
            streaming=supports.streaming and mechanism.causal,
            order=mechanism.exponent,
            any_length=True,
            half_precision=True,
            save_load=True,
            compile=True,
            export=True,
            contract=True,
            dropout=supports.dropout,
            side_inputs=supports.streaming and mechanism.causal and (supports.bias or supports.grouped),
            subquadratic=not mechanism.quadratic_memory,
            stateless=not mechanism.running_statistics,
            map=supports.map,
        )
