"""What the commands that use a checkpoint share: the model, the texts, the bar."""

import json
import sys
import tomllib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from longspan.errors import InvalidInput, InvalidOption, Notice

if TYPE_CHECKING:
    from longspan.hub import Pretrained

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead")]
Cut = Annotated[bool, Parameter(name="--truncate", negative="", help="cut what is too long for the model")]
Dotted = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
Lines = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="a file with a text on each line; - is the standard input"),
]


def load_model(path: Path) -> "Pretrained":
    """The model by its name (see `hub.locate`), with a sign of life while it is read."""
    from longspan import hub

    with Console(stderr=True).status(f"loading {path}"):
        return hub.load(path)


def read_lines(words: Sequence[str], file: Path | None, flag: str, what: str) -> list[str]:
    """The texts that were given, as arguments or as lines of a file."""
    if words and file is not None:
        raise InvalidOption(f"texts are arguments or lines of {flag}; give one of them")
    if file is None:
        if not words:
            raise InvalidOption(f"give {what}, or {flag} with a file of them")
        return list(words)
    if str(file) != "-" and not file.is_file():
        raise InvalidInput(f"{file} is not there, or no file")
    try:
        text = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    if lines == [""]:
        raise InvalidInput(f"{file} is empty; expected {what} on each line")
    return lines


def dotted(tokens: Sequence[str], what: str) -> dict[str, Any]:
    """`--a.b value` and `--a.b=value`; a value is read as TOML has it, and is a text otherwise. `what` shows how."""
    found: dict[str, Any] = {}
    rest = list(tokens)
    while rest:
        name = rest.pop(0)
        if not name.startswith("--") or name == "--":
            raise InvalidOption(f"{name!r} follows no option; {what}")
        name, given, value = name.removeprefix("--").partition("=")
        if "." not in name:
            raise InvalidOption(f"no option is called --{name}; {what}")
        if not given:
            if not rest:
                raise InvalidOption(f"--{name} has no value")
            value = rest.pop(0)
        found[name] = _value(value)
    return found


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text


def parts(text: str, flag: str) -> tuple[str, ...]:
    """Names with commas between them, each once."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise InvalidOption(f"{flag} names none; give some with commas between them")
    return names


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    given = parts(text, flag)
    if not all(part.isascii() and part.isdecimal() for part in given):
        raise InvalidOption(f"{flag} must be whole numbers with commas between them, as 1024,4096, not {text!r}")
    return tuple(map(int, given))


def check_writable(path: Path | None) -> None:
    """Before any work: what cannot be written down is wasted."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        what = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.resolve().parent}"
        raise InvalidInput(f"{path} {what}")


@contextmanager
def notices() -> Iterator[None]:
    """Prints each `Notice` on the standard error, on one line and once."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, Notice):
            print(f"longspan: {message}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("always", Notice)
        warnings.showwarning = show
        yield


@contextmanager
def progress(what: str, total: int) -> Iterator[Any]:
    """A bar on the terminal, gone when all is done."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def print_json(value: Any) -> None:
    """For other programs."""
    print(json.dumps(value, indent=1, ensure_ascii=False))
