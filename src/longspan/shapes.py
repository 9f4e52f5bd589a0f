"""Type annotations with tensor shapes.

They cost nothing at run time; `tests/test_shapes.py` runs the library with the shapes checked.
"""

from jaxtyping import Bool, Float
from torch import Tensor

Queries = Float[Tensor, "batch heads queries head_dim"]
Keys = Float[Tensor, "batch key_heads keys head_dim"]
Values = Float[Tensor, "batch key_heads keys value_dim"]
Output = Float[Tensor, "batch heads queries value_dim"]
Weights = Float[Tensor, "batch heads queries keys"]
Defined = Float[Tensor, "batch heads queries read"]  # weights over the keys, or over what keys were compressed to
KeyMask = Bool[Tensor, "batch keys"]  # True: this key may be read
Bias = Float[Tensor, "heads offsets"]  # one number per offset (key - query); the middle one is offset 0
Hidden = Float[Tensor, "batch length width"]

__all__ = ["Bias", "Defined", "Hidden", "KeyMask", "Keys", "Output", "Queries", "Values", "Weights"]
