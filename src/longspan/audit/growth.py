"""How FLOPs and memory grow with the length."""

import math
from collections.abc import Sequence

import torch

from longspan.audit.counting import LargestTensor, count_flops
from longspan.audit.finding import Measurement, check
from longspan.audit.subjects import AuditSubject

GROWTH = 0.15  # how far a measured exponent may be above the claimed one


@check("work and memory grow no faster than claimed", lambda claims: claims.order is not None and not claims.contract)
def order(subject: AuditSubject) -> Measurement:
    claimed, sizes = subject.claims.order, subject.growth_lengths
    assert claimed is not None
    flops, largest = growth(subject, sizes)
    detail = f"matrix products n^{flops:.2f}, largest tensor n^{largest:.2f} between {sizes[0]} and {sizes[-1]}"
    return Measurement(max(flops, largest), claimed + GROWTH, detail=detail)


def growth(subject: AuditSubject, sizes: Sequence[int]) -> tuple[float, float]:
    """The exponents, in the length, of the FLOPs of matrix products and of the largest tensor."""
    flops, elements = [], []
    for size in sizes:
        sample = subject.sample(1, size, seed=0)
        with torch.no_grad():
            flops.append(count_flops(lambda: subject.run(sample)))  # noqa: B023  # run at once
            with LargestTensor() as seen:
                subject.run(sample)
        elements.append(seen.elements)
    return slope(sizes, flops), slope(sizes, elements)


def slope(sizes: Sequence[int], values: Sequence[int]) -> float:
    """The exponent between the two largest sizes, where lower-order terms matter least; 0 if nothing was counted."""
    if 0 in values[-2:]:
        return 0.0
    return math.log(values[-1] / values[-2]) / math.log(sizes[-1] / sizes[-2])
