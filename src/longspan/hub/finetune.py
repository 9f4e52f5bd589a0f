"""A pretrained model for a task of one's own: its body as it was, a new head, and which of it is trained."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from longspan import config
from longspan.data.files import read_json
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import families
from longspan.hub.folder import CONFIG
from longspan.hub.load_checkpoint import load
from longspan.hub.pretrained import Pretrained
from longspan.models.base import CausalModel, Model
from longspan.models.electra import Electra
from longspan.nn.heads import Head


def tune(
    path: Path,
    heads: Sequence[Head],
    *,
    shape: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """The model of a folder with heads for other tasks, in float32 and in memory of its own, ready to be trained.

    Each head is made as its family makes it, so that what was trained of it before (BERT's pooler) is used, with the
    labels asked for; `shape` (pool, activation, inner, dropout) goes before that. `options` are the model's.
    """
    record = read_json(path / CONFIG)
    if "model_type" in record:
        family = families.find(str(record["model_type"]), path)
        known = family.options(record, [])
        made = [_merged(_usual(family, head, known, record), head, shape) for head in heads]
        found = load(path, tasks=made or None, dtype=torch.float32, options=options)
    else:
        found = _own(path, heads, shape, options or {})
    for parameter in found.model.parameters():  # weights may be mapped from the file, which is not to be trained
        parameter.data = parameter.data.clone()
    return found


def _usual(family: Any, head: Head, options: Mapping[str, Any], record: Mapping[str, Any]) -> Head:
    try:
        return family.read_head(head.task, options, record)
    except Unsupported:  # a family without such a head of its own can have ours
        return head


def _merged(made: Head, wanted: Head, shape: Mapping[str, Any] | None) -> Head:
    found = replace(made, labels=wanted.labels, names=wanted.names)
    if not shape:
        return found
    return config.make(Head, {**config.plain(found), **shape}, "head")


def _own(path: Path, heads: Sequence[Head], shape: Mapping[str, Any] | None, options: Mapping[str, Any]) -> Pretrained:
    """Of a folder of ours: the weights of the body go over to a model that has other heads."""
    found = load(path, dtype=torch.float32)
    before: Model = found.model.discriminator if isinstance(found.model, Electra) else found.model
    given = config.plain(before.options)
    if heads:
        if "tasks" not in given:
            raise Unsupported(f"{path}: a {before.name} has no heads for tasks")
        given["tasks"] = [_merged(default_head(type(before), head), head, shape) for head in heads]
    cls = type(before)
    model = cls(config.make(cls.Options, {**given, **options}, f"{path / CONFIG}"))
    held, own = before.state_dict(), model.state_dict()
    kept = (
        {each.task for each in (before.options.tasks or ()) if each in (model.options.tasks or ())} if heads else None
    )
    for name, tensor in own.items():
        head = re.match(r"heads\.(\w+)\.", name)
        if head is not None and kept is not None and head[1] not in kept:
            found.fresh.append(name)
            continue
        if name not in held or held[name].shape != tensor.shape:
            came = "none" if name not in held else str(tuple(held[name].shape))
            raise InvalidInput(f"{path}: {name} is {came} there, and {tuple(tensor.shape)} with these options")
        tensor.copy_(held[name])
    found.model, found.labels = model, []
    return found


def default_head(cls: type[Model], head: Head) -> Head:
    """A head as it is on a model of ours: one that reads left to right knows a text at its last token only."""
    reads_on = issubclass(cls, CausalModel) and head.task in ("classify", "regress", "choose", "pair")
    return replace(head, pool="last") if reads_on else head


def freeze(model: Model, trained: str | int) -> None:
    """Says what is trained: "all", "head" (only heads for tasks), or a number of blocks from the top beside them."""
    if trained == "all":
        return
    if trained != "head" and (isinstance(trained, (str, bool)) or trained < 1):
        raise InvalidOption(f'trained must be "all", "head" or a number of blocks from the top, not {trained!r}')
    blocks = [int(found[1]) for name, _ in model.named_parameters() if (found := re.search(r"\bblocks\.(\d+)\.", name))]
    count = max(blocks, default=-1) + 1
    if not isinstance(trained, str) and trained > count:
        raise InvalidOption(f"the model has {count} blocks, fewer than the {trained} that are to be trained")
    lowest = count if isinstance(trained, str) else count - trained
    for name, parameter in model.named_parameters():
        block = re.search(r"\bblocks\.(\d+)\.", name)
        above = name.startswith("heads.") or (block is not None and int(block[1]) >= lowest)
        parameter.requires_grad_(above)


__all__ = ["default_head", "freeze", "tune"]
