"""What several commands share: loading a model, reading texts and option values, progress bars, JSON."""

import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

from cyclopts import Parameter
from rich.progress import Progress

from longspan.cli.terminal import Console, as_json, clean
from longspan.errors import InvalidInput, InvalidOption, Notice
from longspan.parsing import toml_value

if TYPE_CHECKING:
    from longspan.hub import Pretrained

AsJson = Annotated[bool, Parameter(name="--json", negative="", help="print JSON instead")]
Cut = Annotated[bool, Parameter(name="--truncate", negative="", help="cut texts that are too long for the model")]
Dotted = Annotated[str, Parameter(allow_leading_hyphen=True, show=False)]
Words = Annotated[str, Parameter(allow_leading_hyphen=True)]
TaskName = Annotated[
    str | None, Parameter(accepts_keys=False, help="what to learn, without a recipe; longspan list --tasks names them")
]
From = Annotated[
    str | None,
    Parameter(name="--from", help="with --task: a model to train further, FOLDER or package:NAME"),
]
Lines = Annotated[
    Path | None,
    Parameter(allow_leading_hyphen=True, help="a file with one text per line; - reads standard input"),
]


def load_model(path: Path) -> "Pretrained":
    """Load a model by its name or path (see `hub.locate`), with a status line meanwhile."""
    from longspan import hub

    with Console(stderr=True).status(f"loading {path}"):
        return hub.load(path)


def read_lines(words: Sequence[str], file: Path | None, flag: str, what: str) -> list[str]:
    """The texts to work on: the arguments, or the lines of a file."""
    if words and file is not None:
        raise InvalidOption(f"give texts as arguments or by {flag}, not both")
    if file is None:
        if not words:
            raise InvalidOption(f"give {what} as an argument, or a file by {flag}")
        return list(words)
    if str(file) != "-" and not file.is_file():
        raise InvalidInput(f"there is no file {file}")
    try:
        text = (sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()).decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
    lines = [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")]
    if lines == [""]:
        raise InvalidInput(f"{file} is empty; expected {what} on each line")
    return lines


def dotted(tokens: Sequence[str], what: str) -> dict[str, Any]:
    """Read `--a.b value` and `--a.b=value`: values are TOML, or else text. Errors end with `what`, an example."""
    values: dict[str, Any] = {}
    rest = list(tokens)
    while rest:
        name = rest.pop(0)
        if not name.startswith("--") or name == "--":
            raise InvalidOption(f"{name!r} follows no option; {what}")
        name, equals, value = name.removeprefix("--").partition("=")
        if "." not in name:
            raise InvalidOption(f"there is no option --{name}; {what}")
        if not equals:
            if not rest:
                raise InvalidOption(f"--{name} has no value")
            value = rest.pop(0)
        values[name] = toml_value(value)
    return values


def comma_separated(text: str, flag: str) -> tuple[str, ...]:
    """Names separated by commas, without repetitions."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise InvalidOption(f"{flag} is empty; give names separated by commas")
    return names


def whole_numbers(text: str, flag: str) -> tuple[int, ...]:
    """Whole numbers separated by commas."""
    words = comma_separated(text, flag)
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise InvalidOption(f"{flag} must be whole numbers separated by commas, such as 1024,4096, not {text!r}")
    return tuple(map(int, words))


def check_writable(path: Path | None) -> None:
    """Refuse an output path that cannot be written, before the work is done."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        what = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.resolve().parent}"
        raise InvalidInput(f"{path} {what}")


@contextmanager
def notices() -> Iterator[None]:
    """Print each `Notice` once, as one line on standard error."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if issubclass(category, Notice):
            print(f"longspan: {clean(str(message))}", file=sys.stderr)
        else:
            usual(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        usual = warnings.showwarning
        warnings.simplefilter("always", Notice)
        warnings.showwarning = show
        yield


@contextmanager
def progress(what: str, total: int) -> Iterator[Any]:
    """A progress bar on the terminal, removed at the end."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)


def print_json(value: Any) -> None:
    """Print JSON for other programs."""
    print(as_json(value))
