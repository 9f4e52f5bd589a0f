"""Text to token ids and back.

What a user writes is plain text: "[MASK]" in it is not the special token, unless the caller allows that token.
"""

import json
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tokenizers
import torch
from tokenizers import AddedToken
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption, suggest
from longspan.manifest import add_to_manifest
from longspan.parsing import is_panic, refusing

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
Side = Literal["left", "right"]


@dataclass(frozen=True)
class Encoded:
    """One text, or a pair."""

    ids: list[int]
    segments: list[int]  # 0: the first text; 1: the second, in families with segments
    offsets: list[tuple[int, int]]  # the characters of each token; (0, 0) for added tokens
    added: list[bool]  # which tokens the tokenizer put around the texts
    words: list[int | None]  # the word that each token is a piece of; None for added tokens

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class Padded:
    """A padded batch of texts."""

    ids: Tensor  # (texts, longest)
    mask: Tensor  # True: real
    segments: Tensor


class Tokenizer:
    """A `tokenizers.Tokenizer` that knows the roles of its special tokens.

    `special` gives the tokens by role (`bos`, `eos`, `unk`, `sep`, `pad`, `cls`, `mask`); the attributes of these names
    are their ids, or None. `record` holds the other entries of tokenizer_config.json, which are written back.
    """

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        special: Mapping[str, str | AddedToken] | None = None,
        record: Mapping[str, Any] | None = None,
    ) -> None:
        self.inner, self.record = inner, dict(record or {})
        # Truncation and padding are arguments of each call, whatever the file says.
        inner.no_truncation()
        inner.no_padding()
        self.special: dict[str, str] = {}
        for role, token in (special or {}).items():
            if role not in ROLES:
                raise InvalidOption(f"no special token has the role {role!r}: {suggest(role, ROLES)}")
            text = token.content if isinstance(token, AddedToken) else token
            if inner.token_to_id(text) is not None:
                self._make_special(token)
                self.special[role] = text
        self._reading: dict[frozenset[str], tokenizers.Tokenizer] = {}

    def _make_special(self, token: str | AddedToken) -> None:
        """Marks a token as special; other flags that its file gives it (such as lstrip) stay."""
        text = token.content if isinstance(token, AddedToken) else token
        known = {each.content: each for each in self.inner.get_added_tokens_decoder().values()}
        if text in known and known[text].special:
            return
        self.inner.add_special_tokens([known.get(text, token)])

    # Ids

    @property
    def size(self) -> int:
        """The largest id plus one: the number of rows that an embedding needs."""
        return max(self.inner.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def single_characters(self) -> bool:
        """Whether every token but the special ones is one character, or one byte."""
        special = self.specials
        return all(len(token) == 1 for token in self.inner.get_vocab(with_added_tokens=True) if token not in special)

    @property
    def bos(self) -> int | None:
        """The id that texts begin with."""
        return self._id("bos")

    @property
    def eos(self) -> int | None:
        """The id that texts end with."""
        return self._id("eos")

    @property
    def unk(self) -> int | None:
        """The id of unknown tokens."""
        return self._id("unk")

    @property
    def sep(self) -> int | None:
        """The id between two texts."""
        return self._id("sep")

    @property
    def pad(self) -> int | None:
        """The id of padding."""
        return self._id("pad")

    @property
    def cls(self) -> int | None:
        """The id that stands for a whole text."""
        return self._id("cls")

    @property
    def mask(self) -> int | None:
        """The id of a token that is to be predicted."""
        return self._id("mask")

    @property
    def specials(self) -> dict[str, int]:
        """All special tokens with their ids, including those without a role."""
        added = self.inner.get_added_tokens_decoder()
        return {token.content: number for number, token in sorted(added.items()) if token.special}

    def _id(self, role: str) -> int | None:
        return self.inner.token_to_id(self.special[role]) if role in self.special else None

    def id(self, token: str) -> int | None:
        """The id of a token as the vocabulary spells it."""
        return self.inner.token_to_id(token)

    def token(self, number: int) -> str:
        """A token as the vocabulary spells it."""
        token = self.inner.id_to_token(number)
        if token is None:
            raise InvalidInput(f"no token has the id {number}; there are {self.size}")
        return token

    # Text to ids

    def encode(
        self,
        text: str,
        pair: str | None = None,
        *,
        special: bool = True,
        allow: Collection[str] | Literal["all"] = (),
    ) -> Encoded:
        """Encode a text or a pair of texts; with `special`, add the tokens that the family puts around them.

        `allow` names the special tokens that the text itself may contain; "all": any.

        >>> tokenizer.encode("Hello [MASK].", allow=["[MASK]"]).ids
        """
        second = None if pair is None else sound(pair)
        reader, first = self._reader(allow), sound(text)
        with _knowing():
            return _encoded(reader.encode(first, second, add_special_tokens=special))

    def encode_many(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        special: bool = True,
        allow: Collection[str] | Literal["all"] = (),
        longest: int | None = None,
        truncate: Side | None = None,
    ) -> list[Encoded]:
        """Encode many texts, or pairs of texts.

        A text of more than `longest` tokens is refused or, with `truncate`, loses tokens on its left or right end; of a
        pair, the longer text loses them. Special tokens around the texts are kept.
        """
        if isinstance(texts, str):
            raise InvalidInput("expected a list of texts, got one text; put it in a list")
        if pairs is not None and len(pairs) != len(texts):
            raise InvalidInput(f"there are {len(texts)} texts and {len(pairs)} seconds of pairs; give one for each")
        reader = self._reader(allow)
        firsts = [sound(text) for text in texts]
        given: list[Any] = firsts if pairs is None else list(zip(firsts, [sound(text) for text in pairs]))
        with _knowing():
            encoded = [_encoded(tokens) for tokens in reader.encode_batch(given, add_special_tokens=special)]
        for row, tokens in enumerate(encoded):
            if longest is None or len(tokens) <= longest:
                continue
            if truncate is None:
                raise InvalidInput(f"text {row} has {len(tokens)} tokens, and at most {longest} can be read")
            first, second = (given[row], None) if pairs is None else given[row]
            encoded[row] = _cut(reader, first, second, special, longest, truncate)
        return encoded

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        *,
        special: bool = True,
        allow: Collection[str] | Literal["all"] = (),
        longest: int | None = None,
        truncate: Side | None = None,
        side: Side = "right",
        padding: int | None = None,
    ) -> Padded:
        """Encode many texts as one padded batch; `side` is where padding goes.

        `padding` is the padding id; the default is the tokenizer's own.
        """
        encoded = self.encode_many(texts, pairs, special=special, allow=allow, longest=longest, truncate=truncate)
        return self.pad_batch(encoded, side=side, padding=padding)

    def pad_batch(self, texts: Sequence[Encoded], *, side: Side = "right", padding: int | None = None) -> Padded:
        """Encoded texts as one padded batch; `side` is where padding goes."""
        default = 0 if self.pad is None else self.pad
        longest = max(map(len, texts), default=0)

        def spread(rows: Sequence[Sequence[int]], value: int) -> Tensor:
            rests = [[value] * (longest - len(row)) for row in rows]
            filled = [[*row, *rest] if side == "right" else [*rest, *row] for row, rest in zip(rows, rests)]
            return torch.tensor(filled, dtype=torch.long).reshape(len(rows), longest)

        return Padded(
            spread([text.ids for text in texts], default if padding is None else padding),
            spread([[1] * len(text) for text in texts], 0).bool(),
            spread([text.segments for text in texts], 0),
        )

    def _reader(self, allow: Collection[str] | Literal["all"]) -> tokenizers.Tokenizer:
        """A tokenizer that finds only these special tokens in a text."""
        if isinstance(allow, str) and allow != "all":
            raise InvalidOption(f"allow must be a list of special tokens or 'all', not {allow!r}")
        known = self.specials
        allowed = frozenset(known if allow == "all" else allow)
        for token in allowed:
            if token not in known:
                raise InvalidOption(f"{token!r} is no special token: {suggest(token, known)}")
        if len(allowed) == len(known):
            return self.inner
        if allowed not in self._reading:
            self._reading[allowed] = _without(self.inner, set(known) - allowed)
        return self._reading[allowed]

    # Ids to text

    def decode(self, ids: Sequence[int], special: bool = False) -> str:
        """The text of ids; without special tokens unless `special`."""
        return self.inner.decode(list(ids), skip_special_tokens=not special)

    # Files

    def to_json(self) -> str:
        """The text of `tokenizer.json`."""
        return self.inner.to_str(pretty=False)

    def save(self, folder: Path | str) -> None:
        """Writes `tokenizer.json` and `tokenizer_config.json`, as Hugging Face's AutoTokenizer reads them."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        record = {**self.record, **{f"{role}_token": token for role, token in self.special.items()}}
        record.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
        (folder / FILE).write_text(self.inner.to_str(pretty=True), encoding="utf-8")
        (folder / CONFIG).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        add_to_manifest(folder, [FILE, CONFIG])

    def __repr__(self) -> str:
        kind = type(self.inner.model).__name__
        return f"Tokenizer({kind}, {self.size} tokens, {', '.join(f'{k}={v!r}' for k, v in self.special.items())})"


def _without(inner: tokenizers.Tokenizer, hidden: set[str]) -> tokenizers.Tokenizer:
    """A copy in which no text can spell some tokens; their ids stay.

    Removing them from the added tokens is not enough: a model may still find them in its vocabulary, as it finds words.
    So they are renamed there, to random names.
    """
    record = json.loads(inner.to_str())
    record["added_tokens"] = [token for token in record["added_tokens"] if token["content"] not in hidden]
    mark = f"\ufdd0{secrets.token_hex(8)}"  # a code point that is not a character
    model = record["model"]
    if isinstance(model["vocab"], list):
        model["vocab"] = [[mark + word if word in hidden else word, score] for word, score in model["vocab"]]
    else:
        model["vocab"] = {mark + word if word in hidden else word: number for word, number in model["vocab"].items()}
    if model.get("unk_token") in hidden:
        model["unk_token"] = mark + model["unk_token"]
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not hidden & _touched(pair)]
    with refusing("the tokenizer", "has a vocabulary that cannot be read"):
        return tokenizers.Tokenizer.from_str(json.dumps(record))


def _touched(pair: list[str] | str) -> set[str]:
    left, right = pair.split(" ", 1) if isinstance(pair, str) else pair
    return {left, right, left + right}


def _cut(reader: tokenizers.Tokenizer, text: str, pair: str | None, special: bool, longest: int, side: Side) -> Encoded:
    """Encode a text or pair and cut it to `longest` tokens, including the special tokens around it."""
    around = reader.num_special_tokens_to_add(pair is not None) if special else 0
    if longest < around:
        raise InvalidInput(f"{around} special tokens around a text are more than the {longest} that can be read")
    first = reader.encode(text, add_special_tokens=False)
    second = None if pair is None else reader.encode(pair, add_special_tokens=False)
    room, sizes = longest - around, (len(first.ids), 0 if second is None else len(second.ids))
    # The longer text is cut until both are equal, then both; the odd token stays with the longer one.
    half = room // 2 if sizes[0] <= sizes[1] else -(-room // 2)
    keep = min(sizes[0], max(room - sizes[1], half))
    first.truncate(keep, direction=side)
    if second is not None:
        second.truncate(min(sizes[1], room - keep), direction=side)
    return _encoded(reader.post_process(first, second, special))


@contextmanager
def _knowing() -> Iterator[None]:
    """Explains why the package fails: the text has something unknown, and the vocabulary has no unknown token."""
    try:
        yield
    except BaseException as error:  # the package raises no narrower one
        if not isinstance(error, Exception) and not is_panic(error):
            raise
        raise InvalidInput(
            f"the text has something that is not in the tokenizer's vocabulary, which has no token for that: {error}"
        ) from None


def _encoded(encoding: Any) -> Encoded:
    added = [bool(mark) for mark in encoding.special_tokens_mask]
    return Encoded(encoding.ids, encoding.type_ids, encoding.offsets, added, encoding.word_ids)


def sound(text: str) -> str:
    """Text that UTF-8 can hold: surrogate pairs are joined, lone surrogates replaced."""
    if not isinstance(text, str):
        raise InvalidInput(f"expected a text, got {type(text).__name__}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


__all__ = ["CONFIG", "FILE", "ROLES", "Encoded", "Padded", "Side", "Tokenizer", "sound"]
