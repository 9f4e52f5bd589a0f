"""Feeds rows of unequal length to a model; each row gets the result that it would get alone.

Models that support it read prompts with padding on the left. All others run in lock-step: every row is at the same
position of its own text. The model reads the tokens that all rows have at once; after that, rows with longer prompts
continue to read them while the shorter ones generate.

With `slide` a text may exceed the model's `max_length`. A model whose position table ends there reads the last
`max_length` tokens again for every further token. Any other model continues from its state. A model with a
`switch_length` reads a text again when it passes that length.
"""

from typing import Any

import torch
from torch import Tensor

from longspan.decode.batch import Batch
from longspan.decode.prefix_cache import PrefixCache
from longspan.models.base import CausalModel


class Feed:
    """The known tokens of a batch, and the model's state after those that it has read."""

    def __init__(
        self,
        model: CausalModel,
        batch: Batch,
        *,
        new: int,
        align: bool = False,
        slide: bool = False,
        prefix_cache: PrefixCache | None = None,  # for a batch of one
    ) -> None:
        self.model = model
        self.tokens = torch.nn.functional.pad(batch.tokens, (0, new))  # each row from column 0
        self.prompt = batch.lengths  # (rows,)
        self.known = batch.lengths.clone()  # (rows,) number of known tokens: prompt and appended ones
        self.active = torch.ones_like(self.known, dtype=torch.bool)  # other rows may read anything
        self.read = 0  # columns that the model has read, padding included
        room = model.max_length is None or batch.longest + new <= model.max_length
        unequal = bool((batch.lengths != batch.longest).any())
        self._beyond = slide and not room and not model.fixed_length
        self._window = model.max_length if slide and not room and model.fixed_length else None
        self.padded = model.left_padding and unequal and (room or self._beyond)
        self.longest = batch.longest
        self.state: Any = batch.start(model, align=align)
        self._prefix_cache = prefix_cache
        if prefix_cache is not None:
            cached = prefix_cache.find(model, batch.tokens[0].tolist())
            self.read, self.state = prefix_cache.reused, self.state if cached is None else cached

    @property
    def made(self) -> Tensor:
        """The number of new tokens of each row."""
        return self.known - self.prompt

    def advance(self) -> tuple[Tensor, Tensor]:
        """Reads the next known tokens; the logits (rows, vocabulary) after them, and which rows need a new token."""
        ids, side = self._padded() if self.padded else (self._lock_step(), {})
        until = self.read + ids.shape[1]
        state = self.state
        if self._window is not None and until > self._window:
            ids, state = self.tokens[:, until - self._window : until], self.model.start(len(self.tokens))
        elif self._switches(until):
            ids, side, state = *self._whole(until), self.model.start(len(self.tokens))
            until = ids.shape[1]
        if self._beyond:
            side["beyond"] = True
        logits, self.state = self.model.extend(ids, state, last=True, **side)
        self.read = until
        ready = self.active if self.padded else self.active & (self.known == self.read)
        return logits[:, -1], ready

    def _lock_step(self) -> Tensor:
        until = self.read + 1
        if self.read < self.longest:  # some rows still read their prompts: read up to the shortest
            far = torch.where(self.active, self.known, self.tokens.shape[1])
            until = max(until, int(far.min()))
        return self.tokens[:, self.read : until]

    def _padded(self) -> tuple[Tensor, dict[str, Any]]:
        if self.read:
            positions = self.known[:, None] - 1
            return self.tokens.gather(1, positions), {"positions": positions}
        return self._from_left(self.longest)

    def _from_left(self, longest: int) -> tuple[Tensor, dict[str, Any]]:
        """All known tokens, with padding on the left of texts shorter than the longest."""
        shifted = torch.arange(longest, device=self.known.device) - (longest - self.known)[:, None]
        positions = shifted.clamp_min(0)
        return self.tokens.gather(1, positions), {"positions": positions, "key_mask": shifted >= 0}

    def _switches(self, until: int) -> bool:
        """Whether the next step takes a text past the length from which the model reads it otherwise."""
        limit = self.model.switch_length
        if limit is None or not self.read:
            return False
        return bool((self.active & (self.known == limit + 1)).any()) if self.padded else self.read <= limit < until

    def _whole(self, until: int) -> tuple[Tensor, dict[str, Any]]:
        """All tokens up to the next step's."""
        return self._from_left(int(self.known.max())) if self.padded else (self.tokens[:, :until], {})

    def append(self, new: Tensor, where: Tensor) -> None:
        """Appends the next token in the rows where `where` is True."""
        column = self.known.clamp_max(self.tokens.shape[1] - 1)[:, None]
        self.tokens.scatter_(1, column, torch.where(where[:, None], new[:, None], self.tokens.gather(1, column)))
        self.known = self.known + where

    def remember(self) -> None:
        """Stores the state in the prefix cache, if there is one and the state covers the whole text."""
        if self._prefix_cache is not None and self.read and (self._window is None or self.read <= self._window):
            self._prefix_cache.store(self.tokens[0, : self.read].tolist(), self.state)

    def select(self, rows: Tensor) -> None:
        """Continues with these rows; a row may occur more than once."""
        self.tokens, self.prompt, self.known = self.tokens[rows], self.prompt[rows], self.known[rows]
        self.active = self.active[rows]
        self.state = self.state.select(rows)


__all__ = ["Feed"]
