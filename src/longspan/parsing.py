"""Safe parsing of files that may be damaged or hostile: text, JSON and TOML.

Every failure is an `InvalidInput` that names the file. Files that are too large for their kind are refused before they
are read. Nesting that is too deep and numbers with thousands of digits are errors like any other.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longspan.errors import InvalidInput, LongspanError

MOST_TEXT = 1 << 28  # bytes of a vocabulary; the largest have some 40 million
MOST_JSON = 1 << 26  # bytes; Python may need twenty times as much memory for the values
MOST_TOML = 1 << 16  # bytes; a recipe has a few hundred, and the parser can take quadratic time
MOST_HEADER = 1 << 25  # bytes of a safetensors header; each tensor needs about a hundred
DEEPEST_KEY = 32  # parts of a dotted key of TOML
# Exceptions that values of the right type but of a wrong size or range cause, in torch or in arithmetic
BAD_VALUES = (ValueError, RuntimeError, ArithmeticError, MemoryError)
KEY = re.compile(r"""[\w"'-]+""")


def read_text(path: Path, most: int | None = None) -> str:
    """The text of a file, with its line ends unchanged; a file of more than `most` bytes is refused."""
    return decode(_content(path, most), path)


def decode(data: bytes, where: Path | str) -> str:
    """Bytes as UTF-8; an error names the byte and, where there are several, the line."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        where_in_file = f"byte {error.start} (line {line})" if b"\n" in data else f"byte {error.start}"
        raise InvalidInput(f"{where} is not UTF-8: {error.reason} at {where_in_file}") from None


def parse_json(text: str | bytes, where: Path | str, *, constants: bool = True) -> Any:
    """The value of a JSON text. Errors start with `where`. Without `constants`, NaN and Infinity are refused."""
    if isinstance(text, bytes):
        text = decode(text, where)
    try:
        return json.loads(text, parse_constant=None if constants else _refuse_constant)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{where} is not JSON: {error}") from None
    except (RecursionError, ValueError) as error:
        raise InvalidInput(f"{where} is not readable JSON: {_reason(error)}") from None


def _refuse_constant(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON number")


def read_json(path: Path) -> Any:
    """The value of a JSON file, whose texts must be valid Unicode."""
    content = _content(path, MOST_JSON)
    value = parse_json(content, path)
    if b"\\u" in content:
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            half = error.object[error.start]
            raise InvalidInput(
                f"{path} has a text with half a character, {half!r}, which UTF-8 cannot encode"
            ) from None
    return value


def read_json_table(path: Path) -> dict[str, Any]:
    """The table (object) of a JSON file."""
    value = read_json(path)
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} must be a table, not {type(value).__name__}")
    return value


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file."""
    return parse_toml(read_text(path, MOST_TOML), path)


def parse_toml(text: str, where: Path | str) -> dict[str, Any]:
    """The tables of a TOML text. Errors start with `where`."""
    for number, line in enumerate(text.splitlines(), 1):
        if _longest_key(line) > DEEPEST_KEY:
            raise InvalidInput(f"{where} is not readable TOML: line {number} has a key of too many parts")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"{where} is not TOML: {error}") from None
    except (RecursionError, ValueError) as error:
        raise InvalidInput(f"{where} is not readable TOML: {_reason(error)}") from None


def toml_value(text: str) -> Any:
    """A value as TOML writes it, or else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def printable(text: str) -> str:
    """A text on one line without control and direction characters, which could steer a terminal or hide words."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _longest_key(line: str) -> int:
    """The most parts of anything that looks like a dotted key: the parser takes cubic time in them."""
    longest = run = 0
    for part in line.split("."):
        run = run + 1 if KEY.fullmatch(part.strip()) else 0
        longest = max(longest, run)
    return longest


def check_safetensors(path: Path) -> None:
    """Refuse a safetensors file with an absurdly large header, whose parsing would need many times its size."""
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
    if size > MOST_HEADER:
        raise InvalidInput(
            f"{path} is no whole safetensors file: its header claims {size:,} bytes; at most {MOST_HEADER:,} are read"
        )


def check_size(path: Path, most: int) -> None:
    """Refuse a file of more than `most` bytes."""
    size = path.stat().st_size
    if size > most:
        raise InvalidInput(f"{path} has {size:,} bytes; at most {most:,} are read of such a file")


@contextmanager
def refusing(
    where: Path | str,
    what: str = "is not of the expected form",
    *,
    errors: tuple[type[Exception], ...] = (Exception,),
) -> Iterator[None]:
    """Turn exceptions inside the block into an `InvalidInput`: "FILE is not …: the reason".

    For code that only interprets a file's content, and can fail in any way: a value of another type, a size that does
    not fit, a number that overflows. Checks inside the block give more precise messages. Code that works with checked
    values, such as building a model from its options, gives `errors=BAD_VALUES`: any other exception is a bug, and
    must not be blamed on the file.
    """
    try:
        yield
    except LongspanError:
        raise
    except errors as error:
        if isinstance(error, OSError) and error.strerror:
            raise InvalidInput(f"{where} cannot be read: {error.strerror}") from error
        raise InvalidInput(f"{where} {what}: {_reason(error)}") from error
    except BaseException as error:
        if is_panic(error):
            raise InvalidInput(f"{where} {what}: {_reason(error)}") from None
        raise


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of a Rust package (tokenizers, safetensors).

    It is not an `Exception`, and its class cannot be imported.
    """
    return type(error).__name__ == "PanicException"


def _reason(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    if "integer string conversion" in str(error):
        return "a number has thousands of digits"
    text = (str(error).splitlines() or [""])[0]
    text = text if len(text) <= 200 else f"{text[:200]}…"
    return text if isinstance(error, ValueError | RuntimeError) and text else f"{type(error).__name__}: {text}"


def _content(path: Path, most: int | None) -> bytes:
    try:
        if most is None:
            return path.read_bytes()
        check_size(path, most)
        with path.open("rb") as file:
            return file.read(most)  # a device or pipe reports no size, and may have no end
    except FileNotFoundError:
        raise InvalidInput(f"there is no file {path}") from None
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}") from None


__all__ = [
    "BAD_VALUES",
    "check_safetensors",
    "check_size",
    "decode",
    "is_panic",
    "parse_json",
    "parse_toml",
    "printable",
    "read_json",
    "read_json_table",
    "read_text",
    "read_toml",
    "refusing",
    "toml_value",
]
