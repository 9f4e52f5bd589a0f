"""Checks of the tensors that an attention mechanism receives. Each raises `InvalidInput` with what was expected."""

import torch
from torch import Tensor

from longspan.errors import InvalidInput


def check_qkv(q: Tensor, k: Tensor, v: Tensor, heads: int, head_dim: int, *, grouped: bool) -> None:
    """Shapes, types and devices of queries, keys and values; `grouped` allows fewer key heads than query heads."""
    check_heads("q", q, heads, head_dim)
    key_heads = k.shape[1] if grouped and k.dim() == 4 and k.shape[1] else heads
    if heads % key_heads:
        raise InvalidInput(f"k has {key_heads} heads, which do not divide the {heads} heads of q")
    check_heads("k", k, key_heads, head_dim)
    check_heads("v", v, key_heads, None)
    check_like("k", k, q)
    check_like("v", v, q)
    if q.shape[0] == 0:
        raise InvalidInput(f"there must be at least one sequence, not a batch of 0: q is {tuple(q.shape)}")
    queries, keys = q.shape[2], k.shape[2]
    if queries == 0 or keys == 0:
        raise InvalidInput(f"there must be at least one query and one key, not {queries} and {keys}")
    if v.shape[2] != keys:
        raise InvalidInput(f"k has length {keys} and v {v.shape[2]}; each key needs one value")


def check_bias(bias: Tensor, heads: int, q: Tensor) -> None:
    """A bias by offset: (heads, 2·reach + 1)."""
    if bias.dim() != 2 or bias.shape[0] != heads or bias.shape[1] % 2 == 0:
        raise InvalidInput(
            f"bias must be (heads {heads}, an odd number of offsets), not {tuple(bias.shape)}; the middle offset is 0"
        )
    if not bias.is_floating_point():
        raise InvalidInput(f"bias must be of a floating-point type, not {bias.dtype}")
    if bias.device != q.device:
        raise InvalidInput(f"bias is on {bias.device} and q on {q.device}; they must be on one device")


def check_some(name: str, x: Tensor) -> None:
    """Refuse an empty batch and empty sequences: (batch, length, …)."""
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InvalidInput(f"{name} must hold at least one sequence of at least one position, not {tuple(x.shape)}")


def check_heads(name: str, tensor: Tensor, heads: int, width: int | None) -> None:
    """Heads (batch, heads, length, width) of a floating-point type; any width if `width` is None."""
    width_seen = tensor.shape[-1] if tensor.dim() else 0
    if tensor.dim() != 4 or tensor.shape[1] != heads or (width is not None and width_seen != width):
        wanted = f"(batch, heads {heads}, length, {'width' if width is None else f'head_dim {width}'})"
        raise InvalidInput(f"{name} must be {wanted}, not {tuple(tensor.shape)}")
    if not tensor.is_floating_point():
        raise InvalidInput(f"{name} must be of a floating-point type, not {tensor.dtype}")


def check_like(name: str, tensor: Tensor, q: Tensor) -> None:
    """The type, device and batch of q."""
    if tensor.dtype != q.dtype:
        raise InvalidInput(f"q is {q.dtype} and {name} {tensor.dtype}; they must be of one type")
    if tensor.device != q.device:
        raise InvalidInput(f"q is on {q.device} and {name} on {tensor.device}; they must be on one device")
    if tensor.shape[0] != q.shape[0]:
        raise InvalidInput(f"q has batch {q.shape[0]} and {name} {tensor.shape[0]}; they must be equal")


def check_mask(name: str, mask: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    """A boolean for each position."""
    if mask.dtype != torch.bool:
        raise InvalidInput(f"{name} must be boolean, True where it may be read, not {mask.dtype}; try {name}.bool()")
    _check_positions(name, mask, shape, device)


def check_ids(name: str, ids: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    """An integer for each position."""
    if ids.dtype != torch.int64:
        raise InvalidInput(f"{name} must be of integers (int64), not {ids.dtype}; try {name}.long()")
    _check_positions(name, ids, shape, device)


def _check_positions(name: str, tensor: Tensor, shape: tuple[int, int], device: torch.device) -> None:
    if tensor.dim() != 2 or tuple(tensor.shape) != shape:
        raise InvalidInput(f"{name} must be (batch {shape[0]}, length {shape[1]}), not {tuple(tensor.shape)}")
    if tensor.device != device:
        raise InvalidInput(f"{name} is on {tensor.device} and q on {device}; they must be on one device")


__all__ = ["check_bias", "check_heads", "check_ids", "check_like", "check_mask", "check_qkv", "check_some"]
