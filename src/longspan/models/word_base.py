"""Abilities of models of words (see `models/base.py`).

BidirectionalModel two language models, one each way (ELMo): bidirectional language modelling
WordVectors        one vector per word (word2vec): words from the words around them
WordStates         reads bytes and gives the hidden states of words (ELMo)
"""

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.errors import InvalidInput
from longspan.models.base import Ids, Mask, Model
from longspan.models.classics.vocabulary import Vocabulary


class NamedRows(Model):
    """A model whose rows, of its output layer or of its vectors, are words."""

    files = ("vocabulary.txt",)
    words: Vocabulary | None = None

    def name_rows(self, words: Vocabulary) -> None:
        """Say which word each row is; words that differ from those it has are an error."""
        if self.words is not None and self.words.words != words.words:
            raise InvalidInput(
                f"the model has {len(self.words)} words of its own, and the text has {len(words)} others; "
                "train a new model on it"
            )
        self.words = words

    def write_files(self, folder: Path) -> None:
        if self.words is not None:
            self.words.write(folder / self.files[0])

    def read_files(self, folder: Path) -> None:
        if (folder / self.files[0]).is_file():
            self.words = Vocabulary.read(folder / self.files[0])


@dataclass(frozen=True)
class DirectionLosses:
    """Losses of the two directions over `targets` words each; batches add up, and then are divided once."""

    forward: Float[Tensor, ""]  # sums, in nats
    backward: Float[Tensor, ""]
    targets: int

    def __add__(self, other: "DirectionLosses") -> "DirectionLosses":
        forward, backward = self.forward + other.forward, self.backward + other.backward
        return DirectionLosses(forward, backward, self.targets + other.targets)

    @property
    def loss(self) -> Float[Tensor, ""]:
        """What is minimised, per prediction (Peters et al. 2018, section 3.1)."""
        return (self.forward + self.backward) / max(2 * self.targets, 1)

    @property
    def forward_perplexity(self) -> float:
        """Per word, of the next word given those before it."""
        return float((self.forward.detach() / max(self.targets, 1)).exp())

    @property
    def backward_perplexity(self) -> float:
        """Per word, of a word given those after it."""
        return float((self.backward.detach() / max(self.targets, 1)).exp())


class BidirectionalModel(NamedRows):
    """Two language models that read the characters of words, one from the left and one from the right."""

    ability = "two language models, one in each direction"

    @abstractmethod
    def loss(
        self,
        characters: Int[Tensor, "batch length characters"],
        ids: Ids,
        *,
        key_mask: Mask | None = None,
        generator: torch.Generator | None = None,
    ) -> DirectionLosses:
        """The losses on the words `ids` that `characters` spell."""


class WordStates(Model):
    """A model that reads bytes and gives the hidden states of the words that they spell (ELMo)."""

    ability = "a model that reads bytes and gives the hidden states of words"

    @abstractmethod
    def word_states(
        self, ids: Ids, key_mask: Mask | None = None
    ) -> tuple[Float[Tensor, "batch layers words width"], Bool[Tensor, "batch words"]]:
        """The states of each word after each layer, and which words are real."""


class WordVectors(NamedRows):
    """A model with one vector per word, learned from the words around it."""

    ability = "a table of word vectors"
    sparse_gradients = True  # of the rows that a batch touches

    @abstractmethod
    def loss(
        self,
        contexts: Int[Tensor, "centres around"],
        centres: Int[Tensor, " centres"],
        mask: Bool[Tensor, "centres around"],
        negatives: Int[Tensor, "centres negatives"],
    ) -> Float[Tensor, ""]:
        """The loss, summed, of predicting each centre from the words around it (True in `mask`: real)."""

    @property
    @abstractmethod
    def vectors(self) -> Float[Tensor, "words dim"]:
        """The vector of each word."""

    @abstractmethod
    def tokens(self, text: str) -> list[str]:
        """The words of a text, split as in training."""


__all__ = ["BidirectionalModel", "DirectionLosses", "NamedRows", "WordStates", "WordVectors"]
