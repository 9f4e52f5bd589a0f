"""`LongspanCache`: the state of our decoding, as `generate` carries it."""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from longspan.errors import Unsupported


class LongspanCache(Cache):  # type: ignore[misc]
    """The state of a model, of whatever size its mechanisms need; `length` tokens were read.

    A cache of theirs counts its layers as its length, and an empty list of them makes it false: compare with None.
    """

    is_compileable = False
    is_initialized = True

    def __init__(self, state: Any) -> None:
        super().__init__(layers=[])
        self.state = state

    def __bool__(self) -> bool:
        return True

    @property
    def bytes(self) -> int:
        """The memory of the state."""
        size: int = self.state.bytes
        return size

    def get_seq_length(self, layer_idx: int = 0) -> int:
        length: int = self.state.length
        return length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.get_seq_length()

    def get_max_length(self, layer_idx: int = 0) -> int:
        return -1

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.state = self.state.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        raise Unsupported("repeat the ids before they are read: generate(…, num_return_sequences=N) does")

    def crop(self, *args: Any) -> None:
        raise Unsupported("a state cannot forget its last tokens, so assisted generation does not work with it")

    def update(self, *args: Any, **given: Any) -> Any:
        raise Unsupported("a state is extended by its own model, not layer by layer")

    def __repr__(self) -> str:
        return f"LongspanCache(length={self.get_seq_length()}, bytes={self.bytes})"


def own_state(cache: Any, kind: str) -> Any:
    """The state in a cache; None without one. Caches of other kinds are refused: ours would ignore their keys."""
    if cache is None or isinstance(cache, LongspanCache):
        return None if cache is None else cache.state
    raise Unsupported(
        f"{kind} keeps its own state, a LongspanCache, and cannot read a {type(cache).__name__} (PEFT's prefix tuning "
        "passes one, and would change nothing)"
    )


__all__ = ["LongspanCache", "own_state"]
