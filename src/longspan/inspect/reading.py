"""What a model reads: a text, a pair, a source with its target, token ids or an image, with names for its positions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan import hub
from longspan.attention.base import Attention
from longspan.data import Encoded, Tokenizer
from longspan.data.images.image_folders import read_image_file
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import Pretrained
from longspan.hub.use.generate import begin_of, ends_of
from longspan.hub.use.texts import longest_text, tokenizer_of
from longspan.hub.use.translate import source_tokenizer
from longspan.inspect.capture import Side
from longspan.inspect.records import Axis, ModelCard, Picture
from longspan.models.base import CausalModel, EncoderDecoder, Model, TextHeads, TextStates
from longspan.models.image_base import ImageHeads
from longspan.nn.alignment import Alignment
from longspan.nn.relative_multihead import RelativeAttention

PREPROCESSOR = "preprocessor_config.json"
MOST_WRITTEN = 100  # tokens of a target that is generated because none was given

Given = str | Sequence[int]  # a text, or token ids for models without a tokenizer


@dataclass(frozen=True)
class Reading:
    """One input of one model, ready to run."""

    model: Model
    run: Callable[[], Any]  # a parallel forward pass
    axes: Mapping[str, Axis]
    sides: Mapping[Side, str]
    text: str = ""
    ids: Sequence[int] = ()  # what a causal model has read, or the target
    source: Sequence[int] | None = None  # of an encoder-decoder
    picture: Picture | None = None
    written: bool = False  # whether the target was generated here
    tokenizer: Tokenizer | None = None


def load(model: Model | Pretrained | str | Path) -> Pretrained:
    """The model in evaluation mode, with its tokenizer if it has one."""
    if isinstance(model, Model):
        return Pretrained(model)
    return model if isinstance(model, Pretrained) else hub.load(model)


def model_card(model: Model, name: str) -> ModelCard:
    attentions = [module for module in model.modules() if isinstance(module, Attention)]
    names = tuple(dict.fromkeys(attention.name for attention in attentions))
    options = model.options
    heads = max((attention.shape.heads for attention in attentions), default=int(getattr(options, "heads", 1)))
    return ModelCard(
        name=name,
        kind=model.name,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        layers=int(getattr(options, "layers", len(attentions))),
        heads=heads,
        mechanisms=names,
    )


def check_attention(model: Model) -> None:
    """Refuses a model that has nothing to look at."""
    if not any(isinstance(module, (Attention, RelativeAttention, Alignment)) for module in model.modules()):
        raise Unsupported(f"this {model.name} has no attention, so there is no map of it; try a Transformer")


def read(
    pretrained: Pretrained,
    text: Given | None = None,
    *,
    pair: Given | None = None,
    image: Path | None = None,
    write: bool = True,
) -> Reading:
    """The input, checked: it has tokens, and the model has room for them.

    With `write`, an encoder-decoder without a target (`pair`) writes one itself, greedily.
    """
    model = pretrained.model
    check_attention(model)
    if isinstance(model, ImageHeads):
        if image is None or text is not None or pair is not None:
            raise InvalidOption(f"this {model.name} reads images, not text: give --image FILE and no --text")
        return _read_image(pretrained, model, image)
    if image is not None:
        raise InvalidOption(f"this {model.name} reads text, not images: give --text instead of --image")
    if text is None:
        raise InvalidOption("give a text to read by --text or --file")
    if isinstance(model, EncoderDecoder):
        return _read_source(pretrained, model, text, pair, write=write)
    if isinstance(model, CausalModel):
        if pair is not None:
            raise InvalidOption(f"this {model.name} reads one text: leave out --pair")
        return _read_causal(pretrained, model, text)
    return _read_text(pretrained, text, pair)


# Texts


def _encode(pretrained: Pretrained, tokenizer: Tokenizer | None, text: Given, pair: Given | None = None) -> Encoded:
    if not isinstance(text, str):
        ids = [int(number) for number in text] + [int(number) for number in pair or ()]
        return Encoded(ids, [0] * len(ids), [(0, 0)] * len(ids), [False] * len(ids), list(range(len(ids))))
    tokenizer = tokenizer_of(pretrained) if tokenizer is None else tokenizer
    if not text.strip():
        raise InvalidInput("the text is empty: it has no tokens to look at")
    return tokenizer.encode(text, None if pair is None else str(pair))


def _check_length(count: int, most: int | None, what: str = "the text") -> None:
    if not count:
        raise InvalidInput(f"{what} is empty: it has no tokens to look at")
    if most is not None and count > most:
        raise InvalidInput(f"{what} has {count} tokens, and the model holds at most {most}; shorten it")


def make_axis(name: str, encoded: Encoded, tokenizer: Tokenizer | None, text: str = "", pair: str = "") -> Axis:
    """The tokens as they are shown: the characters that they stand for, special tokens by their name."""
    special_ids = set() if tokenizer is None else set(tokenizer.specials.values())
    special = np.array([a or i in special_ids for a, i in zip(encoded.added, encoded.ids)], bool)
    words, base, last, texts, tokens = [], 0, -1, [text, pair], []
    for (begin, end), word, added, number in zip(encoded.offsets, encoded.words, encoded.added, encoded.ids):
        if word is not None and not added and word + base < last:  # the second text of a pair counts from 0 again
            base, texts = last + 1, texts[1:]
        if word is not None and not added:
            last = max(last, word + base)
        words.append(-1 if word is None or added else word + base)
        piece = texts[0][begin:end].strip() if texts and not added else ""
        tokens.append(piece or (str(number) if tokenizer is None else token_text(tokenizer, number)))
    return Axis(name, tuple(tokens), np.array(words, np.int64), special, np.array(encoded.ids, np.int64))


def token_text(tokenizer: Tokenizer, number: int) -> str:
    """A token as text, or as the vocabulary spells it where it is no text of its own."""
    shown = tokenizer.decode([number], special=True)
    if shown and not shown.strip(" "):
        return "\u2423" * len(shown)  # an open box for each space
    if shown and not shown.strip():
        return shown.encode("unicode_escape").decode()
    return shown if shown and "\ufffd" not in shown else tokenizer.token(number)


def _ids(encoded: Encoded) -> Tensor:
    return torch.tensor([encoded.ids])


def _read_text(pretrained: Pretrained, text: Given, pair: Given | None) -> Reading:
    model, tokenizer = pretrained.model, pretrained.tokenizer
    encoded = _encode(pretrained, tokenizer, text, pair)
    _check_length(len(encoded), longest_text(pretrained))
    ids, mask = _ids(encoded), torch.ones(1, len(encoded), dtype=torch.bool)
    kinds = model.segment_kinds if isinstance(model, TextHeads) else 0
    segments = torch.tensor([encoded.segments]) if kinds > 1 and pair is not None else None
    if isinstance(model, TextHeads) and len(model.heads):

        def run() -> Any:
            return model.outputs(ids, key_mask=mask, segments=segments)
    elif isinstance(model, TextStates):

        def run() -> Any:
            return model(ids, segments=segments) if segments is not None else model.text_states(ids)
    else:
        raise Unsupported(f"this {model.name} reads neither texts nor images; there is nothing to give it")
    first, second = (each if isinstance(each, str) else "" for each in (text, pair))
    axis = make_axis("text", encoded, tokenizer, first, second)
    shown = f"{first}\n{second}" if second else first
    sides: dict[Side, str] = {"encoder": "text", "decoder": "text"}
    return Reading(model, run, {"text": axis}, sides, shown, encoded.ids, tokenizer=tokenizer)


def _read_causal(pretrained: Pretrained, model: CausalModel, text: Given) -> Reading:
    tokenizer = pretrained.tokenizer
    encoded = without_end(_encode(pretrained, tokenizer, text), tokenizer)
    _check_length(len(encoded), model.max_length)
    shown = text if isinstance(text, str) else ""
    return causal_reading(model, make_axis("text", encoded, tokenizer, shown), encoded.ids, shown, tokenizer)


def causal_reading(
    model: CausalModel, axis: Axis, ids: Sequence[int], text: str, tokenizer: Tokenizer | None
) -> Reading:
    """A whole text, read in parallel."""
    given = torch.tensor([list(ids)])
    sides: dict[Side, str] = {"encoder": axis.name, "decoder": axis.name}
    return Reading(
        model, lambda: model.text_logits(given), {axis.name: axis}, sides, text, list(ids), tokenizer=tokenizer
    )


def without_end(encoded: Encoded, tokenizer: Tokenizer | None) -> Encoded:
    """The text without the end tokens that a tokenizer adds, so that it can be continued."""
    if tokenizer is None:
        return encoded
    last, count = {tokenizer.eos, tokenizer.sep} - {tokenizer.bos, tokenizer.cls}, len(encoded)
    while count > 1 and encoded.added[count - 1] and encoded.ids[count - 1] in last:
        count -= 1
    return replace(encoded, **{name: list(value)[:count] for name, value in vars(encoded).items()})


def _read_source(
    pretrained: Pretrained, model: EncoderDecoder, text: Given, pair: Given | None, *, write: bool
) -> Reading:
    tokenizer = pretrained.tokenizer
    reads = None if tokenizer is None else source_tokenizer(pretrained, tokenizer)
    encoded = _encode(pretrained, reads, text)
    _check_length(len(encoded), longest_text(pretrained), "the source")
    if pair is not None and not isinstance(pair, str):
        target = [int(number) for number in pair]
    elif tokenizer is None:
        raise InvalidOption("a model without a tokenizer needs its target as token ids: give pair")
    else:
        target = begin_of(pretrained, tokenizer)
        if pair is not None:
            target += _own(tokenizer, str(pair))
        elif write:
            target += _write(pretrained, model, _ids(encoded), target)
    _check_length(len(target), model.max_length, "the target")
    source = make_axis("source", encoded, reads, text if isinstance(text, str) else "")
    shown = text if isinstance(text, str) else ""
    return target_reading(model, source, target, shown, tokenizer, written=write and pair is None)


def target_reading(
    model: EncoderDecoder,
    source: Axis,
    target: Sequence[int],
    text: str,
    tokenizer: Tokenizer | None,
    *,
    written: bool = False,
) -> Reading:
    """A source with its target, both read in parallel."""
    axes = {"source": source, "target": extend_axis(None, target, tokenizer, "target")}
    given, ids = torch.tensor([source.ids.tolist()]), torch.tensor([list(target)])
    sides: dict[Side, str] = {"encoder": "source", "decoder": "target"}
    return Reading(
        model,
        lambda: model(given, ids),
        axes,
        sides,
        text,
        list(target),
        source.ids.tolist(),
        written=written,
        tokenizer=tokenizer,
    )


def extend_axis(axis: Axis | None, ids: Sequence[int], tokenizer: Tokenizer | None, name: str = "text") -> Axis:
    """An axis with further tokens; a word begins where the vocabulary marks one."""
    tokens, words = ([], []) if axis is None else (list(axis.tokens), axis.words.tolist())
    special, known = ([], []) if axis is None else (axis.special.tolist(), axis.ids.tolist())
    specials = set() if tokenizer is None else set(tokenizer.specials.values())
    for number in ids:
        shown = str(number) if tokenizer is None else token_text(tokenizer, number)
        spelt = " " if tokenizer is None else tokenizer.token(number)
        last = max(words, default=-1)
        marked = spelt[:1] in (" ", "\u0120", "\u2581")  # as BPE and SentencePiece mark the beginning of a word
        begins = not words or words[-1] < 0 or marked or shown[:1].isalnum() != tokens[-1][-1:].isalnum()
        words.append(-1 if number in specials else last + 1 if begins else last)
        tokens.append(shown.strip() or shown)
        special.append(number in specials)
        known.append(number)
    return Axis(name, tuple(tokens), np.array(words, np.int64), np.array(special, bool), np.array(known, np.int64))


def _own(tokenizer: Tokenizer, text: str) -> list[int]:
    if not text.strip():
        raise InvalidInput("the target is empty: leave out --pair, and it is generated")
    return tokenizer.encode(text, special=False).ids


def _write(pretrained: Pretrained, model: EncoderDecoder, source: Tensor, begin: list[int]) -> list[int]:
    """The target that the model writes by itself: greedy."""
    from longspan import decode

    tokenizer = tokenizer_of(pretrained)
    room = MOST_WRITTEN if model.max_length is None else min(MOST_WRITTEN, model.max_length - len(begin))
    made = decode.generate(model, [begin], max_new=room, source=source.tolist(), eos=ends_of(pretrained, tokenizer))
    return made.tokens[0]


# Images


def _read_image(pretrained: Pretrained, model: ImageHeads, path: Path) -> Reading:
    embedding = getattr(model, "embedding", None)
    grid, size, channels = (getattr(embedding, name, None) for name in ("grid", "image", "channels"))
    if grid is None or size is None or channels is None:
        raise Unsupported(f"this {model.name} has no patches to show; inspect reads vit and deit")
    if not path.is_file():
        raise InvalidInput(f"there is no image {path}")
    pixels = read_image_file(path, size, channels)
    mean, deviation = _normalisation(pretrained, channels)
    scaled = (torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 255 - mean) / deviation
    images = scaled[None].to(model.dtype)
    extra = int(getattr(embedding, "tokens", 0)) - grid[0] * grid[1]
    names = [
        *(["[CLS]", "[DIST]"][:extra]),
        *(f"{row},{column}" for row in range(grid[0]) for column in range(grid[1])),
    ]
    special = np.arange(len(names)) < extra
    words = np.where(special, -1, np.arange(len(names)) - extra)
    axis = Axis("image", tuple(names), words, special, np.full(len(names), -1, np.int64))
    shown = np.repeat(pixels, 3, axis=2) if channels == 1 else pixels
    picture = Picture(np.ascontiguousarray(shown), grid[0], grid[1], extra)
    sides: dict[Side, str] = {"encoder": "image", "decoder": "image"}
    run = (lambda: model.outputs(images)) if len(model.heads) else (lambda: model(images))
    return Reading(model, run, {"image": axis}, sides, picture=picture)


def _normalisation(pretrained: Pretrained, channels: int) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each channel: of the folder's preprocessor, or 0.5, as Hugging Face's ViT was trained."""
    mean, deviation = [0.5] * channels, [0.5] * channels
    file = None if pretrained.path is None else pretrained.path / PREPROCESSOR
    if file is not None and file.is_file():
        try:
            record = loads(file.read_text("utf-8"))
            mean, deviation = (record.get(key, mean) for key in ("image_mean", "image_std"))
            if len(mean) != channels or len(deviation) != channels:
                raise ValueError
            return torch.tensor(mean).view(-1, 1, 1).float(), torch.tensor(deviation).view(-1, 1, 1).float()
        except (ValueError, TypeError, AttributeError):
            raise InvalidInput(f"{file}: image_mean and image_std must be {channels} numbers each") from None
    return torch.tensor(mean).view(-1, 1, 1), torch.tensor(deviation).view(-1, 1, 1)


__all__ = [
    "Given",
    "Reading",
    "causal_reading",
    "check_attention",
    "extend_axis",
    "load",
    "model_card",
    "read",
    "target_reading",
    "token_text",
]
