"""Incremental detokenisation: complete characters only, and nothing that may be part of a stop string."""

import codecs
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from longspan.errors import InvalidOption

Decode = Callable[[list[int]], str] | Callable[[list[int]], bytes]
HALF = "\ufffd"  # the replacement character, for bytes that are not (yet) a character


class Detokeniser:
    """Turns token ids into text piece by piece; the concatenated pieces are the text of all ids.

    It decodes with a `tokenizers.Tokenizer` (without special tokens), or with a function from ids to `str` or to UTF-8
    `bytes`. A character of several tokens appears with the last of them.
    """

    def __init__(self, decode: Tokenizer | Decode) -> None:
        self._decode: Decode = decode.decode if isinstance(decode, Tokenizer) else decode
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # ids[:read] has been returned. Its last piece, ids[start:read], is decoded again together with new ids, since
        # decoders treat the first token of a text differently (they drop a leading space).
        self._ids: list[int] = []
        self._start = self._read = 0

    def push(self, token: int) -> str:
        """The text that this token completes, often none."""
        self._ids.append(token)
        new = self._new()
        if isinstance(new, bytes):
            self._ids.clear()
            return self._bytes.decode(new)
        if not new or new.endswith(HALF):
            return ""
        self._start, self._read = self._read, len(self._ids)
        return new

    def finish(self) -> str:
        """The text that was held back."""
        new = self._new()
        self._start = self._read = len(self._ids)
        return self._bytes.decode(b"", final=True) if new == "" else str(new)

    def _new(self) -> str | bytes:
        if self._start == len(self._ids):
            return ""
        decoded = self._decode(self._ids[self._start :])
        if self._start == self._read:
            return decoded
        return decoded[len(self._decode(self._ids[self._start : self._read])) :]


class StopStrings:
    """Passes text up to the first stop string, wherever token boundaries are.

    The first is the one that is complete first; of two that end together, the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise InvalidOption(f"stop must be a list of non-empty strings, not {stops!r}")
        self.stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be shown now, and whether a stop string was found."""
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if matches:
            self._held = ""
            return text[: min(matches)[1]], True
        overlap = max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - overlap :]
        return text[: len(text) - overlap], False

    def finish(self) -> str:
        """The text that was held back and is no stop string."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a proper prefix of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Writer:
    """A detokeniser whose text ends at a stop string."""

    def __init__(self, decode: Tokenizer | Decode, stops: Sequence[str]) -> None:
        self._detokeniser, self._stops = Detokeniser(decode), StopStrings(stops)

    def push(self, token: int) -> tuple[str, bool]:
        """The text that can be shown after this token, and whether a stop string was found."""
        return self._stops.push(self._detokeniser.push(token))

    def finish(self) -> str:
        """The rest of the text, after the last token."""
        text, stopped = self._stops.push(self._detokeniser.finish())
        return text if stopped else text + self._stops.finish()


__all__ = ["Decode", "Detokeniser", "StopStrings", "Writer"]
