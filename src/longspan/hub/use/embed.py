"""Embed texts: one vector each, from the hidden states of a frozen pretrained model."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn

from longspan.data import Encoded
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import read_texts, tokenizer_of
from longspan.models.base import Model, TextStates
from longspan.nn.heads import POOLS, pool

COMBINE = ("mean", "sum", "concat")
WINDOW = 4096  # texts that are sorted by length together
TOKENS = 2**15  # at most, in a batch of more than one text


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
    adds or concatenates the states of several. `pool` makes one vector of a text's states, and `normalise` scales it
    to length 1; by default both follow the folder's sentence-transformers settings, or are `mean` and no. A text of
    more than `longest` tokens (default: the model's limit) is refused or, with `truncate`, cut at its end. `progress`
    gets the number of finished texts after each batch. The vector of a text does not depend on the other texts.

    >>> vectors = embed(hub.load("all-MiniLM-L6-v2"), ["A cat sits.", "Dogs run."])
    """
    if isinstance(texts, str):
        raise InvalidInput("expected a list of texts, got one text; put it in a list")
    if not texts:
        raise InvalidInput("there are no texts; give one at least")
    if combine not in COMBINE:
        raise InvalidOption(f"combine must be one of {', '.join(COMBINE)}, not {combine!r}")
    if batch < 1:
        raise InvalidOption(f"batch must be at least 1, not {batch}")
    how, unit = _how(pretrained, pool, normalise)
    padding = getattr(pretrained.model.options, "padding", None)
    vectors: Tensor | None = None
    done = 0
    for rows, group in _batches(pretrained, texts, batch, longest, truncate):
        filled = tokenizer_of(pretrained).pad_batch(group, padding=padding)
        device = pretrained.model.device
        ids, mask = filled.ids.to(device), filled.mask.to(device)
        states = [state.float() for state in read_states(pretrained.model, ids, mask, layers)]
        joined = torch.cat(states, -1) if combine == "concat" else torch.stack(states).sum(0)
        if combine == "mean":
            joined = joined / len(states)
        pooled = _pool(joined, mask, how)
        if vectors is None:
            vectors = torch.empty(len(texts), pooled.shape[1])
        vectors[rows] = (nn.functional.normalize(pooled, dim=-1) if unit else pooled).cpu()
        done += len(rows)
        if progress is not None:
            progress(done)
    assert vectors is not None
    return vectors


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


def read_states(model: Model, ids: Tensor, mask: Tensor, layers: Sequence[int]) -> list[Tensor]:
    """The states (batch, length, width) after the given layers; for an encoder–decoder, of its encoder."""
    if not isinstance(model, TextStates):
        raise Unsupported(f"vectors are read from the states of an encoder or decoder, and this is {model.name!r}")
    if not layers:
        raise InvalidOption("layers must name one layer at least, such as -1, the last")
    if list(layers) == [-1]:
        return [model.text_states(ids, key_mask=mask)]
    states = model.layer_states(ids, key_mask=mask)
    last = len(states) - 1
    for layer in layers:
        if not -last - 1 <= layer <= last:
            raise InvalidOption(
                f"the model has layers 0 (embeddings) to {last}, or from the top -1 to {-last - 1}, not {layer}"
            )
    return [states[layer] for layer in layers]


_pool = pool  # `embed` has an option of that name

__all__ = ["COMBINE", "embed", "read_states"]
