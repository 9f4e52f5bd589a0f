"""Small valid files of tokenizers, in every format that is read."""

import json
import struct
from collections.abc import Sequence
from pathlib import Path

from longspan.data.tokenizers.learn import TokenizerOptions, learn

CONTROLS = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]

UNIGRAM = [("▁", -2.0, 1), ("▁the", -3.0, 1), ("▁low", -4.5, 1), ("er", -3.5, 1), ("fox", -5.0, 1), ("jumps", -5.5, 1)]

BPE = [("▁", -1.0, 1), ("t", -2.0, 1), ("h", -3.0, 1), ("th", -4.0, 1), ("e", -5.0, 1), ("the", -6.0, 1)]

BYTES = [(f"<0x{byte:02X}>", 0.0, 6) for byte in range(256)]


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def entry(number: int, value: bytes | int | float) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def charsmap(key: str, value: str) -> bytes:
    """A compiled map of one character: the trie of Darts, whose offset, label and leaf are packed into 32 bits."""
    trie = [0] * 512
    trie[0] = 256 << 10
    child = 256 ^ ord(key)
    trie[child] = 1 << 10 | 1 << 8 | ord(key)
    trie[child ^ 1] = 1 << 31
    packed = struct.pack("<512I", *trie)
    return struct.pack("<I", len(packed)) + packed + value.encode() + b"\0"


def sentencepiece(path: Path, pieces: Sequence[tuple[str, float, int]], trainer: bytes = b"") -> None:
    path.parent.mkdir(exist_ok=True)
    rows = [entry(1, entry(1, text.encode()) + entry(2, score) + entry(3, kind)) for text, score, kind in pieces]
    path.write_bytes(b"".join(rows) + entry(2, trainer) + entry(3, entry(2, charsmap("Q", "q")) + entry(3, 1)))


def byte_pairs(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    ids = {
        token: number for number, token in enumerate(["<|endoftext|>", "t", "h", "e", "th", "the", "Ġ", "f", "o", "x"])
    }
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("#version: 0.2\nt h\nth e\n")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "GPT2Tokenizer", "add_bos_token": True})
    )


def whole_words(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\nthe\nfox\n.\nCl\n")


def learned(folder: Path) -> None:
    found = learn(TokenizerOptions(kind="wordpiece", size=80, frequency=1), ["the lower fox jumps over"])
    folder.mkdir(exist_ok=True)
    found.save(folder)
    (folder / "added_tokens.json").write_text(json.dumps({"dog": found.size}))


def unigram(folder: Path) -> None:
    sentencepiece(folder / "spiece.model", [*CONTROLS, *UNIGRAM])
    (folder / "config.json").write_text(json.dumps({"model_type": "albert"}))


def bpe(folder: Path) -> None:
    sentencepiece(folder / "tokenizer.model", [*CONTROLS, *BYTES, *BPE], entry(3, 2) + entry(35, 1))
    (folder / "config.json").write_text(json.dumps({"model_type": "llama"}))
