"""Load weights into a model whose options were changed: another attention, maximum length or vocabulary.

Extra projections of a mechanism (Longformer's for global tokens) start as copies of the ordinary ones, and position
tables grow by repeating themselves, as Beltagy et al. 2020 (section 5) turned RoBERTa into a Longformer.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import Attention
from longspan.errors import InvalidInput, Unsupported
from longspan.models.base import Model
from longspan.models.folder import unique
from longspan.models.quantized import quantization
from longspan.nn.multihead import MultiHead
from longspan.nn.positions import LearnedPositions


def rebuild(
    model: Model,
    changed: Mapping[str, Any],
    where: Path | str,
    *,
    new_heads: Container[str] = (),
    new_tokens: bool = False,
) -> tuple[Model, list[str]]:
    """A model of the same class with `changed` options and the weights of `model`; also the names left untrained.

    Only heads for the tasks `new_heads` may be untrained and, with `new_tokens`, the rows of tokens that a larger
    vocabulary adds. Anything else that the weights do not fit is an error.
    """
    known = quantization(model)
    if known is not None:
        raise Unsupported(
            f"{where}: this model is quantised (bits {known['bits']}): change or train the original, and quantise the "
            "result"
        )
    cls = type(model)
    changed = config.current_names(cls.Options, changed, str(where))
    options = config.make(cls.Options, {**config.plain(model.options), **changed}, str(where))
    rebuilt = cls(options).to(model.dtype)
    try:
        fresh = _copy_weights(model, rebuilt, changed, new_heads, new_tokens)
    except (InvalidInput, Unsupported) as error:
        raise type(error)(f"{where}: {error}") from None
    return rebuilt.train(model.training), fresh


def _copy_weights(
    source: Model, target: Model, changed: Mapping[str, Any], new_heads: Container[str], new_tokens: bool
) -> list[str]:
    tensors, buffers = source.state_dict(), dict(target.named_buffers())
    fresh: list[str] = []
    missing: list[str] = []
    for name, tensor in unique(target).items():
        head = re.match(r"heads\.(\w+)\.", name)
        if head is not None and head[1] in new_heads:
            fresh.append(name)
            continue
        if name in tensors:
            value = resize_positions(target, name, tensors[name], changed)
            if new_tokens:
                value = _more_tokens(value, tensor, source.options.vocabulary, target.options.vocabulary)
            if value.shape == tensor.shape:
                tensor.copy_(value)
                continue
            if name not in buffers:
                raise InvalidInput(
                    f"{name} is {tuple(value.shape)} there, and {tuple(tensor.shape)} with these options"
                )
        if name not in buffers:  # a buffer keeps what the new model drew
            missing.append(name)
    kept = target.state_dict()
    dropped = [name for name, _ in source.named_parameters() if name not in kept]
    if "tasks" in changed:
        dropped = [name for name in dropped if not name.startswith("heads.")]
    if dropped:
        raise Unsupported(leftover_message(target, first_names(dropped), changed))
    refuse_unfilled(target, copy_projections(target, missing))
    return fresh


def copy_projections(model: nn.Module, names: Iterable[str]) -> list[str]:
    """Fills extra projections of mechanisms from the ordinary ones; returns the names that are no such projections."""
    left = dict.fromkeys(names)
    for path, module in model.named_modules():
        if not isinstance(module, MultiHead):
            continue
        for extra, like in module.likes.items():
            for leaf, parameter in module.extra[extra].named_parameters():
                name = f"{path}.extra.{extra}.{leaf}"
                if name not in left:
                    continue
                source = module.project[like].get_parameter(leaf)
                if source.shape != parameter.shape:
                    raise Unsupported(
                        f"{name} of {module.mechanism.name} is {tuple(parameter.shape)}, "
                        f"and the projection to copy is {tuple(source.shape)}"
                    )
                parameter.data = source.data.clone()
                del left[name]
    return list(left)


def refuse_unfilled(model: nn.Module, names: Sequence[str]) -> None:
    """Raises if there are parameters that no tensor of the file belongs to."""
    if not names:
        return
    for path, module in model.named_modules():
        if not isinstance(module, Attention):
            continue
        inside = [name for name in names if name.startswith(f"{path}.")]
        if inside:
            raise Unsupported(
                f"{module.name} has weights of its own that the file has nothing for: {inside[0]}; "
                "choose an attention without, or train one from the start"
            )
    raise Unsupported(f"the options ask for {names[0]}, and the file has nothing for it; leave those options out")


def leftover_message(model: nn.Module, names: str, changed: Iterable[str]) -> str:
    """The error for tensors of a file that a model with changed options has no use for."""
    if not any(key.endswith("attention") for key in changed):
        return f"the file has {names}, and with the options {', '.join(changed)} the model has no place for it"
    chosen = dict.fromkeys(module.name for module in model.modules() if isinstance(module, Attention))
    return f"the file has {names}, and with the attention {', '.join(chosen)} the model has no place for it"


def resize_positions(model: nn.Module, name: str, tensor: Tensor, changed: Mapping[str, Any]) -> Tensor:
    """A position table at the length that changed options ask for, cut or repeated; any other tensor as it is."""
    owner = model.get_submodule(name.rpartition(".")[0])
    if (
        not isinstance(owner, LearnedPositions)
        or not changed.keys() & {"max_length", "source_length"}
        or tensor.dim() != 2
    ):
        return tensor
    before, rows = tensor[: -owner.first or 0], tensor[-owner.first :]
    if not len(rows):
        raise InvalidInput(f"{name}: the file's table has {len(tensor)} rows and none for a position")
    if len(rows) >= owner.length:
        return tensor[: len(before) + owner.length]
    return torch.cat([before, rows.repeat(-(-owner.length // len(rows)), 1)[: owner.length]])


def _more_tokens(tensor: Tensor, new: Tensor, before: int, after: int) -> Tensor:
    """A table with a row for each token, with the rows of new tokens as the new model drew them."""
    if (len(tensor), len(new)) != (before, after) or tensor.shape[1:] != new.shape[1:] or after < before:
        return tensor
    return torch.cat([tensor, new[before:].to(tensor)])


def first_names(names: Sequence[str]) -> str:
    """The first few names, for an error."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


__all__ = [
    "copy_projections",
    "first_names",
    "leftover_message",
    "rebuild",
    "refuse_unfilled",
    "resize_positions",
]
