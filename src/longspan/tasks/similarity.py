"""Word similarity: how well cosines rank pairs of words as people do (Finkelstein et al. 2002 and others)."""

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from longspan.data.text import text_files
from longspan.errors import InvalidInput
from longspan.tasks.metrics import spearman


@dataclass(frozen=True)
class SimilarityReport:
    """Spearman's rank correlation over the covered pairs; None if fewer than two are covered."""

    file: str
    correlation: float | None
    covered: int
    pairs: int


def read_pairs(path: Path) -> list[tuple[str, str, float]]:
    """Lines of two words and a number, separated by spaces, tabs or commas; the first line may be a header."""
    pairs: list[tuple[str, str, float]] = []
    for number, line in enumerate(text_files.lines(path), start=1):
        fields = line.replace(",", " ").split()
        if not fields or line.startswith("#"):
            continue
        try:
            one, other, score = fields[0], fields[1], float(fields[2])
        except (ValueError, IndexError):
            if number == 1 and len(fields) >= 3:
                continue
            raise InvalidInput(f"{path}, line {number}: expected two words and a number, got {line[:60]!r}") from None
        pairs.append((one, other, score))
    if not pairs:
        raise InvalidInput(f"{path} has no pairs of words")
    return pairs


def similarity(unit: Tensor, ids: dict[str, int], path: Path, *, lower: bool = False) -> SimilarityReport:
    """The rank correlation of cosines with the scores of a file, over the pairs whose words are known."""
    pairs = read_pairs(path)
    cosines, scores = list[float](), list[float]()
    for one, other, score in pairs:
        words = (one.lower(), other.lower()) if lower else (one, other)
        if words[0] in ids and words[1] in ids:
            cosines.append(float(unit[ids[words[0]]] @ unit[ids[words[1]]]))
            scores.append(score)
    correlation = spearman(cosines, scores) if len(scores) > 1 else None
    return SimilarityReport(path.name, correlation, len(scores), len(pairs))


__all__ = ["SimilarityReport", "read_pairs", "similarity"]
