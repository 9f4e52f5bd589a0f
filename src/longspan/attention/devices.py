"""What a tensor's device allows: CPU kernels, torch's fused attention, and decisions in Python by a tensor's values.

Every CPU-only fast path asks here, so that tests on the CPU can take the path of any other device.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

_as_other: ContextVar[bool] = ContextVar("as_other_device", default=False)


@contextmanager
def as_other_device() -> Iterator[None]:
    """Inside the block, CPU tensors take the paths of other devices. For tests.

    Run the backward pass inside the block too: what it recomputes must take the same path.
    """
    token = _as_other.set(True)
    try:
        yield
    finally:
        _as_other.reset(token)


def on_cpu(x: Tensor) -> bool:
    """Whether CPU kernels may be used on x."""
    if torch.compiler.is_compiling():  # a compiled program cannot read a context variable
        return x.device.type == "cpu"
    return x.device.type == "cpu" and not _as_other.get()


def traced(x: Tensor) -> bool:
    """Whether x has no values: while a graph is traced, and on the `meta` device."""
    return torch.compiler.is_compiling() or x.is_meta


def host_may_read(x: Tensor) -> bool:
    """Whether Python may read the values of x at no cost, as checks and shortcuts do.

    False while x is `traced`, and on an accelerator, where the host would wait until all queued work is done.
    """
    return not traced(x) and on_cpu(x)


def has_fused_attention(q: Tensor, v: Tensor, *, dropout: bool = False) -> bool:
    """Whether torch's `scaled_dot_product_attention` takes these without materialising all scores."""
    if on_cpu(q):
        return q.shape[-1] == v.shape[-1] and not dropout
    return q.device.type in ("cuda", "xpu")
