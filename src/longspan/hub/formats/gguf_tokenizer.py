"""Build tokenizers from GGUF metadata, or from pieces with scores (SentencePiece)."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from longspan.data.tokenizers.sentencepiece import LONGEST, check_lengths
from longspan.errors import InvalidInput, Unsupported

# GGUF's types of tokens
NORMAL, UNKNOWN, CONTROL, ADDED, UNUSED, BYTE = range(1, 7)
SPACE = "▁"
NEVER = -1e6  # the score of tokens that no merge makes
NO_MERGES = "no_merges"  # our files say with this key that there are no merges: GGUF has no empty lists
WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
# Pre-tokenizers, by llama.cpp's names.
GPT2 = ("gpt-2", "gpt2", "default", "mpt", "olmo", "jais", "phi-2")
DIGITS = ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone")
LLAMA3 = ("llama-bpe", "llama3", "llama-v3", "falcon3")
QWEN2 = ("qwen2", "deepseek-r1-qwen")


def build(metadata: Mapping[str, Any], where: Path | str) -> Tokenizer:
    """The tokenizer that GGUF metadata describes; errors name `where`."""
    entries = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if "tokens" not in entries:
        raise InvalidInput(f"{where} has no tokenizer: it lacks tokenizer.ggml.tokens")
    tokens = _list(entries, "tokens", where)
    for number, token in enumerate(tokens):
        if not isinstance(token, str) or len(token) > LONGEST:
            raise InvalidInput(f"{where}: token {number} must be a text of at most {LONGEST:,} letters")
    kind = entries.get("model")
    if kind == "gpt2":
        tokenizer = _byte_level(entries, where)
    elif kind == "llama":
        scores = _list(entries, "scores", where)
        if len(scores) != len(tokens) or not all(isinstance(score, float) and math.isfinite(score) for score in scores):
            raise InvalidInput(f"{where}: tokenizer.ggml.scores must be {len(tokens)} numbers, one for each token")
        tokenizer = from_pieces(tokens, scores, prefix=bool(entries.get("add_space_prefix", True)))
    else:
        raise Unsupported(f"{where}: tokenizer.ggml.model is {kind!r}; it can be gpt2 or llama")
    types = _list(entries, "token_type", where) if "token_type" in entries else []
    special = (CONTROL, UNKNOWN) if kind == "llama" else (CONTROL,)
    # All in one call: the package rebuilds its search whenever tokens are added.
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, how in zip(tokens, types) if how in special]
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token, how in zip(tokens, types) if how == ADDED])
    begins = kind == "llama" or entries.get("pre") in LLAMA3
    bos = entries.get("bos_token_id") if entries.get("add_bos_token", begins) else None
    eos = entries.get("eos_token_id") if entries.get("add_eos_token", False) else None
    for name, token_id in (("bos", bos), ("eos", eos)):
        if token_id is not None and not (isinstance(token_id, int) and 0 <= token_id < len(tokens)):
            raise InvalidInput(f"{where}: {name}_token_id is {token_id!r}, and there are {len(tokens)} tokens")
    _surround(tokenizer, tokens, bos, eos)
    return tokenizer


def from_pieces(pieces: Sequence[str], scores: Sequence[float], *, prefix: bool = True) -> Tokenizer:
    """SentencePiece's BPE: of all adjacent pairs that make a piece, the one with the best score is merged first.

    With `prefix` a text begins with a space. Unknown characters are spelled in bytes, `<0x00>` to `<0xFF>`.
    """
    check_lengths(pieces)
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for token in sorted(range(len(pieces)), key=lambda number: -scores[number]):
        if scores[token] <= NEVER:
            break
        piece = pieces[token]
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        pairs = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
        merges.extend(sorted(pairs, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]])))
    unknown = next((piece for piece in ("<unk>",) if piece in vocabulary), None)
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    return tokenizer


def _byte_level(metadata: Mapping[str, Any], where: Path | str) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(metadata["tokens"])}
    merges = []
    for line in [] if _without_merges(metadata) else _list(metadata, "merges", where):
        if not isinstance(line, str):
            raise InvalidInput(f"{where}: tokenizer.ggml.merges must be texts, and {line!r:.60} is among them")
        first, _, second = line.partition(" ")
        merges.append((first, second))
    pre = metadata.get("pre", "default")
    try:
        tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in LLAMA3))
    except Exception as error:  # of tokenizers, which has no narrower one
        raise InvalidInput(f"{where}: its merges do not fit its tokens: {error}") from None
    tokenizer.pre_tokenizer = splitter(pre, where)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def splitter(name: str, where: Path | str) -> Any:
    """The pre-tokenizer of a name."""
    if name in GPT2:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in DIGITS:
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if name not in (*LLAMA3, *QWEN2):
        known = ", ".join((*GPT2, *DIGITS, *LLAMA3, *QWEN2))
        raise Unsupported(f"{where}: tokenizer.ggml.pre is {name!r}; it can be one of {known}")
    numbers = r"\p{N}{1,3}" if name in LLAMA3 else r"\p{N}"
    cut = pre_tokenizers.Split(Regex(WORDS + numbers + REST), "isolated")
    return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _without_merges(metadata: Mapping[str, Any]) -> bool:
    """Whether a tokenizer needs no merges; a file that lacks merges that it needs is incomplete."""
    if "merges" in metadata:
        return False
    types = metadata.get("token_type") or [NORMAL] * len(metadata["tokens"])
    single = all(len(token) == 1 for token, how in zip(metadata["tokens"], types) if how == NORMAL)
    return single or bool(metadata.get(NO_MERGES))


def _list(metadata: Mapping[str, Any], key: str, where: Path | str) -> list[Any]:
    value = metadata.get(key)
    if not isinstance(value, list):
        raise InvalidInput(f"{where} lacks tokenizer.ggml.{key}, which its kind of tokenizer needs")
    return value


def _surround(tokenizer: Tokenizer, tokens: Sequence[str], bos: int | None, eos: int | None) -> None:
    """Sets the tokens that texts begin and end with."""
    before = [] if bos is None else [tokens[bos]]
    after = [] if eos is None else [tokens[eos]]
    if before or after:
        named = [(tokens[number], number) for number in {bos, eos} if number is not None]
        tokenizer.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)],
            special_tokens=named,
        )


__all__ = ["build", "from_pieces", "splitter"]
