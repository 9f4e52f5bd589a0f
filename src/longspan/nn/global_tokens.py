"""Which tokens a task singles out where nobody says: the first, those of a question, or those that answer it."""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from longspan.attention.devices import host_may_read
from longspan.errors import InvalidInput
from longspan.shapes import KeyMask

MARKS = ("first", "question", "answer")
Ids = Int[Tensor, "batch length"]
Marked = Bool[Tensor, "batch length"]


def mark(how: str, ids: Ids, key_mask: KeyMask | None, separator: int | None) -> Marked:
    """`first`: the first token that is not padding. `question`: those before the first separator. `answer`: those
    behind the first separator and the one that follows it (RoBERTa has two between texts)."""
    if how == "first":
        if key_mask is None:
            return (torch.arange(ids.shape[1], device=ids.device) == 0).expand_as(ids)
        return key_mask & (key_mask.cumsum(1) == 1)
    end = question_end(ids, separator)[:, None]
    places = torch.arange(ids.shape[1], device=ids.device)
    return places < end if how == "question" else places > end + 1


def question_end(ids: Ids, separator: int | None) -> Int[Tensor, " batch"]:
    """Where the first separator of each text stands."""
    if separator is None:
        raise InvalidInput("where a question ends is told by a separator: give the option separator, its id")
    found = ids == separator
    if host_may_read(ids) and not bool(found.any(1).all()):
        text = int(found.any(1).int().argmin())
        raise InvalidInput(f"text {text} has no separator (id {separator}), which ends its question")
    return found.int().argmax(1)


def question(ids: Ids, separator: int | None) -> Marked:
    """The tokens of each text's question, and the separator that ends it."""
    return torch.arange(ids.shape[1], device=ids.device) <= question_end(ids, separator)[:, None]


__all__ = ["MARKS", "mark", "question", "question_end"]
