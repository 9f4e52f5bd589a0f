"""Read SentencePiece model files (Kudo & Richardson 2018): the fields of the protocol buffer that tokenising needs.

Read by hand, not with the package `sentencepiece`: its processor does not give the character map, the kind of model or
the prefix and space flags that `tokenizers` needs; those are in its protocol buffer, which needs `protobuf` as well.
"""

import math
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from longspan.errors import InvalidInput, Unsupported
from longspan.parsing import check_size

SPACE = "▁"
MOST, MOST_PIECES = 1 << 28, 1 << 21  # bytes of a file, and pieces in it
LONGEST = 1024  # letters of a piece
WORK = 10**9  # letters of all cuts of all pieces: 250,000 of 16 letters have a sixteenth of that
UNIGRAM, BPE = 1, 2  # TrainerSpec.ModelType; 3 and 4 are words and characters
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # SentencePiece.Type
WRITTEN = (NORMAL, USER_DEFINED, UNUSED)  # what text can be made of
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """A token, its score (log-probability, or minus the rank of its merge) and its type."""

    text: str
    score: float = 0.0
    kind: int = NORMAL


@dataclass
class Pieces:
    """The content of a file; the defaults are those of `sentencepiece_model.proto`."""

    pieces: list[SentencePiece] = field(default_factory=list)
    kind: int = UNIGRAM
    byte_fallback: bool = False
    unk: int = 0
    characters: bytes = b""  # the compiled character map (precompiled_charsmap)
    prefix: bool = True  # add a space before the text
    squeeze: bool = True  # remove spaces at the ends and repeated spaces

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Pairs in the order of merging: best scores first, as SentencePiece's encoder does."""
        plain = {piece.text: number for number, piece in enumerate(self.pieces) if piece.kind in WRITTEN}
        check_lengths(plain)
        merges: list[tuple[float, str, str]] = []
        for text, number in plain.items():
            pairs = ((text[:at], text[at:]) for at in range(1, len(text)))
            known = [pair for pair in pairs if pair[0] in plain and pair[1] in plain]
            known.sort(key=lambda pair: (plain[pair[0]], plain[pair[1]]))
            merges.extend((self.pieces[number].score, *pair) for pair in known)
        merges.sort(key=lambda row: (row[0], len(row[1]), len(row[2])), reverse=True)
        return [(left, right) for _, left, right in merges]


def check_lengths(pieces: Iterable[str]) -> None:
    """Refuses pieces that are so long that trying all splits would take minutes."""
    if sum(len(piece) ** 2 for piece in pieces) > WORK:
        raise InvalidInput("the pieces of the tokenizer are too long together; real ones have about 16 letters")


def read_pieces(path: Path) -> Pieces:
    """The pieces and settings of a file."""
    check_size(path, MOST)
    data = path.read_bytes()
    if data[:64].split(b"\n")[0].endswith(b"== 0"):
        raise Unsupported(
            f"{path} is a file of tiktoken, which says only part of its tokenizer; it needs tokenizer.json"
        )
    pieces = Pieces()
    try:
        for number, value in _fields(data):
            if number == 1:
                pieces.pieces.append(_piece(_as_bytes(value)))
            elif number == 2:
                _trainer(pieces, _as_bytes(value))
            elif number == 3:
                _normaliser(pieces, _as_bytes(value))
            if len(pieces.pieces) > MOST_PIECES:
                raise InvalidInput(f"{path} has more than {MOST_PIECES:,} pieces; no model has so many rows")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: piece {len(pieces.pieces)} is not UTF-8: {error.reason}") from None
    except InvalidInput:
        raise
    except (ValueError, struct.error) as error:
        raise InvalidInput(f"{path} is no file of SentencePiece, at piece {len(pieces.pieces)}: {error}") from None
    if not pieces.pieces:
        raise InvalidInput(f"{path} is no file of SentencePiece: it has no pieces")
    if pieces.kind not in (UNIGRAM, BPE):
        raise Unsupported(f"{path}: model_type is {pieces.kind}; of SentencePiece, unigram (1) and BPE (2) can be read")
    if not 0 <= pieces.unk < len(pieces.pieces):
        raise InvalidInput(f"{path}: unk_id is {pieces.unk}, and there are {len(pieces.pieces)} pieces")
    seen: dict[str, int] = {}
    for number, piece in enumerate(pieces.pieces):
        if len(piece.text) > LONGEST or not piece.text:
            raise InvalidInput(f"{path}: piece {number} has {len(piece.text):,} letters; it can have 1 to {LONGEST:,}")
        if not math.isfinite(piece.score):
            raise InvalidInput(f"{path}: the score of piece {number} is {piece.score}")
        if seen.setdefault(piece.text, number) != number:
            raise InvalidInput(f"{path}: pieces {seen[piece.text]} and {number} are both {piece.text!r}")
    return pieces


def _piece(data: bytes) -> SentencePiece:
    text, score, kind = "", 0.0, NORMAL
    for number, value in _fields(data):
        if number == 1:
            text = _as_bytes(value).decode("utf-8")
        elif number == 2:
            score = struct.unpack("<f", _as_bytes(value))[0]
        elif number == 3:
            kind = _as_int(value)
    return SentencePiece(text, score, kind)


def _trainer(into: Pieces, data: bytes) -> None:
    for number, value in _fields(data):
        if number == 3:
            into.kind = _as_int(value)
        elif number == 35:
            into.byte_fallback = bool(_as_int(value))
        elif number == 40:
            into.unk = _as_int(value)


def _normaliser(into: Pieces, data: bytes) -> None:
    for number, value in _fields(data):
        if number == 2:
            into.characters = _as_bytes(value)
        elif number == 3:
            into.prefix = bool(_as_int(value))
        elif number == 4:
            into.squeeze = bool(_as_int(value))


# The wire format: a key (number of the field, type) before each value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if wire == BYTES:
            size, at = _varint(data, at)
        elif wire in (FIXED32, FIXED64):
            size = 4 if wire == FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if number == 0 or at + size > len(data):
            raise ValueError(f"field {number} of {size} bytes at byte {at} of {len(data)}")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError(f"a number breaks off at byte {at} of {len(data)}")
        byte = data[at]
        value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
        if byte < 128:
            return value, at


def _as_bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number, where text or a message is expected")
    return value


def _as_int(value: int | bytes) -> int:
    if not isinstance(value, int):
        raise ValueError("text, where a number is expected")
    return value


__all__ = [
    "BPE",
    "BYTE",
    "CONTROL",
    "LONGEST",
    "MOST",
    "MOST_PIECES",
    "SPACE",
    "UNIGRAM",
    "UNKNOWN",
    "USER_DEFINED",
    "Pieces",
    "SentencePiece",
    "check_lengths",
    "read_pieces",
]
