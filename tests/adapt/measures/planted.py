"""A model whose recall is known: it copies what followed the last two tokens, if that was within its window."""

from dataclasses import dataclass
from typing import Any

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers
from torch import Tensor, nn

from longspan.attention.state import State
from longspan.data import Tokenizer
from longspan.models.base import CausalModel, Source

WORDS = 300


@dataclass(frozen=True)
class Seen(State):
    ids: Tensor
    length: int


class Copier(CausalModel):
    """Looks back `window` tokens for the last token; unlimited without one."""

    name = "copier"
    paper = "none"
    fixed_length = False

    def __init__(self, window: int | None = None, vocabulary: int = WORDS) -> None:
        super().__init__(None)
        self.window, self.vocabulary, self.weight = window, vocabulary, nn.Parameter(torch.zeros(1))

    def initial_state(self, batch: int, source: Source | None = None) -> Seen:
        return Seen(torch.zeros(batch, 0, dtype=torch.long), 0)

    def extend(self, ids: Tensor, state: Seen, *, last: bool = False, **_: Any) -> tuple[Tensor, Seen]:
        whole = torch.cat([state.ids, ids], 1)
        logits = torch.zeros(*ids.shape, self.vocabulary)
        for row, column in ((r, c) for r in range(len(ids)) for c in range(ids.shape[1])):
            at = state.length + column
            far = 0 if self.window is None else max(0, at - self.window - 1)
            before = (whole[row, far:at] == whole[row, at]).nonzero().flatten() + far
            before = before[before + 1 >= (0 if self.window is None else at - self.window)]
            if len(before):
                logits[row, column, whole[row, before[-1] + 1]] = 9.0
        return (logits[:, -1:] if last else logits), Seen(whole, whole.shape[1])

    @property
    def token_rows(self) -> int | None:
        return self.vocabulary


def characters() -> Tokenizer:
    """A tokenizer of single bytes, so that numbers are four tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = tokenizers.Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)
