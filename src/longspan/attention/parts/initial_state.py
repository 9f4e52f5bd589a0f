"""A learned initial state of linear attention: what prefix tuning is where single keys are not kept.

The state before the first token is S0 (features, values) and, if rows are normalised, z0 (features) of each head. Both
start at 0, which is the state without it.
"""

import torch
from torch import Tensor, nn

from longspan.attention.kernels.linear_scan.scan import ScanState


class InitialState(nn.Module):
    """S0 and z0 of each head; z0 is kept at 0 or above, as the sum of features that it stands for."""

    def __init__(self, empty: ScanState, *, normalise: bool) -> None:
        super().__init__()
        _, heads, features, columns = empty.sums.shape
        self.normalise = normalise
        self.sums = nn.Parameter(torch.zeros(heads, features, columns))

    def state(self, empty: ScanState) -> ScanState:
        """The learned state for the batch of an empty one."""
        sums = self.sums.to(empty.sums.dtype)
        if self.normalise:
            sums = torch.cat([sums[..., :-1], sums[..., -1:].clamp(min=0)], -1)
        expanded: Tensor = sums.expand_as(empty.sums)
        return ScanState(expanded.contiguous(), empty.offset)


__all__ = ["InitialState"]
