"""Learn a tokenizer from text: byte-level BPE, WordPiece, Unigram, words, characters; or plain bytes.

WordPiece is trained as BPE, by the frequency of pairs; the original (Schuster & Nakajima 2012) chose the pair that
raised the likelihood most, freq(ab) / (freq(a) freq(b)). Both tokenise in the same way.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Inner

from longspan import config
from longspan.config import option
from longspan.data.tokenizers.tokenizer import Tokenizer, sound
from longspan.errors import InvalidInput, InvalidOption

KINDS = ("bytes", "characters", "words", "bpe", "wordpiece", "unigram")
# Kinds that can meet unknown text, so they always have a token for it.
WITH_UNKNOWN = ("words", "wordpiece", "unigram")
# Names of special tokens, as the papers of each kind have them.
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
PLAIN = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(config.Options):
    """The table `[task.tokenizer]` of a recipe."""

    kind: str = option("bpe", "how text is split", choices=KINDS)
    size: int = option(8000, "largest vocabulary, with special tokens; bytes and characters ignore it", low=1)
    lowercase: bool = option(False, "lower-case the text and drop accents")
    frequency: int = option(2, "how often a pair must occur to be merged, or a word to be kept", low=1)
    special: bool = option(True, "add tokens for beginning, end, padding and mask")


def learn(options: TokenizerOptions, texts: Iterable[str]) -> Tokenizer:
    """A tokenizer for texts like these."""
    names = dict(BERT if options.kind == "wordpiece" else PLAIN)
    if options.kind in ("bytes", "bpe"):
        del names["unk"]  # nothing is unknown
    if not options.special:
        names = {role: name for role, name in names.items() if role == "unk" and options.kind in WITH_UNKNOWN}
    if options.kind == "bytes":
        inner = _bytes(list(names.values()))
        inner.normalizer = _normalizer(options)
    elif options.kind == "characters":
        inner = _characters(options, texts, names)
    elif options.kind == "words":
        inner = _words(options, texts, names)
    else:
        inner = _learned(options, texts, names)
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
    _around(inner, names)
    return Tokenizer(inner, names)


def _normalizer(options: TokenizerOptions) -> normalizers.Normalizer | None:
    if options.kind == "wordpiece":
        # BERT's: no control characters, Chinese characters split, accents dropped with upper case.
        return normalizers.BertNormalizer(lowercase=options.lowercase, strip_accents=options.lowercase)
    if not options.lowercase:
        return None
    # Composed again, so that scripts such as Hangul are not left decomposed.
    steps = [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents(), normalizers.NFC()]
    return normalizers.Sequence(steps)


def _bytes(specials: list[str]) -> Inner:
    """The id of a byte is its value plus the number of special tokens, which come first."""
    alphabet = _byte_symbols()
    vocabulary = {name: number for number, name in enumerate([*specials, *alphabet])}
    inner = Inner(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return inner


def _byte_symbols() -> list[str]:
    """The visible character that byte-level tokenizers write for each byte 0..255 (Radford et al. 2019)."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in shown else chr(next(hidden)) for byte in range(256)]


def _characters(options: TokenizerOptions, texts: Iterable[str], names: dict[str, str]) -> Inner:
    normalizer = _normalizer(options)
    seen: set[str] = set()
    for text in _some(texts):
        seen.update(text if normalizer is None else normalizer.normalize_str(text))
    vocabulary = {name: number for number, name in enumerate([*names.values(), *sorted(seen)])}
    inner = Inner(models.WordLevel(vocabulary, unk_token=names.get("unk", PLAIN["unk"])))
    inner.normalizer = normalizer
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    return inner


def _words(options: TokenizerOptions, texts: Iterable[str], names: dict[str, str]) -> Inner:
    """Words between spaces, and line ends, as word perplexities count them.

    Counted here, since the package's trainer gives a second id to a special token that occurs in the text.
    """
    normalizer, splitter = _normalizer(options), pre_tokenizers.Split(Regex(r"\n|\S+"), behavior="removed", invert=True)
    counts: Counter[str] = Counter()
    for line in chain.from_iterable(text.splitlines(keepends=True) for text in _some(texts)):
        plain = line if normalizer is None else normalizer.normalize_str(line)
        counts.update(word for word, _ in splitter.pre_tokenize_str(plain))
    kept = [word for word, count in counts.items() if count >= options.frequency and word not in names.values()]
    kept.sort(key=lambda word: (-counts[word], word))
    room = options.size - len(names)
    if room < 1:
        raise InvalidOption(f"size is {options.size}, and there are {len(names)} special tokens")
    vocabulary = {name: number for number, name in enumerate([*names.values(), *kept[:room]])}
    inner = Inner(models.WordLevel(vocabulary, unk_token=names["unk"]))
    inner.normalizer, inner.pre_tokenizer = normalizer, splitter
    return inner


def _learned(options: TokenizerOptions, texts: Iterable[str], names: dict[str, str]) -> Inner:
    specials = list(names.values())
    trainer: trainers.Trainer
    if options.kind == "bpe":
        if options.size < 256 + len(specials):
            raise InvalidOption(f"size is {options.size}, and bytes and special tokens alone are {256 + len(specials)}")
        inner = Inner(models.BPE())
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=options.size,
            min_frequency=options.frequency,
            special_tokens=specials,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif options.kind == "wordpiece":
        inner = Inner(models.WordPiece(unk_token=names["unk"], max_input_chars_per_word=100))
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(
            vocab_size=options.size, min_frequency=options.frequency, special_tokens=specials, show_progress=False
        )
    else:
        inner = Inner(models.Unigram())
        inner.pre_tokenizer = pre_tokenizers.Metaspace()
        inner.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=options.size, special_tokens=specials, unk_token=names["unk"], show_progress=False
        )
    inner.normalizer = _normalizer(options)
    try:
        inner.train_from_iterator(_some(texts), trainer)
    except (InvalidInput, OSError, MemoryError):
        raise
    except Exception as error:  # the package raises no narrower one
        raise InvalidOption(f"no vocabulary of {options.size} can be learned from the text: {error}") from None
    if inner.get_vocab_size() > options.size:
        raise InvalidOption(
            f"size is {options.size}, and the text's letters and special tokens alone are {inner.get_vocab_size()}"
        )
    return _rounded(inner) if options.kind == "unigram" else inner


def _rounded(inner: Inner) -> Inner:
    """Rounds scores: the package misreads the last digit of long ones, and a saved file must load unchanged."""
    record = json.loads(inner.to_str())
    record["model"]["vocab"] = [[piece, round(score, 6)] for piece, score in record["model"]["vocab"]]
    return Inner.from_str(json.dumps(record))


def _some(texts: Iterable[str]) -> Iterable[str]:
    empty = True
    for text in texts:
        empty = empty and not text.strip()
        yield sound(text)
    if empty:
        raise InvalidInput("the text is empty: there is nothing to learn a tokenizer from")


def _around(inner: Inner, names: dict[str, str]) -> None:
    """Adds [CLS] A [SEP] B [SEP] around texts, as BERT does; other kinds add nothing."""
    if "cls" in names:
        cls, sep = names["cls"], names["sep"]
        inner.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(cls, inner.token_to_id(cls)), (sep, inner.token_to_id(sep))],
        )


__all__ = ["KINDS", "TokenizerOptions", "learn"]
