"""Soft sorting of blocks by a sort network, Gumbel noise and Sinkhorn balancing (Tay et al. 2020, Sparse Sinkhorn)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils.checkpoint import checkpoint

from longspan.attention.kernels.flash import BLOCKED, DEAD
from longspan.attention.kernels.running import running_max
from longspan.attention.layouts.base import wide
from longspan.derivatives import Function, twice_differentiable


class Sorting(nn.Module):
    """The sort network: scores for up to `most` blocks per head, balanced to the sort matrix S."""

    def __init__(self, heads: int, width: int, most: int, options: Any, causal: bool) -> None:
        super().__init__()
        self.most, self.options, self.causal = most, options, causal
        # Sums of `block` keys have a size of about √block, and should give sort scores of about 1.
        start = (width * options.block) ** -0.5
        if options.network == "mlp":
            self.inner = nn.Parameter(torch.randn(heads, width, width) * start)
            self.inner_bias = nn.Parameter(torch.zeros(heads, width))
            start = (2 / width) ** 0.5
        self.sort = nn.Parameter(torch.randn(heads, most, width) * start)
        self.sort_bias = nn.Parameter(torch.zeros(heads, most))

    def sums(self, keys: Tensor, before: Tensor | None) -> Tensor:
        """The input of the sort network for each block, (batch, heads, blocks, width); `before` sums earlier keys."""
        sums = keys.sum(3, dtype=wide(keys.dtype))
        if not self.causal:
            return sums
        # Of its own block only the first token: adding the rest and subtracting it again would leave rounding errors.
        earlier = pad(sums, (0, 0, 1, 0)).cumsum(2).narrow(2, 0, keys.shape[2])
        causal_sums = earlier + keys[:, :, :, 0]
        return causal_sums if before is None else causal_sums + before[:, :, None]

    def forward(self, sums: Tensor, allowed: Tensor | None, columns: Tensor | None) -> tuple[Tensor, Tensor]:
        """S for these rows, and the column sums after them (see `balance_causal`)."""
        noise = None
        if self.training and self.options.noise and columns is None:
            shape = (*sums.shape[:3], sums.shape[2])
            noise = -torch.rand(shape, dtype=sums.dtype, device=sums.device).clamp_min(1e-20).log().neg().log()
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            # The rounds of balancing are cheap to recompute, and storing them would take many times the size of S.
            sorting, after = checkpoint(
                self._balanced, sums, allowed, columns, noise, use_reentrant=False, preserve_rng_state=False
            )
            return sorting, after
        return self._balanced(sums, allowed, columns, noise)

    def _balanced(
        self, sums: Tensor, allowed: Tensor | None, columns: Tensor | None, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        sources = sums.shape[2] if columns is None else columns.shape[3]
        sort, bias = (x.to(sums.dtype) for x in (self.sort, self.sort_bias))
        # A padding block has no row in the network and needs none: it is never a source.
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


def allowed_sources(
    first: int, rows: int, sources: int, alive: Tensor | None, causal: bool, device: torch.device
) -> Tensor | None:
    """Which source blocks each row may take from (batch or 1, 1, rows, sources); None if from all.

    Padding blocks neither give nor take, or they would affect the balancing. If causal they do take: at its first token
    it is unknown whether the rest of a block is padding, and earlier rows are not affected.
    """
    if not causal:
        return None if alive is None else (alive[:, :, None] & alive[:, None, :])[:, None]
    index = torch.arange(sources, device=device)
    earlier = (index < (torch.arange(rows, device=device) + first)[:, None])[None, None]
    return earlier if alive is None else earlier & alive[:, None, None, :]


def filled_slots(
    keep: Tensor | None, alive: Tensor | None, count: int, block: int, causal: bool, like: Tensor
) -> Tensor | None:
    """Which slots of the sorted blocks are filled, (batch, blocks, block); None if all are."""
    if causal:
        if keep is None:
            keep = torch.ones(like.shape[0], count, block, dtype=torch.bool, device=like.device)
        return running_max(pad(keep, (0, 0, 1, 0)).narrow(1, 0, count), 1)
    if keep is None:
        return None
    slots = keep.any(1, keepdim=True).expand(-1, count, -1)
    return slots if alive is None else slots & alive[:, :, None]


def balance(logs: Tensor, allowed: Tensor | None, iterations: int) -> Tensor:
    """Sinkhorn's rounds in log space, as row and column normalisers: S = exp(logs - rows - columns)."""
    logs = logs if allowed is None else logs.masked_fill(~allowed, BLOCKED)
    columns = logs.new_zeros(())
    rows = columns
    for _ in range(iterations):
        rows = _log_sum(logs - columns, -1)
        columns = _log_sum(logs - rows, -2)
    return (logs - rows - columns).exp()


def _log_sum(logs: Tensor, dim: int) -> Tensor:
    """The log-sum-exp, or 0 if all entries are blocked: they then stay blocked."""
    sums = logs.logsumexp(dim, keepdim=True)
    return sums.masked_fill(sums < DEAD, 0.0)


def balance_causal(logs: Tensor, allowed: Tensor, columns: Tensor | None, iterations: int) -> tuple[Tensor, Tensor]:
    """As `balance`, but each row's column sums only count rows up to itself.

    `columns` (batch, heads, iterations, sources) has the column sums of earlier rows in each round, for decoding; the
    second result has them after these rows.
    """
    if columns is None:
        columns = logs.new_full((*logs.shape[:2], iterations, logs.shape[3]), BLOCKED)
    after = []
    for before in columns.unbind(2):
        logs = (logs - logs.masked_fill(~allowed, BLOCKED).logsumexp(-1, keepdim=True)).masked_fill(~allowed, BLOCKED)
        column_sums = torch.cat([before[:, :, None], logs], 2)
        column_sums = _log_running_sum(column_sums).narrow(2, 1, logs.shape[2])
        logs = (logs - column_sums).masked_fill(~allowed, BLOCKED)
        after.append(column_sums[:, :, -1])
    return logs.exp(), torch.stack(after, 2)


def _log_running_sum(logs: Tensor) -> Tensor:
    """`logcumsumexp` over the rows; the second derivative of torch's own is NaN."""
    if torch.is_grad_enabled() and logs.requires_grad and not torch.compiler.is_compiling():
        sums: Tensor = _LogRunningSum.apply(logs)
        return sums
    return logs.logcumsumexp(2)


def _row_by_row(ctx: Any, saved: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    # The second derivative of `logaddexp` is NaN where its arguments are far apart.
    sums = accumulate(saved[0].unbind(2), lambda before, row: torch.stack([before, row]).logsumexp(0))
    return torch.stack(list(sums), 2), saved[:1]


class _LogRunningSum(Function):
    @staticmethod
    def forward(ctx: Any, logs: Tensor) -> Tensor:
        sums = logs.logcumsumexp(2)
        ctx.save_for_backward(logs, sums)
        return sums

    @staticmethod
    @twice_differentiable(_row_by_row)
    def backward(ctx: Any, towards: Tensor) -> Tensor:
        """exp(logs_j) Σ_(i ≥ j) towards_i exp(-sums_i), in log space, positive and negative terms apart."""
        logs, sums = ctx.saved_tensors
        parts = (towards.clamp_min(0.0), towards.clamp_max(0.0).neg())
        positive, negative = ((x.log() - sums).flip(2).logcumsumexp(2).flip(2).add_(logs).exp_() for x in parts)
        gradient: Tensor = positive.sub_(negative)
        return gradient


def mix(sorting: Tensor, blocks: Tensor) -> Tensor:
    """Σ_j S_ij block_j, of blocks (batch, heads, blocks, block, width)."""
    mixed: Tensor = (sorting.to(blocks.dtype) @ blocks.flatten(3)).unflatten(3, blocks.shape[3:])
    return mixed
