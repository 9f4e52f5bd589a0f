"""Which code a tensor's device allows: kernels for the CPU, torch's fused attention, or ordinary operations.

Every fast path that exists on the CPU alone asks here, so that tests can take the path of any other device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_as_other: ContextVar[bool] = ContextVar("as_other_device", default=False)


@contextmanager
def as_other_device() -> Iterator[None]:
    """Inside, tensors on the CPU take the paths that tensors on any other device take; meant for tests.

    The backward pass must run inside as well: what it recomputes must take the same path.
    """
    token = _as_other.set(True)
    try:
        yield
    finally:
        _as_other.reset(token)


def on_cpu(x: Tensor) -> bool:
    """Whether kernels for the CPU may be used, and whether reading a value on the host is free."""
    if torch.compiler.is_compiling():  # a compiled program cannot hold a context variable
        return x.device.type == "cpu"
    return x.device.type == "cpu" and not _as_other.get()


def host_may_read(x: Tensor) -> bool:
    """Whether Python may decide by the numbers of a tensor.

    A compiled program cannot, and on an accelerator the host would wait there until all queued work is done.
    """
    return not torch.compiler.is_compiling() and on_cpu(x)


def has_fused_attention(q: Tensor, v: Tensor, *, dropout: bool = False) -> bool:
    """Whether torch's `scaled_dot_product_attention` makes no scores of all pairs for these."""
    if on_cpu(q):
        return q.shape[-1] == v.shape[-1] and not dropout
    return q.device.type in ("cuda", "xpu")
