"""What is claimed of a module; an audit measures these and nothing else."""

from dataclasses import dataclass

from longspan.attention.base import Attention
from longspan.errors import InvalidOption


@dataclass(frozen=True, kw_only=True)
class Claims:
    """Each True is a promise that is put to the test. Determinism and batch invariance are always measured."""

    causal: bool = False  # no output depends on a later input
    padding: bool = False  # masked positions, their content and their number, change no other output
    streaming: bool = False  # reading in chunks gives what reading at once gives
    order: float | None = None  # work and memory grow at most as this power of the length
    any_length: bool = False  # lengths 1, 2, 7, 33 … work
    half_precision: bool = False  # finite in float16 and bfloat16, forward and backward
    save_load: bool = False  # the weights that are saved are all there is to the module
    compile: bool = False  # torch.compile captures it whole, and changes nothing
    export: bool = False  # torch.export with a dynamic length works, and holds at other lengths
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
