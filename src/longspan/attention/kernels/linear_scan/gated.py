"""Causal linear attention with a gate for every key dimension, which the scalar decays of `scan` cannot express.

    out_i = q_i·S_i,    S_i = diag(α_i)·S_(i−1) + k_i v_iᵀ

With b the running sum of log α, key j weighs exp(b_i − b_j) in row i, dimension by dimension. Written as one product,
(q_i·exp b_i)·(k_j·exp −b_j), the second factor overflows. So every pair is measured from a position between the two
with level r, (q_i·exp(b_i − r))·(k_j·exp(r − b_j)), where no exponent is above 0:

1. Cut the sequence into chunks, and process a block of chunks at a time.
2. Pairs within a chunk: the second half reads the first from the border between them, by one product; then the same for
   the halves of each half, down to single positions (Yang et al. 2023 have two levels, chunks and sub-chunks).
3. Pairs of different chunks go through the state at the border of the chunk.

The backward pass takes the blocks in reverse, each from the state before it, and recomputes them.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from longspan.derivatives import Function, twice_differentiable

# Batch and heads are folded into one axis.
Rows = Float[Tensor, "folded positions head_dim"]
ValueRows = Float[Tensor, "folded positions value_dim"]
Sums = Float[Tensor, "folded head_dim value_dim"]

CHUNK = 64  # a power of two
BLOCK_NUMBERS = 2**18  # numbers in the keys of a block; the backward pass holds some forty tensors of this size
BLOCK_CHUNKS = 32  # most chunks of a block, as each state is mixed with all earlier ones


def gated(q: Rows, k: Rows, v: ValueRows, log_gates: Rows, sums: Sums) -> tuple[ValueRows, Sums]:
    """The output and the state after it. `log_gates` are at most 0; a key of zeros is read by no query."""
    if torch.compiler.is_compiling():
        return _one_block(q, k, v, log_gates, sums)
    out, sums = Gated.apply(q, k, v, log_gates, sums)
    return out, sums


def _recompute(ctx: Any, saved: Sequence[Tensor]) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    q, k, v, log_gates, sums, *_ = saved
    return _one_block(q, k, v, log_gates, sums), saved[:5]


class Gated(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        *rows, sums = inputs
        starts, outs = [], []
        for begin, end in _borders(rows[1], rows[2].shape[2]):
            starts.append(sums)
            out, sums = _padded([x[:, begin:end] for x in rows], sums)
            outs.append(out)
        ctx.save_for_backward(*rows, *starts)
        return torch.cat(outs, 1), sums

    @staticmethod
    @twice_differentiable(_recompute)
    def backward(ctx: Any, slope: Tensor, after: Tensor) -> tuple[Tensor, ...]:
        saved = ctx.saved_tensors  # read once: activation checkpointing yields each saved tensor a single time
        rows, starts = saved[:4], saved[4:]
        results = [torch.empty_like(x) for x in rows]
        borders = _borders(rows[1], rows[2].shape[2])
        for (begin, end), sums in reversed(list(zip(borders, starts))):
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (*(x[:, begin:end] for x in rows), sums)]
                out = _padded(leaves[:4], leaves[4])
            *gradients, after = torch.autograd.grad(out, leaves, (slope[:, begin:end], after))
            for result, gradient in zip(results, gradients):
                result[:, begin:end] = gradient
        return *results, after


def _borders(keys: Rows, value_dim: int) -> list[tuple[int, int]]:
    folded, length, head_dim = keys.shape
    return borders_of(folded, length, head_dim, value_dim)


def borders_of(folded: int, length: int, head_dim: int, value_dim: int) -> list[tuple[int, int]]:
    """Step 1: blocks of whole chunks; the remainder is one short block.

    Blocks are long enough that the states between them have at most half as many numbers as the keys.
    """
    chunks = min(BLOCK_CHUNKS, BLOCK_NUMBERS // (folded * head_dim * CHUNK))
    step = CHUNK * max(1, chunks, -(-2 * value_dim // CHUNK))
    whole = length - length % CHUNK
    return [
        (begin, min(begin + step, end))
        for start, end in ((0, whole), (whole, length))
        for begin in range(start, end, step)
    ]


def _chunk_of(length: int) -> int:
    """The chunk of a short block, such as one new token: the next power of two."""
    return min(CHUNK, 1 << (length - 1).bit_length())


def _padded(rows: list[Tensor], sums: Sums) -> tuple[ValueRows, Sums]:
    length = rows[0].shape[1]
    chunk = _chunk_of(length)
    if missing := -length % chunk:
        rows = [pad(x, (0, 0, 0, missing)) for x in rows]
    q, k, v, log_gates = rows
    out, sums = _block(q, k, v, log_gates, sums, chunk)
    return out[:, :length], sums


def _one_block(q: Rows, k: Rows, v: ValueRows, log_gates: Rows, sums: Sums) -> tuple[ValueRows, Sums]:
    """The whole sequence at once, for traced graphs: by index and with a spare chunk, as in `causal.batched`."""
    length = q.shape[1]
    positions = torch.arange((length + 2 * CHUNK - 1) // CHUNK * CHUNK, device=q.device)
    source, beyond = positions.clamp(max=length - 1), (positions >= length)[:, None]
    q, k, v, log_gates = (x.index_select(1, source).masked_fill(beyond, 0.0) for x in (q, k, v, log_gates))
    out, sums = _block(q, k, v, log_gates, sums, CHUNK)
    return out.index_select(1, torch.arange(length, device=q.device)), sums


def _block(q: Rows, k: Rows, v: ValueRows, log_gates: Rows, sums: Sums, chunk: int) -> tuple[ValueRows, Sums]:
    folded, count = q.shape[0], q.shape[1] // chunk
    q, k, v, log_gates = (x.reshape(folded * count, chunk, x.shape[2]) for x in (q, k, v, log_gates))
    level = log_gates.cumsum(1)
    end = level[:, -1:]
    states = torch.bmm((k * (end - level).exp()).mT, v)
    before, after = _chunk_states(states, end.squeeze(1), sums)
    out = torch.bmm(q * level.exp(), before)
    out = torch.baddbmm(out, _within(q, k, level), v)
    return out.view(folded, count * chunk, v.shape[2]), after


def _chunk_states(
    states: Float[Tensor, "chunks head_dim value_dim"], ends: Float[Tensor, "chunks head_dim"], sums: Sums
) -> tuple[Float[Tensor, "chunks head_dim value_dim"], Sums]:
    """Step 3: the state before each chunk and after the last; `ends` is the sum of each chunk's log gates."""
    folded, count = sums.shape[0], states.shape[0] // sums.shape[0]
    if not torch.compiler.is_compiling() and count == 1:
        return sums, torch.addcmul(states, ends.exp().unsqueeze(2), sums)
    # Per key dimension, each state in the scale of its own border: the levels of a long text would underflow.
    levels = pad(ends.unflatten(0, (folded, count)).cumsum(1), (0, 0, 1, 0)).mT.flatten(0, 1)
    mix = (levels[:, :, None] - levels[:, None, :]).clamp(max=0.0).exp().tril()
    every = torch.cat([sums.unsqueeze(1), states.unflatten(0, (folded, count))], 1).transpose(1, 2).flatten(0, 1)
    mixed = torch.bmm(mix, every).unflatten(0, (folded, sums.shape[1])).transpose(1, 2)
    return mixed[:, :-1].reshape(states.shape), mixed[:, -1]


def _within(
    q: Float[Tensor, "chunks rows head_dim"],
    k: Float[Tensor, "chunks rows head_dim"],
    level: Float[Tensor, "chunks rows head_dim"],
) -> Float[Tensor, "chunks rows rows"]:
    """Step 2: weights of the keys of a chunk in its rows, 0 for later keys."""
    chunk = q.shape[1]
    weights = (q * k).sum(2).reshape(-1, 1, 1)
    for half in _halves(chunk):
        queries, keys, levels = (x.reshape(-1, 2, half, x.shape[2]) for x in (q, k, level))
        border = levels[:, 0, -1:]
        left = queries[:, 1] * (levels[:, 1] - border).exp()
        right = keys[:, 0] * (border - levels[:, 0]).exp()
        lower = torch.bmm(left, right.mT)
        first, second = weights.unflatten(0, (-1, 2)).unbind(1)
        weights = torch.cat([pad(first, (0, half)), torch.cat([lower, second], 2)], 1)
    return weights


def _halves(chunk: int) -> Iterator[int]:
    half = 1
    while half < chunk:
        yield half
        half *= 2


def flops(length: int, heads: int, head_dim: int, value_dim: int) -> int:
    """FLOPs of the matrix products in one sequence's forward pass."""
    total = 0
    for begin, end in borders_of(heads, length, head_dim, value_dim):
        chunk = _chunk_of(end - begin)
        count = -(-(end - begin) // chunk)
        states = 4 * count * chunk * head_dim * value_dim
        inner = count * chunk * ((chunk - 1) * head_dim + 2 * chunk * value_dim)
        between = 2 * head_dim * (count + 1) ** 2 * value_dim if count > 1 else 0
        total += heads * (states + inner + between)
    return total


def kept(length: int, heads: int, head_dim: int, value_dim: int) -> int:
    """Numbers stored for one sequence's backward pass beyond q, k, v and the gates: the states between blocks."""
    return heads * len(borders_of(heads, length, head_dim, value_dim)) * head_dim * value_dim
