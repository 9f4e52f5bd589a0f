"""Attention as a function, for mechanisms without parameters; called like torch's `scaled_dot_product_attention`.

The mechanism is built once for each combination of sizes and options, and cached.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from longspan.attention.base import Attention
from longspan.attention.registry import build
from longspan.errors import InvalidInput, Unsupported
from longspan.shapes import Bias, KeyMask, Keys, Output, Queries, Values


def attend(
    name: str,
    q: Queries,
    k: Keys,
    v: Values,
    *,
    causal: bool = False,
    key_mask: KeyMask | None = None,
    bias: Bias | None = None,
    dropout: float = 0.0,
    streams: Mapping[str, Tensor] | None = None,
    max_length: int | None = None,
    seed: int = 0,
    **options: Any,
) -> Output:
    """Attention of `q` to `k` and `v`, all (…, heads, length, width), by the mechanism `name` with its options.

    Values may be wider or narrower than queries and keys. `key_mask` (…, keys) is True where a key may be read.
    `dropout` on the weights is applied whenever it is not 0.
    Mechanisms that draw random features or hashes draw them from `seed`, so equal calls give equal results.

    >>> out = longspan.attend("linear", q, k, v, causal=True)
    >>> out = longspan.attend("window", q, k, v, window=256, key_mask=mask)
    """
    if q.dim() < 3 or not v.dim():
        raise InvalidInput(f"q must be (…, heads, length, width), not {tuple(q.shape)}")
    fixed = tuple(sorted((key, _frozen(value)) for key, value in options.items()))
    sizes = (q.shape[-3], q.shape[-1], v.shape[-1])
    mechanism = _built(name, *sizes, causal, max_length, dropout, seed, q.dtype, q.device, fixed)
    out: Tensor = mechanism(q, k, v, key_mask=key_mask, bias=bias, streams=streams)
    return out


@lru_cache(maxsize=64)
def _built(
    name: str,
    heads: int,
    head_dim: int,
    value_dim: int,
    causal: bool,
    max_length: int | None,
    dropout: float,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    options: tuple[tuple[str, Any], ...],
) -> Attention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        mechanism = build(
            name,
            heads=heads,
            head_dim=head_dim,
            value_dim=value_dim,
            causal=causal,
            max_length=max_length,
            dropout=dropout,
            **dict(options),
        )
    weights = [parameter for parameter, _ in mechanism.named_parameters()]
    if weights:
        raise Unsupported(
            f"{name} has weights of its own ({', '.join(weights)}), which a function cannot keep; "
            f"build a layer: longspan.MultiHead(width, heads={heads}, attention={name!r})"
        )
    return mechanism.to(device=device, dtype=dtype).train(dropout > 0)


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


__all__ = ["attend"]
