"""How a sort matrix over blocks comes about (Tay et al. 2020b): a network, Gumbel noise, Sinkhorn's balancing."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from longspan.attention.kernels.flash import BLOCKED, DEAD
from longspan.attention.layouts.base import wide
from longspan.derivatives import twice_differentiable


class Sorting(nn.Module):
    """Sort scores of up to `most` blocks, one network for each head, and S of them."""

    def __init__(self, heads: int, width: int, most: int, options: Any, causal: bool) -> None:
        super().__init__()
        self.most, self.options, self.causal = most, options, causal
        # Sums of `block` keys are about √block in size, and should make sort scores of about 1.
        start = (width * options.block) ** -0.5
        if options.network == "mlp":
            self.inner = nn.Parameter(torch.randn(heads, width, width) * start)
            self.inner_bias = nn.Parameter(torch.zeros(heads, width))
            start = (2 / width) ** 0.5
        self.sort = nn.Parameter(torch.randn(heads, most, width) * start)
        self.sort_bias = nn.Parameter(torch.zeros(heads, most))

    def sums(self, keys: Tensor, before: Tensor | None) -> Tensor:
        """What the sort network reads of each block, (batch, heads, blocks, width); `before` sums the earlier keys."""
        sums = keys.sum(3, dtype=wide(keys.dtype))
        if not self.causal:
            return sums
        # Of its own block only the first token; the rest may not even be added and taken away again.
        earlier = pad(sums, (0, 0, 1, 0)).cumsum(2).narrow(2, 0, keys.shape[2])
        found = earlier + keys[:, :, :, 0]
        return found if before is None else found + before[:, :, None]

    def forward(self, sums: Tensor, allowed: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """S of these rows, and what the columns have given away then (see `balance_causal`)."""
        noise = None
        if self.training and self.options.noise and columns is None:
            shape = (*sums.shape[:3], sums.shape[2])
            noise = -torch.rand(shape, dtype=sums.dtype, device=sums.device).clamp_min(1e-20).log().neg().log()
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # The rounds of balancing are cheap to do again, and many times S to keep.
            return checkpoint(
                self._balanced, sums, allowed, columns, noise, use_reentrant=False, preserve_rng_state=False
            )
        return self._balanced(sums, allowed, columns, noise)

    def _balanced(
        self, sums: Tensor, allowed: Tensor | None, columns: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        sources = sums.shape[2] if columns is None else columns.shape[3]
        sort, bias = (x.to(sums.dtype) for x in (self.sort, self.sort_bias))
        # A spare block has no row in the network, and needs none: it is never a source.
        at = torch.arange(sources, device=sums.device).clamp_max(self.most - 1)
        if self.options.network == "mlp":
            sums = (sums @ self.inner.to(sums.dtype).mT + self.inner_bias.to(sums.dtype)[:, None]).relu()
        logs = sums @ sort.index_select(1, at).mT + bias.index_select(1, at)[:, None]
        if noise is not None:
            logs = logs + self.options.noise * noise
        logs = logs / self.options.temperature
        if self.causal:
            assert allowed is not None
            return balance_causal(logs, allowed, columns, self.options.iterations)
        return balance(logs, allowed, self.options.iterations), logs.new_zeros(())


def may_give(
    first: int, rows: int, sources: int, alive: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """Which source block may give to which row (batch or 1, 1, rows, sources); None if all may.

    Padded blocks neither give nor, since the balancing would then know of them, take. When causal they do take: whether
    the rest of a block is padding is not known at its first token, and earlier rows never learn of it.
    """
    if not causal:
        return None if alive is None else (alive[:, :, None] & alive[:, None, :])[:, None]
    places = torch.arange(sources, device=device)
    earlier = (places < (torch.arange(rows, device=device) + first)[:, None])[None, None]
    return earlier if alive is None else earlier & alive[:, None, None, :]


def filled_slots(
    keep: Tensor | None, alive: Tensor | None, count: int, block: int, causal: bool, like: Tensor
) -> Tensor | None:
    """Which slots of the sorted blocks hold anything, (batch, blocks, block); None if all do."""
    if causal:
        if keep is None:
            keep = torch.ones(like.shape[0], count, block, dtype=torch.bool, device=like.device)
        return pad(keep, (0, 0, 1, 0)).narrow(1, 0, count).cummax(1).values
    if keep is None:
        return None
    slots = keep.any(1, keepdim=True).expand(-1, count, -1)
    return slots if alive is None else slots & alive[:, :, None]


def balance(logs: Tensor, allowed: Tensor | None, iterations: int) -> Tensor:
    """Sinkhorn's rounds in log space, as what is taken off each row and each column; S = exp(logs - rows - columns)."""
    logs = logs if allowed is None else logs.masked_fill(~allowed, BLOCKED)
    columns = logs.new_zeros(())
    rows = columns
    for _ in range(iterations):
        rows = _log_sum(logs - columns, -1)
        columns = _log_sum(logs - rows, -2)
    return (logs - rows - columns).exp()


def _log_sum(logs: Tensor, dim: int) -> Tensor:
    """0 where there is nothing to add up: what is blocked then stays so."""
    found = logs.logsumexp(dim, keepdim=True)
    return found.masked_fill(found < DEAD, 0.0)


def balance_causal(logs: Tensor, allowed: Tensor, columns: Tensor | None, iterations: int) -> tuple[Tensor, Tensor]:
    """The same with columns that count only what rows up to the present one took.

    `columns` (batch, heads, iterations, sources) is what earlier rows took in each round, for decoding; the second
    result is the same after these rows.
    """
    if columns is None:
        columns = logs.new_full((*logs.shape[:2], iterations, logs.shape[3]), BLOCKED)
    after = []
    for before in columns.unbind(2):
        logs = (logs - logs.masked_fill(~allowed, BLOCKED).logsumexp(-1, keepdim=True)).masked_fill(~allowed, BLOCKED)
        taken = torch.cat([before[:, :, None], logs], 2)
        taken = _log_running_sum(taken).narrow(2, 1, logs.shape[2])
        logs = (logs - taken).masked_fill(~allowed, BLOCKED)
        after.append(taken[:, :, -1])
    return logs.exp(), torch.stack(after, 2)


def _log_running_sum(logs: Tensor) -> Tensor:
    """`logcumsumexp` over the rows; torch's own has NaN for a second derivative."""
    if torch.is_grad_enabled() and logs.requires_grad and not torch.compiler.is_compiling():
        found: Tensor = _LogRunningSum.apply(logs)
        return found
    return logs.logcumsumexp(2)


def _row_by_row(ctx: Any, saved: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    # Not by `logaddexp`, which has NaN for a second derivative where the two are far apart.
    sums = accumulate(saved[0].unbind(2), lambda before, row: torch.stack([before, row]).logsumexp(0))
    return torch.stack(list(sums), 2), saved[:1]


class _LogRunningSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logs: Tensor) -> Tensor:
        sums = logs.logcumsumexp(2)
        ctx.save_for_backward(logs, sums)
        return sums

    @staticmethod
    @twice_differentiable(_row_by_row)
    def backward(ctx: Any, towards: Tensor) -> Tensor:
        """exp(logs_j) Σ_(i ≥ j) towards_i exp(-sums_i), of either sign by itself and in log space."""
        logs, sums = ctx.saved_tensors
        parts = (towards.clamp_min(0.0), towards.clamp_max(0.0).neg())
        up, down = ((part.log() - sums).flip(2).logcumsumexp(2).flip(2).add_(logs).exp_() for part in parts)
        return up.sub_(down)


def mix(sorting: Tensor, blocks: Tensor) -> Tensor:
    """Σ_j S_ij of whole blocks (batch, heads, blocks, block, width), at equal offsets."""
    return (sorting.to(blocks.dtype) @ blocks.flatten(3)).unflatten(3, blocks.shape[3:])
