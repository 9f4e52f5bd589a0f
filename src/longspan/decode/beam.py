"""Beam search with length and coverage penalties (Wu et al. 2016, section 7; Sutskever et al. 2014).

Live hypotheses are ranked by log-probability, finished ones by score. A step expands every live hypothesis by every
token, and keeps enough of the best candidates for `beams` of them to continue even if others end. Candidates that end
and are among the best `beams` are finished.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.decode.batch import Batch, Texts, check_ids, check_room, evaluating, read_batch, read_ends
from longspan.decode.choose import allow_only, forbid
from longspan.decode.feed import Feed
from longspan.decode.options import Beam
from longspan.decode.top_values import top_values
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models.base import CausalModel, Streams

NEVER = float("-inf")
DEFAULT = Beam()
UNREAD = 1e-10  # least coverage of a source token: log 0 would be -inf


@dataclass(frozen=True)
class Hypothesis:
    """A continuation; its score is the log-probability after both penalties."""

    tokens: list[int]  # the new ones, including the end
    score: float
    logprobs: list[float]  # of each token
    finished: bool  # False: cut at the length limit

    @property
    def logprob(self) -> float:
        """Log P(Y|X)."""
        return sum(self.logprobs)


def length_penalty(length: Tensor, options: Beam) -> Tensor:
    """The divisor of the log-probability; it never falls with the length (alpha is not negative)."""
    if options.length_penalty == "none":
        return torch.ones_like(length, dtype=torch.float64)
    grown = (5 + length.double()) / 6 if options.length_penalty == "gnmt" else length.double()
    return grown**options.alpha


def coverage_penalty(covered: Tensor, beta: float, mask: Tensor | None = None) -> Tensor:
    """At most 0, and lower if less of the source was read; `covered` (…, source) are summed attention weights."""
    read = covered.clamp(UNREAD, 1.0).log()
    return beta * (read if mask is None else read.masked_fill(~mask, 0.0)).sum(-1)


@torch.inference_mode()
def beam_search(
    model: CausalModel,
    prompts: Texts | None = None,
    *,
    options: Beam = DEFAULT,
    eos: int | Sequence[int] | None = None,
    prompt_mask: Tensor | None = None,
    source: Texts | None = None,
    source_mask: Tensor | None = None,
    source_streams: Streams | None = None,
    bos: int | None = None,
    slide: bool = False,
    limits: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The `n_best` hypotheses of each prompt, best first; by default finished ones come before those cut at the limit.

    `limits` gives the most new tokens of each prompt, if they differ and `max_new` is not given.

    The result of a prompt does not depend on the rest of the batch. `model` may be an `Ensemble`. For `slide` see
    `generate`.

    >>> beam_search(model, source=[[5, 9, 4], [8, 3]], bos=1, eos=2, options=Beam(beams=4, n_best=2))
    """
    batch = read_batch(model, prompts, prompt_mask, source, source_mask, bos, source_streams)
    ends = read_ends(model, eos)
    most = _limits(model, batch, options, slide, limits)
    if options.beams > model.vocabulary and not options.exhaustive:
        raise InvalidOption(
            f"{options.beams} beams are more than the vocabulary of {model.vocabulary}; "
            "give fewer, or exhaustive=True to search a small vocabulary completely"
        )
    if options.beta and not model.reads_source:
        raise Unsupported(f"{model.name} reads no source, so there is no coverage; leave out beta")
    check_ids([options.prefix or ()], model.vocabulary, "prefix")
    check_ids([() if options.last_token is None else (options.last_token,)], model.vocabulary, "last_token")
    with evaluating(model):
        search = _Search(model, batch, options, ends, most, slide)
        while len(search.sentences):
            search.step()
    return search.results


def _limits(model: CausalModel, batch: Batch, options: Beam, slide: bool, given: Sequence[int] | None = None) -> Tensor:
    """The most new tokens of each prompt: `given`, `max_new`, or by the length of the source."""
    if options.max_new is not None:
        check_room(model, batch, options.max_new, slide=slide)
        return torch.full_like(batch.lengths, options.max_new)
    if given is not None:
        if len(given) != len(batch.lengths):
            raise InvalidInput(f"expected a limit for each of {len(batch.lengths)} prompts, got {len(given)}")
        limits = torch.as_tensor(given).to(batch.lengths).clamp_min(1)
    elif batch.source is None:
        raise InvalidInput("without a source, give the maximum length: Beam(max_new=…)")
    else:
        limits = (batch.source_lengths() + options.extra).clamp_min(1)
    check_room(model, batch, 1)
    return limits if model.max_length is None else limits.minimum(model.max_length - batch.lengths)


@dataclass(frozen=True)
class _Pool:
    """The best finished hypotheses of each sentence, best first; a free slot has the score -inf."""

    score: Tensor  # (sentences, beams)
    tokens: Tensor  # (sentences, beams, new)
    logprobs: Tensor  # (sentences, beams, new)
    length: Tensor  # (sentences, beams)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.score, self.tokens, self.logprobs, self.length

    def merge(self, other: "_Pool") -> "_Pool":
        """The best of both; ties prefer the older one."""
        beams = self.score.shape[1]
        score, tokens, logprobs, length = (torch.cat(pair, 1) for pair in zip(self.tensors(), other.tensors()))
        score, order = top_values(score, beams)
        return _Pool(score, _take(tokens, order), _take(logprobs, order), _take(length, order))

    def select(self, sentences: Tensor) -> "_Pool":
        return _Pool(*(tensor[sentences] for tensor in self.tensors()))


def _take(values: Tensor, order: Tensor) -> Tensor:
    """The hypotheses `order` (sentences, some) of `values` (sentences, hypotheses, …)."""
    return values[torch.arange(len(order), device=order.device)[:, None], order]


class _Search:
    """The state of the search; finished sentences move from `sentences` to `results`."""

    def __init__(
        self, model: CausalModel, batch: Batch, options: Beam, ends: Tensor, limits: Tensor, slide: bool
    ) -> None:
        self._options, self._ends, self._limits = options, ends, limits
        self._new = int(limits.max())
        self._feed = Feed(model, batch, new=self._new, align=options.beta > 0, slide=slide)
        self._mask = batch.source_mask
        self.results: list[list[Hypothesis]] = [[] for _ in range(len(batch))]
        self.sentences = torch.arange(len(batch), device=batch.tokens.device)
        size, device = (len(batch), options.beams), batch.tokens.device
        # Start with one live hypothesis: `beams` equal ones would give equal expansions.
        self._live = torch.full(size, NEVER, dtype=torch.float64, device=device)
        self._live[:, 0] = 0.0
        self._made = torch.zeros(*size, self._new, dtype=torch.long, device=device)
        self._logprobs = torch.zeros(*size, self._new, dtype=torch.float64, device=device)
        self._covered: Tensor | None = None  # (sentences, beams, source)
        if options.beta:
            assert batch.source is not None
            self._covered = torch.zeros(*size, batch.source.shape[1], dtype=torch.float64, device=device)
        self._pool = _Pool(torch.full_like(self._live, NEVER), self._made, self._logprobs, self._made[..., 0])
        self._done = torch.zeros(len(batch), dtype=torch.bool, device=device)
        self._prefix = torch.tensor(options.prefix or (), dtype=torch.long, device=device)

    def step(self) -> None:
        """Reads the next token, or all known ones, and expands the sentences that are at their end."""
        feed, beams, first = self._feed, self._options.beams, self._feed.read == 0
        logits, ready = feed.advance()
        if first:  # a prompt is read once for all its beams
            copies = torch.arange(len(logits), device=logits.device).repeat_interleave(beams)
            feed.select(copies)
            logits, ready = logits[copies], ready[copies]
        ready = ready.view(-1, beams)[:, 0]  # per sentence
        covered = self._cover(ready)
        length = feed.made.view(-1, beams)[:, 0] + 1  # of the new hypotheses

        values, parent, token, logprob = self._candidates(logits)
        end = torch.isin(token, self._ends)
        hypotheses, logprobs = self._write(length, parent, token, logprob)
        ranked = self._options.unfinished == "ranked"  # then a hypothesis at the limit counts as finished
        complete = end | (length >= self._limits)[:, None] if ranked else end
        finished = complete & ready[:, None] & ~self._done[:, None]
        if bool(finished.any()):
            score = values / length_penalty(length, self._options)[:, None]
            if covered is not None:
                score = score + _take(coverage_penalty(covered, self._options.beta, self._source_mask()), parent)
            some = slice(0, beams)  # only the best `beams` candidates can finish
            score = score.masked_fill(~finished, NEVER)[:, some]
            lengths = length[:, None].expand(-1, score.shape[1])
            self._pool = self._pool.merge(_Pool(score, hypotheses[:, some], logprobs[:, some], lengths))

        order = end.int().argsort(dim=1, stable=True)[:, :beams]  # those that continue, best first
        self._continue(order, ready, values, parent, token, hypotheses, logprobs, covered)
        self._finish(length, ready)

    def _candidates(self, logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Log-probability, parent, last token and its log-probability of the best expansions of each sentence."""
        options, feed = self._options, self._feed
        vocabulary, beams = logits.shape[1], options.beams
        logprobs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(1)
        allowed = forbid(logprobs, feed, self._ends, min_new=options.min_new, no_repeat_ngram=options.no_repeat_ngram)
        if len(self._prefix):
            forced = feed.made < len(self._prefix)
            token = self._prefix[feed.made.clamp_max(len(self._prefix) - 1)]
            scored = logprobs if options.score_prefix else torch.zeros_like(logprobs)
            allowed = allow_only(torch.where(forced[:, None], scored, allowed), token, forced)
        if options.last_token is not None:
            forced = feed.made == (self._limits - 1).repeat_interleave(beams)
            allowed = allow_only(allowed.masked_fill(forced[:, None], 0.0), options.last_token, forced)
        total = (self._live.to(allowed.dtype).view(-1, 1) + allowed).view(-1, beams * vocabulary)
        # Each parent can end in len(ends) ways, so at least `beams` of these continue.
        values, index = top_values(total, beams * (1 + len(self._ends)))
        parent, token = index // vocabulary, index % vocabulary
        logprob = logprobs.view(-1, beams * vocabulary).gather(1, index)
        return values.double(), parent, token, logprob.double()

    def _cover(self, ready: Tensor) -> Tensor | None:
        """The coverage of the source so far; reading the prompt does not count."""
        if self._covered is None:
            return None
        aligned: Tensor = self._feed.state.alignment[:, -1].view(self._covered.shape)
        return self._covered + aligned * ready[:, None, None]

    def _source_mask(self) -> Tensor | None:
        return None if self._mask is None else self._mask[self.sentences][:, None]

    def _write(self, length: Tensor, parent: Tensor, token: Tensor, logprob: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens and log-probabilities of the candidates: those of the parents plus the new one."""
        column = (length - 1).clamp_max(self._new - 1)[:, None, None].expand(*parent.shape, 1)
        hypotheses = _take(self._made, parent).scatter(2, column, token[..., None])
        return hypotheses, _take(self._logprobs, parent).scatter(2, column, logprob[..., None])

    def _continue(
        self,
        order: Tensor,
        ready: Tensor,
        values: Tensor,
        parent: Tensor,
        token: Tensor,
        hypotheses: Tensor,
        logprobs: Tensor,
        covered: Tensor | None,
    ) -> None:
        """Makes the candidates `order` the live ones, except in sentences that still read their prompt."""
        beams, feed = self._options.beams, self._feed
        alive = values.gather(1, order).masked_fill(torch.isin(token.gather(1, order), self._ends), NEVER)
        self._live = torch.where(ready[:, None], alive, self._live)
        self._made = torch.where(ready[:, None, None], _take(hypotheses, order), self._made)
        self._logprobs = torch.where(ready[:, None, None], _take(logprobs, order), self._logprobs)
        unchanged = torch.arange(beams, device=order.device).expand_as(order)
        parents = torch.where(ready[:, None], parent.gather(1, order), unchanged)
        if covered is not None:
            self._covered = _take(covered, parents)
        if not torch.equal(parents, unchanged):  # saves a copy of the state
            feed.select((parents + beams * torch.arange(len(parents), device=parents.device)[:, None]).flatten())
        feed.append(token.gather(1, order).flatten(), ready.repeat_interleave(beams))

    def _finish(self, length: Tensor, ready: Tensor) -> None:
        """Ends the sentences that cannot improve, and drops them from the batch when half of it is done."""
        options = self._options
        # An upper bound of the score of a live hypothesis: its log-probability stays, normalised at the maximum length;
        # or, for `likely`, at its current length.
        reachable = self._live.amax(1) / length_penalty(length if options.stop == "likely" else self._limits, options)
        worst = self._pool.score[:, 0 if options.beams == 1 else -1]
        settled = (worst > NEVER) & ((reachable <= worst) | (options.beams == 1) | (options.stop == "full"))
        completed = ready & ((length >= self._limits) | settled | (reachable == NEVER))
        self._collect(completed & ~self._done)
        self._done = self._done | completed
        remaining = int((~self._done).sum())
        self._feed.active = ~self._done.repeat_interleave(options.beams)
        if 2 * remaining <= len(self._done):
            self._select((~self._done).nonzero()[:, 0])

    def _collect(self, completed: Tensor) -> None:
        options, pool = self._options, self._pool
        length = self._feed.made.view(-1, options.beams)
        live = _Pool(self._live / length_penalty(length, options), self._made, self._logprobs, length)
        if self._covered is not None:
            penalty = coverage_penalty(self._covered, options.beta, self._source_mask())
            live = _Pool(live.score + penalty, *live.tensors()[1:])
        ends = set(self._ends.tolist())
        for row in completed.nonzero()[:, 0].tolist():
            hypotheses = _hypotheses(pool, row, ends)
            if options.unfinished == "last":
                hypotheses += _hypotheses(live, row, ends)
            self.results[int(self.sentences[row])] = hypotheses[: options.n_best]

    def _select(self, kept: Tensor) -> None:
        beams = self._options.beams
        self.sentences, self._limits, self._done = self.sentences[kept], self._limits[kept], self._done[kept]
        self._live, self._made, self._logprobs = self._live[kept], self._made[kept], self._logprobs[kept]
        self._covered = None if self._covered is None else self._covered[kept]
        self._pool = self._pool.select(kept)
        if len(kept):
            self._feed.select((kept[:, None] * beams + torch.arange(beams, device=kept.device)).flatten())


def _hypotheses(pool: _Pool, row: int, ends: set[int]) -> list[Hypothesis]:
    score, order = pool.score[row].sort(descending=True, stable=True)
    hypotheses = []
    for value, index in zip(score.tolist(), order.tolist()):
        if value == NEVER:
            break
        length = int(pool.length[row, index])
        tokens, logprobs = (values[row, index, :length].tolist() for values in (pool.tokens, pool.logprobs))
        hypotheses.append(Hypothesis(tokens, value, logprobs, tokens[-1] in ends))
    return hypotheses


__all__ = ["Hypothesis", "beam_search", "coverage_penalty", "length_penalty"]
