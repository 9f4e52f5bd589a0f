"""ListOps expressions (Nangia & Bowman 2018): their 15 symbols as ids, the benchmark's file format, and their values.

`evaluate` computes a value with a stack, independently of the generator, and checks generators and files. Brackets are
tokens. Before March 2021 the benchmark's tokenizer dropped all but letters and digits, and with them the nesting.
"""

import gzip
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from longspan.arena.tasks.examples import LabelledSequences
from longspan.data.text.text_files import DAMAGED, open_bytes
from longspan.errors import InvalidInput
from longspan.parsing import decode as decode_text

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")  # ids 1 to 15; 0 is padding
OPEN, CLOSE, UNKNOWN = 11, 15, 16  # the first operator, the bracket that ends any of them, and what is no symbol
VOCABULARY = 17
HEADER = "Source\tTarget"

_IDS = {symbol: number for number, symbol in enumerate(SYMBOLS, 1)}
# One byte for each symbol, so that whole rows can be read by operations on bytes.
_LETTERS = [(name.encode(), b"abcd"[index : index + 1]) for index, name in enumerate(OPERATORS)]
_OF_BYTES = dict(zip(b"0123456789abcd]", range(1, UNKNOWN), strict=True))
_TABLE = bytes(_OF_BYTES.get(byte, UNKNOWN) for byte in range(256))


def encode(text: str) -> np.ndarray:
    """Ids of an expression, with or without round parentheses; symbols that are not of ListOps get `UNKNOWN`."""
    row = text.strip().encode()
    short = row.translate(None, b"() ")
    for name, letter in _LETTERS:
        short = short.replace(name, letter)
    # With one blank between symbols, and without the letters used for operators here, each byte is a symbol.
    spaced = row.count(b" ") + 1 == len(short) + row.count(b"(") + row.count(b")")
    if spaced and not any(letter in row for _, letter in _LETTERS):
        return np.frombuffer(short.translate(_TABLE), dtype=np.uint8)
    symbols = text.replace("(", " ").replace(")", " ").split()
    return np.array([_IDS.get(symbol, UNKNOWN) for symbol in symbols], dtype=np.uint8)


def decode(ids: Iterable[int]) -> str:
    """An expression without round parentheses; padding is left out."""
    return " ".join(SYMBOLS[number - 1] if number < UNKNOWN else "?" for number in map(int, ids) if number)


def evaluate(ids: Iterable[int]) -> int:
    """The value of an expression, by a stack machine."""
    values: list[int] = []
    opened: list[tuple[int, int]] = []  # operators, and where their arguments begin
    for index, token in enumerate(ids.tolist() if isinstance(ids, np.ndarray) else ids):
        if 1 <= token <= 10:
            values.append(token - 1)
        elif OPEN <= token < CLOSE:
            opened.append((token, len(values)))
        elif token == CLOSE and opened:
            operator, first = opened.pop()
            if first == len(values):
                raise InvalidInput(f"token {index + 1}: {SYMBOLS[operator - 1]} has no arguments")
            values[first:] = [_apply(operator, values[first:])]
        else:
            what = "']' ends no operator" if token == CLOSE else f"{token} is the id of no symbol"
            raise InvalidInput(f"token {index + 1}: {what}")
    if opened or len(values) != 1:
        raise InvalidInput(f"the expression has {len(opened)} operators without an end and {len(values)} values")
    return values[0]


def _apply(operator: int, arguments: list[int]) -> int:
    name = SYMBOLS[operator - 1]
    ordered = sorted(arguments)
    if name == "[MIN":
        return ordered[0]
    if name == "[MAX":
        return ordered[-1]
    if name == "[SM":
        return sum(arguments) % 10
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) // 2  # 4.5 is 4


def nested(ids: Iterable[int]) -> str:
    """The text of the benchmark's files: a left-nested binary tree, round parentheses around every application."""
    pieces: list[str] = []
    opened: list[list[int]] = []  # position of each open operator, and its number of arguments so far
    for token in map(int, ids):
        if OPEN <= token < CLOSE:
            opened.append([len(pieces), 0])
            pieces.append(SYMBOLS[token - 1])
            continue
        if token == CLOSE:
            position, arguments = opened.pop()
            pieces[position] = "( " * (arguments + 1) + pieces[position]
            pieces.append("] )")
        else:
            pieces.append(SYMBOLS[token - 1])
        if opened:
            opened[-1][1] += 1
            pieces.append(")")
    return " ".join(pieces)


def write_file(examples: LabelledSequences, path: Path) -> None:
    """Writes a file in the benchmark's format, compressed if its name ends in .gz."""
    rows = (f"{nested(examples.sequence(number))}\t{examples.labels[number]}" for number in range(len(examples)))
    content = "\n".join([HEADER, *rows, ""]).encode()
    # Without a time stamp, so that the same examples give the same file.
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_file(path: Path, *, most: int | None = None, length: int | None = None) -> LabelledSequences:
    """The first `most` expressions of a file; an error names a row that is damaged or has the wrong target."""
    expressions: list[np.ndarray] = []
    labels: list[int] = []
    for number, line in _lines(path):
        if most is not None and len(labels) == most:
            break
        text, tab, target = line.partition("\t")
        where = f"{path}, row {number}"
        if not tab or target not in SYMBOLS[:10]:
            raise InvalidInput(f"{where}: expected an expression, a tab and a digit, not {line[-40:]!r}")
        ids = encode(text)
        if (ids == UNKNOWN).any():
            symbols = text.replace("(", " ").replace(")", " ").split()
            unknown = next((symbol for symbol in symbols if symbol not in _IDS), text[:40])
            raise InvalidInput(f"{where}: {unknown!r} is no symbol of ListOps; known: {' '.join(SYMBOLS)}")
        if length is not None and len(ids) > length:
            raise InvalidInput(f"{where}: {len(ids)} tokens, and at most {length} are read; give a larger max_length")
        try:
            value = evaluate(ids)
        except InvalidInput as error:
            raise InvalidInput(f"{where}: {error}") from None
        if value != int(target):
            raise InvalidInput(f"{where}: the target is {target}, and the expression's value is {value}")
        expressions.append(ids)
        labels.append(value)
    if not expressions:
        raise InvalidInput(f"{path} has no expressions")
    starts = np.concatenate([[0], np.cumsum([len(expression) for expression in expressions])]).astype(np.int64)
    return LabelledSequences(np.concatenate(expressions), starts, np.array(labels, dtype=np.int64), str(path))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open_bytes(path) as file:
            for number, content in enumerate(file, 1):
                line = decode_text(content, f"{path}, row {number}").rstrip("\r\n")
                if number == 1:
                    if line != HEADER:
                        raise InvalidInput(f"{path}, row 1: expected {HEADER!r}, not {line[:40]!r}")
                elif line:
                    yield number, line
    except DAMAGED as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None


__all__ = [
    "CLOSE",
    "OPEN",
    "OPERATORS",
    "SYMBOLS",
    "UNKNOWN",
    "VOCABULARY",
    "decode",
    "encode",
    "evaluate",
    "nested",
    "read_file",
    "write_file",
]
