"""Build tokenizers from vocabulary files: WordPiece, BPE and SentencePiece, each as its family uses it."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from longspan.data.files import read_json, read_text
from longspan.data.tokenizers import sentencepiece
from longspan.data.tokenizers.sentencepiece import SPACE, SentencePiece
from longspan.errors import InvalidInput

MOST_IDS = sentencepiece.MOST_PIECES  # more than any model has rows

# WordPiece


def words(path: Path, record: Mapping[str, Any], config: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """WordPiece or whole tokens, from vocab.txt; the model's configuration may say that text is lower-cased."""
    lines = read_text(path).split("\n")
    listed = [line.rstrip("\r") for line in (lines[:-1] if lines[-1] == "" else lines)]
    if not listed:
        raise InvalidInput(f"{path} is empty; expected a token on each line")
    ids: dict[str, int] = {}
    for number, word in enumerate(listed):
        if ids.setdefault(word, number) != number:
            raise InvalidInput(f"{path}, line {number + 1}: {word!r} is already on line {ids[word] + 1}")
    unknown = content(record.get("unk_token", "[UNK]"))
    if unknown not in ids:
        raise InvalidInput(f"{path} has no {unknown}, the token for what is not in it")
    plain = [word for word in listed if not (word.startswith("[") and word.endswith("]"))]
    if "tokenizer_class" not in record and not any(word.startswith("##") for word in plain):
        return _whole_tokens(ids, unknown)
    lower = record.get("do_lower_case")
    if lower is None:
        # Hugging Face's default is yes; then a vocabulary with capitals could never match.
        lower = config.get("do_lower_case", all(word == word.lower() for word in plain))
    inner = tokenizers.Tokenizer(models.WordPiece(ids, unk_token=unknown))
    inner.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=record.get("tokenize_chinese_chars", True),
        strip_accents=record.get("strip_accents"),
        lowercase=bool(lower),
    )
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.decoder = decoders.WordPiece(prefix="##")
    return inner


def _whole_tokens(ids: dict[str, int], unknown: str) -> tokenizers.Tokenizer:
    """A vocabulary without `##` continuations (atoms, residues, characters): the longest match is taken."""
    inner = tokenizers.Tokenizer(models.WordLevel(ids, unk_token=unknown))
    longest = sorted((word for word in ids if word and not word.isspace()), key=len, reverse=True)
    either = "|".join(_escaped(word) for word in longest)
    inner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(either), "isolated")]
    )
    inner.decoder = decoders.Fuse()
    return inner


def _escaped(word: str) -> str:
    return "".join(f"\\{letter}" if letter in r"\.^$|()[]{}*+?-#&~" else letter for letter in word)


# BPE


def pairs(vocabulary: Path, merges: Path, kind: str, record: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """BPE from vocab.json and merges.txt: of bytes or, for the first GPT, of characters."""
    ids = read_json(vocabulary)
    for word, number in ids.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < MOST_IDS:
            raise InvalidInput(f"{vocabulary}: {word!r:.60} must have an id, not {number!r:.60}")
    if len({*ids.values()}) < len(ids):
        counts = Counter(ids.values())
        twice = [word for word, number in ids.items() if counts[number] > 1]
        raise InvalidInput(f"{vocabulary}: {twice[0]!r:.60} and {len(twice) - 1} more have the id of another token")
    ranked = _merges(merges, ids, vocabulary)
    if kind == "openai-gpt":
        unknown = content(record.get("unk_token", "<unk>"))
        inner = tokenizers.Tokenizer(models.BPE(ids, ranked, unk_token=unknown, end_of_word_suffix="</w>"))
        inner.normalizer = normalizers.BertNormalizer(lowercase=True)
        inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        inner.decoder = decoders.BPEDecoder(suffix="</w>")
        return inner
    prefix = bool(record.get("add_prefix_space", False))
    inner = tokenizers.Tokenizer(models.BPE(ids, ranked))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    inner.decoder = decoders.ByteLevel()
    return inner


def _merges(path: Path, ids: Mapping[str, int], vocabulary: Path) -> list[tuple[str, str]]:
    merges = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        parts = line.rstrip("\r").split(" ")
        if len(parts) != 2 or not all(parts):
            raise InvalidInput(f"{path}, line {number}: expected two tokens with a space between, got {line!r}")
        for token in (*parts, "".join(parts)):
            if token not in ids:
                raise InvalidInput(f"{path}, line {number}: {token!r} is not in {vocabulary.name}")
        merges.append((parts[0], parts[1]))
    return merges


# SentencePiece


def pieces(path: Path, kind: str, record: Mapping[str, Any]) -> tokenizers.Tokenizer:
    """A SentencePiece file, with the ids and the normalisation of a family."""
    pieces = sentencepiece.read_pieces(path)
    ordered, unk = _numbered(pieces.pieces, pieces.unk, kind)
    prefix = bool(record.get("add_prefix_space", pieces.prefix)) if kind == "llama" else pieces.prefix
    if pieces.kind == sentencepiece.BPE:
        ids = {piece.text: number for number, piece in enumerate(ordered)}
        model: Any = models.BPE(
            ids, pieces.merges, unk_token=ordered[unk].text, fuse_unk=True, byte_fallback=pieces.byte_fallback
        )
    else:
        scored = [(piece.text, piece.score) for piece in ordered]
        model = models.Unigram(scored, unk_id=unk, byte_fallback=pieces.byte_fallback)
    inner = tokenizers.Tokenizer(model)
    steps: list[Any] = _albert(record) if kind == "albert" else []
    if pieces.characters:
        try:
            steps.append(normalizers.Precompiled(pieces.characters))
        except Exception as error:  # the package raises no narrower one
            raise InvalidInput(f"{path}: precompiled_charsmap cannot be read: {error}") from None
    if steps:
        inner.normalizer = normalizers.Sequence(steps)
    scheme = "never" if not prefix else "always" if pieces.squeeze or record.get("legacy") else "first"
    # Pieces that contain spaces, such as runs of spaces, need the text in one.
    apart = not any(SPACE in piece.text[1:] for piece in ordered)
    spaces = pre_tokenizers.Metaspace(SPACE, prepend_scheme=scheme, split=apart)
    words = [pre_tokenizers.WhitespaceSplit(), spaces] if pieces.squeeze else [spaces]
    inner.pre_tokenizer = pre_tokenizers.Sequence(words) if len(words) > 1 else spaces
    if pieces.byte_fallback:
        back: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        inner.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if prefix else back)
    else:
        inner.decoder = decoders.Metaspace(SPACE, prepend_scheme=scheme)
    # All in one call: the package rebuilds its search whenever tokens are added.
    controls = [piece.text for piece in ordered if piece.kind == sentencepiece.CONTROL]
    inner.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in controls])
    defined = [piece.text for piece in ordered if piece.kind == sentencepiece.USER_DEFINED]
    inner.add_tokens([AddedToken(token, normalized=False) for token in defined])
    return inner


# The languages of mBART (Liu et al. 2020) and mBART-50 (Tang et al. 2020), in the order of their ids after all pieces.
_MBART = (  # noqa: SIM905  (25 short literals are harder to read)
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT lv_LV my_MM ne_NP nl_XX "
    "ro_RO ru_RU si_LK tr_TR vi_VN zh_CN"
).split()
_MBART_50 = (  # noqa: SIM905
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF pt_XX sv_SE sw_KE ta_IN "
    "te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI"
).split()
LANGUAGES = {"mbart": _MBART, "mbart50": [*_MBART, *_MBART_50]}


def _numbered(pieces: list[SentencePiece], unk: int, kind: str) -> tuple[list[SentencePiece], int]:
    """The pieces in the order of a family's ids: fairseq's models put four special tokens first."""
    if kind == "camembert":
        first = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>"]
        special = [*map(_control, first), SentencePiece("<unk>NOTUSED", -100.0)]
        return [*special, *(piece for number, piece in enumerate(pieces) if number != unk), _control("<mask>")], 3
    if kind == "xlm-roberta":
        return [*map(_control, ["<s>", "<pad>", "</s>", "<unk>"]), *pieces[3:], _control("<mask>")], 3
    if kind in LANGUAGES:
        controls = [*map(_control, LANGUAGES[kind]), _control("<mask>")]
        return [*map(_control, ["<s>", "<pad>", "</s>", "<unk>"]), *pieces[3:], *controls], 3
    return pieces, unk


def _control(text: str) -> SentencePiece:
    return SentencePiece(text, 0.0, sentencepiece.CONTROL)


def _albert(record: Mapping[str, Any]) -> list[Any]:
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not record.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if record.get("do_lower_case", True) else steps


def content(value: Any) -> str:
    """The text of a token, which files give as a string or as an object with `content`."""
    return str(value["content"]) if isinstance(value, dict) and "content" in value else str(value)


__all__ = ["LANGUAGES", "MOST_IDS", "content", "pairs", "pieces", "words"]
