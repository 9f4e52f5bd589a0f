"""A feed-forward layer of experts, of which a router chooses a few for each token (Shazeer et al. 2017; gpt-oss)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.devices import traced
from longspan.config import option
from longspan.errors import InvalidOption
from longspan.nn.linear import Linear
from longspan.shapes import Hidden


@dataclass(frozen=True, kw_only=True)
class Experts(config.Options):
    """How many experts a layer has, how many read each token, and their gate."""

    count: int = option(8, "experts of a layer", low=1)
    active: int = option(2, "experts that read each token", low=1)
    slope: float = option(1.702, "of the gate: gate·σ(slope·gate)", above=0)
    limit: float | None = option(7.0, "gates are at most this, and what they multiply lies within ±this", above=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.active > self.count:
            raise InvalidOption(f"experts: {self.active} of {self.count} experts cannot read a token; lower active")


class ExpertLayer(nn.Module):
    """Σ over a token's experts e of p_e · down_e(gate·σ(slope·gate) · (value + 1)), p a softmax over their logits.

    Gate and value of an expert lie in alternating columns of one matrix, as released; `limit` clamps both. Each expert
    reads the tokens that chose it. A traced program has no numbers to choose by: all experts read all tokens there.
    """

    def __init__(self, width: int, hidden: int, options: Experts) -> None:
        super().__init__()
        self.options, self.width, self.hidden = options, width, hidden
        self.router = Linear(width, options.count)
        self.gate_up = nn.Parameter(torch.empty(options.count, width, 2 * hidden))
        self.gate_up_bias = nn.Parameter(torch.empty(options.count, 2 * hidden))
        self.down = nn.Parameter(torch.empty(options.count, hidden, width))
        self.down_bias = nn.Parameter(torch.empty(options.count, width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self, std: float | None = None) -> None:
        """N(0, std) for matrices, 1/√inputs unless given; biases 0."""
        for matrices in (self.gate_up, self.down):
            nn.init.normal_(matrices, std=matrices.shape[1] ** -0.5 if std is None else std)
        for bias in (self.gate_up_bias, self.down_bias):
            nn.init.zeros_(bias)

    def forward(self, x: Hidden) -> Hidden:
        tokens = x.reshape(-1, self.width)
        logits, chosen = self.router(tokens).topk(self.options.active, dim=-1)
        shares = logits.softmax(-1)
        if traced(x):
            every = torch.zeros_like(shares[:, :1]).expand(-1, self.options.count).scatter(1, chosen, shares)
            outputs = [self._expert(tokens, expert) for expert in range(self.options.count)]
            return (torch.stack(outputs, 1) * every[..., None]).sum(1).to(x.dtype).reshape(x.shape)
        out = torch.zeros_like(tokens)
        for expert in chosen.unique().tolist():
            rows, slots = (chosen == expert).nonzero(as_tuple=True)
            share = shares[rows, slots, None]
            out = out.index_add(0, rows, (self._expert(tokens[rows], expert) * share).to(out.dtype))
        return out.reshape(x.shape)

    def _expert(self, x: Tensor, expert: int) -> Tensor:
        inner = x @ self.gate_up[expert] + self.gate_up_bias[expert]
        gate, value = inner[..., ::2], inner[..., 1::2]
        limit = self.options.limit
        if limit is not None:
            gate, value = gate.clamp(max=limit), value.clamp(-limit, limit)
        gated = gate * torch.sigmoid(self.options.slope * gate) * (value + 1)
        return gated @ self.down[expert] + self.down_bias[expert]

    def extra_repr(self) -> str:
        return f"width={self.width}, hidden={self.hidden}, {self.options}"


__all__ = ["ExpertLayer", "Experts"]
