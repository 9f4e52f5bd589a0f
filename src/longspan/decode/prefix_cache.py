"""A cache of model states, so that a prompt that continues an earlier text is not read again."""

from collections.abc import Sequence
from typing import Any

from longspan.errors import InvalidInput
from longspan.models.base import CausalModel

KEPT = 4  # states; those of one text share their buffers


class PrefixCache:
    """The states after recent texts; `stream` continues from the longest one that is a prefix of its prompt.

    >>> cache = PrefixCache()
    >>> answer = list(stream(model, first, max_new=20, prefix_cache=cache))
    >>> more = stream(model, first + [piece.token for piece in answer] + second, max_new=20, prefix_cache=cache)
    """

    def __init__(self) -> None:
        self._model: CausalModel | None = None
        self._states: list[tuple[list[int], Any]] = []
        self.reused = 0  # tokens of the last prompt that were not read again

    def find(self, model: CausalModel, prompt: Sequence[int]) -> Any:
        """The state after the first `reused` tokens of a prompt, or None; at least one token is left to read."""
        if self._model is not None and self._model is not model:
            raise InvalidInput("this prefix cache belongs to another model; create a new one")
        self._model, self.reused = model, 0
        state = None
        for tokens, cached in self._states:
            if self.reused < len(tokens) < len(prompt) and list(prompt[: len(tokens)]) == tokens:
                self.reused, state = len(tokens), cached
        return state

    def store(self, tokens: Sequence[int], state: Any) -> None:
        """Keeps the state after these tokens, and drops the oldest."""
        others = [entry for entry in self._states if entry[0] != list(tokens)]
        self._states = [*others, (list(tokens), state)][-KEPT:]


__all__ = ["PrefixCache"]
