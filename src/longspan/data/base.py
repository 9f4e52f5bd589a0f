"""What training reads: examples with numbers, in batches whose order is a function of the seed and the epoch.

Nothing is drawn while reading on: batch b of epoch e is the same however one got there, so that a run can stop and go
on anywhere, with any number of processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from torch import Tensor

Batch = Mapping[str, Tensor]  # each with the examples first


class Data(ABC):
    """A set of examples, in batches."""

    @abstractmethod
    def batches(self, epoch: int) -> Sequence[Sequence[int]]:
        """The numbers of the examples in each batch of an epoch."""

    @abstractmethod
    def load(self, numbers: Sequence[int], epoch: int) -> Batch:
        """These examples side by side; what is drawn for one is a function of the seed, the epoch and its number."""

    @abstractmethod
    def fingerprint(self) -> str:
        """What a run that goes on must find again: a short text that changes when the examples or their order do."""


__all__ = ["Batch", "Data"]
