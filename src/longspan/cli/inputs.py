"""What the commands that use a checkpoint share: the model, the texts, the bar."""

import json
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.console import Console
from rich.progress import Progress

from longspan.errors import InvalidInput, InvalidOption

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
    """The model of a folder or file, or of a run, with a sign of life while it is read."""
    from longspan import hub
    from longspan.train.saving import model_of

    if not path.exists():
        raise InvalidInput(f"{path} is not there; give the folder of a model or of a run")
    with Console(stderr=True).status(f"loading {path}"):
        return hub.load(model_of(path))


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


def check_writable(path: Path | None) -> None:
    """Before any work: what cannot be written down is wasted."""
    if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
        what = "is a folder" if path.is_dir() else f"cannot be written: there is no folder {path.resolve().parent}"
        raise InvalidInput(f"{path} {what}")


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
