"""`Data`: numbered examples in batches, whose order is a function of the seed and the epoch.

Reading has no random state: batch b of epoch e is always the same, so a run can resume anywhere, with any number of
processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

Batch = Mapping[str, Tensor]  # the first dimension is the example


class Data(ABC):
    """A set of examples, in batches."""

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        """The numbers of the examples in each batch of an epoch."""

    @abstractmethod
    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        """A batch of these examples; what is drawn for one depends on the seed, the epoch and its number only."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A short text that changes when the examples or their order do; a resumed run checks it."""


__all__ = ["Batch", "Data"]
