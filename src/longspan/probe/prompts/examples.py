"""Which examples stand in front of a question: seeded, balanced over answers, never the question itself."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from longspan.probe.prompts.questions import Question


def choose_examples(question: Question, pool: Sequence[Question], count: int, seed: int) -> list[Question]:
    """Up to `count` examples of the question's set, in an order that is drawn.

    Answers take turns, so that no answer is commoner among the examples than it must be. The question, and what asks
    the same in other words (its group), is left out. Arithmetic takes the same operation and number of digits.
    """
    fitting = [
        each
        for each in pool
        if each.set == question.set
        and each.cell == question.cell
        and each.group != question.group
        and each.question.strip() != question.question.strip()
    ]
    generator = np.random.default_rng([seed, *question.question.encode()])
    by_answer: dict[tuple[str, int], list[Question]] = {}
    groups: set[str] = set()
    for number in generator.permutation(len(fitting)).tolist():
        each = fitting[number]
        if each.group in groups:  # one form of each pair
            continue
        groups.add(each.group)
        # Of questions whose options differ, the position of the right one is what examples could give away.
        shared = each.options == question.options or not each.options
        key = (each.answer, 0) if shared else ("", each.options.index(each.answer))
        by_answer.setdefault(key, []).append(each)
    chosen: list[Question] = []
    while len(chosen) < count and any(by_answer.values()):
        for key in generator.permutation(len(by_answer)).tolist():
            waiting = list(by_answer.values())[key]
            if waiting and len(chosen) < count:
                chosen.append(waiting.pop())
    return [chosen[number] for number in generator.permutation(len(chosen)).tolist()]


def permute_labels(examples: Sequence[Question]) -> list[Question]:
    """The same examples with wrong answers: the control of few-shot prompts (Min et al. 2022).

    A question with options gets the option after the right one. Others get the answer of the next example that has
    another one; a single number is replaced by its successor.
    """
    changed = []
    for number, example in enumerate(examples):
        if example.options:
            at = (example.options.index(example.answer) + 1) % len(example.options)
            wrong = example.options[at]
        else:
            others = [*examples[number + 1 :], *examples[:number]]
            wrong = next((each.answer for each in others if each.answer != example.answer), "")
            wrong = wrong or (str(int(example.answer) + 1) if example.answer.lstrip("-").isdecimal() else "unknown")
        changed.append(replace(example, answer=wrong, steps=""))
    return changed


__all__ = ["choose_examples", "permute_labels"]
