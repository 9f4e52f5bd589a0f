"""Write a tokenizer as GGUF metadata, the inverse of `gguf_tokenizer.build`."""

import json
import re
from typing import Any

from longspan.data import Tokenizer
from longspan.errors import Unsupported
from longspan.hub.formats.gguf_tokenizer import (
    ADDED,
    BYTE,
    CONTROL,
    NEVER,
    NO_MERGES,
    NORMAL,
    UNKNOWN,
    UNUSED,
    splitter,
)

PREFIX, CHAT = "tokenizer.ggml.", "tokenizer.chat_template"
SPLITTERS = ("gpt-2", "smollm", "llama-bpe", "qwen2")  # one name for each pre-tokenizer


def metadata(tokenizer: Tokenizer, rows: int) -> dict[str, Any]:
    """Tokens, their types and merges; a model with more `rows` gets unused tokens at the end."""
    record = json.loads(tokenizer.to_json())
    model = record["model"]
    if model["type"] != "BPE":
        raise Unsupported(f"a GGUF file holds tokenizers that merge pairs (BPE), and this is {model['type']}")
    words = {number: word for word, number in model["vocab"].items()}
    words.update((token["id"], token["content"]) for token in record["added_tokens"])
    tokens = [words.get(number, f"[PAD{number}]") for number in range(max(rows, tokenizer.size))]
    kinds = {token["id"]: CONTROL if token["special"] else ADDED for token in record["added_tokens"]}
    if tokenizer.unk is not None and model["byte_fallback"]:
        kinds[tokenizer.unk] = UNKNOWN
    plain = [_kind(number, word, number in words, bool(model["byte_fallback"])) for number, word in enumerate(tokens)]
    merges = [pair if isinstance(pair, list) else pair.split(" ", 1) for pair in model["merges"]]
    entries: dict[str, Any] = {
        "tokens": tokens,
        "token_type": [kinds.get(number, kind) for number, kind in enumerate(plain)],
    }
    if model["byte_fallback"]:
        rank: dict[str, int] = {}
        for position, (left, right) in enumerate(merges):
            rank.setdefault(left + right, position)
        entries["scores"] = [float(-rank[word]) if word in rank else NEVER for word in tokens]
        entries["model"], entries["add_space_prefix"] = "llama", tokenizer.decode(tokenizer.encode(" ").ids) == " "
    else:
        entries["model"], entries["pre"] = "gpt2", _splitter(record["pre_tokenizer"])
        entries.update({"merges": [" ".join(pair) for pair in merges]} if merges else {NO_MERGES: True})
    around = tokenizer.encode("").ids
    for role, key in (("bos", "bos_token_id"), ("eos", "eos_token_id"), ("pad", "padding_token_id")):
        number = getattr(tokenizer, role)
        if number is not None:
            entries[key] = number
            if role != "pad":
                entries[f"add_{role}_token"] = number in around
    chat = tokenizer.record.get("chat_template")
    return {**{f"{PREFIX}{key}": value for key, value in entries.items()}, **({CHAT: chat} if chat else {})}


def _kind(number: int, word: str, known: bool, spelled: bool) -> int:
    if not known:
        return UNUSED
    return BYTE if spelled and re.fullmatch(r"<0x[0-9A-F]{2}>", word) else NORMAL


def _splitter(record: Any) -> str:
    for name in SPLITTERS:
        if json.loads(splitter(name, name).__getstate__()) == record:
            return name
    raise Unsupported(f"a GGUF file cannot say how this tokenizer cuts texts; it can be as {', '.join(SPLITTERS)}")


__all__ = ["CHAT", "PREFIX", "metadata"]
