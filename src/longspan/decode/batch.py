"""The inputs of decoding, checked before any work: prompts, sources, end tokens, lengths."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Model, Streams

Texts = Sequence[Sequence[int]] | Tensor  # id lists, or ids (batch, length) with a mask


@dataclass(frozen=True)
class Batch:
    """A batch of prompts, padded on the right, and their sources."""

    tokens: Tensor  # (batch, longest), zeros after the shorter ones
    lengths: Tensor  # (batch,)
    source: Tensor | None = None
    source_mask: Tensor | None = None
    source_streams: Streams | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def longest(self) -> int:
        return self.tokens.shape[1]

    def start(self, model: CausalModel, *, align: bool = False) -> Any:
        """The model's state after the sources, before any prompt."""
        return model.start(
            len(self),
            source=self.source,
            source_mask=self.source_mask,
            source_streams=self.source_streams,
            align=align,
        )

    def source_lengths(self) -> Tensor:
        """The number of real tokens of each source."""
        assert self.source is not None
        if self.source_mask is not None:
            return self.source_mask.sum(1)
        return torch.full_like(self.lengths, self.source.shape[1])


def read_batch(
    model: CausalModel,
    prompts: Texts | None,
    prompt_mask: Tensor | None,
    source: Texts | None,
    source_mask: Tensor | None,
    bos: int | None,
    source_streams: Streams | None = None,
) -> Batch:
    """A checked batch; prompts may be left out if there are a source and `bos`.

    `source_streams` are aligned with the source as given, padding included.
    """
    if model.reads_source != (source is not None):
        need = "reads a source: give one" if model.reads_source else "reads no source; leave it out"
        raise InvalidInput(f"{model.name} {need}")
    if source is None and source_streams:
        raise InvalidInput("source_streams belong to a source; give one, or leave them out")
    sources = None if source is None else _lists(source, source_mask, "source")
    if prompts is None:
        if sources is None or bos is None:
            raise InvalidInput("no prompts; give some, or a source and bos, the id that texts begin with")
        prompts = [[bos]] * len(sources)
    rows = _lists(prompts, prompt_mask, "prompt")
    check_ids(rows, model.vocabulary, "prompt")
    tokens, lengths = _pad(rows, model.device)
    if sources is None:
        return Batch(tokens, lengths)
    if len(sources) != len(rows):
        raise InvalidInput(f"got {len(sources)} sources for {len(rows)} prompts; give one for each")
    ids, real = _pad(sources, model.device)
    mask = torch.arange(ids.shape[1], device=model.device) < real[:, None]
    streams = {
        name: _align_stream(stream, name, source_mask, len(ids), int(real.max()))
        for name, stream in (source_streams or {}).items()
    }
    return Batch(tokens, lengths, ids, mask if min(map(len, sources)) < ids.shape[1] else None, streams or None)


def _align_stream(stream: Tensor, name: str, mask: Tensor | None, batch: int, longest: int) -> Tensor:
    """A stream of the source, with its padding moved to the end as that of the tokens."""
    width = longest if mask is None else mask.shape[1]
    if stream.shape[:2] != (batch, width):
        raise InvalidInput(f"the source's {name} must be ({batch}, {width}), not {_describe(stream)}")
    if mask is None:
        return stream
    order = (~mask).int().argsort(dim=1, stable=True)[:, :longest]
    return stream[torch.arange(batch, device=stream.device)[:, None], order]


def _lists(texts: Texts, mask: Tensor | None, what: str) -> list[list[int]]:
    """Plain id lists, without padding on any side."""
    if isinstance(texts, Tensor):
        if texts.dim() != 2 or texts.is_floating_point() or texts.dtype == torch.bool:
            raise InvalidInput(f"a tensor of {what}s must be ids (batch, length), not {_describe(texts)}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != texts.shape):
            raise InvalidInput(
                f"the {what} mask must be boolean {tuple(texts.shape)}, True: real, not {_describe(mask)}"
            )
        all_real = [True] * texts.shape[1]
        rows = zip(texts.tolist(), [all_real] * len(texts) if mask is None else mask.tolist())
        lists = [[token for token, real in zip(*row) if real] for row in rows]
    elif mask is not None:
        raise InvalidInput(f"a {what} mask needs a tensor of ids; lists have their own lengths")
    else:
        lists = []
        for row, text in enumerate(texts):
            if isinstance(text, (int, str, bytes)):
                raise InvalidInput(f"expected a list of id lists, but {what} {row} is {type(text).__name__}")
            lists.append([int(token) for token in text])
    if not lists:
        raise InvalidInput(f"no {what}s; give at least one")
    for row, text in enumerate(lists):
        if not text:
            raise InvalidInput(f"{what} {row} is empty; give at least one token, such as bos")
    return lists


def check_ids(rows: Sequence[Sequence[int]], vocabulary: int, what: str) -> None:
    """Refuses ids outside the vocabulary."""
    for row, text in enumerate(rows):
        for index, token in enumerate(text):
            if not 0 <= token < vocabulary:
                raise InvalidInput(
                    f"{what} {row} has the id {token} at position {index}, but the vocabulary is 0..{vocabulary - 1}; "
                    "was it made with this model's tokenizer?"
                )


def _pad(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    padded = [[*row, *[0] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, device=device), torch.tensor([len(row) for row in rows], device=device)


def _describe(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


def check_room(model: CausalModel, batch: Batch, new: int, *, slide: bool = False) -> None:
    """Refuses prompts and new tokens beyond the model's maximum length, unless `slide` allows it."""
    if new < 1:
        raise InvalidOption(f"max_new must be at least 1, not {new}")
    slide = slide and not model.reads_source
    if model.max_length is None or (slide and not model.fixed_length):
        return
    if batch.longest > model.max_length:
        raise InvalidInput(
            f"the longest prompt has {batch.longest} tokens, and this {model.name} holds at most {model.max_length}"
        )
    if batch.longest + new > model.max_length and not slide:
        other = "a shorter prompt" if model.reads_source else "a shorter prompt, or slide=True"
        raise InvalidInput(
            f"{batch.longest} tokens of prompt and {new} new ones are more than the {model.max_length} "
            f"that this {model.name} holds; give max_new={model.max_length - batch.longest} or {other}"
        )


def read_ends(model: CausalModel, eos: int | Sequence[int] | None) -> Tensor:
    """The ids that end a text: none, one or several."""
    ends = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
    for token in ends:
        if not 0 <= token < model.vocabulary:
            raise InvalidInput(f"eos is the id {token}, but the vocabulary is 0..{model.vocabulary - 1}")
    if len(set(ends)) >= model.vocabulary:
        raise InvalidInput(f"all {model.vocabulary} ids are end tokens; leave out some")
    return torch.tensor(sorted(set(ends)), dtype=torch.long, device=model.device)


@contextmanager
def evaluating(model: Model) -> Iterator[None]:
    """Evaluation mode; afterwards every module is in its previous mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


__all__ = ["Batch", "Texts", "check_ids", "check_room", "evaluating", "read_batch", "read_ends"]
