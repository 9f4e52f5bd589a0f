"""What the replies show: accuracies with intervals beside a random guess, controls, and the replies themselves."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from longspan.adapt.measures.intervals import paired_bootstrap, wilson
from longspan.inspect.measures.findings import Finding, Grid
from longspan.probe.prompts.measure import Measured, Reply
from longspan.probe.prompts.options import NORMALISATIONS
from longspan.probe.prompts.questions import DIGITS, OPERATIONS
from longspan.probe.prompts.self_report import clean

MEANING = (
    "A small model is near a random guess on most of this, so read each figure beside the guess. Few questions give "
    "wide intervals. A figure holds for this wording of the prompts; another wording gives another one. Only the "
    "answer is judged, never the reasoning. What a model says of itself is text, not a measurement."
)
SHOWN = ("objects", "letters", "nonsense")  # the sets whose replies the page lists
HEAD = (
    "mode",
    "questions",
    "right, %",
    "from",
    "to",
    "no answer, %",
    "random guess, %",
    "commonest answer, %",
    "examples dropped",
)


def summary(replies: Sequence[Reply]) -> dict[str, float]:
    """Right answers in percent with their 95 % interval, and what a guess gets on the same questions."""
    count = len(replies)
    right = sum(reply.right for reply in replies)
    low, high = wilson(right, count)
    commonest = Counter(reply.question.answer for reply in replies).most_common(1)[0][1]
    return {
        "questions": count,
        "right": 100 * right / count,
        "low": 100 * low,
        "high": 100 * high,
        "missing": 100 * sum(reply.answer is None for reply in replies) / count,
        "guess": 100 * sum(reply.question.chance for reply in replies) / count,
        "commonest": 100 * commonest / count,
        "dropped": sum(reply.dropped for reply in replies),
    }


def prompt_findings(measured: Measured) -> list[Finding]:
    """One finding per set of questions, then controls."""
    sets = list(dict.fromkeys(reply.question.set for replies in measured.replies.values() for reply in replies))
    findings = [_set_finding(name, measured) for name in sets]
    if {"few-shot", "permuted"} <= set(measured.replies):
        findings.append(_label_control(measured.replies))
    if "options, raw" in measured.replies:
        findings.append(_normalisations(measured.replies))
    return findings


def _set_finding(name: str, measured: Measured) -> Finding:
    own = {
        mode: [reply for reply in replies if reply.question.set == name] for mode, replies in measured.replies.items()
    }
    own = {mode: replies for mode, replies in own.items() if replies}
    values = {mode: summary(replies) for mode, replies in own.items()}
    best = max(values, key=lambda mode: values[mode]["right"])
    top = values[best]
    guess = max(top["guess"], top["commonest"])
    verdict = "above" if top["low"] > guess else "not clearly above"
    missing = max(values, key=lambda mode: values[mode]["missing"])
    figures = [Grid("By mode", HEAD, [(mode, *each.values()) for mode, each in values.items()])]
    if name == "arithmetic":
        figures.append(_by_digits(own))
    if name in SHOWN:
        figures.append(_replies(own))
    dropped = int(sum(each["dropped"] for each in values.values()))
    return Finding(
        name,
        f"Questions: {clean(name, 40)}",
        f"Best is {best} with {top['right']:.1f} % of {top['questions']} questions (95 %: {top['low']:.1f} to "
        f"{top['high']:.1f}); a random guess has {top['guess']:.3g} %, always the commonest answer "
        f"{top['commonest']:.1f} %: {verdict} both.",
        f"The best of {len(values)} modes is chosen after the fact, so its interval is too good. Texts without an "
        f"answer count as wrong; most are in {missing} ({values[missing]['missing']:.0f} %). "
        + (
            f"{dropped} examples were dropped because the context is too short."
            if dropped
            else "No example was dropped."
        )
        + (" Prompts go through the chat template." if measured.chat else " Prompts are plain text."),
        figures,
        {"modes": values, "replies": {mode: [_plain(reply) for reply in replies] for mode, replies in own.items()}},
    )


def _by_digits(own: Mapping[str, Sequence[Reply]]) -> Grid:
    """Right answers of each operation and number of digits; nothing where nothing was asked."""
    rows: list[tuple[object, ...]] = []
    for mode, replies in own.items():
        for operation in OPERATIONS:
            cells = [[r.right for r in replies if r.question.cell == (operation, digits)] for digits in DIGITS]
            rows.append((mode, operation, *(f"{sum(cell)} of {len(cell)}" if cell else None for cell in cells)))
    digits = [f"{digits} digit{'s' if digits > 1 else ''}" for digits in DIGITS]
    return Grid("Right answers by operation and digits", ("mode", "operation", *digits), rows)


def _replies(own: Mapping[str, Sequence[Reply]]) -> Grid:
    modes = [mode for mode in own if not mode.startswith("options")] or list(own)
    rows = []
    for number, reply in enumerate(own[modes[0]]):
        cells = [own[mode][number] for mode in modes]
        said = [f"{'right' if cell.right else 'wrong'}: {clean(cell.answer or 'no answer', 40)}" for cell in cells]
        rows.append((reply.question.question, reply.question.answer, *said))
    return Grid("Answers", ("question", "right answer", *modes), rows)


def _plain(reply: Reply) -> dict[str, Any]:
    return {
        "question": reply.question.question,
        "expected": reply.question.answer,
        "text": reply.text,
        "answer": reply.answer,
        "right": reply.right,
        **({"samples": list(reply.samples)} if reply.samples else {}),
        **({"dropped": reply.dropped} if reply.dropped else {}),
    }


def _label_control(replies: Mapping[str, Sequence[Reply]]) -> Finding:
    """Do right labels in the examples matter? If not, examples give the format only (Min et al. 2022)."""
    pairs = list(zip(replies["few-shot"], replies["permuted"]))
    difference = paired_bootstrap(torch.tensor([float(one.right) - float(other.right) for one, other in pairs]))
    low, high = difference.low, difference.high
    clear = low is not None and high is not None and not low <= 0 <= high
    interval = "" if low is None or high is None else f" (95 %: {100 * low:.1f} to {100 * high:.1f})"
    return Finding(
        "labels",
        "Do the answers in the examples matter?",
        f"Examples with right answers give {100 * difference.mean:+.1f} percentage points over the same examples with "
        f"wrong answers{interval}: " + ("a clear difference." if clear else "no clear difference."),
        f"The same {len(pairs)} questions, examples and order; only the answers of the examples are exchanged.",
        [],
        {"difference": difference.mean, "low": low, "high": high, "questions": len(pairs)},
    )


def _normalisations(replies: Mapping[str, Sequence[Reply]]) -> Finding:
    columns = [replies[f"options, {name}"] for name in NORMALISATIONS]
    apart = sum(len({reply.answer for reply in row}) > 1 for row in zip(*columns))
    values = {name: summary(column) for name, column in zip(NORMALISATIONS, columns)}
    return Finding(
        "normalisations",
        "The likeliest option depends on the normalisation",
        f"The four normalisations choose different options in {apart} of {len(columns[0])} questions.",
        "Raw sums prefer short options; the prior is that after the same prompt without a question. None of them is "
        "the right one: report which was used.",
        [Grid("By normalisation", HEAD, [(name, *each.values()) for name, each in values.items()])],
        {"different": apart, "normalisations": values},
    )


__all__ = ["MEANING", "prompt_findings", "summary"]
