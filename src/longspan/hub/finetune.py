"""Fine-tuning: load a pretrained model with new heads, and choose which parameters to train."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from longspan import config
from longspan.data.files import read_json
from longspan.errors import InvalidOption, Unsupported
from longspan.hub import families
from longspan.hub.changed_options import rebuild
from longspan.hub.families.base import Family
from longspan.hub.load_checkpoint import load, read_file
from longspan.hub.pretrained import Pretrained
from longspan.models import registry
from longspan.models.base import CausalModel, Model, ReplacedTokenPair, TextHeads
from longspan.models.folder import CONFIG, is_own
from longspan.nn.heads import Head

BLOCK = re.compile(r"\bblocks\.(\d+)\.")
# Features of a frozen body (Devlin et al. 2018, table 7; Peters et al. 2018, equation 1), as options of its head.
FROZEN: dict[str, dict[str, Any]] = {
    "last": {"features": "last"},
    "sum4": {"features": "sum", "depth": 4},
    "concat4": {"features": "concat", "depth": 4},
    "mix": {"features": "mix"},
}


def tune(
    path: Path,
    heads: Sequence[Head],
    *,
    shape: Mapping[str, Any] | None = None,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """Load the model of a folder or file with heads for other tasks, in float32 and its own memory, to be trained.

    Heads follow their family's conventions, so that trained weights of a head (BERT's pooler) are used, and have the
    labels of `heads`; `shape` (pool, activation, inner, dropout) overrides that. `options` override the model's.
    """
    record = read_json(path / CONFIG) if path.is_dir() else read_file(path)[0]
    if not is_own(record):
        family = families.of_config(record, path, heads)
        body = family.options(record, [])
        requested = [_with_labels(_family_head(family, head, body, record), head, shape) for head in heads]
        pretrained = load(path, tasks=requested or None, dtype=torch.float32, options=options)
    else:
        pretrained = _tune_own_folder(path, heads, shape, options or {})
    for parameter in pretrained.model.parameters():  # never train weights that are mapped from the file
        parameter.data = parameter.data.clone()
    return pretrained


def _family_head(family: Family, head: Head, options: Mapping[str, Any], record: Mapping[str, Any]) -> Head:
    try:
        return family.read_head(head.task, options, record)
    except Unsupported:  # the family has no such head: use longspan's
        return default_head(registry.find(family.model), head)


def _with_labels(head: Head, requested: Head, shape: Mapping[str, Any] | None) -> Head:
    head = replace(head, labels=requested.labels, names=requested.names, symmetric=requested.symmetric)
    if not shape:
        return head
    return config.make(Head, {**config.plain(head), **shape}, "head")


def _tune_own_folder(
    path: Path, heads: Sequence[Head], shape: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> Pretrained:
    """Of a folder of longspan's: a model with other heads takes over the weights of the body."""
    pretrained = load(path, dtype=torch.float32)
    model = pretrained.model
    if model.adapter is not None:
        raise Unsupported(f"{path} has an adapter ({model.adapter.name}); train the base, or merge the adapter first")
    if isinstance(model, ReplacedTokenPair):
        model = model.discriminator
    changed = dict(options)
    new_heads: set[str] = set()
    if heads:
        if "tasks" not in config.plain(model.options):
            raise Unsupported(f"{path}: a {model.name} has no heads for tasks")
        requested = [_with_labels(default_head(type(model), head), head, shape) for head in heads]
        changed = {"tasks": requested, **options}
        trained = model.options.tasks or ()
        new_heads = {head.task for head in requested if head not in trained}
    pretrained.model, pretrained.fresh = rebuild(model, changed, path / CONFIG, new_heads=new_heads)
    pretrained.model.read_files(path)
    pretrained.labels = []
    return pretrained


def default_head(cls: type[Model], head: Head) -> Head:
    """Longspan's own head for a task: a causal model knows the whole text at its last token only."""
    at_last = issubclass(cls, CausalModel) and head.task in ("classify", "regress", "choose", "pair")
    return replace(head, pool="last") if at_last else head


def freeze(model: Model, trained: str | int) -> None:
    """Freezes all parameters but `trained`: "all", "head" (task heads only), or heads and that many top blocks."""
    if trained == "all":
        return
    if trained != "head" and (isinstance(trained, (str, bool)) or trained < 1):
        raise InvalidOption(f'trained must be "all", "head" or a number of blocks from the top, not {trained!r}')
    blocks = [int(match[1]) for name, _ in model.named_parameters() if (match := BLOCK.search(name))]
    count = max(blocks, default=-1) + 1
    if not isinstance(trained, str) and trained > count:
        raise InvalidOption(f"the model has {count} blocks, fewer than the {trained} that are to be trained")
    lowest = count if isinstance(trained, str) else count - trained
    if trained == "head" and isinstance(model, TextHeads):
        model.frozen = True
    for name, parameter in model.named_parameters():
        block = BLOCK.search(name)
        is_trained = name.startswith("heads.") or (block is not None and int(block[1]) >= lowest)
        parameter.requires_grad_(is_trained)


def on_frozen_features(table: dict[str, Any]) -> None:
    """Replace `features`, such as "concat4", in a recipe's [model] by what it stands for: a frozen body, and its head.

    A number is left alone: it is an option of models of sets.
    """
    kind = table.get("features")
    if not isinstance(kind, str):
        return
    if kind not in FROZEN:
        raise InvalidOption(f"features must be one of {', '.join(FROZEN)}, not {kind!r}")
    if table.get("trained", "head") != "head":
        raise InvalidOption(f"features are of a frozen body: leave out trained, which is {table['trained']!r}")
    head = table.get("head", {})
    if {"features", "depth"} & set(head):
        raise InvalidOption("features are given twice, in [model] and in its head; leave out those of the head")
    del table["features"]
    table["trained"], table["head"] = "head", {**head, **FROZEN[kind]}


__all__ = ["FROZEN", "default_head", "freeze", "on_frozen_features", "tune"]
