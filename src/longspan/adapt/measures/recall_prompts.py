"""The texts that recall is asked with: a number in running text, and random pairs of tokens.

Both models read the same prompts. Each prompt has ten answers, one of them right, so a guess is right once in ten.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longspan.data import Tokenizer
from longspan.errors import InvalidInput

ANSWERS = 10
NEEDLE = "The magic number of the day is"
DIGITS = (1000, 10000)  # needles are numbers of four digits
BEFORE = 16  # tokens of running text before the first pair
DRAWS = 4000  # numbers that are tried for ten answers of equally many tokens


@dataclass(frozen=True)
class Prompt:
    """A text that ends where the answer begins."""

    ids: Tensor  # (length,)
    answers: Tensor  # (ANSWERS, tokens)
    right: int
    distance: int  # from the last token to remember to the last token of the prompt


class RunningText:
    """An endless text: the rows one after the other, again and again."""

    def __init__(self, rows: Tensor) -> None:
        self.tokens = rows.flatten().cpu()

    def cut(self, begin: int, count: int) -> Tensor:
        return self.tokens[(begin + torch.arange(count)) % len(self.tokens)]


def needle_prompts(
    tokenizer: Tokenizer, text: RunningText, depths: Sequence[float], length: int, generator: torch.Generator
) -> list[Prompt]:
    """One prompt for each depth, the share of the running text that stands before the needle."""
    question = tokenizer.encode(f" {NEEDLE}", special=False).ids
    numbers = _numbers(tokenizer, question, generator)
    stop = tokenizer.encode(".", special=False).ids
    answers = torch.tensor(numbers)
    room = length - 2 * len(question) - answers.shape[1] - len(stop)
    if room < 2 * ANSWERS:
        raise InvalidInput(f"a needle needs texts of {length - room + 2 * ANSWERS} tokens or more, not {length}")
    prompts = []
    for depth in depths:
        right = int(torch.randint(ANSWERS, (), generator=generator))
        begin = int(torch.randint(len(text.tokens), (), generator=generator))
        before = round(depth * room)
        hay = text.cut(begin, room)
        needle = torch.tensor([*question, *numbers[right], *stop])
        ids = torch.cat([hay[:before], needle, hay[before:], torch.tensor(question)])
        prompts.append(Prompt(ids, answers, right, len(ids) - before - len(question) - answers.shape[1]))
    return prompts


def _numbers(tokenizer: Tokenizer, question: list[int], generator: torch.Generator) -> list[list[int]]:
    """Ten different numbers of equally many tokens, as they continue the question."""
    by_size: dict[int, dict[tuple[int, ...], None]] = {}
    for number in torch.randint(*DIGITS, (DRAWS,), generator=generator).tolist():
        ids = tokenizer.encode(f" {NEEDLE} {number}", special=False).ids
        if ids[: len(question)] != question:
            continue
        same = by_size.setdefault(len(ids) - len(question), {})
        same[tuple(ids[len(question) :])] = None
        if len(same) == ANSWERS:
            return [list(each) for each in same]
    raise InvalidInput("this tokenizer cannot write ten numbers of equally many tokens, so there is no needle to find")


def pair_prompt(text: RunningText, tokens: Tensor, distance: int, sinks: int, generator: torch.Generator) -> Prompt:
    """Ten pairs of random tokens, running text, then the first token of a pair, `distance` after its second one.

    Running text comes before the pairs too, so that attention sinks do not hold them.
    """
    if distance < 2:
        raise InvalidInput(f"a gap must be 2 tokens or more, not {distance}; choose a larger gap or window")
    drawn = tokens[torch.randperm(len(tokens), generator=generator)[: 2 * ANSWERS]].view(2, ANSWERS)
    fewest = max(0, ANSWERS - (distance + 1) // 2)  # the pairs after the asked one must fit into the gap
    right = int(torch.randint(fewest, ANSWERS, (), generator=generator))
    begin = int(torch.randint(len(text.tokens), (), generator=generator))
    before = text.cut(begin, BEFORE + sinks)
    gap = text.cut(begin + len(before), distance + 1 - 2 * (ANSWERS - right))
    ids = torch.cat([before, drawn.T.flatten(), gap, drawn[0, right : right + 1]])
    return Prompt(ids, drawn[1][:, None], right, distance)


def common_tokens(rows: Tensor, special: Sequence[int], least: int = 2 * ANSWERS) -> Tensor:
    """The tokens of the text that are not special: those that a trained model knows."""
    found: Tensor = torch.unique(rows.cpu())
    found = found[~torch.isin(found, torch.tensor(list(special), dtype=found.dtype))]
    if len(found) < least:
        raise InvalidInput(f"random pairs need a text of {least} different tokens or more; it has {len(found)}")
    return found


__all__ = ["ANSWERS", "Prompt", "RunningText", "common_tokens", "needle_prompts", "pair_prompt"]
