"""The words of a corpus, by falling frequency: what word2vec and ELMo's output layer number their rows by."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from longspan.errors import InvalidInput, InvalidOption, UnknownName, suggest

NEAR = 10_000  # words among which a misspelt one is looked for
SPLITS = ("spaces", "words")
WORD = re.compile(r"\w+(?:['’]\w+)*")


def split_words(text: str, split: str = "spaces", lowercase: bool = False) -> list[str]:
    """The words of a text: what is between spaces, or runs of letters and digits, apostrophes inside them too."""
    text = text.lower() if lowercase else text
    return text.split() if split == "spaces" else WORD.findall(text)


class Vocabulary:
    """Words and how often each was seen. Words of equal count stand in alphabetical order, so that ids are the same."""

    def __init__(self, words: Sequence[str], counts: Sequence[int]) -> None:
        if not words or len(words) != len(counts):
            raise InvalidInput(f"expected one count per word and at least one word, got {len(words)} and {len(counts)}")
        self.words, self.counts = tuple(words), tuple(counts)
        self.ids = {word: index for index, word in enumerate(self.words)}
        if len(self.ids) < len(self.words):
            twice = next(word for index, word in enumerate(self.words) if self.ids[word] != index)
            raise InvalidInput(f"the vocabulary has {twice!r} twice")

    @classmethod
    def count(
        cls,
        corpus: Iterable[Sequence[str]],
        *,
        min_count: int = 1,
        first: Sequence[str] = (),
        limit: int | None = None,
    ) -> "Vocabulary":
        """The words that a corpus of sentences has at least `min_count` times; `first` (marks) stand in front.

        `limit` is the most words to keep, with those in `first`.
        """
        if min_count < 1:
            raise InvalidOption(f"min_count must be at least 1, not {min_count}")
        seen: Counter[str] = Counter()
        for number, sentence in enumerate(corpus):
            if isinstance(sentence, str):
                raise InvalidInput(f"expected lists of words, got a text as sentence {number}; split it first")
            seen.update(sentence)
        frequent = [word for word, times in seen.items() if times >= min_count and word not in first]
        words = [*first, *sorted(frequent, key=lambda word: (-seen[word], word))][:limit]
        if not words:
            raise InvalidInput(f"no word is in the corpus {min_count} times; it has {len(seen)} different words")
        return cls(words, [seen[word] for word in words])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.ids

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and (self.words, self.counts) == (other.words, other.counts)

    def __hash__(self) -> int:
        return hash(self.words)

    def id(self, word: str) -> int:
        """Of a word that must be there."""
        found = self.ids.get(word)
        if found is None:
            near = suggest(word, self.words[:NEAR]) if len(self) > 20 else f"known: {', '.join(self.words)}"
            hint = near if near.startswith("did") or len(self) <= 20 else "check its spelling and its case"
            raise UnknownName(f"{word!r} is not among the {len(self)} words: {hint}")
        return found

    def write(self, path: Path) -> None:
        """A line per word with its count, as the word2vec tool writes it."""
        for word in self.words:
            if not word or any(mark in word for mark in " \n\r"):
                raise InvalidInput(f"the word {word!r} cannot be written: a file of words has one per line, no spaces")
        lines = (f"{word} {times}\n" for word, times in zip(self.words, self.counts))
        with path.open("w", encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            file.writelines(lines)

    @classmethod
    def read(cls, path: Path) -> "Vocabulary":
        """What `write` wrote."""
        if not path.is_file():
            raise InvalidInput(f"{path} is not there: the model's words")
        words, counts = [], []
        with path.open(encoding="utf-8", errors="surrogateescape", newline="\n") as file:
            for number, line in enumerate(file, start=1):
                word, _, times = line.rstrip("\n").rpartition(" ")
                if not word or not times.isascii() or not times.isdigit() or len(times) > 18:
                    said = f"{line.rstrip()!r:.80}"
                    raise InvalidInput(f"{path}, line {number}: expected a word and its count, got {said}")
                words.append(word)
                counts.append(int(times))
        return cls(words, counts)


__all__ = ["SPLITS", "Vocabulary", "split_words"]
