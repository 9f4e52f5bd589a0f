"""Default global tokens of a task: the first token, the question, or the answers."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from longspan.attention.devices import host_may_read
from longspan.errors import InvalidInput
from longspan.shapes import KeyMask

MARKS = ("first", "question", "answer")
Ids = Int[Tensor, "batch length"]
TokenMask = Bool[Tensor, "batch length"]


def global_mask(how: str, ids: Ids, key_mask: KeyMask | None, separator: int | None) -> TokenMask:
    """True for global tokens.

    `first`: the first token that is not padding. `question`: all before the first separator. `answer`: all after the
    first separator and the token that follows it (RoBERTa has two separators between texts).
    """
    if how == "first":
        if key_mask is None:
            return (torch.arange(ids.shape[1], device=ids.device) == 0).expand_as(ids)
        return key_mask & (key_mask.cumsum(1) == 1)
    end = question_end(ids, separator)[:, None]
    index = torch.arange(ids.shape[1], device=ids.device)
    return index < end if how == "question" else index > end + 1


def question_end(ids: Ids, separator: int | None) -> Int[Tensor, " batch"]:
    """The index of the first separator of each text."""
    if separator is None:
        raise InvalidInput("a separator ends the question: give its id as the option separator")
    separators = ids == separator
    if host_may_read(ids) and not bool(separators.any(1).all()):
        text = int(separators.any(1).int().argmin())
        raise InvalidInput(f"text {text} has no separator (id {separator}) to end its question")
    return separators.int().argmax(1)


def question_mask(ids: Ids, separator: int | None) -> TokenMask:
    """True for the tokens of each text's question and the separator that ends it."""
    return torch.arange(ids.shape[1], device=ids.device) <= question_end(ids, separator)[:, None]


__all__ = ["MARKS", "global_mask", "question_end", "question_mask"]
