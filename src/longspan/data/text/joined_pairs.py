"""Sentence pairs as one text each: source, separator, target, end (Liu et al. 2018, section 4.2.2)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from longspan.data.base import Batch
from longspan.data.text.parallel import Parallel, side_by_side
from longspan.nn.loss import IGNORED


class JoinedPairs(Parallel):
    """Pairs for a decoder, which reads the source, the separator `begin` and the target as one text.

    The length of a pair is that of the whole text. With `source_loss`, the tokens of the source (but the first) and
    the separator are targets as well.
    """

    def __init__(self, *given: Any, source_loss: bool = True, **options: Any) -> None:
        self.source_loss = source_loss
        super().__init__(*given, **options)

    def _lengths(self) -> np.ndarray:
        """The number of tokens that the decoder reads, for both sides."""
        source, target = super()._lengths()
        return np.stack([source + target, source + target])

    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        """`ids`, `targets` (-100: not predicted), and `of_target`: which targets are tokens of the target."""
        ids, targets, of_target = [], [], []
        for number in numbers:
            source, target = self._sentence(self.source, number), self._sentence(self.target, number)
            text = np.concatenate([source, [self.begin], target, [self.end]])
            in_target = np.arange(1, len(text)) > len(source)
            ids.append(text[:-1])
            targets.append(text[1:] if self.source_loss else np.where(in_target, text[1:], IGNORED))
            of_target.append(in_target)
        return {
            "ids": side_by_side(ids, self.padding),
            "targets": side_by_side(targets, IGNORED),
            "of_target": side_by_side(of_target, 0).bool(),
            "number": torch.tensor(list(numbers)),
        }

    def fingerprint(self) -> str:
        return f"joined {super().fingerprint()}, {'both sides' if self.source_loss else 'the target'} predicted"


__all__ = ["JoinedPairs"]
