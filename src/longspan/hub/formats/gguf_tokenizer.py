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
    said = {key.removeprefix("tokenizer.ggml."): value for key, value in metadata.items()}
    if "tokens" not in said:
        raise InvalidInput(f"{where} has no tokenizer: it lacks tokenizer.ggml.tokens")
    tokens = _list(said, "tokens", where)
    for number, token in enumerate(tokens):
        if not isinstance(token, str) or len(token) > LONGEST:
            raise InvalidInput(f"{where}: token {number} must be a text of at most {LONGEST:,} letters")
    kind = said.get("model")
    if kind == "gpt2":
        found = _byte_level(said, where)
    elif kind == "llama":
        scores = _list(said, "scores", where)
        if len(scores) != len(tokens) or not all(isinstance(one, float) and math.isfinite(one) for one in scores):
            raise InvalidInput(f"{where}: tokenizer.ggml.scores must be {len(tokens)} numbers, one for each token")
        found = from_pieces(tokens, scores, prefix=bool(said.get("add_space_prefix", True)))
    else:
        raise Unsupported(f"{where}: tokenizer.ggml.model is {kind!r}; it can be gpt2 or llama")
    types = _list(said, "token_type", where) if "token_type" in said else []
    special = (CONTROL, UNKNOWN) if kind == "llama" else (CONTROL,)
    # All in one call: the package rebuilds its search whenever tokens are added.
    found.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token, how in zip(tokens, types) if how in special]
    )
    found.add_tokens([AddedToken(token, normalized=False) for token, how in zip(tokens, types) if how == ADDED])
    begins = kind == "llama" or said.get("pre") in LLAMA3
    bos = said.get("bos_token_id") if said.get("add_bos_token", begins) else None
    eos = said.get("eos_token_id") if said.get("add_eos_token", False) else None
    for name, given in (("bos", bos), ("eos", eos)):
        if given is not None and not (isinstance(given, int) and 0 <= given < len(tokens)):
            raise InvalidInput(f"{where}: {name}_token_id is {given!r}, and there are {len(tokens)} tokens")
    _surround(found, tokens, bos, eos)
    return found


def from_pieces(pieces: Sequence[str], scores: Sequence[float], *, prefix: bool = True) -> Tokenizer:
    """SentencePiece's BPE: of all adjacent pairs that make a piece, the one with the best score is merged first.

    With `prefix` a text begins with a space. Unknown characters are spelled in bytes, `<0x00>` to `<0xFF>`.
    """
    check_lengths(pieces)
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    merges: list[tuple[str, str]] = []
    for token in sorted(range(len(pieces)), key=lambda each: -scores[each]):
        if scores[token] <= NEVER:
            break
        piece = pieces[token]
        cuts = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        parts = [cut for cut in cuts if cut[0] in vocabulary and cut[1] in vocabulary]
        merges.extend(sorted(parts, key=lambda cut: (vocabulary[cut[0]], vocabulary[cut[1]])))
    unknown = next((piece for piece in ("<unk>",) if piece in vocabulary), None)
    found = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = normalizers.Replace(" ", SPACE)
    found.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), spaces]) if prefix else spaces
    back = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    found.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    return found


def _byte_level(said: Mapping[str, Any], where: Path | str) -> Tokenizer:
    vocabulary = {token: number for number, token in enumerate(said["tokens"])}
    merges = []
    for line in [] if _without_merges(said) else _list(said, "merges", where):
        if not isinstance(line, str):
            raise InvalidInput(f"{where}: tokenizer.ggml.merges must be texts, and {line!r:.60} is among them")
        first, _, second = line.partition(" ")
        merges.append((first, second))
    pre = said.get("pre", "default")
    try:
        found = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in LLAMA3))
    except Exception as error:  # of tokenizers, which has no narrower one
        raise InvalidInput(f"{where}: its merges do not fit its tokens: {error}") from None
    found.pre_tokenizer = splitter(pre, where)
    found.decoder = decoders.ByteLevel()
    return found


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


def _without_merges(said: Mapping[str, Any]) -> bool:
    """Whether a tokenizer needs no merges; a file that lacks merges that it needs is incomplete."""
    if "merges" in said:
        return False
    types = said.get("token_type") or [NORMAL] * len(said["tokens"])
    single = all(len(token) == 1 for token, how in zip(said["tokens"], types) if how == NORMAL)
    return single or bool(said.get(NO_MERGES))


def _list(said: Mapping[str, Any], key: str, where: Path | str) -> list[Any]:
    found = said.get(key)
    if not isinstance(found, list):
        raise InvalidInput(f"{where} lacks tokenizer.ggml.{key}, which its kind of tokenizer needs")
    return found


def _surround(found: Tokenizer, tokens: Sequence[str], bos: int | None, eos: int | None) -> None:
    """Sets the tokens that texts begin and end with."""
    before = [] if bos is None else [tokens[bos]]
    after = [] if eos is None else [tokens[eos]]
    if before or after:
        named = [(tokens[number], number) for number in {bos, eos} if number is not None]
        found.post_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *(f"{token}:1" for token in before), "$B:1", *(f"{t}:1" for t in after)],
            special_tokens=named,
        )


__all__ = ["build", "from_pieces", "splitter"]
