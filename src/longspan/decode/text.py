"""Text as it comes: whole characters only, and nothing that may turn out to be a stop string."""

import codecs
from collections.abc import Callable, Sequence

from tokenizers import Tokenizer

from longspan.errors import InvalidOption

Decode = Callable[[list[int]], str] | Callable[[list[int]], bytes]
HALF = "\ufffd"  # what decoders put in place of bytes that are no character, or not yet


class Detokeniser:
    """Token ids in, text out, piece by piece; the pieces put together are the text of all ids.

    It reads ids by a `tokenizers.Tokenizer` (special tokens are left out), or by a function from ids to `str` or to
    UTF-8 `bytes`. A character that is spread over several tokens comes out with the last of them.
    """

    def __init__(self, decode: Tokenizer | Decode) -> None:
        self._decode: Decode = decode.decode if isinstance(decode, Tokenizer) else decode
        self._bytes = codecs.getincrementaldecoder("utf-8")(errors="replace")
        # What is out is ids[:read]. The piece before it, ids[start:read], is decoded along with what is new, since
        # decoders treat the first token of a text differently (a space in front of a word is dropped there).
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
        """What was held back, as far as it can be read."""
        new = self._new()
        self._start = self._read = len(self._ids)
        return self._bytes.decode(b"", final=True) if new == "" else str(new)

    def _new(self) -> str | bytes:
        if self._start == len(self._ids):
            return ""
        whole = self._decode(self._ids[self._start :])
        return whole[len(self._decode(self._ids[self._start : self._read])) :] if self._start < self._read else whole


class StopStrings:
    """Lets text through up to the first stop string, wherever tokens happen to end.

    The first is the one that is complete first; of two that are complete at once, the longer.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if isinstance(stops, str) or not all(stops):
            raise InvalidOption(f"stop must be a list of strings that are not empty, not {stops!r}")
        self.stops = tuple(stops)
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """What may be shown now, and whether a stop string was met."""
        text = self._held + text
        found = [(at + len(stop), at) for stop in self.stops if (at := text.find(stop)) >= 0]
        if found:
            self._held = ""
            return text[: min(found)[1]], True
        held = max((_overlap(text, stop) for stop in self.stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held], False

    def finish(self) -> str:
        """What was held back and has come to nothing."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How much of the end of `text` may be the beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Writer:
    """A detokeniser whose text ends at a stop string."""

    def __init__(self, decode: Tokenizer | Decode, stops: Sequence[str]) -> None:
        self._detokeniser, self._stops = Detokeniser(decode), StopStrings(stops)

    def push(self, token: int) -> tuple[str, bool]:
        """The text that can be shown after this token, and whether a stop string was met."""
        return self._stops.push(self._detokeniser.push(token))

    def finish(self) -> str:
        """The rest, when no further token comes."""
        text, stopped = self._stops.push(self._detokeniser.finish())
        return text if stopped else text + self._stops.finish()


__all__ = ["Decode", "Detokeniser", "StopStrings", "Writer"]
