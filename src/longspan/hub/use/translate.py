"""Translate texts with an encoder–decoder, or with a decoder of joined pairs, in batches of similar lengths."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from longspan.data import Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_inner
from longspan.decode import Beam, search_many
from longspan.decode.ensemble import Ensemble
from longspan.errors import InvalidInput, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.generate import GeneratedText, begin_of, ends_of
from longspan.hub.use.languages import require_languages
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import CausalModel

SOURCE_TOKENIZER = "source_tokenizer.json"  # of a model with two vocabularies; tokenizer.json is the target's
FOLDERS = (".", "../data", "../../../data")  # where it is, relative to a model, a run's result or a checkpoint


def translate(
    pretrained: Pretrained,
    texts: Sequence[str],
    *,
    source: str | None = None,
    target: str | None = None,
    beam: Beam | None = None,
    others: Sequence[Pretrained] = (),
    average: str = "log",
    truncate: bool = False,
    tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[GeneratedText]:
    """The best translation of each text; a blank text stays empty.

    The default is beam search with 5 beams and the length penalty of Wu et al. 2016. A batch holds `tokens` source
    tokens, with padding. `source` and `target` are languages of an mBART, such as "en_XX" and "de_DE"; without
    them, its folder says which. With `others`, all models together predict each token: the mean of their
    log-probabilities or, with `average="probability"`, of their probabilities. They must have the same tokenizers.

    >>> translate(hub.load("runs/multi30k-en-de/model"), ["A dog runs."])[0].text
    >>> translate(hub.load("mbart-large-50-many-to-many-mmt"), ["A dog runs."], source="en_XX", target="de_DE")
    """
    if isinstance(texts, str):
        raise InvalidInput("expected a list of texts, got one text; put it in a list")
    model, writes = _translator(pretrained), tokenizer_of(pretrained)
    begin, reads = _begin(pretrained, writes, target), source_tokenizer(pretrained, writes)
    languages = require_languages(pretrained, writes, source, target, begin)
    if languages is not None:
        reads = reads if source is None else languages.source_tokenizer(reads, source)
        begin = begin if target is None else languages.begin(writes, target)
    reading = replace(pretrained, tokenizer=reads)
    if others:
        _check_tokenizers(pretrained, others)
        model = Ensemble([model, *map(_translator, others)], average=average)
    kept = [row for row, text in enumerate(texts) if text.strip()]
    translations = [GeneratedText("", [], 0.0, "end") for _ in texts]
    if not kept:
        return translations
    encoded = read_texts(reading, [texts[row].strip() for row in kept], truncate="right" if truncate else None)
    sources = [text.ids for text in encoded]
    if not model.reads_source:
        sources = _before_separator(pretrained, sources, begin)
    hypotheses = search_many(
        model,
        sources,
        begin,
        ends_of(pretrained, writes),
        options=beam or Beam(beams=5),
        tokens=tokens,
        progress=progress,
    )
    for row, (best, *_) in zip(kept, hypotheses):
        text = writes.decode(best.tokens).strip()
        translations[row] = GeneratedText(text, best.tokens, best.logprob, "end" if best.finished else "length")
    return translations


def _translator(pretrained: Pretrained) -> CausalModel:
    model = pretrained.model
    if not isinstance(model, CausalModel):
        raise Unsupported(f"this {pretrained.family or model.name} writes no text; an encoder–decoder translates")
    return model


def _check_tokenizers(first: Pretrained, others: Sequence[Pretrained]) -> None:
    """Refuse models that read or write other tokens than the first one."""
    for other in others:
        for role, tokenizer in (("target", tokenizer_of), ("source", _reads_with)):
            if tokenizer(first).to_json() != tokenizer(other).to_json():
                raise InvalidInput(
                    f"{other.path} has another {role} tokenizer than {first.path}: the models of an ensemble must be "
                    "trained with the same one"
                )


def _reads_with(pretrained: Pretrained) -> Tokenizer:
    return source_tokenizer(pretrained, tokenizer_of(pretrained))


def _before_separator(pretrained: Pretrained, texts: Sequence[list[int]], begin: list[int]) -> list[list[int]]:
    """The sources of a decoder whose tokenizer ends a text with the separator before its translation."""
    size = len(begin)
    if any(text[-size:] != begin for text in texts):
        raise Unsupported(
            f"this {pretrained.family or pretrained.model.name} reads no source, and its texts end with no separator; "
            "an encoder–decoder translates, or a decoder trained with form = 'joined'"
        )
    return [text[:-size] for text in texts]


def _begin(pretrained: Pretrained, tokenizer: Tokenizer, target: str | None) -> list[int]:
    """The first ids of a target, as the folder says; none if the language decides them."""
    return [] if target is not None else begin_of(pretrained, tokenizer)


def source_tokenizer(pretrained: Pretrained, target: Tokenizer) -> Tokenizer:
    """The target's tokenizer, unless the source has its own vocabulary."""
    if getattr(pretrained.model.options, "source_vocabulary", None) is None:
        return target
    folder = Path() if pretrained.path is None else pretrained.path
    for relative in FOLDERS:
        path = folder / relative / SOURCE_TOKENIZER
        if path.is_file():
            return Tokenizer(read_inner(path), target.special)
    raise InvalidInput(
        f"{folder} has no {SOURCE_TOKENIZER}, and its source has a separate vocabulary; copy it from the run's data/"
    )


__all__ = ["SOURCE_TOKENIZER", "source_tokenizer", "translate"]
