"""Which scheme decodes fastest on this machine, by trying them."""

from contextlib import suppress

from longspan.adapt.quantize.convert import Quantized, quantize
from longspan.adapt.quantize.measure import compare_models
from longspan.errors import Unsupported
from longspan.models.base import CausalModel, Model

TRIED = ("8", "4", "dynamic8")  # bf16 saves memory only


def fastest(model: Model, *, group: int = 32) -> tuple[Quantized, dict[str, float]]:
    """The model in the scheme with the least time of a decoding step, and the milliseconds of each scheme."""
    if not isinstance(model, CausalModel) or model.reads_source:
        raise Unsupported(f"auto times decoding, which this {model.name} does not do; give 4, 8 or dynamic8 instead")
    tried = [quantize(model, TRIED[0], group=group)]
    for bits in TRIED[1:]:
        with suppress(Unsupported):  # no layer fits 4 bits, say
            tried.append(quantize(model, bits, group=group))
    rows = compare_models([each.model for each in tried])
    times = {each.bits: row.token_ms for each, row in zip(tried, rows) if row.token_ms is not None}
    return min(tried, key=lambda each: times[each.bits]), times


__all__ = ["TRIED", "fastest"]
