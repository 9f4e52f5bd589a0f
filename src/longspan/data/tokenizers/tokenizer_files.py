"""Read the tokenizer of a folder, from whatever files it has, so that it works as the family's own.

In this order: `tokenizer.json`; `vocab.txt` (WordPiece, or whole tokens); `vocab.json` and `merges.txt`,
in the first releases `encoder.json` and `vocab.bpe` (BPE); a file of SentencePiece.
"""

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, processors

from longspan.data.files import read_json, read_text
from longspan.data.tokenizers import vocabularies
from longspan.data.tokenizers.tokenizer import CONFIG, FILE, ROLES, Tokenizer
from longspan.errors import InvalidInput
from longspan.parsing import refusing

MAP, ADDED, MODEL = "special_tokens_map.json", "added_tokens.json", "config.json"
WORDS, BPE_FILES = "vocab.txt", (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
CHAT = "chat_template.jinja"
SENTENCEPIECE = ("spiece.model", "tokenizer.model", "sentencepiece.bpe.model", "spm.model")
MOST_WORK = 10**6  # added tokens times the calls that add them
PICKLES = {".pkl", ".pickle", ".pt", ".pth"}

Roles = dict[str, str | AddedToken]

# The mask includes the space before it, so that the next token is spelled as after a word.
ANGLES: Roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>"}
ROBERTA: Roles = {**ANGLES, "mask": AddedToken("<mask>", lstrip=True, special=True)}
BERT: Roles = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
BRACKETS: Roles = {**BERT, "unk": "<unk>", "pad": "<pad>"}
# Special tokens by `model_type`, for folders that do not name them.
SPECIAL: dict[str, Roles] = {
    "bert": BERT,
    "gpt2": {"bos": "<|endoftext|>", "eos": "<|endoftext|>", "unk": "<|endoftext|>"},
    "openai-gpt": {"unk": "<unk>"},
    "roberta": ROBERTA,
    "camembert": ROBERTA,
    "xlm-roberta": ROBERTA,
    "mbart": ROBERTA,
    "mbart50": ROBERTA,
    "albert": {**BRACKETS, "bos": "[CLS]", "eos": "[SEP]"},
    "big_bird": {**BRACKETS, "bos": "<s>", "eos": "</s>"},
    "reformer": {"eos": "</s>", "unk": "<unk>"},
    "llama": {"bos": "<s>", "eos": "</s>", "unk": "<unk>"},
}
SAME = {"distilbert": "bert", "electra": "bert", "bart": "roberta", "longformer": "roberta", "led": "roberta"}
# Common names of special tokens, for files that give them no roles.
USUAL: dict[str, tuple[str, ...]] = {
    "bos": ("<s>", "<bos>", "[BOS]", "<|begin_of_text|>", "<|startoftext|>", "<|endoftext|>"),
    "eos": ("</s>", "<eos>", "[EOS]", "<|end_of_text|>", "<|endoftext|>"),
    "unk": ("<unk>", "[UNK]"),
    "sep": ("[SEP]", "<sep>"),
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "cls": ("[CLS]", "<cls>"),
    "mask": ("[MASK]", "<mask>"),
}


def read_tokenizer(folder: Path | str) -> Tokenizer | None:
    """The tokenizer of a folder, or None."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InvalidInput(f"{folder} is no folder")
    with refusing(folder, "has a tokenizer that cannot be read"):
        return _read_tokenizer(folder)


def _read_tokenizer(folder: Path) -> Tokenizer | None:
    record = read_json(folder / CONFIG)
    if (folder / CHAT).is_file():
        record["chat_template"] = read_text(folder / CHAT)
    named = {**read_json(folder / MAP), **record}
    kind = _family(folder, record)
    inner = _read(folder, kind, named)
    if inner is None:
        pickles = [path.name for path in sorted(folder.iterdir()) if path.suffix in PICKLES and "token" in path.name]
        if pickles:
            raise InvalidInput(f"{folder / pickles[0]} is a pickle, which can run code and is never read")
        return None
    special = _special(folder, kind, named, inner)
    _add_tokens(folder, record, inner)
    found = Tokenizer(inner, special, record)
    if found.size > vocabularies.MOST_IDS:
        raise InvalidInput(f"{folder}: a token has the id {found.size - 1}; ids below {vocabularies.MOST_IDS} can be")
    from_vocabulary = not (folder / FILE).is_file()  # tokenizer.json says itself what goes around a text
    if from_vocabulary or (_says_ends(record) and found.cls is None):
        # Defaults of the families: Llama's texts begin with a token, GPT's do not.
        ends = record.get("add_bos_token", kind == "llama"), record.get("add_eos_token", False)
        _put_around(found, kind, bos=bool(ends[0]), eos=bool(ends[1]))
    return found


def _read(folder: Path, kind: str, record: Mapping[str, Any]) -> tokenizers.Tokenizer | None:
    if (folder / FILE).is_file():
        return read_inner(folder / FILE)
    if (folder / WORDS).is_file():
        return vocabularies.words(folder / WORDS, record, read_json(folder / MODEL))
    for vocabulary, merges in BPE_FILES:
        if (folder / vocabulary).is_file():
            if not (folder / merges).is_file():
                raise InvalidInput(f"{folder} has {vocabulary} and no {merges}, which belongs to it")
            return vocabularies.pairs(folder / vocabulary, folder / merges, kind, record)
    for name in SENTENCEPIECE:
        if (folder / name).is_file():
            return vocabularies.pieces(folder / name, kind, record)
    return None


def read_inner(path: Path) -> tokenizers.Tokenizer:
    """The tokenizer of a file in the package's own format."""
    text = read_text(path)
    with refusing(path, "is no tokenizer"):
        return tokenizers.Tokenizer.from_str(text)


# Special tokens


def _special(folder: Path, kind: str, named: Mapping[str, Any], inner: tokenizers.Tokenizer) -> Roles:
    """The token of each role: from the files, from the family, or by its common names."""
    found = {
        role: token for role, token in SPECIAL.get(kind, {}).items() if inner.token_to_id(_name(token)) is not None
    }
    told = {role: named[f"{role}_token"] for role in ROLES if f"{role}_token" in named}
    if not found and not told:
        known = {token.content for token in inner.get_added_tokens_decoder().values() if token.special}
        here = {role: [name for name in names if name in known] for role, names in USUAL.items()}
        return {role: names[0] for role, names in here.items() if names}
    for role, value in told.items():
        found.pop(role, None)
        if value is not None:
            found[role] = _token(value, folder)
    return found


def _name(token: str | AddedToken) -> str:
    return token if isinstance(token, str) else token.content


def _token(value: Any, folder: Path) -> str | AddedToken:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        flags = {key: bool(value[key]) for key in ("single_word", "lstrip", "rstrip", "normalized") if key in value}
        return AddedToken(value["content"], special=True, **flags)
    raise InvalidInput(f"{folder}: a special token must be a text or have a content, not {value!r}")


def _add_tokens(folder: Path, record: Mapping[str, Any], inner: tokenizers.Tokenizer) -> None:
    """Adds the tokens that were added to the vocabulary later."""
    listed = {text: (number, False) for text, number in read_json(folder / ADDED).items()}
    for number, value in dict(record.get("added_tokens_decoder") or {}).items():
        special = bool(isinstance(value, dict) and value.get("special"))
        listed[vocabularies.content(value)] = (int(number), special)
    new = [item for item in listed.items() if inner.token_to_id(item[0]) is None]
    runs = groupby(sorted(new, key=lambda item: item[1][0]), key=lambda item: item[1][1])
    # In the order of their ids, in as few calls as possible: each call scans all tokens that were added before.
    for count, (special, run) in enumerate(runs):
        tokens = [AddedToken(text, special=special, normalized=not special) for text, _ in run]
        if count * len(listed) > MOST_WORK:
            raise InvalidInput(f"{folder}: {len(listed)} added tokens, special ones and others in turns, are too many")
        inner.add_special_tokens(tokens) if special else inner.add_tokens(tokens)
    for text, (number, _) in listed.items():
        if inner.token_to_id(text) != number:
            where = inner.token_to_id(text)
            raise InvalidInput(f"{folder}: the added token {text!r} is said to have the id {number}, and has {where}")


def _says_ends(record: Mapping[str, Any]) -> bool:
    return "add_bos_token" in record or "add_eos_token" in record


def _put_around(found: Tokenizer, kind: str, *, bos: bool, eos: bool) -> None:
    """Sets the tokens around a text and between two, as each family has them."""
    first, last = found.special.get("cls"), found.special.get("sep")
    if first is not None and last is not None and kind in ("roberta", "camembert", "xlm-roberta"):
        single, pair = f"{first}:0 $A:0 {last}:0", f"{first}:0 $A:0 {last}:0 {last}:0 $B:0 {last}:0"
    elif last is not None and kind in vocabularies.LANGUAGES:
        first = str(found.record.get("src_lang") or "en_XX")  # the language of the source
        single, pair = (
            f"{first} {text} {last}" if kind == "mbart50" else f"{text} {last} {first}" for text in ("$A", "$A $B")
        )
    elif first is not None and last is not None:
        single, pair = f"{first}:0 $A:0 {last}:0", f"{first}:0 $A:0 {last}:0 $B:1 {last}:1"
    else:
        first = found.special.get("bos") if bos else None
        last = found.special.get("eos") if eos else None
        before, after = f"{first}:%d " if first else "", f" {last}:%d" if last else ""
        one, two = (f"{before}${text}:%d{after}".replace("%d", str(kind)) for kind, text in enumerate("AB"))
        single, pair = one, f"{one} {two}"
    used = {token: found.id(token) for token in (first, last) if token is not None}
    found.inner.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=list(used.items())
    )


def _family(folder: Path, record: Mapping[str, Any]) -> str:
    """The `model_type` that the tokenizer belongs to: from its own configuration, or else the model's."""
    named = str(record.get("tokenizer_class", "")).removesuffix("Fast").removesuffix("Tokenizer").lower()
    alike = {name.replace("-", "").replace("_", ""): name for name in (*SPECIAL, *SAME)}
    found = alike.get(named) or str(read_json(folder / MODEL).get("model_type", ""))
    return SAME.get(found, found) or _by_files(folder)


def _by_files(folder: Path) -> str:
    """A guess from file names, for a folder without configuration."""
    if (folder / WORDS).is_file():
        return "bert"
    for name, _ in BPE_FILES:
        if (folder / name).is_file():
            return "roberta" if "<mask>" in read_json(folder / name) else "gpt2"
    return ""


__all__ = ["read_inner", "read_tokenizer"]
