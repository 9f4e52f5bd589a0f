"""Linear attention with any feature map: the kernel of linear attention, Performer, retention and cosFormer.

    out_i = φ(q_i)·S_i / (φ(q_i)·z_i + ε)      S_i = Σ_j γ^(i−j) φ(k_j) v_jᵀ      z_i = Σ_j γ^(i−j) φ(k_j)

`causal` sums over j ≤ i. It is both the parallel form and the decoding step: it takes a state and returns one, so a
sequence can be cut anywhere. `full` sums over all keys, without decay. Memory is linear: the backward pass needs q, k,
v, the output, one number per row and, if causal, one state per block of positions.

Traced graphs, and feature maps with parameters, use a loop-free form that autograd differentiates (and that stores the
features).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from longspan.attention.devices import host_may_read, traced
from longspan.attention.groups import as_rows, interleave, members, split_members
from longspan.attention.kernels.linear_scan import causal as causal_scan
from longspan.attention.kernels.linear_scan import full as full_scan
from longspan.attention.kernels.linear_scan.rows import ScanPlan
from longspan.attention.parts.features import ExponentialMap, FeatureMap, as_feature_map
from longspan.attention.state import State, is_number
from longspan.errors import InvalidInput, InvalidOption
from longspan.precision import full_precision
from longspan.shapes import KeyMask, Keys, Output, Queries, Values

CHUNK = 64

Map = FeatureMap | Callable[[Tensor], Tensor]
Decay = Float[Tensor, " heads"]


@dataclass(frozen=True)
class ScanState(State):
    """The state of the past, of constant size. The true sums are sums · exp(offset)."""

    sums: Float[Tensor, "batch heads features columns"]  # S, and z as the last column if normalised
    offset: Float[Tensor, "batch heads"]


def start(
    batch: int,
    heads: int,
    head_dim: int,
    value_dim: int,
    feature_map: Map,
    *,
    normalise: bool = True,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> ScanState:
    """The state before the first token. `dtype` is the inputs' dtype; half precision is summed in float32."""
    dtype = torch.promote_types(dtype or torch.get_default_dtype(), torch.float32)
    feature_map = as_feature_map(feature_map, torch.zeros(1, 1, head_dim, dtype=dtype, device=device))
    columns = value_dim + 1 if normalise else value_dim
    sums = torch.zeros(batch, heads, feature_map.width(head_dim), columns, dtype=dtype, device=device)
    return ScanState(sums, _lowest(feature_map, (batch, heads), dtype, device))


def _lowest(
    feature_map: FeatureMap, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str | None
) -> Float[Tensor, "batch heads"]:
    """Offsets before the first key: the lowest finite number, not -inf, whose differences would be NaN."""
    lowest = torch.finfo(dtype).min if isinstance(feature_map, ExponentialMap) else 0.0
    return torch.full(shape, lowest, dtype=dtype, device=device)


def causal(
    q: Queries,
    k: Keys,
    v: Values,
    feature_map: Map,
    *,
    key_mask: KeyMask | None = None,
    chunk: int = CHUNK,
    epsilon: float = 0.0,
    normalise: bool = True,
    decay: Decay | None = None,
    state: ScanState | None = None,
) -> tuple[Output, ScanState]:
    """Attention to earlier positions, and the state after them. Rows with nothing to read are 0.

    If there are fewer heads of keys than of queries, consecutive query heads share one, and its state; with a decay
    for each query head, the state is that of each query head.
    """
    _check(q, k, v, key_mask)
    if q.shape[2] != k.shape[2]:
        raise InvalidInput(
            f"causal attention needs as many keys as queries, got {q.shape[2]} queries and {k.shape[2]} keys"
        )
    if chunk < 1:
        raise InvalidOption(f"chunk must be at least 1, got {chunk}")
    if k.shape[1] != q.shape[1]:
        form = {"chunk": chunk, "epsilon": epsilon, "normalise": normalise}
        if decay is not None:
            return _grouped_decays(q, k, v, feature_map, key_mask, state, decay, **form)
        return _grouped_causal(q, k, v, feature_map, key_mask, state, **form)
    plan, hidden = _prepare(q, feature_map, key_mask, chunk, epsilon, normalise, decay)
    if state is None:
        state = _fresh(plan, q, v)
    elif state.sums.shape != (expected := (*q.shape[:2], plan.width, plan.columns(v.shape[3]))):
        shapes = f"{tuple(expected)}, got {tuple(state.sums.shape)}"
        raise InvalidInput(f"the state does not belong to this attention: expected sums of shape {shapes}")
    inputs = (plan, q, k, v, hidden, state.sums.flatten(0, 1), state.offset.reshape(-1, 1, 1))
    with full_precision(q):
        if traced(q) or plan.feature_map.learned or (decay is not None and decay.requires_grad):
            out, sums, offset = causal_scan.batched(*inputs)
        elif torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v, state.sums)):
            out, sums, offset = causal_scan.CausalScan.apply(*inputs)
        else:
            out, sums, offset, _ = causal_scan.forward(*inputs, record=False)
    return out, ScanState(sums.unflatten(0, q.shape[:2]), offset.view(q.shape[:2]))


def full(
    q: Queries, k: Keys, v: Values, feature_map: Map, *, key_mask: KeyMask | None = None, epsilon: float = 0.0
) -> Output:
    """Attention to all keys, of the same sequence or another. Rows with nothing to read are 0.

    If there are fewer heads of keys than of queries, consecutive query heads share one, and its state.
    """
    _check(q, k, v, key_mask)
    if k.shape[1] != q.shape[1]:  # the queries of a group are rows of one head: its keys are summed once
        rows = as_rows(q, k.shape[1])
        return full(rows, k, v, feature_map, key_mask=key_mask, epsilon=epsilon).reshape(*q.shape[:3], v.shape[3])
    plan, hidden = _prepare(q, feature_map, key_mask, CHUNK, epsilon, True, None)
    inputs = (plan, q, k, v, hidden, _lowest(plan.feature_map, q.shape[:2], plan.dtype, q.device).view(-1, 1, 1))
    with full_precision(q):
        if traced(q) or plan.feature_map.learned:
            return full_scan.batched(*inputs)
        if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
            out: Tensor = full_scan.FullScan.apply(*inputs)
            return out
        return full_scan.forward(*inputs)[0]


def flops(
    feature_map: FeatureMap,
    queries: int,
    keys: int,
    heads: int,
    head_dim: int,
    value_dim: int,
    *,
    causal: bool,
    chunk: int = CHUNK,
    normalise: bool = True,
    group: int = 1,
) -> int:
    """FLOPs of the matrix products in one sequence's forward pass; a multiply-add counts as two.

    `heads` are those of keys, and `group` query heads read each of them.
    """
    heads, queries = _groups_as(heads, queries, group, causal)
    width, columns = feature_map.width(head_dim), value_dim + 1 if normalise else value_dim
    maps = feature_map.flops(queries, head_dim) + feature_map.flops(keys, head_dim)
    if not causal:
        return heads * (maps + 2 * width * (keys * value_dim + queries * columns))
    states = 2 * (queries + keys) * width * columns
    whole, rest = divmod(queries, chunk)
    triangles = 2 * (whole * chunk**2 + rest**2) * (width + value_dim)
    return heads * (maps + states + triangles)


def kept(
    feature_map: FeatureMap,
    queries: int,
    heads: int,
    head_dim: int,
    value_dim: int,
    *,
    causal: bool,
    chunk: int = CHUNK,
    normalise: bool = True,
    decay: bool = False,
    group: int = 1,
) -> int:
    """Numbers stored for one sequence's backward pass, beyond q, k, v and what the feature map stores.

    `heads` are those of keys, and `group` query heads read each of them.
    """
    if causal and group > 1:
        form: dict[str, Any] = {"causal": True, "chunk": chunk, "normalise": normalise, "decay": decay}
        return group * kept(feature_map, queries, heads, head_dim, value_dim, **form)
    queries = queries * group
    width, columns = feature_map.width(head_dim), value_dim + 1 if normalise else value_dim
    plan = ScanPlan(feature_map, width, chunk, 0.0, normalise, torch.float32)
    starts = len(causal_scan.sizes_of(plan, queries, heads, columns)) if causal else 1
    offsets = starts + 1 if causal else 1
    rows = value_dim + 1 if plan.normalise or plan.exponential else value_dim  # the output and its denominator
    return heads * (queries * rows + starts * width * columns + offsets + decay)


def _groups_as(heads: int, queries: int, group: int, causal: bool) -> tuple[int, int]:
    """Heads and queries that are computed: if causal each member of a group by itself, else all as rows of one head."""
    return (heads * group, queries) if causal else (heads, queries * group)


def _check(q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if not q.ndim == k.ndim == v.ndim == 4:
        raise InvalidInput(f"expected (batch, heads, length, head_dim), got {shapes}")
    fits = q.shape[0] == k.shape[0] and q.shape[1] % k.shape[1] == 0
    if not fits or k.shape[:3] != v.shape[:3] or q.shape[3] != k.shape[3]:
        raise InvalidInput(f"shapes of queries, keys and values do not match: {shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise InvalidInput(f"expected one floating-point dtype, got {q.dtype}, {k.dtype}, {v.dtype}")
    if key_mask is not None and (key_mask.dtype != torch.bool or key_mask.shape != (k.shape[0], k.shape[2])):
        wanted = f"expected a boolean key_mask of shape {(k.shape[0], k.shape[2])}"
        raise InvalidInput(f"{wanted}, got {key_mask.dtype} {tuple(key_mask.shape)}")


def _grouped_causal(
    q: Tensor, k: Tensor, v: Tensor, feature_map: Map, key_mask: Tensor | None, state: ScanState | None, **form: Any
) -> tuple[Tensor, ScanState]:
    """`causal` where consecutive query heads share a head of keys, and its state."""
    key_heads, group = k.shape[1], q.shape[1] // k.shape[1]
    state = None if state is None else _share_state(state, group, key_heads)
    if q.shape[2] == 1:  # decoding: the queries of a group as rows that follow their key
        real = k.new_ones(len(k), 1, dtype=torch.bool) if key_mask is None else key_mask
        keys, values = (pad(x, (0, 0, 0, group - 1)) for x in (k, v))
        rows, real = q.reshape(len(q), key_heads, group, -1), pad(real, (0, group - 1))
        out, after = causal(rows, keys, values, feature_map, key_mask=real, state=state, **form)
        return out.reshape(*q.shape[:3], -1), after
    # Each member of the groups meets the same keys; the state after them is the same each time.
    parts = [
        causal(queries, k, v, feature_map, key_mask=key_mask, state=state, **form)
        for queries in split_members(q, key_heads)
    ]
    return interleave([out for out, _ in parts]), parts[0][1]


def _grouped_decays(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    feature_map: Map,
    key_mask: Tensor | None,
    state: ScanState | None,
    decay: Tensor,
    **form: Any,
) -> tuple[Tensor, ScanState]:
    """`causal` where consecutive query heads share a head of keys but forget it at different speeds."""
    heads = q.shape[1]
    if decay.shape != (heads,):
        raise InvalidInput(f"expected one decay for each of {heads} heads, got shape {tuple(decay.shape)}")
    if state is not None and state.sums.shape[1] != heads:
        raise InvalidInput(f"expected a state of {heads} heads, one for each decay, got {state.sums.shape[1]}")
    if is_number(q.shape[2], 1):  # decoding: each state takes in the new token, which is all there is to repeat
        keys, values = (x.repeat_interleave(heads // k.shape[1], 1) for x in (k, v))
        return causal(q, keys, values, feature_map, key_mask=key_mask, state=state, decay=decay, **form)
    parts = [
        causal(
            queries,
            k,
            v,
            feature_map,
            key_mask=key_mask,
            state=None if state is None else ScanState(state.sums[:, member], state.offset[:, member]),
            decay=decay[member],
            **form,
        )
        for queries, member in zip(split_members(q, k.shape[1]), members(heads, k.shape[1]))
    ]
    sums, offset = (interleave([getattr(after, name) for _, after in parts]) for name in ("sums", "offset"))
    return interleave([out for out, _ in parts]), ScanState(sums, offset)


def _share_state(state: ScanState, group: int, key_heads: int) -> ScanState:
    """A state of the key heads; one before the first token may have been made for all query heads."""
    if state.sums.shape[1] != group * key_heads:
        return state
    if host_may_read(state.sums) and bool(state.sums.any()):
        raise InvalidInput(
            f"the state has {group * key_heads} heads and the keys {key_heads}; give as many key heads at every step"
        )
    return ScanState(state.sums[:, ::group], state.offset[:, ::group])


def _prepare(
    q: Tensor,
    feature_map: Map,
    key_mask: Tensor | None,
    chunk: int,
    epsilon: float,
    normalise: bool,
    decay: Tensor | None,
) -> tuple[ScanPlan, Tensor | None]:
    """The plan, and the folded mask of keys that may not be read."""
    (batch, heads, _, head_dim), dtype = q.shape, torch.promote_types(q.dtype, torch.float32)
    if epsilon < 0:
        raise InvalidOption(f"epsilon must be at least 0, got {epsilon}")
    feature_map = as_feature_map(feature_map, q[:1, 0, :1].to(dtype))
    log_decay = None
    if decay is not None:
        if decay.shape != (heads,):
            raise InvalidInput(f"expected one decay for each of {heads} heads, got shape {tuple(decay.shape)}")
        if host_may_read(decay) and not bool(((decay > 0) & (decay <= 1)).all()):
            raise InvalidInput(f"decays must be above 0 and at most 1, got {decay.tolist()}")
        log_decay = decay.double().log().repeat(batch).view(-1, 1, 1)
    hidden = None
    if key_mask is not None:
        hidden = key_mask.logical_not()[:, None].expand(-1, heads, -1).flatten(0, 1).unsqueeze(-1)
    return ScanPlan(feature_map, feature_map.width(head_dim), chunk, epsilon, normalise, dtype, log_decay), hidden


def _fresh(plan: ScanPlan, q: Tensor, v: Tensor) -> ScanState:
    (batch, heads, _, head_dim), value_dim, normalise = q.shape, v.shape[3], plan.normalise
    return start(
        batch, heads, head_dim, value_dim, plan.feature_map, normalise=normalise, dtype=plan.dtype, device=q.device
    )
