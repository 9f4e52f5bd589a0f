"""What a block reads besides the hidden states: one value for all optional inputs."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from longspan.nn.multihead import Context
from longspan.nn.positions import Positions
from longspan.shapes import Hidden, KeyMask


@dataclass(frozen=True)
class BlockInputs:
    """The optional inputs of blocks and bodies, passed unchanged from a model down to its layers.

    `start` reads `context`, `context_mask` and `align`; `extend` reads the others, as the state has those.

    >>> y = stack(x, BlockInputs(key_mask=mask))
    >>> state = stack.start(batch, BlockInputs(context=source, context_mask=source_mask))
    """

    context: Hidden | Context | None = None  # the other sequence, which cross-attention reads
    key_mask: KeyMask | None = None  # True where a token of this sequence may be read
    context_mask: KeyMask | None = None  # the same for the other sequence
    streams: Mapping[str, Tensor] | None = None  # what the mechanism declares, by name
    positions: Positions | None = None  # of each token; 0, 1, 2, … unless given
    align: bool = False  # decoding: keep the weights of cross-attention in the state


NO_INPUTS = BlockInputs()

__all__ = ["NO_INPUTS", "BlockInputs"]
