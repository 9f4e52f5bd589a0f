"""ROUGE (Lin 2004) by rouge-score, in sums that add up over processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.errors import Unsupported
from longspan.tasks.base import Metrics

KINDS = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeLsum": "rougeL"}  # rouge-score's names, and ours


@dataclass
class Rouge(Metrics):
    """Sums of F1 over texts: of words, of pairs of words, and of the longest common subsequence of each sentence.

    Words are runs of a-z and 0-9 in lower case, and endings are cut off (Porter). Lines are sentences.
    """

    sums: dict[str, float] = field(default_factory=lambda: dict.fromkeys(KINDS.values(), 0.0))
    words: int = 0
    reference: int = 0
    texts: int = 0

    @classmethod
    def of(cls, texts: Sequence[str], references: Sequence[str]) -> "Rouge":
        """Sums for texts with one reference each."""
        scorer, rouge = scorer_of_texts(), cls()
        for text, reference in zip(texts, references, strict=True):
            for theirs, score in scorer.score(reference, text).items():
                rouge.sums[KINDS[theirs]] += score.fmeasure
            rouge.words, rouge.reference = rouge.words + len(text.split()), rouge.reference + len(reference.split())
        rouge.texts = len(texts)
        return rouge

    def add(self, other: Metrics) -> None:
        assert isinstance(other, Rouge)
        self.sums = {name: total + other.sums[name] for name, total in self.sums.items()}
        self.words, self.reference = self.words + other.words, self.reference + other.reference
        self.texts += other.texts

    def result(self) -> dict[str, float]:
        """Means over the texts, out of 100."""
        if not self.texts:
            return {}
        means = {name: 100 * total / self.texts for name, total in self.sums.items()}
        return {**means, "length_ratio": self.words / max(self.reference, 1)}

    def sampled(self) -> dict[str, float]:
        """The metrics of a few texts, during training."""
        return {f"sample_{name}": value for name, value in self.result().items() if name in KINDS.values()}


def scorer_of_texts() -> Any:
    """rouge-score's scorer. It is also built before training, so that a missing package fails early."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError:
        raise Unsupported(
            "ROUGE is counted by rouge-score, which is not installed: pip install longspan[train]"
        ) from None
    return RougeScorer(list(KINDS), use_stemmer=True)


__all__ = ["Rouge", "scorer_of_texts"]
