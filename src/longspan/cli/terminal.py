"""What reaches a terminal: text of models, users and files is data, and must not move the cursor or hide itself.

Escape sequences can recolour, hide or overwrite lines and, in some terminals, set the title or the clipboard; bidi
overrides show letters in another order than they are stored. `clean` replaces such characters by `�`, so that one sees
that something was there. It applies

- to all that is written to a terminal: `guard` wraps the streams, and `Console` cleans what rich renders (rich's own
  colours and cursor movements still pass);
- to errors and notices, wherever they go.

A file or a pipe gets standard output as it is, since programs want the text that the model wrote. JSON has the same
characters as escapes (`as_json`), which every reader turns back.
"""

import json
import re
import sys
from collections.abc import Iterable
from typing import Any, TextIO, cast

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

# Control characters but tab and line feed, C1 controls, bidi embeddings, overrides and isolates, lone surrogates.
_UNSAFE = re.compile("\r(?!\n)|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_ESCAPED = re.compile("[\x7f-\x9f\u061c\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """The text without characters that a terminal obeys or that change the order of others.

    >>> clean("red \\x1b[31m, back \\r, kept \\t and \\r\\n")
    'red �[31m, back �, kept \\t and \\r\\n'
    """
    return _UNSAFE.sub(REPLACEMENT, text)


def as_json(value: Any, *, indent: int | None = 1) -> str:
    """JSON for programs, readable for people: letters as they are, all that a terminal could obey as escapes."""
    return escaped(json.dumps(value, indent=indent, ensure_ascii=False))


def escaped(text: str) -> str:
    """JSON with the rest of these characters as escapes; json escapes those below 0x20 itself."""
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class Console(rich.console.Console):
    """rich's console, with every text cleaned if it goes to a terminal or to standard error."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not (self.stderr or self.is_terminal):
                yield segment
            else:
                yield Segment(clean(segment.text), segment.style)


class CleanStream:
    """A terminal's stream whose text is cleaned. rich writes to the stream itself, because `Console` has cleaned."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream  # rich's name for the stream below

    def write(self, text: str) -> int:
        self.rich_proxied_file.write(clean(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def guard() -> None:
    """Clean all that `print` and others write to terminals from now on."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, CleanStream) and stream.isatty():
            setattr(sys, name, cast(TextIO, CleanStream(stream)))


__all__ = ["REPLACEMENT", "CleanStream", "Console", "as_json", "clean", "escaped", "guard"]
