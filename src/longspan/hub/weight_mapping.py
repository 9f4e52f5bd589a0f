"""Map tensors between a family's checkpoint and a model: `fill_weights` reads, `export_weights` writes."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.changed_options import (
    copy_projections,
    first_names,
    leftover_message,
    refuse_unfilled,
    resize_positions,
)
from longspan.hub.families.base import LABELLED, Family
from longspan.hub.skip_init import initialise, set_tensor
from longspan.hub.tensor_names import Match, Rule, covers, match, to_ours, to_theirs
from longspan.models.base import Model
from longspan.models.folder import unique
from longspan.parsing import refusing

DRAWS = "longspan_draws"  # key of config.json: integers drawn when the model was built (Big Bird's random blocks)


def fill_weights(
    model: Model,
    tensors: Mapping[str, Tensor],
    family: Family,
    record: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    heads_chosen: bool = False,
    changed: Mapping[str, Any] | None = None,
) -> tuple[list[str], list[str]]:
    """Moves a checkpoint's tensors into a model.

    Returns the file's names that were not used (heads the model lacks) and the model's names that start untrained
    (heads the file lacks). `heads_chosen` says that the user chose the heads, `changed` which options differ from the
    file's configuration.
    """
    changed = changed or {}
    file = _Checkpoint(tensors, family, record)
    sizes = {name: tensor.shape for name, tensor in unique(model).items()}
    matches, unmatched = match(_rules(model, family, family.named(record)), sizes)
    _restore_draws(model, unmatched, record)
    # A head that the user chose may be of a kind that this family does not have: then no file has its tensors.
    unruled = _parameters(model, unmatched)
    fresh = [name for name in unruled if heads_chosen and name.startswith("heads.")]
    replaced = _rules_of_other_heads(model, family, record) if heads_chosen else set()
    missing: list[str] = []
    for pair in matches:
        names = [file.find(name) for name in pair.theirs]
        if pair.rule in replaced:
            fresh.extend(pair.ours)
        elif None in names:
            if file.may_lack(pair, heads_chosen):
                fresh.extend(pair.ours)
            else:
                missing.extend(wanted for wanted, name in zip(pair.theirs, names) if name is None)
        else:
            present = [name for name in names if name is not None]
            values = [file.take(name) for name in present]
            if len(values) == 1:
                values = [resize_positions(model, pair.ours[0], values[0], changed)]
            for name, tensor in to_ours(pair, values, sizes, model.options).items():
                set_tensor(model, name, tensor, dtype, " and ".join(present))
    unused = file.unused()
    unknown = file.unknown(unused)
    if unknown and not missing and changed:
        raise Unsupported(leftover_message(model, first_names(unknown), changed))
    if missing or unknown:
        faults = [
            f"{what} {first_names(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names
        ]
        what = "config.json and these options say" if changed else "config.json says"
        raise InvalidInput(f"the file {' and '.join(faults)}; it is of another architecture than {what}")
    refuse_unfilled(model, copy_projections(model, [name for name in unruled if name not in fresh]))
    initialise(model, fresh, model.options.init_std)
    return unused, fresh


class _Checkpoint:
    """A file's tensors under their modern names, with the prefixes and ties of its family."""

    def __init__(self, tensors: Mapping[str, Tensor], family: Family, record: Mapping[str, Any]) -> None:
        self.tensors, self.family = tensors, family
        kept = [name for name in tensors if not any(re.fullmatch(pattern, name) for pattern in family.ignored)]
        self.names = {family.spelling(modern_name(name)): name for name in kept}  # modern name -> name in the file
        self.architecture = family.named(record)
        self.prefix = family.bases.get(self.architecture, family.base)
        self.tied = bool(record.get("tie_word_embeddings", family.tied))
        self.ties = {name: of for name, of in family.ties.items() if self.tied or name not in family.untied}
        self._taken: set[str] = set()

    def find(self, name: str) -> str | None:
        """The modern name under which the file has a tensor: its own, or that of one it is tied to."""
        instead = [] if self.tied or name not in self.family.instead else [self.family.instead[name]]
        spellings = [*instead, name, *(other for other, of in self.ties.items() if of == name)]
        candidates = (candidate for spelling in spellings for candidate in (self.prefix + spelling, spelling))
        return next((candidate for candidate in candidates if candidate in self.names), None)

    def take(self, name: str) -> Tensor:
        tensor = self.tensors[self.names[name]]
        # Two heads may start from one tensor of the file (BERT's pooler); in training, they must not share it.
        tensor = tensor.clone() if name in self._taken else tensor
        self._taken.add(name)
        return tensor

    def may_lack(self, pair: Match, heads_chosen: bool) -> bool:
        """Whether tensors may start untrained: a head that was chosen, or an output layer the file's class lacks."""
        if heads_chosen and pair.ours[0].startswith("heads."):
            return True
        family = self.family
        without_output = not heads_chosen if family.speakers is None else not family.has_output(self.architecture)
        return pair.rule in family.output and without_output

    def unused(self) -> list[str]:
        left = [name for name in self.names if name not in self._taken]
        return [name for name in left if not self._repeats_another(name)]

    def unknown(self, names: Sequence[str]) -> list[str]:
        """Of the names, those that belong to no head and no output layer of the family."""
        family = self.family
        classes = (None, *family.class_heads)
        rules = [
            *family.output,
            *(rule for task in family.heads for name in classes for rule in family.rules(task, name)),
        ]
        return [name for name in names if not covers(rules, name.removeprefix(self.prefix))]

    def _repeats_another(self, name: str) -> bool:
        """Whether a tensor is a second copy of one it is tied to; copies that differ are an error."""
        first = self.ties.get(name.removeprefix(self.prefix))
        candidates = () if first is None else (self.prefix + first, first)
        other = next((candidate for candidate in candidates if candidate in self.names), None)
        if other is None:
            return False
        if not torch.equal(self.tensors[self.names[name]], self.tensors[self.names[other]]):
            raise InvalidInput(
                f"{name} and {other} differ, and by tie_word_embeddings they are one; "
                "correct the file, or set tie_word_embeddings to false in config.json"
            )
        return True


def export_weights(model: Model, family: Family, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's tensors under the family's names."""
    ours, architecture = unique(model), record["architectures"][0]
    matches, unmatched = match(_rules(model, family, architecture), ours)
    unnamed = _parameters(model, unmatched)
    if unnamed:
        raise Unsupported(f"a {family.name} of Hugging Face has no place for {first_names(unnamed)}")
    body = {*family.body}
    theirs: dict[str, Tensor] = {}
    for pair in matches:
        if pair.rule in family.output and not family.has_output(architecture):
            continue
        prefix = family.prefix(architecture) if pair.rule in body or pair.rule.inside else ""
        for name, tensor in to_theirs(pair, [ours[name] for name in pair.ours], model.options).items():
            theirs[prefix + name] = tensor
    if not record.get("tie_word_embeddings", family.tied):
        theirs.update({name: theirs[of] for of, name in family.instead.items() if of in theirs})
    return theirs


def _rules_of_other_heads(model: Model, family: Family, record: Mapping[str, Any]) -> set[Rule]:
    """Rules whose names mean another head in this file: one with other labels, or another task's `classifier`."""
    architecture = family.named(record)
    tasks = family.tasks(record) if record.get("architectures") and architecture in family.architectures else ()
    file_rules = [rule for task in tasks for rule in family.rules(task, architecture)]
    in_file = {name for rule in file_rules if not rule.inside for name in rule.theirs}
    rules: set[Rule] = set()
    for head in model.options.tasks or ():
        same_labels = head.task not in LABELLED or head.labels == family.count(record, head.task)
        if head.task not in tasks or not same_labels:
            rules.update(
                rule
                for rule in family.rules(head.task, architecture)
                if not rule.inside and not rule.common and in_file & {*rule.theirs}
            )
    return rules


def _rules(model: Model, family: Family, architecture: str | None = None) -> list[Rule]:
    """The rules for a model's tensors, in files of a class."""
    heads = [rule for task in getattr(model, "heads", {}) for rule in family.rules(task, architecture)]
    rules = [*family.body, *family.output, *heads]
    return [rule for rule in rules if rule.when is None or rule.when(model.options)]


def _parameters(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Of the names, those of parameters; buffers that a mechanism draws are in no checkpoint of Hugging Face."""
    buffers = dict(model.named_buffers())
    return [name for name in names if name not in buffers]


# Names


def modern_name(name: str) -> str:
    """The first releases called the weight and bias of a norm gamma and beta."""
    return re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], name)


# Integers that mechanisms drew: few, so config.json can hold them


def integer_buffers(model: Model, family: Family) -> dict[str, Any]:
    """The integers that mechanisms drew when the model was built, as an entry of config.json."""
    ours = unique(model)
    _, unmatched = match(_rules(model, family), ours)
    draws = {name: ours[name].tolist() for name in unmatched if not ours[name].is_floating_point()}
    return {DRAWS: draws} if draws else {}


def _restore_draws(model: Model, names: Sequence[str], record: Mapping[str, Any]) -> None:
    with refusing(f"config.json: {DRAWS}"):
        draws = {name: torch.tensor(numbers) for name, numbers in record.get(DRAWS, {}).items()}
    for name, numbers in draws.items():
        if name not in names or numbers.shape != model.get_buffer(name).shape:
            raise InvalidInput(f"config.json: {DRAWS} of {name} are not of this model; leave them out to draw others")
        model.get_buffer(name).copy_(numbers)


__all__ = ["export_weights", "fill_weights", "integer_buffers", "modern_name"]
