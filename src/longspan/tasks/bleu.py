"""BLEU (Papineni et al. 2002) by sacrebleu (Post 2018), in counts that add up over processes."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.data.text.parallel import Parallel
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.decode import Beam, search_many
from longspan.errors import Unsupported
from longspan.models.base import CausalModel
from longspan.tasks.base import Metrics

ORDER = 4  # the longest n-grams
TOKENIZERS = ("13a", "intl", "zh", "char", "none")


@dataclass
class Bleu(Metrics):
    """Counts of matched and produced n-grams, and the lengths of both sides: corpus BLEU follows from these."""

    found: list[int] = field(default_factory=lambda: [0] * ORDER)
    made: list[int] = field(default_factory=lambda: [0] * ORDER)
    length: int = 0
    reference: int = 0
    sentences: int = 0

    @classmethod
    def of(cls, texts: Sequence[str], references: Sequence[str], tokenize: str = "13a") -> "Bleu":
        """Counts for translations with one reference each: case-sensitive, tokenized by sacrebleu's `tokenize`."""
        if not texts:
            return cls()
        score = counter(tokenize).corpus_score(list(texts), [list(references)])
        return cls(list(score.counts), list(score.totals), score.sys_len, score.ref_len, len(texts))

    def add(self, other: Metrics) -> None:
        assert isinstance(other, Bleu)
        self.found = [one + two for one, two in zip(self.found, other.found)]
        self.made = [one + two for one, two in zip(self.made, other.made)]
        self.length, self.reference = self.length + other.length, self.reference + other.reference
        self.sentences += other.sentences

    def result(self) -> dict[str, float]:
        """BLEU out of 100; n-gram orders without a match are smoothed by sacrebleu's default (`exp`)."""
        if not self.sentences:
            return {}
        score = counter().compute_bleu(self.found, self.made, self.length, self.reference, smooth_method="exp")
        return {"bleu": score.score, "length_ratio": self.length / max(self.reference, 1)}

    def sampled(self) -> dict[str, float]:
        """The metric of a few sentences, during training."""
        return {"sample_bleu": self.result()["bleu"]} if self.sentences else {}


def bleu(
    model: CausalModel,
    data: Parallel,
    tokenizer: Tokenizer,
    *,
    beam: Beam,
    tokenize: str = "13a",
    numbers: Sequence[int] | None = None,
    tokens: int = 1024,
) -> Bleu:
    """BLEU of beam search on the sources of `data`, or on those with the given numbers.

    >>> bleu(model, prepared.test, prepared.tokenizer, beam=Beam(beams=5)).result()["bleu"]
    """
    return Bleu.of(*written(model, data, tokenizer, beam=beam, numbers=numbers, tokens=tokens), tokenize)


def written(
    model: CausalModel,
    data: Parallel,
    tokenizer: Tokenizer,
    *,
    beam: Beam,
    numbers: Sequence[int] | None = None,
    tokens: int = 1024,
) -> tuple[list[str], list[str]]:
    """What beam search writes for the sources of `data`, or for those with the given numbers, and the references."""
    chosen = list(range(len(data.references))) if numbers is None else sorted(numbers)
    sources = [data.sentence(number) for number in chosen]
    start = start_of(model)
    begin = [data.begin if start is None else start]
    hypotheses = search_many(model, sources, begin, data.end, options=beam, tokens=tokens)
    texts = [tokenizer.decode(best.tokens).strip() for best, *_ in hypotheses]
    return texts, [data.references[number] for number in chosen]


def start_of(model: CausalModel) -> int | None:
    """The token that the decoder of a pretrained encoder–decoder starts with; None: as the tokenizer says."""
    start: int | None = getattr(model.options, "start", None)
    return start


def counter(tokenize: str = "13a") -> Any:
    """sacrebleu's scorer. It is also built before training, so that a missing package fails early."""
    try:
        from sacrebleu.metrics import BLEU  # type: ignore[attr-defined, unused-ignore]  # not in its __all__
    except ImportError:
        raise Unsupported("BLEU is counted by sacrebleu, which is not installed: pip install longspan[train]") from None
    return BLEU(tokenize=tokenize, force=True)  # `force`: no warning about texts that look tokenized


__all__ = ["TOKENIZERS", "Bleu", "bleu", "counter", "start_of", "written"]
