"""Translations by an encoder–decoder: one for each text, in batches of equal lengths."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from longspan.data import Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_inner
from longspan.decode import Beam, search_many
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.generate import GeneratedText, begin_of, ends_of
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import CausalModel

SOURCE_TOKENIZER = "source_tokenizer.json"  # of a model with one for each language; tokenizer.json is the target's
PLACES = (".", "../data", "../../../data")  # where it lies from the model, the result or a checkpoint of a run


def translate(
    found: Pretrained,
    texts: Sequence[str],
    *,
    beam: Beam | None = None,
    truncate: bool = False,
    tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[GeneratedText]:
    """The best translation of each text; of one that is empty or blank, the empty text.

    Search is that of Wu et al. 2016 with 5 beams unless said. A batch holds `tokens` of the source, with padding.

    >>> translate(hub.load("runs/multi30k-en-de/model"), ["A dog runs."])[0].text
    """
    if isinstance(texts, str):
        raise InvalidInput("expected a list of texts, got one text; put it in a list")
    model, target = found.model, tokenizer_of(found)
    if not isinstance(model, CausalModel) or not model.reads_source:
        raise Unsupported(f"this {found.family or model.name} reads no source; an encoder–decoder translates")
    reading = replace(found, tokenizer=_source_tokenizer(found, target))
    kept = [row for row, text in enumerate(texts) if text.strip()]
    made = [GeneratedText("", [], 0.0, "end") for _ in texts]
    if not kept:
        return made
    encoded = read_texts(reading, [texts[row].strip() for row in kept], truncate="right" if truncate else None)
    hypotheses = search_many(
        model,
        [each.ids for each in encoded],
        begin_of(found, target),
        ends_of(found, target),
        options=beam or Beam(beams=5),
        tokens=tokens,
        progress=progress,
    )
    for row, (best, *_) in zip(kept, hypotheses):
        text = target.decode(best.tokens).strip()
        made[row] = GeneratedText(text, best.tokens, best.logprob, "end" if best.finished else "length")
    return made


def _source_tokenizer(found: Pretrained, target: Tokenizer) -> Tokenizer:
    """The target's own, unless the source has a vocabulary of its own."""
    if getattr(found.model.options, "source_vocabulary", None) is None:
        return target
    folder = Path() if found.path is None else found.path
    for place in PLACES:
        path = folder / place / SOURCE_TOKENIZER
        if path.is_file():
            return Tokenizer(read_inner(path), target.special)
    raise InvalidInput(
        f"{folder} has no {SOURCE_TOKENIZER}, and its source has a vocabulary of its own; copy it from the run's data/"
    )


__all__ = ["SOURCE_TOKENIZER", "translate"]
