"""Chooses the next token of each row: greedy or sampled, with penalties for repetition."""

from hashlib import blake2b

import torch
from torch import Tensor

from longspan.decode import filters
from longspan.decode.batch import Batch
from longspan.decode.feed import Feed
from longspan.decode.options import Sampling
from longspan.errors import InvalidInput


class Chooser:
    """Chooses tokens by `options` for a batch with `options.samples` rows per prompt."""

    def __init__(self, options: Sampling, batch: Batch, *, vocabulary: int, ends: Tensor, new: int) -> None:
        self.options, self.ends, self.vocabulary, self.new = options, ends, vocabulary, new
        device = batch.tokens.device
        self.uniform = uniform_draws(options, batch, new).to(device) if options.temperature else None
        self.seen: Tensor | None = None  # (rows, vocabulary) tokens of the prompt
        self.counts: Tensor | None = None  # (rows, vocabulary) how often each token was generated
        repetition = options.repetition_penalty != 1
        if repetition and options.penalise_prompt:
            real = torch.arange(batch.longest, device=device) < batch.lengths[:, None]
            counts = torch.zeros(len(batch), vocabulary, dtype=torch.int32, device=device)
            self.seen = (counts.scatter_add_(1, batch.tokens, real.int()) > 0).repeat_interleave(options.samples, 0)
        if repetition or options.frequency_penalty or options.presence_penalty:
            self.counts = torch.zeros(len(batch) * options.samples, vocabulary, device=device)
        self.bias = _bias(options, vocabulary, device)

    def __call__(self, logits: Tensor, feed: Feed) -> Tensor:
        """A token for each row; the caller ignores those of rows that need none."""
        options = self.options
        logits = self._adjust(logits, feed)
        if self.uniform is None:
            return logits.argmax(1)
        logits = logits / options.temperature
        if options.top_k is not None:
            logits = filters.keep_top_k(logits, options.top_k)
        if options.top_p < 1:
            logits = filters.keep_top_p(logits, options.top_p, options.top_k)
        if options.min_p > 0:
            logits = filters.keep_min_p(logits, options.min_p)
        step = feed.made.clamp_max(self.uniform.shape[1] - 1)
        return filters.draw(logits, self.uniform.gather(1, step[:, None])[:, 0])

    def _adjust(self, logits: Tensor, feed: Feed) -> Tensor:
        options = self.options
        if options.repetition_penalty != 1:
            assert self.counts is not None
            seen = self.counts > 0 if self.seen is None else self.seen | (self.counts > 0)
            logits = filters.penalise_repetition(logits, seen, options.repetition_penalty)
        if options.frequency_penalty or options.presence_penalty:
            assert self.counts is not None
            logits = filters.penalise_counts(logits, self.counts, options.frequency_penalty, options.presence_penalty)
        if self.bias is not None:
            logits = logits + self.bias
        logits = forbid(logits, feed, self.ends, min_new=options.min_new, no_repeat_ngram=options.no_repeat_ngram)
        if options.last_token is not None:
            logits = allow_only(logits, options.last_token, feed.made == self.new - 1)
        return logits

    def note(self, token: Tensor, where: Tensor) -> None:
        """Counts `token` in the rows where `where` is True."""
        if self.counts is not None:
            self.counts.scatter_add_(1, token[:, None], where[:, None].to(self.counts.dtype))

    def select(self, rows: Tensor) -> None:
        self.uniform = None if self.uniform is None else self.uniform[rows]
        self.seen = None if self.seen is None else self.seen[rows]
        self.counts = None if self.counts is None else self.counts[rows]


def forbid(logits: Tensor, feed: Feed, ends: Tensor, *, min_new: int, no_repeat_ngram: int) -> Tensor:
    """Logits without end tokens before `min_new` tokens, and without repeated n-grams."""
    if not min_new and not no_repeat_ngram:
        return logits
    banned = torch.zeros_like(logits, dtype=torch.bool)
    if min_new and len(ends):
        banned[:, ends] = (feed.made < min_new)[:, None]
    if no_repeat_ngram:
        width = min(feed.read + feed.longest, feed.tokens.shape[1])  # the longest row
        banned |= filters.repeated_ngrams(feed.tokens[:, :width], feed.known, no_repeat_ngram, logits.shape[1])
    return filters.ban(logits, banned)


def allow_only(values: Tensor, token: Tensor | int, where: Tensor) -> Tensor:
    """Sets all tokens but `token` (one per row, or one for all) to -inf in the rows where `where` is True."""
    kept = token[:, None] if isinstance(token, Tensor) else token
    others = torch.arange(values.shape[1], device=values.device) != kept
    return values.masked_fill(others & where[:, None], float("-inf"))


def uniform_draws(options: Sampling, batch: Batch, new: int) -> Tensor:
    """Random numbers for all draws (rows, new); each row has its own generator."""
    rows = []
    for index, (tokens, length) in enumerate(zip(batch.tokens.tolist(), batch.lengths.tolist())):
        source: list[int] = []
        if batch.source is not None:
            real = None if batch.source_mask is None else batch.source_mask[index]
            source = (batch.source[index] if real is None else batch.source[index][real]).tolist()
        for sample in range(options.samples):
            key = repr((options.seed, sample, tokens[:length], source)).encode()
            generator = torch.Generator().manual_seed(int.from_bytes(blake2b(key, digest_size=8).digest(), "little"))
            rows.append(torch.rand(new, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def _bias(options: Sampling, vocabulary: int, device: torch.device) -> Tensor | None:
    if options.logit_bias is None:
        return None
    bias = torch.zeros(vocabulary, device=device)
    for token, value in options.logit_bias:
        if not 0 <= token < vocabulary:
            raise InvalidInput(f"logit_bias has the id {int(token)}, but the vocabulary is 0..{vocabulary - 1}")
        bias[int(token)] += value
    return bias


__all__ = ["Chooser", "allow_only", "forbid", "uniform_draws"]
