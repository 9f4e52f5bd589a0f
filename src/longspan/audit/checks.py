"""The table of checks, in the order in which a certificate lists them."""

from longspan.audit import behaviour, contract
from longspan.audit.finding import Check
from longspan.audit.subjects import Subject

CHECKS: tuple[Check, ...] = (
    contract.oracle,
    contract.oracle_gradients,
    contract.weights,
    behaviour.padding_content,
    behaviour.padding_amount,
    behaviour.causal_perturbation,
    behaviour.causal_gradient,
    behaviour.prefix,
    behaviour.streaming,
    behaviour.streaming_masked,
    contract.streaming_side_inputs,
    behaviour.batch_invariance,
    behaviour.determinism,
    behaviour.lengths,
    contract.dead_rows,
    behaviour.half_precision,
    contract.dropout,
    behaviour.save_load,
    behaviour.compile,
    behaviour.compile_masked,
    behaviour.export,
    behaviour.export_masked,
    contract.cost,
    contract.exponent,
    contract.size,
    behaviour.order,
    contract.refusals,
)


def applicable(subject: Subject) -> tuple[Check, ...]:
    """The checks of what is claimed for this subject."""
    return tuple(check for check in CHECKS if check.applies(subject.claims))
