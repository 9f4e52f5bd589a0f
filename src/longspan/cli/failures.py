"""Error messages of the command line: one line that names the flags and the file in question."""

import errno
import re
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cyclopts import CycloptsError

from longspan.errors import LongspanError
from longspan.files import os_error

# Options of the library whose flag has another name, by command.
LIBRARY_NAMES: dict[str, dict[str, str]] = {
    "embed": {"layers": "--layer", "longest": "--max-length"},
    "summarize": {"tokens": "--batch-tokens", "longest": "--max-length", "no_repeat_ngram": "--no-repeat"},
    "translate": {"tokens": "--batch-tokens"},
}
ALLOCATION = re.compile(r"can't allocate memory|out of memory|not enough memory", re.IGNORECASE)  # torch's wording
REMEDY = {errno.ENOSPC: "; make room, or name a folder on another disk", errno.EDQUOT: "; make room in your quota"}


def explain(error: Exception, arguments: Sequence[str]) -> str | None:
    """The line to print for an error that the user or the machine caused; None for a bug in longspan."""
    if isinstance(error, CycloptsError):
        return str(error)
    if isinstance(error, LongspanError):
        return in_flags(str(error), flags(arguments))
    if isinstance(error, RecursionError):
        return f"{file_in_use(error) or 'the input'} is nested too deeply to read"
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and ALLOCATION.search(str(error))):
        file = file_in_use(error)
        return f"out of memory{'' if file is None else f' while working on {file}'}; use a smaller batch, text or model"
    failed = os_error(error)
    if failed is None:
        return None
    file = failed.filename if failed.filename is not None else file_in_use(error)
    reason = failed.strerror or str(failed)
    return f"{reason if file is None else f'{_text(file)}: {reason}'}{REMEDY.get(failed.errno or 0, '')}"


# Find the file


def file_in_use(error: BaseException) -> str | None:
    """The file that was being read or written when an error was raised that does not name it.

    Searches the traceback from the innermost frame outwards for an open file, or else a path.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    no_room = isinstance(error, OSError) and error.errno in REMEDY
    if no_room and frames and frames[-1].f_globals["__name__"].startswith("longspan.cli."):
        return "standard output"  # commands write nothing else themselves: `longspan.files` writes files
    for frame in reversed(frames):
        paths = [value for value in frame.f_locals.values() if isinstance(value, Path)]
        for opened in _files(frame.f_locals):
            return opened
        if paths:
            return str(paths[-1])
    return None


def _files(values: Mapping[str, Any]) -> Iterator[str]:
    for value in (*values.values(), getattr(values.get("self"), "file", None)):
        name = getattr(value, "name", None) if hasattr(value, "fileno") else None
        if isinstance(name, (str, Path)):
            yield {"<stdout>": "standard output", "<stdin>": "standard input"}.get(str(name), str(name))


def _text(name: Any) -> str:
    return name.decode(errors="replace") if isinstance(name, bytes) else str(name)


# Name flags instead of Python arguments


def flags(arguments: Sequence[str]) -> dict[str, str]:
    """The flags of the command that was called, by the name of the Python argument."""
    from longspan.cli.commands import app

    names, apps, rest = app.parse_commands(arguments)
    known: dict[str, str] = {}
    if apps[-1].default_command is not None:
        for argument in apps[-1].assemble_argument_collection():
            flag = next((name for name in argument.names if name.startswith("--")), None)
            if flag is not None and argument.field_info.name is not None:
                known[argument.field_info.name] = flag
    dotted = {word.partition("=")[0] for word in rest if re.match(r"--\w+\.", word)}  # recipe values, mechanism options
    last = [flag.rpartition(".")[2] for flag in dotted]
    known |= {name: flag for name, flag in zip(last, dotted) if last.count(name) == 1}
    return known | LIBRARY_NAMES.get(" ".join(names), {})


def in_flags(text: str, known: Mapping[str, str]) -> str:
    """A message of the library with flags for Python arguments: `max_new=58` becomes `--max-new 58`."""
    text = re.sub(r"\b[A-Z]\w*\((\w+=[^()]*)\)", lambda match: match[1] if _named(match[1], known) else match[0], text)
    for name in sorted(known, key=len, reverse=True):
        flag, option = known[name], re.escape(name)
        text = re.sub(rf"(?<![\w.-]){option}=True\b", flag, text)
        text = re.sub(rf"(?<![\w.-]){option}=False\b", f"--no-{flag[2:]}", text)
        text = re.sub(rf"(?<![\w.-]){option}=(?=[^\s=])", f"{flag} ", text)
        text = re.sub(rf"\boption {option}\b(?![.'/])", flag, text)
        if "_" in name:  # cannot be an English word, so replace it anywhere
            text = re.sub(rf"(?<![\w./'\"-]){option}(?![\w/'\"=-])", flag, text)
        else:
            text = re.sub(rf"^{option}(?= must be\b)|(?<=\(){option}(?=\))", flag, text)
            text = re.sub(rf"\b(give|leave out) {option}(?=$|[;,.)])", rf"\1 {flag}", text)
    return text


def _named(text: str, known: Mapping[str, str]) -> bool:
    return text.partition("=")[0] in known


__all__ = ["explain", "file_in_use", "flags", "in_flags"]
