"""The parts of a hybrid mechanism, which training and measuring switch off: its window, and what reads beyond it.

A mechanism is a hybrid if it has `using(parts=, window=)`, as `window_linear` has; others are left as they are.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

from torch import nn

from longspan.attention.base import Attention


def has_window(mechanism: Attention) -> bool:
    """Whether it is a hybrid, whose window can be narrowed or switched off."""
    return hasattr(mechanism, "using") and hasattr(mechanism, "active_window")


def window_of(mechanism: Any) -> int:
    """The whole window of a hybrid, in earlier keys."""
    return int(mechanism.options.window)


def with_window(mechanism: Any, width: int | None) -> AbstractContextManager[Any]:
    """Inside, the window of a hybrid is `width` keys wide; 0: only the linear part; None: as it is."""
    if width is None or not has_window(mechanism):
        return nullcontext()
    using: AbstractContextManager[Any] = (
        mechanism.using(parts="linear") if width == 0 else mechanism.using(window=width)
    )
    return using


@contextmanager
def only(model: nn.Module, part: str) -> Iterator[bool]:
    """Inside, hybrids of the model use one part, "window" or "linear"; yields whether there are any."""
    hybrids: list[Any] = [m for m in model.modules() if isinstance(m, Attention) and has_window(m)]
    with ExitStack() as held:
        for hybrid in hybrids:
            held.enter_context(hybrid.using(parts=part))
        yield bool(hybrids)


__all__ = ["has_window", "only", "window_of", "with_window"]
