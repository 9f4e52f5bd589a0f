"""The table of checks, in the order in which a certificate lists them."""

from longspan.audit import behaviour, contract, growth, tools, training
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
    training.training_padding,
    training.training_causal,
    training.running_statistics,
    behaviour.streaming,
    behaviour.streaming_masked,
    contract.streaming_side_inputs,
    behaviour.batch_invariance,
    behaviour.determinism,
    tools.lengths,
    contract.dead_rows,
    tools.half_precision,
    contract.dropout,
    tools.save_load,
    tools.compile,
    tools.compile_masked,
    tools.export,
    tools.export_masked,
    contract.cost,
    contract.exponent,
    contract.size,
    growth.order,
    contract.refusals,
)


def applicable(subject: Subject) -> tuple[Check, ...]:
    """The checks of what is claimed for this subject."""
    return tuple(check for check in CHECKS if check.applies(subject.claims))
