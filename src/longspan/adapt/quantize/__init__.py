"""Lighter weights: 8 or 4 bits, or bfloat16, with size, speed and loss measured beside the original's."""

from longspan.adapt.quantize.choose import fastest
from longspan.adapt.quantize.convert import Quantized, quantize
from longspan.adapt.quantize.measure import Comparison, compare_models, read_tokens
from longspan.adapt.quantize.write import check_target, folder_bytes, write

__all__ = [
    "Comparison",
    "Quantized",
    "check_target",
    "compare_models",
    "fastest",
    "folder_bytes",
    "quantize",
    "read_tokens",
    "write",
]
