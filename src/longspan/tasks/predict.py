"""Predictions of a trained model for texts: labels, numbers, choices, tags and answers, one for each line."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.data.examples import Example, Examples, Groups
from longspan.data.text.windows import around
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub.pretrained import Pretrained
from longspan.hub.use.texts import longest_text, tokenizer_of
from longspan.models.base import Model
from longspan.tasks import tag as tagging
from longspan.tasks.metric_sums import Answered, AnswerMetrics
from longspan.tasks.spans import Passage, best_spans, masked, question_windows
from longspan.tasks.text_inputs import read

TASKS = ("classify", "regress", "choose", "tag", "span")
UNLIMITED = 512  # tokens per window for models without a limit
STEP = 128


@torch.inference_mode()
def predict(
    pretrained: Pretrained,
    lines: Sequence[str],
    *,
    truncate: bool = False,
    threshold: float | None = None,
    top: int = 1,
    batch: int = 32,
) -> list[dict[str, Any]]:
    """A prediction for each line, by the head that the model has.

    A line is a text, or separated by tabs a pair of texts, a text and its choices, or a question and its passage; for
    tags, words separated by spaces. Lines that are too long for the model are read in windows for tags and answers, and
    otherwise refused or, with `truncate`, cut. A question has no answer if "no answer" scores better by `threshold`.

    >>> predict(hub.load("run/model"), ["A charming journey."])[0]["label"]
    """
    heads = getattr(pretrained.model, "heads", {})
    task = next((name for name in TASKS if name in heads), None)
    if task is None:
        raise Unsupported(
            f"this {pretrained.family or pretrained.model.name} has no head for predictions on texts "
            f"({', '.join(TASKS)}); it has: {', '.join(heads) or 'none'}"
        )
    if isinstance(lines, str) or not lines:
        raise InvalidInput("expected a list of at least one text")
    if top < 1 or batch < 1:
        raise InvalidOption(f"top and batch must be at least 1, not {top} and {batch}")
    if threshold is not None and not math.isfinite(threshold):
        raise InvalidOption(f"threshold must be a finite number, not {threshold}")
    pretrained.model.eval()
    if task == "tag":
        return _tags(pretrained, lines, batch)
    if task == "span":
        return _answers(pretrained, lines, batch, threshold, top)
    rows = [line.split("\t") for line in lines]
    if task == "choose":
        return _choices(pretrained, rows, truncate, batch)
    for number, row in enumerate(rows, start=1):
        if len(row) > 2:
            raise InvalidInput(f"line {number} has {len(row) - 1} tabs; expected a text, or two with a tab between")
    groups = _groups(pretrained, rows, truncate, symmetric=heads[task].symmetric)
    logits = _read(pretrained, groups, task, batch)
    if task == "regress":
        return [{"value": float(each[0])} for each in logits]
    return [labelled(pretrained, each.softmax(-1).tolist()) for each in logits]


def label_task(model: Model) -> str:
    """The task of the head that labels or regresses whole inputs; an error if the model has none."""
    heads = getattr(model, "heads", {})
    task = next((name for name in ("classify", "regress") if name in heads), None)
    if task is None:
        raise Unsupported(f"this {model.name} has no head for labels or numbers; it has: {', '.join(heads) or 'none'}")
    return task


def label_names(pretrained: Pretrained, count: int) -> list[str]:
    """The names of the labels: those of the folder, or LABEL_0, LABEL_1, …"""
    return pretrained.labels if len(pretrained.labels) == count else [f"LABEL_{number}" for number in range(count)]


def labelled(pretrained: Pretrained, chances: list[float]) -> dict[str, Any]:
    """The likeliest label with its probability, and those of all labels."""
    names = label_names(pretrained, len(chances))
    best = max(range(len(chances)), key=chances.__getitem__)
    return {"label": names[best], "probability": chances[best], "probabilities": dict(zip(names, chances))}


def _choices(pretrained: Pretrained, rows: Sequence[Sequence[str]], truncate: bool, batch: int) -> list[dict[str, Any]]:
    pairs: list[tuple[str, str, int]] = []
    for number, row in enumerate(rows, start=1):
        if len(row) < 3:
            raise InvalidInput(f"line {number} has {len(row) - 1} tabs; expected a text and two choices at least")
        pairs.extend((row[0], choice, number) for choice in row[1:])
    examples = _encoded(pretrained, [pair[:2] for pair in pairs], truncate, [pair[2] for pair in pairs])
    scores = iter(_read(pretrained, [[example] for example in examples], "choose", batch))
    answers = []
    for row in rows:
        chances = torch.stack([next(scores).reshape(()) for _ in row[1:]]).softmax(0).tolist()
        best = max(range(len(chances)), key=chances.__getitem__)
        answers.append({"choice": best, "text": row[1 + best], "probabilities": chances})
    return answers


def _groups(
    pretrained: Pretrained, rows: Sequence[Sequence[str]], truncate: bool, *, symmetric: bool
) -> list[list[Example]]:
    """The text or pair of each line; for a symmetric head, both orders of the pair."""
    pairs = [(row[0], row[1] if len(row) == 2 else None) for row in rows]
    groups = [[example] for example in _encoded(pretrained, pairs, truncate)]
    if not symmetric:
        return groups
    for number, row in enumerate(rows, start=1):
        if len(row) < 2:
            raise InvalidInput(f"line {number} has no tab; this model compares two texts with a tab between")
    swapped = _encoded(pretrained, [(row[1], row[0]) for row in rows], truncate)
    return [[*group, other] for group, other in zip(groups, swapped)]


def _encoded(
    pretrained: Pretrained,
    pairs: Sequence[tuple[str, str | None]],
    truncate: bool,
    numbers: Sequence[int] | None = None,
) -> list[Example]:
    tokenizer, longest = tokenizer_of(pretrained), longest_text(pretrained)
    examples = []
    for index, (text, second) in enumerate(pairs):
        line = index + 1 if numbers is None else numbers[index]
        encoded = tokenizer.encode(text, second)
        if longest is not None and len(encoded) > longest:
            if not truncate:
                raise InvalidInput(
                    f"line {line} has {len(encoded)} tokens, and at most {longest} can be read; "
                    "shorten it, or have it cut (--truncate)"
                )
            rest = None if second is None else [second]
            encoded = tokenizer.encode_many([text], rest, longest=longest, truncate="right")[0]
        if not encoded.ids:
            raise InvalidInput(f"line {line} is empty: it has no tokens")
        examples.append(Example(encoded.ids, encoded.segments))
    return examples


def _outputs(
    pretrained: Pretrained, data: Examples, task: str
) -> Iterator[tuple[Sequence[int], Tensor, dict[str, Tensor]]]:
    """The numbers of the examples of each batch, the outputs of the head, and the batch."""
    for numbers in data.batches(0):
        loaded = {name: tensor.to(pretrained.model.device) for name, tensor in data.load(numbers, 0).items()}
        yield numbers, read(pretrained.model, loaded, task).float(), loaded


def _padding(pretrained: Pretrained) -> int:
    candidates = (getattr(pretrained.model.options, "padding", None), tokenizer_of(pretrained).pad)
    return next((id_ for id_ in candidates if id_ is not None), 0)


def _read(pretrained: Pretrained, groups: Sequence[Sequence[Example]], task: str, batch: int) -> list[Tensor]:
    """The outputs for each group: a text or, for a symmetric head, both orders of a pair."""
    data = Groups(groups, batch, padding=_padding(pretrained), shuffle=False)
    results: list[Tensor | None] = [None] * len(groups)
    for numbers, logits, _ in _outputs(pretrained, data, task):
        for number, row in zip(numbers, logits):
            results[number] = row.cpu()
    return [row for row in results if row is not None]


def _tags(pretrained: Pretrained, lines: Sequence[str], batch: int) -> list[dict[str, Any]]:
    tokenizer, length = tokenizer_of(pretrained), longest_text(pretrained) or UNLIMITED
    edge = around(tokenizer, pair=False)
    sentences = [line.split() for line in lines]
    said: list[list[str]] = [["O"] * len(words) for words in sentences]
    windows = [
        window
        for number, words in enumerate(sentences)
        if words
        for window in tagging.examples(words, [0] * len(words), number, tokenizer, edge, length)
    ]
    if windows:
        data = Examples(windows, batch, padding=_padding(pretrained), shuffle=False)
        for _, logits, loaded in _outputs(pretrained, data, "tag"):
            names = label_names(pretrained, logits.shape[-1])
            best = logits.argmax(-1)
            for row, place in (loaded["words"] >= 0).nonzero().tolist():
                sentence, word = int(loaded["sentence"][row]), int(loaded["words"][row, place])
                said[sentence][word] = names[int(best[row, place])]
    return [{"words": words, "tags": tags} for words, tags in zip(sentences, said)]


def _answers(
    pretrained: Pretrained, lines: Sequence[str], batch: int, threshold: float | None, top: int
) -> list[dict[str, Any]]:
    tokenizer, length = tokenizer_of(pretrained), min(longest_text(pretrained) or UNLIMITED, UNLIMITED)
    edge = around(tokenizer, pair=True)
    passages: list[Passage] = []
    windows: list[Example] = []
    for number, line in enumerate(lines):
        question, tab, passage = line.partition("\t")
        if not tab or not passage.strip():
            raise InvalidInput(f"line {number + 1}: expected a question, a tab and a passage, got {line[:60]!r}")
        passages.append(Passage.of(passage, tokenizer))
        ids = tokenizer.encode(question, special=False).ids[:64]
        step = max(1, min(STEP, (length - len(ids) - edge.size) // 2))
        windows.extend(question_windows(ids, passages[-1], number, edge, length=length, step=step))
    metrics = AnswerMetrics()
    data = Examples(windows, batch, padding=_padding(pretrained), shuffle=False)
    for _, logits, loaded in _outputs(pretrained, data, "span"):
        places, leads = loaded["places"], loaded["leads"]
        for row, number in enumerate(loaded["question"].tolist()):
            null, spans = best_spans(masked(logits, places)[row], places[row], leads[row], keep=20, longest=30)
            texts = [(score, passages[number].cut(first, last)) for score, first, last in spans]
            metrics.add(AnswerMetrics({number: Answered((), null, texts)}))
    results = []
    for number in range(len(lines)):
        answered = metrics.answers[number]
        best = [{"text": text, "score": score} for score, text in answered.texts[:top]]
        results.append({"answer": answered.best(threshold), "null": answered.null, "best": best})
    return results


__all__ = ["label_names", "label_task", "labelled", "predict"]
