"""Tokenizers that are learned from text: byte-level BPE, WordPiece, Unigram; and bytes and characters, which need none.

The pieces of WordPiece are learned as by BPE, by how often two stand together; the first WordPiece (Schuster & Nakajima
2012) took the pair that made the text likelier, freq(ab) / (freq(a) freq(b)). How a text is then cut is the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Inner

from longspan import config
from longspan.config import option
from longspan.data.tokenizer import Tokenizer
from longspan.errors import InvalidInput

KINDS = ("bytes", "characters", "bpe", "wordpiece", "unigram")
# The names that each kind's families gave their special tokens.
BERT = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
PLAIN = {"pad": "<pad>", "unk": "<unk>", "bos": "<s>", "eos": "</s>", "mask": "<mask>"}


@dataclass(frozen=True, kw_only=True)
class Learned(config.Options):
    """What is learned, of a recipe's table `[task.tokenizer]`."""

    kind: str = option("bpe", "how text is cut", choices=KINDS)
    size: int = option(8000, "tokens of the vocabulary, where it is learned", low=1)
    lowercase: bool = option(False, "whether upper case is made lower, and accents are dropped")
    frequency: int = option(2, "how often a pair must be seen to be merged", low=1)
    special: bool = option(True, "whether there are tokens for beginning, end, padding and mask")


def learn(options: Learned, texts: Iterable[str]) -> Tokenizer:
    """A tokenizer for texts like these."""
    names = (BERT if options.kind == "wordpiece" else PLAIN) if options.special else {}
    if options.kind == "bytes":
        names = {role: name for role, name in names.items() if role != "unk"}  # nothing is unknown
        inner = _bytes(list(names.values()))
    elif options.kind == "characters":
        inner = _characters(texts, names)
    else:
        inner = _learned(options, texts, names)
    if options.lowercase:
        inner.normalizer = normalizers.Sequence(
            [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
        )
    inner.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names.values()])
    _around(inner, names)
    return Tokenizer(inner, names)


def _bytes(specials: list[str]) -> Inner:
    """Ids are the byte's value and the number of special tokens, which come first."""
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


def _characters(texts: Iterable[str], names: dict[str, str]) -> Inner:
    seen: set[str] = set()
    for text in texts:
        seen.update(text)
    if not seen:
        raise InvalidInput("the text is empty: there are no characters to learn")
    vocabulary = {name: number for number, name in enumerate([*names.values(), *sorted(seen)])}
    inner = Inner(models.WordLevel(vocabulary, unk_token=names.get("unk", "<unk>")))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    inner.decoder = decoders.Fuse()
    return inner


def _learned(options: Learned, texts: Iterable[str], names: dict[str, str]) -> Inner:
    specials = list(names.values())
    trainer: trainers.Trainer
    if options.kind == "bpe":
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
        inner = Inner(models.WordPiece(unk_token=names.get("unk", "[UNK]"), max_input_chars_per_word=100))
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
            vocab_size=options.size, special_tokens=specials, unk_token=names.get("unk"), show_progress=False
        )
    if options.lowercase:
        inner.normalizer = normalizers.Sequence(
            [normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]
        )
    inner.train_from_iterator(_some(texts), trainer)
    return inner


def _some(texts: Iterable[str]) -> Iterable[str]:
    empty = True
    for text in texts:
        empty = empty and not text
        yield text
    if empty:
        raise InvalidInput("the text is empty: there is nothing to learn a tokenizer from")


def _around(inner: Inner, names: dict[str, str]) -> None:
    """What stands around texts: [CLS] A [SEP] B [SEP] as BERT has it; elsewhere nothing is added."""
    if "cls" in names:
        cls, sep = names["cls"], names["sep"]
        inner.post_processor = processors.TemplateProcessing(
            single=f"{cls} $A {sep}",
            pair=f"{cls} $A {sep} $B:1 {sep}:1",
            special_tokens=[(cls, inner.token_to_id(cls)), (sep, inner.token_to_id(sep))],
        )


__all__ = ["KINDS", "Learned", "learn"]
