"""Retention: attention without softmax, whose past decays by a constant factor per step and head (RetNet).

    out_i = Σ_{j ≤ i} γ^(i−j) (q_i·k_j) v_j,    γ_h = 1 − 2^(−5−h) for head h = 0, 1, …

This is the mechanism alone: equations 5 to 7 of the paper. The other parts of a RetNet are elsewhere: the rotation of
queries and keys (xPos) is the position module of `nn.MultiHead`; the normalisation of each head's output and the swish
gate belong to the block. That normalisation cancels any factor on a head, so scores are not scaled by 1/√head_dim.

Rows are not divided by the sum of their weights, which may have either sign.
"""

from dataclasses import dataclass

import torch

from longspan import config
from longspan.attention.base import Extras, Shape, Supports, readable
from longspan.attention.kernels.linear_scan.scan import Decay, Map
from longspan.attention.parts.features import Identity
from longspan.attention.parts.kernel_attention import KernelAttention
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.shapes import Keys, Queries, Weights


class RetentionAttention(KernelAttention):
    name = "retention"
    paper = "Sun et al. 2023"
    survey_class = ("KR", "RC")
    order = "n·head_dim"
    supports = Supports(causal=True, bidirectional=False, streaming=True, grouped=True, left_padding=True)
    normalise = False

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        decay: tuple[float, ...] | None = option(
            None, "γ of each head, above 0 and at most 1; 1 − 2^(−5−h) unless given", low=0, high=1
        )

    def __init__(
        self, shape: Shape, options: Options | None = None, *, causal: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(shape, options, causal=causal, dropout=dropout)
        given = self.options.decay
        if given is not None and (len(given) != shape.heads or 0 in given):
            raise InvalidOption(
                f"option decay must have one number above 0 for each of {shape.heads} heads, not {given!r}"
            )
        self.decays = tuple(1 - 2.0 ** (-5 - head) for head in range(shape.heads)) if given is None else given

    def feature_map(self) -> Map:
        return Identity()

    def decay(self, device: torch.device) -> Decay:
        # Not a buffer: a module in half precision would round γ to 1.
        return torch.tensor(self.decays, dtype=torch.float64, device=device)

    def define(self, q: Queries, k: Keys, extras: Extras) -> Weights:
        length = q.shape[2]
        steps = torch.arange(length, device=q.device)[:, None] - torch.arange(length, device=q.device)
        fading = self.decay(q.device)[:, None, None] ** steps.clamp(min=0)
        keep = readable(length, length, True, extras.key_mask, q.device)
        return torch.einsum("bhid,bhjd->bhij", q, k) * fading.to(q.dtype) * keep
