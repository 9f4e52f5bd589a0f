"""Swap the attention of a trained model and keep its weights.

swapping       `swap`: the steps, and `Swap`, their result
plan           which layer gets which attention
positions      longer texts: tables repeated, rotary positions scaled
apply          build the model and copy what both have
start          how new weights start
sensitivity    which layers lose most
torch_modules  `nn.MultiheadAttention` in any torch module
texts          rows of tokens to measure on; prose.txt is some pages where no text is given
write          the folder, with swap.json
"""

from longspan.adapt.swap.plan import Plan, read_attention, read_layers
from longspan.adapt.swap.sensitivity import Sensitivity
from longspan.adapt.swap.start import LayerStart
from longspan.adapt.swap.swapping import Swap, swap
from longspan.adapt.swap.texts import prose, token_rows

__all__ = ["LayerStart", "Plan", "Sensitivity", "Swap", "prose", "read_attention", "read_layers", "swap", "token_rows"]
