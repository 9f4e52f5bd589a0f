"""Summarise texts with an encoder–decoder, with the search that its folder asks for."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan.decode import Beam
from longspan.errors import InvalidInput, InvalidOption, Notice
from longspan.hub import generation_config
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.generate import GeneratedText
from longspan.hub.use.texts import longest_text, tokenizer_of
from longspan.hub.use.translate import translate

BEAMS = 4
MOST = 128  # tokens of a summary, if nothing says how many
LONGEST = 1024  # tokens that are read by a model without a limit


def summarize(
    pretrained: Pretrained,
    texts: Sequence[str],
    *,
    beam: Beam | None = None,
    prefix: str | None = None,
    longest: int | None = None,
    tokens: int = 1024,
    progress: Callable[[int], None] | None = None,
) -> list[GeneratedText]:
    """The summary of each text; a blank text stays empty.

    A text is cut at `longest` tokens, or at what the model can read, with a notice. `beam` is the search; by default
    that of the folder (`generation_config.json`, or T5's `task_specific_params`), or 4 beams. `prefix` goes before each
    text; T5's folders say "summarize: ".

    >>> summarize(hub.load("bart-large-cnn"), [article])[0].text
    """
    if isinstance(texts, str):
        raise InvalidInput("expected a list of texts, got one text; put it in a list")
    if longest is not None and longest < 2:
        raise InvalidOption(f"longest must be at least 2 tokens, not {longest}")
    asked = _asked(pretrained.config)
    prefix = str(asked.get("prefix") or "") if prefix is None else prefix
    given = [prefix + " ".join(text.split()) if text.strip() else "" for text in texts]
    given = _cut(pretrained, given, longest)
    return translate(
        pretrained, given, beam=beam or search_of(pretrained), truncate=True, tokens=tokens, progress=progress
    )


def search_of(pretrained: Pretrained) -> Beam:
    """The search that a folder asks for; 4 beams if it asks for none."""
    given = generation_config.settings(pretrained.config, pretrained.generation)
    how = generation_config.translate({**given, **_asked(pretrained.config)})
    limit = getattr(pretrained.model.options, "max_length", None)
    most = min(MOST, limit - 1) if limit is not None and limit > 1 else MOST
    if not isinstance(how.search, Beam):
        return Beam(beams=BEAMS, max_new=how.max_new or most)
    # The forced first token is part of the beginning that `translate` gives.
    return replace(how.search, prefix=None, max_new=how.search.max_new or most)


def _asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a configuration of Hugging Face asks for when it summarises: search options, and T5's prefix."""
    tables = config.get("task_specific_params")
    table = tables.get("summarization") if isinstance(tables, Mapping) else None
    return dict(table) if isinstance(table, Mapping) else {}


def _cut(pretrained: Pretrained, texts: Sequence[str], longest: int | None) -> list[str]:
    """Says how many texts are too long, and cuts them if the model itself has no limit."""
    room = longest_text(pretrained)
    most = min(size for size in (room, longest, None if room or longest else LONGEST) if size is not None)
    tokenizer = tokenizer_of(pretrained)
    encoded = tokenizer.encode_many([text or " " for text in texts])
    long = [row for row, text in enumerate(encoded) if len(text) > most]
    if not long:
        return list(texts)
    many = f"{len(long)} of {len(texts)} texts are" if len(texts) > 1 else "the text is"
    warnings.warn(Notice(f"{many} longer than {most} tokens; what follows is not read"), stacklevel=3)
    shorter = tokenizer.encode_many([texts[row] for row in long], longest=most, truncate="right")
    ends = {row: max(stop for _, stop in text.offsets) for row, text in zip(long, shorter)}
    return [text[: ends[row]] if row in ends else text for row, text in enumerate(texts)]


__all__ = ["search_of", "summarize"]
