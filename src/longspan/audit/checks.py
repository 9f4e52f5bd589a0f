"""The table of checks, in the order in which a certificate lists them."""

from longspan.audit import behaviour, contract, growth, packing, training, usage
from longspan.audit.finding import Check
from longspan.audit.subjects import AuditSubject

CHECKS: tuple[Check, ...] = (
    contract.oracle,
    contract.oracle_gradients,
    contract.weights,
    behaviour.padding_content,
    behaviour.padding_amount,
    packing.packing_positions,
    packing.packing_cached,
    packing.packing_masked,
    packing.packing_borders,
    behaviour.causal_perturbation,
    behaviour.causal_gradient,
    behaviour.prefix,
    training.training_padding,
    training.training_causal,
    training.running_statistics,
    behaviour.streaming,
    behaviour.streaming_masked,
    contract.streaming_side_inputs,
    behaviour.batch_invariance,
    behaviour.determinism,
    usage.lengths,
    contract.dead_rows,
    usage.half_precision,
    contract.dropout,
    usage.save_load,
    usage.compile,
    usage.compile_masked,
    usage.export,
    usage.export_masked,
    contract.cost,
    contract.exponent,
    contract.size,
    growth.order,
    contract.refusals,
)


def applicable(subject: AuditSubject) -> tuple[Check, ...]:
    """The checks of the claims made for this subject."""
    return tuple(check for check in CHECKS if check.applies(subject.claims))
