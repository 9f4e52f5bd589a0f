"""Weights of a checkpoint in a model whose options were changed: another attention, or another length.

Further projections of a mechanism (Longformer's for global tokens) start as copies of those they are like. Tables of
positions are made longer by repeating them. Beltagy et al. 2020 (section 5) made RoBERTa a Longformer so.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longspan.attention.base import Attention
from longspan.errors import InvalidInput, Unsupported
from longspan.nn.multihead import MultiHead
from longspan.nn.positions import LearnedPositions


def copy_projections(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Fills further projections of mechanisms from those that they are like; the names that are no such projections."""
    left = dict.fromkeys(names)
    for place, module in model.named_modules():
        if not isinstance(module, MultiHead):
            continue
        for extra, like in module.likes.items():
            for leaf, parameter in module.extra[extra].named_parameters():
                name = f"{place}.extra.{extra}.{leaf}"
                if name not in left:
                    continue
                source = module.project[like].get_parameter(leaf)
                if source.shape != parameter.shape:
                    mechanism = module.mechanism.name
                    came, wanted = tuple(source.shape), tuple(parameter.shape)
                    raise Unsupported(f"{name} of {mechanism} is {wanted}, and what it would start from {came}")
                parameter.data = source.data.clone()
                del left[name]
    return list(left)


def refuse(model: nn.Module, names: Sequence[str]) -> None:
    """Refuses parameters that no tensor of a file belongs to."""
    if not names:
        return
    for place, module in model.named_modules():
        own = [name for name in names if name.startswith(f"{place}.")] if isinstance(module, Attention) else []
        if own:
            raise Unsupported(
                f"{module.name} has weights of its own that the file has nothing for: {own[0]}; "
                "choose an attention without, or train one from the start"
            )
    raise Unsupported(f"the options ask for {names[0]}, and the file has nothing for it; leave those options out")


def misfit(model: nn.Module, names: str, given: Iterable[str]) -> str:
    """What is wrong where a file has tensors that a model of other options has no place for."""
    if not any(key.endswith("attention") for key in given):
        return f"the file has {names}, and with the options {', '.join(given)} the model has no place for it"
    chosen = dict.fromkeys(module.name for module in model.modules() if isinstance(module, Attention))
    return f"the file has {names}, and with the attention {', '.join(chosen)} the model has no place for it"


def resized(model: nn.Module, name: str, tensor: Tensor, given: Mapping[str, Any]) -> Tensor:
    """A table of positions at the length that the options ask for: cut, or repeated; any other tensor as it is."""
    owner = model.get_submodule(name.rpartition(".")[0])
    if (
        not isinstance(owner, LearnedPositions)
        or not given.keys() & {"max_length", "source_length"}
        or tensor.dim() != 2
    ):
        return tensor
    before, rows = tensor[: -owner.first or 0], tensor[-owner.first :]
    if not len(rows):
        raise InvalidInput(f"{name}: the file's table has {len(tensor)} rows and none for a position")
    if len(rows) >= owner.length:
        return tensor[: len(before) + owner.length]
    return torch.cat([before, rows.repeat(-(-owner.length // len(rows)), 1)[: owner.length]])


__all__ = ["copy_projections", "misfit", "refuse", "resized"]
