"""What decoding starts from, checked before any work is done: prompts, sources, ends, lengths."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Streams

Texts = Sequence[Sequence[int]] | Tensor  # id lists, or ids (batch, length) with a mask beside them


@dataclass(frozen=True)
class Batch:
    """Prompts side by side, each from column 0, and the sources they belong to."""

    tokens: Tensor  # (batch, longest), zeros behind the shorter ones
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
        """What the model remembers of the sources, before it has read any prompt."""
        return model.start(
            len(self),
            source=self.source,
            source_mask=self.source_mask,
            source_streams=self.source_streams,
            align=align,
        )

    def source_lengths(self) -> Tensor:
        """The real tokens of each source."""
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
    """The batch that was asked for; prompts may be left out where there is a source and a token to begin with.

    `source_streams` stand beside the source as it is given, padding included.
    """
    if model.reads_source != (source is not None):
        need = "reads a source: give one" if model.reads_source else "reads no source; leave it out"
        raise InvalidInput(f"{model.name} {need}")
    if source is None and source_streams:
        raise InvalidInput("source_streams belong to a source; give one, or leave them out")
    sources = None if source is None else _lists(source, source_mask, "source")
    if prompts is None:
        if sources is None or bos is None:
            raise InvalidInput("there are no prompts; give some, or a source and bos, the id that texts begin with")
        prompts = [[bos]] * len(sources)
    rows = _lists(prompts, prompt_mask, "prompt")
    check_ids(rows, model.vocabulary, "prompt")
    tokens, lengths = _side_by_side(rows, model.device)
    if sources is None:
        return Batch(tokens, lengths)
    if len(sources) != len(rows):
        raise InvalidInput(f"there are {len(sources)} sources and {len(rows)} prompts; each prompt has one source")
    ids, real = _side_by_side(sources, model.device)
    mask = torch.arange(ids.shape[1], device=model.device) < real[:, None]
    streams = {
        name: _beside(stream, name, source_mask, len(ids), int(real.max()))
        for name, stream in (source_streams or {}).items()
    }
    return Batch(tokens, lengths, ids, mask if min(map(len, sources)) < ids.shape[1] else None, streams or None)


def _beside(stream: Tensor, name: str, mask: Tensor | None, batch: int, longest: int) -> Tensor:
    """What stands beside the source's tokens, moved as they are: padding goes behind them."""
    width = longest if mask is None else mask.shape[1]
    if stream.shape[:2] != (batch, width):
        raise InvalidInput(f"the source's {name} must be ({batch}, {width}) as its tokens are, not {_said(stream)}")
    if mask is None:
        return stream
    order = (~mask).int().argsort(dim=1, stable=True)[:, :longest]
    return stream[torch.arange(batch, device=stream.device)[:, None], order]


def _lists(texts: Texts, mask: Tensor | None, what: str) -> list[list[int]]:
    """Plain id lists, without padding on any side."""
    if isinstance(texts, Tensor):
        if texts.dim() != 2 or texts.is_floating_point() or texts.dtype == torch.bool:
            raise InvalidInput(f"a tensor of {what}s must be ids (batch, length), not {_said(texts)}")
        if mask is not None and (mask.dtype != torch.bool or mask.shape != texts.shape):
            raise InvalidInput(f"the {what} mask must be boolean {tuple(texts.shape)}, True: real, not {_said(mask)}")
        kept = [True] * texts.shape[1]
        rows = zip(texts.tolist(), [kept] * len(texts) if mask is None else mask.tolist())
        lists = [[token for token, real in zip(*row) if real] for row in rows]
    elif mask is not None:
        raise InvalidInput(f"a {what} mask belongs to a tensor of ids; lists have their own lengths")
    else:
        lists = []
        for row, text in enumerate(texts):
            if isinstance(text, (int, str, bytes)):
                raise InvalidInput(f"expected a list of id lists, and {what} {row} is {type(text).__name__}")
            lists.append([int(token) for token in text])
    if not lists:
        raise InvalidInput(f"there are no {what}s; give one at least")
    for row, text in enumerate(lists):
        if not text:
            raise InvalidInput(f"{what} {row} is empty; give one token at least, such as the one texts begin with")
    return lists


def check_ids(rows: Sequence[Sequence[int]], vocabulary: int, what: str) -> None:
    for row, text in enumerate(rows):
        for place, token in enumerate(text):
            if not 0 <= token < vocabulary:
                raise InvalidInput(
                    f"{what} {row} has the id {token} at place {place}, and the vocabulary is 0..{vocabulary - 1}; "
                    "was it made with this model's tokenizer?"
                )


def _side_by_side(rows: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    longest = max(map(len, rows))
    padded = [[*row, *[0] * (longest - len(row))] for row in rows]
    return torch.tensor(padded, device=device), torch.tensor([len(row) for row in rows], device=device)


def _said(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"


def check_room(model: CausalModel, batch: Batch, new: int, *, slide: bool = False) -> None:
    """Refuses prompts and new tokens that the model cannot hold; with `slide`, texts may outgrow it."""
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
            raise InvalidInput(f"eos is the id {token}, and the vocabulary is 0..{model.vocabulary - 1}")
    if len(set(ends)) >= model.vocabulary:
        raise InvalidInput(f"every one of the {model.vocabulary} ids ends a text; leave some to go on with")
    return torch.tensor(sorted(set(ends)), dtype=torch.long, device=model.device)


@contextmanager
def evaluating(model: CausalModel) -> Iterator[None]:
    """Without dropout; every part is left in the mode it was found in."""
    trained = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in trained:
            module.training = True


__all__ = ["Batch", "Texts", "check_ids", "check_room", "evaluating", "read_batch", "read_ends"]
