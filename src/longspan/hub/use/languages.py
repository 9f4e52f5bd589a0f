"""The languages of mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020): tokens such as en_XX around a text.

mBART puts the source's language behind the text, after the end token, and the decoder begins with the target's.
mBART-50 puts it before the text; its decoder begins with the end token and then the target's language.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import tokenizers
from tokenizers import processors

from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.errors import InvalidOption, UnknownName, suggest
from longspan.hub.pretrained import Pretrained

CODE = re.compile(r"[a-z]{2}_[A-Z]{2}")
FAMILY = "mbart"
ONLY_50 = "af_ZA"  # a language that mBART does not have


@dataclass(frozen=True)
class LanguageTokens:
    """The ids of a model's languages, and where they stand."""

    ids: dict[str, int]
    before: bool  # whether the source's language stands before the text, as in mBART-50

    def find(self, code: str, flag: str) -> int:
        """The id of a language; an unknown one is refused with all that there are."""
        if code not in self.ids:
            hint = suggest(code, self.ids)
            listed = ", ".join(sorted(self.ids))
            every = "" if listed in hint else f" The languages are: {listed}"
            raise UnknownName(f"{flag}: this model has no language {code!r}; {hint}.{every}".rstrip("."))
        return self.ids[code]

    def source_tokenizer(self, tokenizer: Tokenizer, code: str) -> Tokenizer:
        """A copy of the tokenizer that marks texts as being in a language."""
        number, end = self.find(code, "--from"), tokenizer.special["eos"]
        marked = Tokenizer(tokenizers.Tokenizer.from_str(tokenizer.to_json()), tokenizer.special, tokenizer.record)
        single, pair = (f"{code} {text} {end}" if self.before else f"{text} {end} {code}" for text in ("$A", "$A $B"))
        marked.inner.post_processor = processors.TemplateProcessing(
            single=single, pair=pair, special_tokens=[(code, number), (end, tokenizer.id(end))]
        )
        return marked

    def begin(self, tokenizer: Tokenizer, code: str) -> list[int]:
        """The first ids of a target in a language."""
        number = self.find(code, "--to")
        end = tokenizer.eos
        return [end, number] if self.before and end is not None else [number]


def languages_of(pretrained: Pretrained, tokenizer: Tokenizer) -> LanguageTokens | None:
    """The languages of an mBART; None for any other model."""
    if pretrained.family != FAMILY:
        return None
    vocabulary = tokenizer.inner.get_vocab(with_added_tokens=True)
    codes = {token: number for token, number in vocabulary.items() if CODE.fullmatch(token)}
    if not codes or "eos" not in tokenizer.special:
        return None
    kind = str(tokenizer.record.get("tokenizer_class", ""))
    before = "50" in kind if kind.startswith("MBart") else ONLY_50 in codes
    return LanguageTokens(codes, before)


def require_languages(
    pretrained: Pretrained, tokenizer: Tokenizer, source: str | None, target: str | None, begin: Sequence[int]
) -> LanguageTokens | None:
    """The languages if they are asked for; an error if the model has none, or needs one that is not given."""
    languages = languages_of(pretrained, tokenizer)
    if languages is None:
        if source is not None or target is not None:
            raise InvalidOption(
                f"this {pretrained.family or pretrained.model.name} has no language tokens; leave out --from and --to"
            )
        return None
    if target is None and not any(number in begin for number in languages.ids.values()):
        raise InvalidOption(
            f"this model writes several languages; choose one by --to: {', '.join(sorted(languages.ids))}"
        )
    return languages


__all__ = ["LanguageTokens", "languages_of", "require_languages"]
