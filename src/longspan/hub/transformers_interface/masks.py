"""The mask function: what a layer's queries see, as one number per key (`mask_codes`), never queries × keys.

It is called by transformers with the pattern of a kind of layer as a function of two positions. The pattern must be one
that the layers here compute: causal or not, with or without a sliding window, packed texts. Whether it is, is asked at
a few positions; any other pattern (prefix-LM, image blocks, chunks) goes to exact attention or is refused.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from longspan.errors import Unsupported
from longspan.hub.transformers_interface.mask_codes import Seen, write
from longspan.hub.transformers_interface.names import Implementation
from longspan.hub.transformers_interface.packing import noted_positions, texts_of_positions

SAMPLES = 256  # random pairs of positions at which a pattern is asked
Pattern = Callable[..., Tensor]


def mask_function(implementation: Implementation) -> Callable[..., Tensor]:
    """The function to register under the implementation's name."""

    def mask(
        batch_size: int,
        q_length: int,
        kv_length: int,
        q_offset: int | Tensor = 0,
        kv_offset: int = 0,
        mask_function: Pattern | None = None,
        attention_mask: Tensor | None = None,
        local_size: int | None = None,
        use_vmap: bool = False,
        config: Any = None,
        device: torch.device | str = "cpu",
        **given: Any,
    ) -> Tensor:
        causal = "allow_is_bidirectional_skip" not in given
        first = int(q_offset)
        filled = min(first + q_length - kv_offset, kv_length) if causal else kv_length
        past = max(filled - q_length, 0)
        real = _real(attention_mask, batch_size, kv_offset, filled, device)
        texts = torch.ones(batch_size, filled, dtype=torch.long, device=device)
        self_attention = causal or (kv_length == q_length and not past)
        if implementation.packing and self_attention:
            positions = noted_positions(batch_size, q_length)
            if positions is not None:
                texts = texts_of_positions(positions, real, past)
        if mask_function is None:
            return write(Seen(texts * real, causal, local_size))
        rows = torch.arange(batch_size, device=device)[:, None]
        queries = torch.arange(first, first + q_length, device=device)[None]
        keys = torch.arange(kv_offset, kv_offset + filled, device=device)[None]
        if not use_vmap and causal and q_length > 1:
            reads_previous = _ask(mask_function, rows, queries[:, 1:], queries[:, 1:] - 1)
            borders = pad(~reads_previous, (past + 1, 0)) if local_size != 1 else torch.zeros_like(real)
            texts = texts + borders.cumsum(1)
        seen = Seen(texts, causal, local_size)
        if use_vmap or not _computes(seen, mask_function, rows, queries, keys):
            return _any_pattern(
                implementation,
                batch_size=batch_size,
                q_length=q_length,
                kv_length=kv_length,
                q_offset=q_offset,
                kv_offset=kv_offset,
                mask_function=mask_function,
                attention_mask=attention_mask,
                use_vmap=use_vmap,
                device=device,
            )
        return write(Seen(texts * real, causal, local_size))

    return mask


def _real(mask: Tensor | None, batch: int, offset: int, filled: int, device: Any) -> Tensor:
    """Which of the filled keys are not padding; what their mask does not cover may not be read, as there."""
    if mask is None:
        return torch.ones(batch, filled, dtype=torch.bool, device=device)
    real = mask[:, offset : offset + filled].bool()
    return pad(real, (0, filled - real.shape[1])) if real.shape[1] < filled else real


def _ask(pattern: Pattern, rows: Tensor, queries: Tensor, keys: Tensor) -> Tensor:
    """The pattern at pairs of positions, (batch, pairs)."""
    answer = pattern(rows, torch.zeros_like(rows), queries, keys)
    return answer.expand(len(rows), queries.shape[1])


def _computes(seen: Seen, pattern: Pattern, rows: Tensor, queries: Tensor, keys: Tensor) -> bool:
    """Whether a pattern is what `seen` says, at the next key of every query, around the window, and at random pairs.

    Borders that only the positions show are not in their pattern: of packed rows, pairs within one text are compared.
    """
    if not queries.shape[1] or not keys.shape[1]:
        return True
    generator = torch.Generator().manual_seed(0)
    chosen = torch.randint(queries.shape[1], (SAMPLES,), generator=generator).to(queries.device)
    others = torch.randint(keys.shape[1], (SAMPLES,), generator=generator).to(queries.device)
    width = seen.window or 1
    query_parts = [queries[:, chosen], queries, queries, queries, queries]
    key_parts = [keys[:, others], queries + 1, queries - 1, queries - width, queries - width + 1]
    if not seen.causal:
        query_parts, key_parts = [*query_parts, queries, queries], [*key_parts, queries + width, queries + width + 1]
    q, k = torch.cat(query_parts, 1), torch.cat(key_parts, 1)
    low, high = int(keys[0, 0]), int(keys[0, -1])
    inside = ((k >= low) & (k <= high))[0]
    q, k = q[:, inside], k[:, inside]
    if not q.shape[1]:
        return True
    expected = k <= q if seen.causal else torch.ones_like(k, dtype=torch.bool)
    if seen.window is not None:
        expected = expected & (k > q - seen.window if seen.causal else (q - k).abs() <= seen.window)
    answered = _ask(pattern, rows, q, k)
    within_keys = (q >= low) & (q <= high)
    numbers = seen.texts[:, (q - low).clamp(0, seen.keys - 1)[0]]
    same = (numbers == seen.texts[:, (k - low)[0]]) | ~within_keys
    return bool((answered == expected)[same].all() and not (answered & ~expected).any())


def _any_pattern(implementation: Implementation, **arguments: Any) -> Tensor:
    """The whole mask, queries × keys, for exact attention; other mechanisms cannot read such a pattern."""
    if implementation.mechanism != "softmax":
        raise Unsupported(
            f"{implementation.name} cannot compute this model's mask: it is neither causal nor bidirectional, with or "
            "without a sliding window or packed texts (prefix-LM, image blocks and chunks are not); "
            'use "longspan:softmax", which takes any mask'
        )
    from transformers.masking_utils import sdpa_mask

    mask: Tensor = sdpa_mask(**arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    return mask


__all__ = ["mask_function"]
