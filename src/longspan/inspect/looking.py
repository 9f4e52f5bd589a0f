"""One look inside a model: reads the input, watches every attention, and returns a `Record`."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from longspan.attention.base import Attention
from longspan.decode.batch import evaluating
from longspan.decode.options import GREEDY, Sampling
from longspan.errors import InvalidOption, Unsupported
from longspan.hub import Pretrained
from longspan.hub.use.generate import ends_of
from longspan.inspect import trace
from longspan.inspect.capture import Watcher
from longspan.inspect.reading import (
    Given,
    Reading,
    causal_reading,
    extend_axis,
    load,
    model_card,
    read,
    target_reading,
)
from longspan.inspect.records import DifferenceByLength, Generated, HeadRecord, Record, Step
from longspan.inspect.records import Reading as HeadRows
from longspan.inspect.shelf import DEFAULT_SIZE, SHARE, Shelf, fit
from longspan.models.base import CausalModel, EncoderDecoder, Model, TextStates

FLOAT32_SHARE = 0.5  # of the room that float32 details may take before float16 is used
ROWS_SHARE = 0.2  # of a page that the rows of generated tokens may take


def look(
    model: Model | Pretrained | str | Path,
    text: Given | None = None,
    *,
    pair: Given | None = None,
    image: Path | None = None,
    layers: Collection[int] | None = None,
    heads: Collection[tuple[int, int]] = (),
    against: str = "",
    lengths: Collection[int] = (),
    generate: int | None = None,
    sampling: Sampling = GREEDY,
    size: int = DEFAULT_SIZE,
    name: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> Record:
    """Where each head of the model reads on this input.

    `layers` limits what is recorded; `heads` (layer, head) get their detail first. `against` compares every map with
    that of another mechanism on the same queries and keys: "softmax" is exact attention. `size` is how many bytes a
    page of the record may have: it decides how many heads have detail. With `lengths`, the comparison is repeated on
    that many first tokens. With `generate`, that many tokens are generated first, by `sampling`, with what each was
    chosen from; the maps are those of the whole text.
    """
    pretrained = load(model)
    reading = read(pretrained, text, pair=pair, image=image, write=generate is None)
    named = name or (str(pretrained.path) if pretrained.path is not None else pretrained.model.name)
    choice = Choice(layers, frozenset(heads), against, size, progress)
    if lengths and not against:
        raise InvalidOption("--lengths compares with another mechanism by length: give --against, such as softmax")
    if generate is not None:
        record = watch_generation(pretrained, reading, named, generate, sampling, choice)
    else:
        record = watch(reading, named, choice)
    return replace(record, by_length=by_length(reading, lengths, choice)) if lengths else record


@dataclass(frozen=True)
class Choice:
    """What is recorded, and how much of it; see `look`."""

    layers: Collection[int] | None = None
    heads: frozenset[tuple[int, int]] = frozenset()
    against: str = ""
    size: int = DEFAULT_SIZE
    progress: Callable[[str], None] = lambda what: None


def watch(reading: Reading, name: str, choice: Choice) -> Record:
    """The record of an input that is ready."""
    return _watch(reading, name, choice)[0]


def _watch(reading: Reading, name: str, choice: Choice, rows: tuple[int, ...] = ()) -> tuple[Record, Watcher]:
    card, size = model_card(reading.model, name), choice.size
    longest = max(map(len, reading.axes.values()))
    widths = [module.shape.head_dim for module in reading.model.modules() if isinstance(module, Attention)]
    expected = 4 * card.layers * card.heads * longest * min(longest, 2 * max(widths, default=longest))
    watcher = Watcher(
        axes=dict(reading.axes),
        sides=reading.sides,
        shelf=Shelf(size * SHARE * 0.9, choice.heads),
        layers=None if choice.layers is None else frozenset(choice.layers),
        half=expected > size * SHARE * FLOAT32_SHARE,
        against=choice.against,
        rows=rows,
        progress=choice.progress,
    )
    with evaluating(reading.model), torch.no_grad():
        watcher.watch(reading.model, reading.run)
    _check_choice(watcher, choice.layers, choice.heads)
    modules, budget = fit(watcher.modules, size, watcher.shelf)
    record = Record(
        model=card,
        text=reading.text,
        axes=watcher.axes,
        modules=modules,
        budget=budget,
        rollouts=watcher.finished_rollouts(),
        picture=reading.picture,
        against=choice.against,
        notes=tuple(_notes(reading)),
    )
    return record, watcher


def watch_generation(
    pretrained: Pretrained, reading: Reading, name: str, count: int, sampling: Sampling, choice: Choice
) -> Record:
    """Generates first, then watches the whole text: each step's row is that of the token before it."""
    model, tokenizer = reading.model, reading.tokenizer
    if not isinstance(model, CausalModel):
        raise Unsupported(f"this {model.name} reads texts and writes none: leave out --generate")
    ends = () if tokenizer is None else ends_of(pretrained, tokenizer)
    prompt = len(reading.ids)
    decoding = trace.decode(model, reading.ids, count, sampling, ends=ends, source=reading.source, tokenizer=tokenizer)
    new = [step.id for step in decoding.steps]
    whole = [*reading.ids, *new]
    if isinstance(model, EncoderDecoder):
        after = target_reading(model, reading.axes["source"], whole, reading.text, tokenizer)
    else:
        axis = extend_axis(reading.axes["text"], new, tokenizer)
        after = causal_reading(model, axis, whole, reading.text, tokenizer)
    positions = tuple(range(prompt - 1, prompt - 1 + len(new)))
    record, watcher = _watch(after, name, choice, positions)
    with evaluating(model):
        lenses = trace.logit_lens(model, after.run, positions, new, tokenizer) or [()] * len(new)
    steps = []
    for number, (chosen, lens) in enumerate(zip(decoding.steps, lenses)):
        steps.append(
            Step(
                position=prompt + number,
                id=chosen.id,
                token=next(each.token for each in chosen.choices if each.id == chosen.id),
                choices=chosen.choices,
                draw=chosen.draw,
                kept=chosen.kept,
                readings=_readings(watcher, record, number, prompt + number, choice.size / max(1, len(new))),
                lens=lens,
                first_led=trace.first_led(lens),
                cache_bytes=chosen.cache_bytes,
                cached=chosen.cached,
            )
        )
    settings = {key: getattr(sampling, key) for key in ("temperature", "top_k", "top_p", "min_p", "seed")}
    generated = Generated(prompt, tuple(steps), settings, decoding.stopped)
    return replace(record, generated=generated)


def _readings(watcher: Watcher, record: Record, step: int, length: int, room: float) -> tuple[HeadRows, ...]:
    """The rows of one step in every module; the mean over heads if all heads would not fit."""
    kept = watcher.kept_rows
    bytes_needed = sum(2 * rows.shape[0] * rows.shape[2] for rows in kept.values())
    readings = []
    for module, rows in kept.items():
        row = rows[:, step] if record.modules[module].kind == "cross" else rows[:, step, :length]
        row = row.mean(0, keepdim=True) if bytes_needed > room * ROWS_SHARE else row
        readings.append(HeadRows(module, row.numpy().astype(np.float16)))
    return tuple(readings)


def by_length(reading: Reading, lengths: Collection[int], choice: Choice) -> DifferenceByLength:
    """The errors on the first tokens of the same text, at several lengths."""
    model = reading.model
    if not isinstance(model, (CausalModel, TextStates)) or isinstance(model, EncoderDecoder):
        raise Unsupported(f"--lengths cuts one text, and this {model.name} reads something else; leave it out")
    most = len(reading.ids)
    for length in lengths:
        if not 2 <= length <= most:
            raise InvalidOption(f"--lengths must be from 2 to the {most} tokens of the text, not {length}")
    rows = []
    for length in sorted(lengths):
        ids = torch.tensor([list(reading.ids)[:length]])
        axis = extend_axis(None, ids[0].tolist(), reading.tokenizer)

        def run(ids: Tensor = ids) -> object:
            return model.text_logits(ids) if isinstance(model, CausalModel) else model.text_states(ids)

        short = replace(reading, run=run, axes={"text": axis}, ids=ids[0].tolist())
        record = watch(short, "", replace(choice, heads=frozenset()))
        rows.append([[_numbers(head) for head in module.heads] for module in record.modules if module.heads])
    return DifferenceByLength(choice.against, tuple(sorted(lengths)), np.array(rows, np.float64))


def _numbers(head: HeadRecord) -> list[float]:
    assert head.difference is not None
    errors = head.difference.errors
    return [np.nan if errors.kl is None else errors.kl, errors.variation, errors.output, errors.top1, errors.nowhere]


def _check_choice(watcher: Watcher, layers: Collection[int] | None, heads: Collection[tuple[int, int]]) -> None:
    count = max(watcher.counts.values(), default=0)
    shown = [module for module in watcher.modules if module.heads or module.pattern is not None]
    if watcher.modules and (not shown or (watcher.against and not any(module.heads for module in shown))):
        raise Unsupported(f"{watcher.modules[0].mechanism}: {watcher.modules[0].sentence}")
    for layer in layers or ():
        if layer >= count:
            raise InvalidOption(f"there is no layer {layer}; layers are 0 to {count - 1}")
    known = {(module.layer, head.index) for module in watcher.modules for head in module.heads}
    mapless = {module.layer: module for module in watcher.modules if module.standing == "none"}
    for layer, head in heads:
        if (layer, head) not in known and layer in mapless:
            raise Unsupported(f"layer {layer} ({mapless[layer].mechanism}): {mapless[layer].sentence}")
        if (layer, head) not in known:
            raise InvalidOption(f"there is no head {layer}.{head} among those recorded; the last is {_last(known)}")


def _last(known: set[tuple[int, int]]) -> str:
    layer, head = max(known, default=(0, 0))
    return f"{layer}.{head}"


def _notes(reading: Reading) -> Sequence[str]:
    return ["The target was written by the model itself, greedily."] if reading.written else []


__all__ = ["look", "watch"]
