"""Word vectors from bytes (Kim et al. 2016; Jozefowicz et al. 2016), as in ELMo: no word is unknown.

The alphabet is that of the released ELMo, so its weights can be loaded: 0 is for words that are padding, byte b is
b + 1, then come the marks. A word is its begin mark, its UTF-8 bytes, its end mark, and fill up to a fixed width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.attention.devices import host_may_read
from longspan.errors import InvalidInput, InvalidOption

BEGIN_SENTENCE, END_SENTENCE, BEGIN_WORD, END_WORD, FILL = 257, 258, 259, 260, 261
ALPHABET = 262
MARKS = {"<S>": BEGIN_SENTENCE, "</S>": END_SENTENCE}  # words with a character of their own

Characters = Int[Tensor, "batch length characters"]


def encode_words(
    sentences: Sequence[Sequence[str]], *, characters: int = 50
) -> tuple[Characters, Bool[Tensor, "batch length"]]:
    """The characters of each word, and which words are real; sentences are padded on the right.

    A word of more than `characters` - 2 bytes is cut, as in the released code.
    """
    if characters < 3:
        raise InvalidOption(f"characters must be at least 3, two marks and one byte, not {characters}")
    for row, sentence in enumerate(sentences):
        if isinstance(sentence, str):
            raise InvalidInput(f"expected lists of words, got the text {sentence!r} as sentence {row}; split it first")
    length = max((len(sentence) for sentence in sentences), default=0)
    if length == 0:
        raise InvalidInput("expected at least one sentence with a word in it, got none")
    ids = torch.zeros(len(sentences), length, characters, dtype=torch.long)
    mask = torch.zeros(len(sentences), length, dtype=torch.bool)
    codes = {word: _code(word, characters) for sentence in sentences for word in sentence}
    for row, sentence in enumerate(sentences):
        if sentence:
            ids[row, : len(sentence)] = torch.tensor([codes[word] for word in sentence])
            mask[row, : len(sentence)] = True
    return ids, mask


@dataclass(frozen=True)
class WordsOfBytes:
    """The words of texts that were given as bytes."""

    characters: Characters  # of `<S>`, the words and `</S>`
    inside: Bool[Tensor, "batch marked"]  # which of these are real
    mask: Bool[Tensor, "batch words"]  # which words are real, without the two marks
    word: Int[Tensor, "batch length"]  # the word of each byte; of a space, the word before it

    def to_bytes(self, x: Float[Tensor, "batch words *any"]) -> Float[Tensor, "batch length *any"]:
        """What each word has, at each of its bytes."""
        rows = torch.arange(len(self.word), device=x.device)[:, None]
        return x[rows, self.word]


def spell_bytes(
    ids: Int[Tensor, "batch length"], key_mask: Bool[Tensor, "batch length"] | None, characters: int = 50
) -> WordsOfBytes:
    """The words that spaces separate in texts of bytes, as characters, each text between `<S>` and `</S>`.

    The same as `encode_words(text.split())`. A text without words has one place, which is masked.
    """
    real = torch.ones_like(ids, dtype=torch.bool) if key_mask is None else key_mask
    letters = real & (ids != 32) & ((ids < 9) | (ids > 13))
    begins = letters & ~torch.cat([torch.zeros_like(letters[:, :1]), letters[:, :-1]], 1)
    number = begins.cumsum(1)  # from 1; 0 before the first word
    counts = number[:, -1]
    words = max(1, int(counts.max()))
    places = torch.arange(ids.shape[1], device=ids.device)
    start = torch.where(begins, places, 0).cummax(1).values
    inner = places - start
    codes = ids.new_full((len(ids), words + 2, characters), FILL)
    sizes = torch.zeros(len(ids), words + 2, dtype=torch.long, device=ids.device)
    sizes.scatter_add_(1, number, letters.long())
    sizes[:, 0] = 0
    kept = letters & (inner < characters - 2)
    row, column = kept.nonzero(as_tuple=True)
    codes[row, number[row, column], inner[row, column] + 1] = ids[row, column] + 1
    codes[:, :, 0] = BEGIN_WORD
    codes.scatter_(2, (sizes.clamp_max(characters - 2) + 1)[..., None], END_WORD)
    marked = torch.arange(words + 2, device=ids.device)
    for at, mark in ((torch.zeros_like(counts), BEGIN_SENTENCE), (counts + 1, END_SENTENCE)):
        code = ids.new_tensor([BEGIN_WORD, mark, END_WORD, *[FILL] * (characters - 3)])
        codes[torch.arange(len(ids), device=ids.device), at] = code
    inside = marked <= (counts + 1)[:, None]
    codes = codes.masked_fill(~inside[..., None], 0)
    return WordsOfBytes(codes, inside, marked[:words] < counts[:, None], (number - 1).clamp_min(0))


def _code(word: str, width: int) -> list[int]:
    inner = [MARKS[word]] if word in MARKS else [byte + 1 for byte in word.encode("utf-8", "surrogateescape")]
    code = [BEGIN_WORD, *inner[: width - 2], END_WORD]
    return code + [FILL] * (width - len(code))


class Highway(nn.Module):
    """T(x)·relu(Wx) + (1 - T(x))·x (Srivastava et al. 2015); the gate starts at -2, so x passes through at first."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)
        for layer, bias in ((self.transform, 0.0), (self.gate, -2.0)):
            nn.init.normal_(layer.weight, std=width**-0.5)
            nn.init.constant_(layer.bias, bias)

    def forward(self, x: Float[Tensor, "rows width"]) -> Float[Tensor, "rows width"]:
        return x.lerp(self.transform(x).relu(), self.gate(x).sigmoid())


class CharacterEncoder(nn.Module):
    """Convolutions of widths 1, 2, … over a word's characters, their maximum over it, highway layers, a projection.

    `filters[i]` is the number of maps of width i + 1. The vector of a word depends on the word alone, so each
    distinct word of a batch is computed once. Vectors of padding have no meaning.
    """

    def __init__(
        self, width: int, *, filters: Sequence[int], character_width: int = 16, highways: int = 2, characters: int = 50
    ) -> None:
        super().__init__()
        if len(filters) > characters:
            raise InvalidOption(f"a filter of width {len(filters)} does not fit in {characters} characters a word")
        self.characters = characters
        self.embedding = nn.Embedding(ALPHABET, character_width, padding_idx=0)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(character_width, maps, size) for size, maps in enumerate(filters, start=1)
        )
        self.highways = nn.ModuleList(Highway(sum(filters)) for _ in range(highways))
        self.projection = nn.Linear(sum(filters), width)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As in the released code, except that the embedding's row for padding is zero."""
        nn.init.uniform_(self.embedding.weight, -1, 1)
        with torch.no_grad():
            self.embedding.weight[0] = 0
        for convolution in self.convolutions:
            for name, parameter in convolution.named_parameters():
                nn.init.zeros_(parameter) if name == "bias" else nn.init.uniform_(parameter, -0.05, 0.05)
        nn.init.normal_(self.projection.weight, std=self.projection.in_features**-0.5)
        nn.init.zeros_(self.projection.bias)

    def forward(self, characters: Characters) -> Float[Tensor, "batch length width"]:
        self._check(characters)
        words, inverse = characters.flatten(0, 1).unique(dim=0, return_inverse=True)
        x = self.embedding(self._cropped(words)).transpose(1, 2)
        # relu is monotone, so it can come after the maximum.
        maps = [convolution(x).amax(-1) for convolution in self.convolutions]
        x = torch.cat(maps, dim=-1).relu()
        for highway in self.highways:
            x = highway(x)
        vectors: Tensor = self.projection(x)
        out: Tensor = vectors[inverse].unflatten(0, characters.shape[:2])
        return out

    def _cropped(self, words: Int[Tensor, "words characters"]) -> Int[Tensor, "words cropped"]:
        """Without redundant fill: one window of fill only contributes the same to the maximum as many do."""
        longest = int(((words != FILL) & (words != 0)).sum(1).max())
        return words[:, : longest + len(self.convolutions)]

    def _check(self, characters: Tensor) -> None:
        if characters.ndim != 3 or characters.shape[2] != self.characters or characters.is_floating_point():
            raise InvalidInput(
                f"expected characters (batch, length, {self.characters}) of whole numbers, as encode_words makes them, "
                f"got {tuple(characters.shape)} of {characters.dtype}"
            )
        if characters.numel() == 0:
            raise InvalidInput(f"expected at least one word, got characters {tuple(characters.shape)}")
        if not host_may_read(characters):
            return
        low, high = int(characters.min()), int(characters.max())
        if low < 0 or high >= ALPHABET:
            raise InvalidInput(f"expected characters in 0..{ALPHABET - 1}, got {low if low < 0 else high}")


__all__ = ["ALPHABET", "CharacterEncoder", "Characters", "Highway", "WordsOfBytes", "encode_words", "spell_bytes"]
