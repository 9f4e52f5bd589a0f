"""What a model remembers of texts that it read, so that a text that goes on from one is not read again."""

from collections.abc import Sequence
from typing import Any

from longspan.errors import InvalidInput
from longspan.models.base import CausalModel

KEPT = 4  # states; those of one text share their rows


class Memory:
    """The states after some texts; `stream` looks in it for the longest one that its prompt begins with.

    >>> memory = Memory()
    >>> answer = list(stream(model, first, max_new=20, memory=memory))
    >>> more = stream(model, first + [piece.token for piece in answer] + second, max_new=20, memory=memory)
    """

    def __init__(self) -> None:
        self._model: CausalModel | None = None
        self._states: list[tuple[list[int], Any]] = []
        self.reused = 0  # tokens of the last prompt that were not read again

    def find(self, model: CausalModel, prompt: Sequence[int]) -> Any:
        """The state after the first `reused` tokens of a prompt, of which one at least is left to read; or None."""
        if self._model is not None and self._model is not model:
            raise InvalidInput("a memory is of one model, and this one is of another; start a new one")
        self._model, self.reused = model, 0
        state = None
        for tokens, held in self._states:
            if self.reused < len(tokens) < len(prompt) and list(prompt[: len(tokens)]) == tokens:
                self.reused, state = len(tokens), held
        return state

    def note(self, tokens: Sequence[int], state: Any) -> None:
        """Keeps the state after these tokens, and lets go of the oldest one."""
        self._states = [*(each for each in self._states if each[0] != list(tokens)), (list(tokens), state)][-KEPT:]


__all__ = ["Memory"]
