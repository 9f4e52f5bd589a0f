"""What the heads of sparse mechanisms could read, beside what they did read."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.attention.map_factors import SoftmaxMap
from longspan.inspect.records import Flags, Pattern, Rule
from longspan.inspect.summary import cell_sizes
from longspan.nn.attention_calls import AttentionCall

SPARSE = {"FP", "LP"}  # the survey's classes of fixed and learned patterns
MOST = 1024  # tokens up to which the definition, which takes n² memory, is asked
MEANINGS = {
    "reformer": "Outlined: pairs that some round puts into one bucket and chunk. Buckets: one row for each round.",
    "routing": "Outlined: pairs that some cluster holds. Buckets: the nearest cluster of queries and of keys.",
    "sinkhorn": "Outlined: the own block and the blocks sorted next to it. Buckets: the own block, then the one with "
    "the largest share.",
}
# Mechanisms that read something else than keys: then columns of the pattern are these.
SLOTS = {
    "memory_compressed": "Outlined: the slots of the compressed memory that could be read. Columns are slots.",
    "inducing": "Outlined: the summaries that could be read. Columns are summaries.",
}
BY_RULE = "Outlined: the keys that its rule allows."
BY_DEFINITION = "Outlined: the keys that its definition allows."
TOO_LONG = f"The outline needs n² memory and is drawn up to {MOST:,} tokens; buckets are shown at any length."


def head_patterns(call: AttentionCall) -> dict[int, Pattern]:
    """The pattern of each head of a sparse mechanism; {} for others."""
    mechanism = call.mechanism
    if not SPARSE & set(mechanism.survey_class):
        return {}
    factors = mechanism.map_factors(call.q, call.k, **call.extras)
    if isinstance(factors, SoftmaxMap) and factors.before is not None:
        return {head: Pattern(BY_RULE, rule=_rule(factors, head)) for head in range(call.q.shape[1])}
    found = mechanism.bucket_ids(call.q, call.k)
    cells, cell = _cells(call)
    if cells is None and found is None:
        return {}
    sentence = TOO_LONG if cells is None else MEANINGS.get(mechanism.name, BY_DEFINITION)
    patterns = {}
    for head in range(call.q.shape[1]):
        buckets: dict[str, Any] = {}
        if found is not None:
            queries, keys = (ids[0, head].numpy().astype(np.int32) for ids in found)
            buckets = {"buckets": queries, "key_buckets": None if np.array_equal(queries, keys) else keys}
        own: Flags | None = None if cells is None else np.asarray(cells[min(head, len(cells) - 1)])
        patterns[head] = Pattern(sentence, cell=cell, cells=own, **buckets)
    return patterns


def module_pattern(call: AttentionCall) -> Pattern | None:
    """What could be read in a mechanism without a map: slots, windows or clusters."""
    cells, cell = _cells(call)
    if cells is None:
        return None
    sentence = SLOTS.get(call.mechanism.name, BY_DEFINITION)
    return Pattern(sentence, cell=cell, cells=np.asarray(cells.any(0)))


def _rule(factors: SoftmaxMap, head: int) -> Rule:
    assert factors.before is not None and factors.after is not None and factors.steps is not None
    mask = factors.key_mask
    return Rule(
        causal=factors.causal,
        before=factors.before[head],
        after=factors.after[head],
        step=factors.steps[head],
        readable=None if mask is None else mask[0].numpy(),
    )


def _cells(call: AttentionCall) -> tuple[np.ndarray | None, int]:
    """Where the definition has weights (heads, rows, keys), pooled to at most 512 cells."""
    length = max(call.q.shape[2], call.k.shape[2])
    if length > MOST:
        return None, 1
    with torch.no_grad():
        weights = call.mechanism.oracle(_flat(call), call.k, call.v, **call.extras)
    keys = weights.shape[-1] if call.mechanism.name in SLOTS else call.k.shape[2]
    could: Tensor = weights[0, :, :, :keys] != 0
    cell = cell_sizes(length)[0]
    if cell > 1:
        could = torch.nn.functional.max_pool2d(could.float()[None], cell, ceil_mode=True)[0] > 0
    return could.numpy(), cell


def _flat(call: AttentionCall) -> Tensor:
    """Queries whose softmax loses no key by underflow and that still choose the same keys.

    Fixed patterns do not look at queries; Reformer's buckets do not depend on their length.
    """
    if "LP" not in call.mechanism.survey_class:
        return torch.zeros_like(call.q)
    return call.q * 1e-3 if call.mechanism.name == "reformer" else call.q


__all__ = ["head_patterns", "module_pattern"]
