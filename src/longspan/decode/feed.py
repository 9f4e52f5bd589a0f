"""How rows of unequal length go through a model together, so that each gives what it gives alone.

Models that can are given the prompts with padding on the left. All others go in lock-step, so that every row stands at
the same place of its own text: what all rows know already is read at once; after that a row whose prompt is longer is
fed its own prompt, while the shorter ones generate.

A text may outgrow the model's `max_length`, where that is allowed (`slide`). A model whose tables end there reads the
last `max_length` tokens anew for every further token. Any other model continues from its state.
"""

from typing import Any

import torch
from torch import Tensor

from longspan.decode.batch import Batch
from longspan.decode.prefix_cache import Memory
from longspan.models.base import CausalModel


class Feed:
    """The texts of a batch as far as they are known, and what the model remembers of them."""

    def __init__(
        self,
        model: CausalModel,
        batch: Batch,
        *,
        new: int,
        align: bool = False,
        slide: bool = False,
        memory: Memory | None = None,  # of one text
    ) -> None:
        self.model = model
        self.tokens = torch.nn.functional.pad(batch.tokens, (0, new))  # each row from column 0
        self.prompt = batch.lengths  # (rows,)
        self.known = batch.lengths.clone()  # (rows,) tokens that are known: the prompt and what was appended
        self.active = torch.ones_like(self.known, dtype=torch.bool)  # rows that nobody waits for may read anything
        self.read = 0  # columns that the model has read, padding among them
        room = model.max_length is None or batch.longest + new <= model.max_length
        unequal = bool((batch.lengths != batch.longest).any())
        self._beyond = slide and not room and not model.fixed_length
        self._window = model.max_length if slide and not room and model.fixed_length else None
        self.padded = model.left_padding and unequal and (room or self._beyond)
        self.longest = batch.longest
        self.state: Any = batch.start(model, align=align)
        self._memory = memory
        if memory is not None:
            held = memory.find(model, batch.tokens[0].tolist())
            self.read, self.state = memory.reused, self.state if held is None else held

    @property
    def made(self) -> Tensor:
        """New tokens of each row."""
        return self.known - self.prompt

    def advance(self) -> tuple[Tensor, Tensor]:
        """Reads on; the logits (rows, vocabulary) where the model stands, and which rows have no next token yet."""
        ids, side = self._padded() if self.padded else (self._lock_step(), {})
        until = self.read + ids.shape[1]
        state = self.state
        if self._window is not None and until > self._window:
            ids, state = self.tokens[:, until - self._window : until], self.model.start(len(self.tokens))
        if self._beyond:
            side["beyond"] = True
        logits, self.state = self.model.extend(ids, state, last=True, **side)
        self.read = until
        ready = self.active if self.padded else self.active & (self.known == self.read)
        return logits[:, -1], ready

    def _lock_step(self) -> Tensor:
        until = self.read + 1
        if self.read < self.longest:  # some may still be reading their prompts: as far as all of them can
            far = torch.where(self.active, self.known, self.tokens.shape[1])
            until = max(until, int(far.min()))
        return self.tokens[:, self.read : until]

    def _padded(self) -> tuple[Tensor, dict[str, Any]]:
        if self.read:
            positions = self.known[:, None] - 1
            return self.tokens.gather(1, positions), {"positions": positions}
        places = torch.arange(self.longest, device=self.known.device) - (self.longest - self.known)[:, None]
        positions = places.clamp_min(0)
        return self.tokens.gather(1, positions), {"positions": positions, "key_mask": places >= 0}

    def append(self, new: Tensor, where: Tensor) -> None:
        """The next token of the rows `where` it is wanted."""
        column = self.known.clamp_max(self.tokens.shape[1] - 1)[:, None]
        self.tokens.scatter_(1, column, torch.where(where[:, None], new[:, None], self.tokens.gather(1, column)))
        self.known = self.known + where

    def remember(self) -> None:
        """Notes what was read in the memory, where there is one and the state is of the whole text."""
        if self._memory is not None and self.read and (self._window is None or self.read <= self._window):
            self._memory.note(self.tokens[0, : self.read].tolist(), self.state)

    def select(self, rows: Tensor) -> None:
        """Goes on with these rows; one may be taken more than once."""
        self.tokens, self.prompt, self.known = self.tokens[rows], self.prompt[rows], self.known[rows]
        self.active = self.active[rows]
        self.state = self.state.select(rows)


__all__ = ["Feed"]
