"""Rules that rename tensors between a family's checkpoint ("theirs") and a model ("ours"), in both directions.

In a pattern, `*` matches a number. A pattern that names a module means its weight and its bias.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from longspan.errors import InvalidInput

Shape = Callable[[Any, Tensor], Sequence[int]]  # of their tensor, from the options and ours


@dataclass(frozen=True)
class Rule:
    """Which tensors of ours correspond to which of theirs.

    Several names on one side are concatenated along the outputs on the other: `ours=("…q", "…k", "…v")` are parts of
    their one matrix (GPT-2), `theirs=("…gate", "…up")` are parts of ours (Llama).
    """

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    turned: bool = False  # their matrices are (inputs, outputs)
    shape: Shape | None = None  # of their tensor, if it has another shape with the same numbers
    inside: bool = False  # part of a head here, of the body there (BERT's pooler)
    common: bool = False  # one layer of a file serves several heads (ModernBERT's)
    when: Callable[[Any], bool] | None = None  # by the model's options, whether the rule applies
    by_head: bool = False  # several of ours: their matrix alternates between them, head by head (GPT-NeoX)


def rename(
    ours: str | Sequence[str],
    theirs: str | Sequence[str],
    *,
    turned: bool = False,
    shape: Shape | None = None,
    inside: bool = False,
) -> Rule:
    """A rule, with one name or several on each side."""
    first = (ours,) if isinstance(ours, str) else tuple(ours)
    return Rule(first, (theirs,) if isinstance(theirs, str) else tuple(theirs), turned, shape, inside)


@dataclass(frozen=True)
class Match:
    """A rule applied to certain tensors."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    rule: Rule


def match(rules: Iterable[Rule], names: Iterable[str]) -> tuple[list[Match], list[str]]:
    """The rule for each of our tensors, and the names without a rule."""
    unmatched, matches = dict.fromkeys(names), []
    for rule in rules:
        pattern = _pattern(rule.ours[0])
        for name in [name for name in unmatched if pattern.fullmatch(name)]:
            numbers, leaf = _numbers(pattern, name)
            ours = tuple(_fill(pattern_name, numbers, leaf) for pattern_name in rule.ours)
            if all(pattern_name in unmatched for pattern_name in ours):
                matches.append(
                    Match(ours, tuple(_fill(pattern_name, numbers, leaf) for pattern_name in rule.theirs), rule)
                )
                for pattern_name in ours:
                    del unmatched[pattern_name]
    return matches, list(unmatched)


def covers(rules: Iterable[Rule], name: str) -> bool:
    """Whether a rule covers a tensor of theirs."""
    return any(_pattern(pattern).fullmatch(name) for rule in rules for pattern in rule.theirs)


def to_ours(
    match: Match, tensors: Sequence[Tensor], sizes: Mapping[str, torch.Size], options: Any = None
) -> dict[str, Tensor]:
    """Our tensors from theirs, as views where possible."""
    shapes = [sizes[name] for name in match.ours]
    if match.rule.shape is not None:
        reshaped = tensors[0].reshape(shapes[0]) if tensors[0].numel() == shapes[0].numel() else tensors[0]
        return {match.ours[0]: _fitting(reshaped, shapes[0], match)}
    sources = [tensor.t() if match.rule.turned and tensor.dim() == 2 else tensor for tensor in tensors]
    joined = _joined(sources)
    if match.rule.by_head and joined.shape[0] == sum(size[0] for size in shapes):
        joined = joined.unflatten(0, (options.heads, len(shapes), -1)).transpose(0, 1).flatten(0, 2)
    if len(shapes) == 1:
        return {match.ours[0]: _fitting(joined, shapes[0], match)}
    rows = [size[0] for size in shapes]
    if joined.shape[0] != sum(rows):
        raise InvalidInput(_misfit(match, joined.shape, torch.Size((sum(rows), *shapes[0][1:]))))
    pieces = zip(match.ours, torch.split(joined, rows), shapes)
    return {name: _fitting(piece, size, match) for name, piece, size in pieces}


def to_theirs(match: Match, tensors: Sequence[Tensor], options: Any) -> dict[str, Tensor]:
    """Their tensors from ours."""
    joined = tensors[0] if len(tensors) == 1 else torch.cat(list(tensors))
    if match.rule.shape is not None:
        return {match.theirs[0]: joined.reshape(tuple(match.rule.shape(options, joined)))}
    if match.rule.by_head:
        joined = joined.unflatten(0, (len(tensors), options.heads, -1)).transpose(0, 1).flatten(0, 2)
    pieces = joined.chunk(len(match.theirs)) if len(match.theirs) > 1 else (joined,)
    turned = match.rule.turned and joined.dim() == 2
    return {name: piece.t() if turned else piece for name, piece in zip(match.theirs, pieces)}


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    """Concatenates tensors, without a copy if they are adjacent in memory, as gate and up of a Llama are."""
    first, address = tensors[0], tensors[0].data_ptr()
    if len(tensors) == 1:
        return first
    for tensor in tensors:
        same = tensor.dtype == first.dtype and tensor.shape[1:] == first.shape[1:]
        if not same or not tensor.is_contiguous() or tensor.data_ptr() != address or not _one_memory(tensor, first):
            return torch.cat(list(tensors))
        address += tensor.numel() * tensor.element_size()
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.as_strided((rows, *first.shape[1:]), first.stride())


def _one_memory(first: Tensor, second: Tensor) -> bool:
    return first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()


def _fitting(tensor: Tensor, size: torch.Size, match: Match) -> Tensor:
    if tensor.shape != size:
        raise InvalidInput(_misfit(match, tensor.shape, size))
    return tensor


def _misfit(match: Match, found: torch.Size, expected: torch.Size) -> str:
    return f"{' and '.join(match.theirs)}: {tuple(found)} in the file, {tuple(expected)} by its configuration"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", r"(\d+)") + r"(\.weight|\.bias)?")


def _numbers(pattern: re.Pattern[str], name: str) -> tuple[list[str], str]:
    matched = pattern.fullmatch(name)
    assert matched is not None
    *numbers, leaf = matched.groups()
    return numbers, leaf or ""


def _fill(text: str, numbers: Sequence[str], leaf: str) -> str:
    for number in numbers:
        text = text.replace("*", number, 1)
    return text + leaf


__all__ = ["Match", "Rule", "covers", "match", "rename", "to_ours", "to_theirs"]
