"""Greedy and sampled continuations of prompts, as a whole or as a stream."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan

import torch
from tokenizers import Tokenizer
from torch import Tensor

from longspan.decode.batch import Batch, Texts, check_ids, check_room, evaluating, read_batch, read_ends
from longspan.decode.choose import Chooser
from longspan.decode.feed import Feed
from longspan.decode.options import GREEDY, Sampling
from longspan.decode.prefix_cache import PrefixCache
from longspan.decode.text import Decode, StopStrings, Writer
from longspan.errors import InvalidInput, InvalidOption
from longspan.models.base import CausalModel, Streams


@dataclass(frozen=True)
class Generation:
    """Generated texts: `samples` consecutive rows for each prompt.

    The log-probabilities are the model's, before temperature, penalties and filters, so they equal those of `score`.
    The end token is part of the tokens.
    """

    tokens: list[list[int]]  # the new ones
    logprobs: list[list[float]]
    reasons: list[str]  # why each row ended: "end" (an eos id), "stop" (a stop string) or "length"
    texts: list[str] | None  # with a tokenizer: the new text, without end token and stop string
    state_bytes: int  # largest size of the model's state, all rows
    bytes_per_token: float  # the same per token read


@dataclass(frozen=True)
class Piece:
    """One token of a stream."""

    token: int
    logprob: float
    text: str  # new text since the last piece: complete characters, no part of a stop string
    reason: str | None  # in the last piece: "end", "stop" or "length"


@torch.inference_mode()
def generate(
    model: CausalModel,
    prompts: Texts | None = None,
    *,
    max_new: int,
    sampling: Sampling = GREEDY,
    eos: int | Sequence[int] | None = None,
    stop: Sequence[str] = (),
    tokenizer: Tokenizer | Decode | None = None,
    prompt_mask: Tensor | None = None,
    source: Texts | None = None,
    source_mask: Tensor | None = None,
    source_streams: Streams | None = None,
    bos: int | None = None,
    slide: bool = False,
) -> Generation:
    """Up to `max_new` tokens after each prompt, ended by `eos` ids or `stop` strings; greedy by default.

    Prompts are id lists of any lengths, or a tensor with a mask (True: real). The result of a row does not depend on
    the rest of the batch.

    With `slide`, a text may exceed the model's `max_length`. A model whose position table ends there reads the last
    `max_length` tokens again for every further token; any other model continues from its state. Encoder-decoders do
    not slide.

    >>> generate(model, [[1, 5, 9], [1, 7]], max_new=20, sampling=Sampling(top_p=0.9, seed=3), eos=2).tokens
    """
    _check_stops(stop, tokenizer)
    batch = read_batch(model, prompts, prompt_mask, source, source_mask, bos, source_streams)
    with evaluating(model):
        run = _Run(model, batch, sampling, read_ends(model, eos), max_new, slide)
        writers = [Writer(tokenizer, stop) for _ in range(run.total)] if tokenizer is not None else []
        shown: list[list[str]] = [[] for _ in writers]
        stopped = [False] * run.total
        while run.left:
            continued = run.step()
            for row, token in continued if writers else ():
                text, stopped[row] = writers[row].push(token)
                shown[row].append(text)
            run.stop([row for row, _ in continued if stopped[row]])
        run.measure()
    for row, writer in enumerate(writers):
        if not stopped[row]:
            shown[row].append(writer.finish())
    return Generation(
        tokens=run.tokens,
        logprobs=run.logprobs,
        reasons=["end" if end else "stop" if stop else "length" for end, stop in zip(run.ended, stopped)],
        texts=["".join(pieces) for pieces in shown] if writers else None,
        state_bytes=run.state_size[0],
        bytes_per_token=run.state_size[0] / run.state_size[1],
    )


def stream(
    model: CausalModel,
    prompt: Sequence[int] | None = None,
    *,
    max_new: int,
    sampling: Sampling = GREEDY,
    eos: int | Sequence[int] | None = None,
    stop: Sequence[str] = (),
    tokenizer: Tokenizer | Decode | None = None,
    source: Sequence[int] | None = None,
    source_streams: Streams | None = None,
    bos: int | None = None,
    slide: bool = False,
    prefix_cache: PrefixCache | None = None,
) -> Iterator[Piece]:
    """`generate` for one prompt, with each token as soon as it is chosen.

    With `prefix_cache`, a prompt that continues an earlier text is read from there on, and this text is kept for later
    prompts.
    """
    _check_stops(stop, tokenizer)
    if sampling.samples != 1:
        raise InvalidOption(f"a stream is one text, not {sampling.samples} samples; give samples=1")
    if prefix_cache is not None and source is not None:
        raise InvalidInput("a prefix cache works without a source only; leave it out")
    sources = None if source is None else [source]
    prompts = None if prompt is None else [prompt]
    batch = read_batch(model, prompts, None, sources, None, bos, source_streams)
    check_room(model, batch, max_new, slide=slide)
    writer = None if tokenizer is None else Writer(tokenizer, stop)
    return _pieces(model, batch, sampling, read_ends(model, eos), max_new, writer, slide, prefix_cache)


@torch.inference_mode()  # for a generator it is active only while that runs
def _pieces(
    model: CausalModel,
    batch: Batch,
    sampling: Sampling,
    ends: Tensor,
    new: int,
    writer: Writer | None,
    slide: bool,
    prefix_cache: PrefixCache | None,
) -> Iterator[Piece]:
    with evaluating(model):
        run = _Run(model, batch, sampling, ends, new, slide, prefix_cache)
        try:
            yield from _steps(run, writer)
        finally:
            run.feed.remember()


def _steps(run: "_Run", writer: Writer | None) -> Iterator[Piece]:
    first = True
    while run.left:
        before = len(run.tokens[0])
        run.step()
        if first:
            run.feed.remember()
            first = False
        if len(run.tokens[0]) == before:
            continue
        token, text, stopped, end = run.tokens[0][-1], "", False, run.ended[0]
        if writer is not None and not end:
            text, stopped = writer.push(token)
        reason = "end" if end else "stop" if stopped else None if run.left else "length"
        if writer is not None and reason in ("end", "length"):
            text += writer.finish()
        yield Piece(token, run.logprobs[0][-1], text, reason)
        if stopped:
            return


def _check_stops(stop: Sequence[str], tokenizer: Tokenizer | Decode | None) -> None:
    if StopStrings(stop).stops and tokenizer is None:
        raise InvalidOption("stop strings need text: give the tokenizer as well")


class _Run:
    """The state of a generation; each step reads the last tokens and chooses the next ones."""

    def __init__(
        self,
        model: CausalModel,
        batch: Batch,
        options: Sampling,
        ends: Tensor,
        new: int,
        slide: bool,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        check_room(model, batch, new, slide=slide)
        if options.min_new > new:
            raise InvalidOption(f"min_new {options.min_new} is more than max_new {new}")
        check_ids([() if options.last_token is None else (options.last_token,)], model.vocabulary, "last_token")
        self._choose = Chooser(options, batch, vocabulary=model.vocabulary, ends=ends, new=new)
        self.feed = Feed(model, batch, new=new, slide=slide, prefix_cache=prefix_cache)
        self._ends, self._new, self._copies = set(ends.tolist()), new, options.samples
        self.left = self.total = len(batch) * options.samples  # rows that continue, and all rows
        self._rows = list(range(self.total))  # the rows that are still in the feed
        self._active = [True] * self.total  # which of these continue
        self.tokens: list[list[int]] = [[] for _ in range(self.total)]
        self.logprobs: list[list[float]] = [[] for _ in range(self.total)]
        self.ended = [False] * self.total
        self.state_size = (0, 0)  # bytes of the state, and the number of tokens in it

    def step(self) -> list[tuple[int, int]]:
        """Reads and chooses; the rows that continue, each with its new token."""
        feed, first = self.feed, self.feed.read == 0
        if not first:
            self._drop()
        logits, ready = feed.advance()
        if first and self._copies > 1:  # a prompt is read once for all its samples
            copies = torch.arange(len(logits), device=logits.device).repeat_interleave(self._copies)
            feed.select(copies)
            logits, ready = logits[copies], ready[copies]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        token = self._choose(logits, feed)
        logprob = logits.log_softmax(1).gather(1, token[:, None])[:, 0]
        feed.append(token, ready)
        self._choose.note(token, ready)
        return self._note(token.tolist(), logprob.tolist(), ready.tolist())

    def _note(self, tokens: list[int], logprobs: list[float], ready: list[bool]) -> list[tuple[int, int]]:
        """Records the new tokens of the rows that were ready; returns those that continue."""
        continued, completed = [], []
        for index, (row, token, logprob) in enumerate(zip(self._rows, tokens, logprobs)):
            if not ready[index]:
                continue
            if isnan(logprob):
                raise InvalidInput("the model's logits are NaN or infinite; its weights may have diverged")
            self.tokens[row].append(token)
            self.logprobs[row].append(logprob)
            self.ended[row] = token in self._ends
            if not self.ended[row]:
                continued.append((row, token))
            if self.ended[row] or len(self.tokens[row]) == self._new:
                completed.append(index)
        self._end(completed)
        return continued

    def _end(self, indices: list[int]) -> None:
        if not indices:
            return
        for index in indices:
            self._active[index] = False
        self.left = sum(self._active)
        self.feed.active = torch.tensor(self._active, device=self.feed.active.device)

    def stop(self, rows: list[int]) -> None:
        """Ends these rows."""
        self._end([index for index, row in enumerate(self._rows) if row in rows])

    def _drop(self) -> None:
        # Copy the state only when half of it can go: all copies together are then no larger than the first state.
        if 2 * self.left > len(self._rows):
            return
        self.measure()
        kept = [index for index, active in enumerate(self._active) if active]
        rows = torch.tensor(kept, device=self.feed.active.device)
        self.feed.select(rows)
        self._choose.select(rows)
        self._rows, self._active = [self._rows[index] for index in kept], [True] * len(kept)

    def measure(self) -> None:
        """Records the largest size of the state."""
        self.state_size = max(self.state_size, (self.feed.state.bytes, len(self._rows) * self.feed.read))


__all__ = ["Generation", "Piece", "generate", "stream"]
