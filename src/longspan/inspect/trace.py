"""Generates token by token, and keeps what each choice was made from: alternatives, filters, the draw, the cache."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.attention.state import Rows, State
from longspan.data import Tokenizer
from longspan.decode import filters
from longspan.decode.batch import evaluating, read_batch
from longspan.decode.choose import uniform_draws
from longspan.decode.options import Sampling
from longspan.errors import InvalidInput, InvalidOption
from longspan.inspect.reading import token_text
from longspan.inspect.records import Choice, LensLine
from longspan.models.base import CausalModel
from longspan.nn.recorder import recording
from longspan.nn.stack import Stack

SHOWN = 10  # alternatives of a step
LENS_SHOWN = 5
PLAIN = ("repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "no_repeat_ngram", "min_new")


@dataclass(frozen=True)
class Choosing:
    """One step, before what it read is known."""

    id: int
    choices: tuple[Choice, ...]
    draw: float | None
    kept: int
    cache_bytes: int | None
    cached: np.ndarray | None


@dataclass(frozen=True)
class Decoding:
    steps: tuple[Choosing, ...]
    stopped: str  # "length", or the end token


@torch.no_grad()
def decode(
    model: CausalModel,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling,
    *,
    ends: Sequence[int] = (),
    source: Sequence[int] | None = None,
    tokenizer: Tokenizer | None = None,
) -> Decoding:
    """Up to `count` tokens after the prompt: the same as `longspan.decode.generate` chooses."""
    _check(model, prompt, count, sampling)
    batch = read_batch(model, [list(prompt)], None, None if source is None else [list(source)], None, None, None)
    draws = uniform_draws(sampling, batch, count)[0] if sampling.temperature else None
    steps: list[Choosing] = []
    with evaluating(model):
        state = model.start(1, source=None if source is None else torch.tensor([list(source)]))
        logits, state = model.extend(torch.tensor([list(prompt)]), state, last=True)
        for number in range(count):
            draw = None if draws is None else draws[number]
            step = choose(logits[:, -1], draw, sampling, tokenizer, state)
            steps.append(step)
            if step.id in ends:
                return Decoding(tuple(steps), _spell(tokenizer, step.id))
            if number + 1 < count:
                logits, state = model.extend(torch.tensor([[step.id]]), state, last=True)
    return Decoding(tuple(steps), "length")


def _check(model: CausalModel, prompt: Sequence[int], count: int, sampling: Sampling) -> None:
    if count < 1:
        raise InvalidOption(f"--generate must be at least 1, not {count}")
    if model.max_length is not None and len(prompt) + count > model.max_length:
        raise InvalidInput(
            f"the text has {len(prompt)} tokens, and with {count} new ones it exceeds the {model.max_length} that the "
            "model holds; shorten it, or generate fewer"
        )
    changed = [name for name in PLAIN if getattr(sampling, name) != getattr(Sampling(), name)]
    if changed or sampling.samples != 1:
        raise InvalidOption(f"a trace has temperature, top_k, top_p, min_p and seed, not {', '.join(changed)}")


def choose(
    logits: Tensor, draw: Tensor | None, sampling: Sampling, tokenizer: Tokenizer | None, state: Any
) -> Choosing:
    """The choice from the logits (1, vocabulary) of the next token."""
    probabilities, removed = logits[0].double().softmax(0), []
    if draw is None:
        token, kept, chances = int(logits.argmax(1)), 1, torch.zeros_like(probabilities)
        chances[token] = 1.0
    else:
        left = logits / sampling.temperature
        for name, filtered in _filters(left, sampling):
            removed.append((name, ((filtered == filters.REMOVED) & (left != filters.REMOVED))[0]))
            left = filtered
        token, chances = int(filters.draw(left, draw[None])[0]), left[0].double().softmax(0)
        kept = int((left[0] != filters.REMOVED).sum())
    best = probabilities.topk(min(SHOWN, len(probabilities))).indices.tolist()
    shown = [*best, *([] if token in best else [token])]
    cut = {i: next((name for name, mask in removed if mask[i]), "") for i in shown}
    choices = tuple(Choice(i, _spell(tokenizer, i), float(probabilities[i]), float(chances[i]), cut[i]) for i in shown)
    return Choosing(
        id=token,
        choices=choices,
        draw=None if draw is None else float(draw),
        kept=kept,
        cache_bytes=state.bytes if isinstance(state, State) else None,
        cached=cached_positions(state),
    )


def _filters(logits: Tensor, sampling: Sampling) -> Iterator[tuple[str, Tensor]]:
    """Each filter's result, in the order of `Sampling`."""
    if sampling.top_k is not None:
        logits = filters.keep_top_k(logits, sampling.top_k)
        yield "top-k", logits
    if sampling.top_p < 1:
        logits = filters.keep_top_p(logits, sampling.top_p, sampling.top_k)
        yield "top-p", logits
    if sampling.min_p > 0:
        yield "min-p", filters.keep_min_p(logits, sampling.min_p)


def _spell(tokenizer: Tokenizer | None, number: int) -> str:
    return str(number) if tokenizer is None else token_text(tokenizer, number)


def cached_positions(state: Any) -> np.ndarray | None:
    """The positions whose keys the first layer still holds; None if its state has a fixed size."""
    rows, length = _first_rows(state), getattr(state, "length", None)
    if rows is None or length is None:
        return None
    return np.arange(max(0, length - len(rows)), length)


def _first_rows(value: Any) -> Rows | None:
    if isinstance(value, Rows):
        return value
    inner = value if isinstance(value, tuple) else vars(value).values() if isinstance(value, State) else ()
    return next((rows for rows in map(_first_rows, inner) if rows is not None), None)


# The logit lens


@torch.no_grad()
def logit_lens(
    model: CausalModel, run: Any, positions: Sequence[int], chosen: Sequence[int], tokenizer: Tokenizer | None
) -> list[tuple[LensLine, ...]]:
    """For each position: the output layer on the state after each layer (nostalgebraist 2020); [] if it has none."""
    body = next((getattr(model, name, None) for name in ("stack", "decoder") if hasattr(model, name)), None)
    if not isinstance(body, Stack):
        return []
    with recording(body, maps=False) as seen:
        run()
    lines: list[list[LensLine]] = [[] for _ in positions]
    index = torch.tensor(list(positions))
    for number, states in enumerate(seen.states):
        rows = states[:, index]
        last = number == len(seen.states) - 1  # this one is normed already
        logits = model.logits(rows if last else body.norm(rows))[0].double()
        probabilities = logits.softmax(-1)
        for step, (row, token) in enumerate(zip(probabilities, chosen)):
            top = row.topk(min(LENS_SHOWN, len(row)))
            best = tuple(
                Choice(int(i), _spell(tokenizer, int(i)), float(p), float(p)) for p, i in zip(top.values, top.indices)
            )
            rank = int((row > row[token]).sum())
            lines[step].append(LensLine(number, float(rows[0, step].norm()), best, rank))
    return [tuple(each) for each in lines]


def first_led(lines: Sequence[LensLine]) -> int | None:
    """The state from which on the chosen token leads in every later one; None if it does not lead at the end."""
    first = None
    for line in reversed(lines):
        if line.rank:
            break
        first = line.state
    return first


__all__ = ["Choosing", "Decoding", "cached_positions", "decode", "first_led", "logit_lens"]
