"""Embed texts: a vector for each text or for each of its tokens, from hidden states or from word vectors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from longspan.data import Encoded
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import Model, TextStates
from longspan.models.word_base import WordStates, WordVectors
from longspan.nn.heads import POOLS, pool
from longspan.nn.layer_features import LayerMix

COMBINE = ("mean", "sum", "concat", "mix")
WINDOW = 4096  # texts that are sorted by length together
TOKENS = 2**15  # at most, in a batch of more than one text


@dataclass(frozen=True)
class TokenVectors:
    """The tokens of a text as the model reads them, and a vector for each, (tokens, width)."""

    tokens: list[str]
    vectors: Tensor


@dataclass(frozen=True)
class _Batch:
    """States (texts, places, width) of some of the texts, and which are real."""

    rows: list[int]
    states: Tensor
    mask: Tensor
    tokens: Callable[[], list[list[str]]]


@torch.inference_mode()
def embed(
    pretrained: Pretrained,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    combine: str = "mean",
    pool: str | None = None,
    normalise: bool | None = None,
    batch: int = 32,
    longest: int | None = None,
    truncate: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Tensor:
    """A vector for each text, (texts, width) in float32.

    `layers` counts from the bottom, 0 being the embeddings, or with negative numbers from the top; `combine` averages,
    adds or concatenates the states of several, or mixes all by the weights that a head of the model has learned. `pool`
    makes one vector of a text's states, and `normalise` scales it to length 1; by default both follow the folder's
    sentence-transformers settings, or are `mean` and no. A text of more than `longest` tokens (default: the model's
    limit) is refused or, with `truncate`, cut at its end. `progress` gets the number of finished texts after each
    batch. The vector of a text does not depend on the other texts. The words of ELMo and word2vec are what spaces
    separate; words that word2vec does not know are left out.

    >>> vectors = embed(hub.load("all-MiniLM-L6-v2"), ["A cat sits.", "Dogs run."])
    """
    how, unit = _how(pretrained, pool, normalise)
    vectors: Tensor | None = None
    done = 0
    for part in _read(pretrained, texts, layers, combine, batch, longest, truncate):
        pooled = _pool(part.states, part.mask, how)
        if vectors is None:
            vectors = torch.empty(len(texts), pooled.shape[1])
        vectors[part.rows] = (nn.functional.normalize(pooled, dim=-1) if unit else pooled).cpu()
        done += len(part.rows)
        if progress is not None:
            progress(done)
    assert vectors is not None
    return vectors


@torch.inference_mode()
def embed_tokens(
    pretrained: Pretrained,
    texts: Sequence[str],
    *,
    layers: Sequence[int] = (-1,),
    combine: str = "mean",
    normalise: bool = False,
    batch: int = 32,
    longest: int | None = None,
    truncate: bool = False,
    progress: Callable[[int], None] | None = None,
) -> list[TokenVectors]:
    """The tokens of each text with a vector each, in float32; the options are those of `embed`.

    >>> embed_tokens(hub.load("all-MiniLM-L6-v2"), ["A cat sits."])[0].tokens
    ['[CLS]', 'a', 'cat', 'sits', '.', '[SEP]']
    """
    results: dict[int, TokenVectors] = {}
    for part in _read(pretrained, texts, layers, combine, batch, longest, truncate):
        for row, tokens, states, mask in zip(part.rows, part.tokens(), part.states, part.mask):
            vectors = nn.functional.normalize(states[mask], dim=-1) if normalise else states[mask]
            results[row] = TokenVectors(tokens, vectors.cpu())
        if progress is not None:
            progress(len(results))
    return [results[row] for row in range(len(texts))]


def _read(
    pretrained: Pretrained,
    texts: Sequence[str],
    layers: Sequence[int],
    combine: str,
    batch: int,
    longest: int | None,
    truncate: bool,
) -> Iterator[_Batch]:
    if isinstance(texts, str):
        raise InvalidInput("expected a list of texts, got one text; put it in a list")
    if not texts:
        raise InvalidInput("there are no texts; give one at least")
    if combine not in COMBINE:
        raise InvalidOption(f"combine must be one of {', '.join(COMBINE)}, not {combine!r}")
    if batch < 1:
        raise InvalidOption(f"batch must be at least 1, not {batch}")
    if isinstance(pretrained.model, WordVectors):
        if combine == "mix" or any(layer not in (0, -1) for layer in layers):
            raise InvalidOption("word2vec has one layer of vectors, 0")
        yield from _word_vectors(pretrained.model, texts)
        return
    mix = _learned_mix(pretrained.model) if combine == "mix" else None
    padding = getattr(pretrained.model.options, "padding", None)
    tokenizer, device = tokenizer_of(pretrained), pretrained.model.device
    for rows, group in _batches(pretrained, texts, batch, longest, truncate):
        filled = tokenizer.pad_batch(group, padding=padding)
        ids, mask = filled.ids.to(device), filled.mask.to(device)
        states, mask = read_layers(pretrained.model, ids, mask, None if mix is not None else layers)
        names = _names(pretrained, [texts[row] for row in rows], group)
        yield _Batch(rows, _combined(states, combine, mix), mask, names)


def _combined(states: Sequence[Tensor], combine: str, mix: LayerMix | None) -> Tensor:
    if mix is not None:
        mixed: Tensor = mix(torch.stack(list(states), 1)).float()
        return mixed
    wide = [state.float() for state in states]
    joined = torch.cat(wide, -1) if combine == "concat" else torch.stack(wide).sum(0)
    return joined / len(wide) if combine == "mean" else joined


def _learned_mix(model: Model) -> LayerMix:
    for module in model.modules():
        if isinstance(module, LayerMix):
            return module
    raise InvalidOption(
        f'this {model.name} has no learned mix of layers: train it by a head with features = "mix", or combine by mean'
    )


def _names(pretrained: Pretrained, texts: Sequence[str], encoded: Sequence[Encoded]) -> Callable[[], list[list[str]]]:
    """The tokens of each text, when they are asked for."""
    if isinstance(pretrained.model, WordStates):
        # A text may have been cut: count the words of what was read.
        return lambda: [bytes(text.ids).decode("utf-8", "replace").split() for text in encoded]
    inner = tokenizer_of(pretrained).inner
    return lambda: [[inner.id_to_token(number) or "" for number in text.ids] for text in encoded]


def _word_vectors(model: WordVectors, texts: Sequence[str]) -> Iterator[_Batch]:
    """The vectors of each text's known words."""
    assert model.words is not None
    for row, text in enumerate(texts):
        known = [word for word in model.tokens(text) if word in model.words]
        if not known:
            raise InvalidInput(f"text {row} has no word that the model knows: {text[:60]!r}")
        vectors = model.vectors[[model.words.ids[word] for word in known]].float()
        yield _Batch([row], vectors[None], torch.ones(1, len(known), dtype=torch.bool), partial(list, [known]))


def _how(pretrained: Pretrained, how: str | None, normalise: bool | None) -> tuple[str, bool]:
    """The kind of pooling, and whether vectors are normalised."""
    if how is not None and how not in POOLS:
        raise InvalidOption(f"pool must be one of {', '.join(POOLS)}, not {how!r}")
    said = pretrained.sentence
    if how is None:
        how = "mean" if said is None else said.pool
    return how, (said is not None and said.normalise) if normalise is None else normalise


def _batches(
    pretrained: Pretrained, texts: Sequence[str], size: int, longest: int | None, truncate: bool
) -> Iterator[tuple[list[int], list[Encoded]]]:
    """Batches of texts of similar lengths, with their rows."""
    for start in range(0, len(texts), WINDOW):
        window = texts[start : start + WINDOW]
        encoded = read_texts(pretrained, window, longest=longest, truncate="right" if truncate else None, first=start)
        order = sorted(range(len(window)), key=lambda row: -len(encoded[row]))
        while order:
            take = max(1, min(size, TOKENS // len(encoded[order[0]])))
            rows, order = order[:take], order[take:]
            yield [start + row for row in rows], [encoded[row] for row in rows]


def read_layers(model: Model, ids: Tensor, mask: Tensor, layers: Sequence[int] | None) -> tuple[list[Tensor], Tensor]:
    """The states (batch, positions, width) after the given layers (None: all), and which positions are real.

    A position is a token; for a model of words that reads bytes (ELMo), it is a word.
    """
    if isinstance(model, WordStates):
        states, words = model.word_states(ids, mask)
        every = list(states.unbind(1))
        return (every if layers is None else _chosen(every, layers)), words
    return read_states(model, ids, mask, layers), mask


def read_states(model: Model, ids: Tensor, mask: Tensor, layers: Sequence[int] | None) -> list[Tensor]:
    """The states (batch, length, width) after the given layers (None: all); for an encoder–decoder, of its encoder."""
    if not isinstance(model, TextStates):
        raise Unsupported(
            f"vectors are read from the states of an encoder or decoder, from ELMo or word2vec; this is {model.name!r}"
        )
    if layers is not None and list(layers) == [-1]:
        return [model.text_states(ids, key_mask=mask)]
    states = model.layer_states(ids, key_mask=mask)
    return states if layers is None else _chosen(states, layers)


def _chosen(states: Sequence[Tensor], layers: Sequence[int]) -> list[Tensor]:
    if not layers:
        raise InvalidOption("layers must name one layer at least, such as -1, the last")
    last = len(states) - 1
    for layer in layers:
        if not -last - 1 <= layer <= last:
            raise InvalidOption(
                f"the model has layers 0 (embeddings) to {last}, or from the top -1 to {-last - 1}, not {layer}"
            )
    return [states[layer] for layer in layers]


_pool = pool  # `embed` has an option of that name

__all__ = ["COMBINE", "TokenVectors", "embed", "embed_tokens", "read_layers", "read_states"]
