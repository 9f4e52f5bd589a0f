"""A family's tensors into a model, and a model's tensors out to the family's names."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from longspan.errors import InvalidInput, Unsupported
from longspan.hub.changed_options import copy_projections, misfit, refuse, resized
from longspan.hub.families.base import LABELLED, Family
from longspan.hub.skip_init import draw, put
from longspan.hub.tensor_names import Rule, match, speaks_of, to_ours, to_theirs
from longspan.models import folder as own_folder
from longspan.models.base import Model

DRAWS = "longspan_draws"  # of config.json: what mechanisms drew when the model was made (Big Bird's random blocks)


def fill(
    model: Model,
    found: Mapping[str, Tensor],
    family: Family,
    record: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    chosen: bool = False,
    given: Mapping[str, Any] | None = None,
) -> tuple[list[str], list[str]]:
    """Puts their tensors into a model: those of heads that it has not, and those of its heads that were not there.

    `given` are options of the model that differ from what the file's configuration says.
    """
    files = {modern_name(name): name for name in found if not any(re.fullmatch(each, name) for each in family.ignored)}
    named = family.named(record)
    base = family.bases.get(named, family.base)
    tied = bool(record.get("tie_word_embeddings", family.tied))
    ties = {name: of for name, of in family.ties.items() if tied or name not in family.untied}
    sizes = {name: tensor.shape for name, tensor in own_folder.unique(model).items()}
    matches, kept = match(_rules(model, family), sizes)
    # Heads that were asked for may be of another make than this family's: then no file has their tensors.
    unruled = _without_rule(model, kept)
    fresh = [name for name in unruled if chosen and name.startswith("heads.")]
    _put_draws(model, kept, record)
    others = _of_other_heads(model, family, record) if chosen else set()
    missing: list[str] = []
    taken: set[str] = set()
    for each in matches:
        names = [_find(files, _spellings(name, family, ties, tied), base) for name in each.theirs]
        if each.rule in others:
            fresh.extend(each.ours)
            continue
        if None in names:
            # Heads that were asked for may be new, and so may an output layer, where the file's class has none.
            asked = chosen and each.ours[0].startswith("heads.")
            silent = not chosen if family.speakers is None else not family.speaks(named)
            optional = asked or (each.rule in family.output and silent)
            lacking = [wanted for wanted, name in zip(each.theirs, names) if name is None]
            (fresh if optional else missing).extend(each.ours if optional else lacking)
            continue
        present = [name for name in names if name is not None]
        # Two heads may begin with one tensor of the file (BERT's pooler); trained further, each has its own.
        parts = [found[files[name]].clone() if name in taken else found[files[name]] for name in present]
        taken.update(present)
        parts = [resized(model, each.ours[0], part, given or {}) for part in parts] if len(parts) == 1 else parts
        for name, tensor in to_ours(each, parts, sizes).items():
            put(model, name, tensor, dtype, " and ".join(present))
    left = [name for name in files if name not in taken]
    left = [name for name in left if not _repeats(name, ties, files, found, base)]
    heads = [*family.output, *(rule for task in family.heads for rule in family.rules(task))]
    unknown = [name for name in left if not speaks_of(heads, strip_prefix(name, base))]
    if unknown and not missing and given:
        raise Unsupported(misfit(model, some(unknown), given))
    if missing or unknown:
        said = [f"{what} {some(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names]
        what = "config.json and these options say" if given else "config.json says"
        raise InvalidInput(f"the file {' and '.join(said)}; it is of another architecture than {what}")
    refuse(model, copy_projections(model, [name for name in unruled if name not in fresh]))
    draw(model, fresh, model.options.init_std)
    return left, fresh


def export(model: Model, family: Family, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's tensors under their names."""
    own, named = own_folder.unique(model), record["architectures"][0]
    matches, kept = match(_rules(model, family), own)
    unnamed = _without_rule(model, kept)
    if unnamed:
        raise Unsupported(f"a {family.name} of Hugging Face has no place for {some(unnamed)}")
    bodies = {*family.body}
    found = {}
    for each in matches:
        if each.rule in family.output and not family.speaks(named):
            continue
        prefix = family.prefix(named) if each.rule in bodies or each.rule.inside else ""
        for name, tensor in to_theirs(each, [own[name] for name in each.ours], model.options).items():
            found[prefix + name] = tensor
    if not record.get("tie_word_embeddings", family.tied):
        found.update({name: found[of] for of, name in family.instead.items() if of in found})
    return found


def _of_other_heads(model: Model, family: Family, record: Mapping[str, Any]) -> set[Rule]:
    """Rules by whose names the file means another head: one for other labels, or BERT's `classifier` of anything."""
    there = family.tasks(record) if (record.get("architectures") or [None])[0] in family.architectures else ()
    meant = {name for task in there for rule in family.rules(task) if not rule.inside for name in rule.theirs}
    found: set[Rule] = set()
    for head in model.options.tasks or ():
        same = head.task not in LABELLED or head.labels == family.count(record, head.task)
        if head.task not in there or not same:
            found.update(rule for rule in family.rules(head.task) if not rule.inside and meant & {*rule.theirs})
    return found


def _rules(model: nn.Module, family: Family) -> list[Rule]:
    """Those that speak of a model's tensors."""
    heads = [rule for task in getattr(model, "heads", {}) for rule in family.rules(task)]
    return [*family.body, *family.output, *heads]


# Names


def modern_name(name: str) -> str:
    """The first releases called the weight and bias of a norm gamma and beta."""
    return re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], name)


def _spellings(name: str, family: Family, ties: Mapping[str, str], tied: bool) -> list[str]:
    """The names under which a tensor may be in a file, the one that counts first."""
    found = [] if tied or name not in family.instead else [family.instead[name]]
    return [*found, name, *(other for other, of in ties.items() if of == name)]


def _find(files: Mapping[str, str], names: Sequence[str], base: str) -> str | None:
    return next((each for name in names for each in (base + name, name) if each in files), None)


def strip_prefix(name: str, base: str) -> str:
    return name.removeprefix(base)


def _repeats(
    name: str, ties: Mapping[str, str], files: Mapping[str, str], found: Mapping[str, Tensor], base: str
) -> bool:
    """Whether a tensor is another one once more, as it must be where the two are tied."""
    first = ties.get(strip_prefix(name, base))
    if first is None:
        return False
    other = _find(files, [first], base)
    if other is None:
        return False
    if not torch.equal(found[files[name]], found[files[other]]):
        raise InvalidInput(
            f"{name} and {other} differ, and by tie_word_embeddings they are one; "
            "mend the file, or set tie_word_embeddings to false in config.json"
        )
    return True


def some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _without_rule(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Of the names that no rule speaks of, those of parameters; a mechanism's own draws are in no checkpoint there."""
    buffers = dict(model.named_buffers())
    return [name for name in names if name not in buffers]


def draws(model: Model, family: Family) -> dict[str, Any]:
    """What mechanisms drew, as far as it is integers: those are few, one for each head."""
    own = own_folder.unique(model)
    _, kept = match(_rules(model, family), own)
    found = {name: own[name].tolist() for name in kept if not own[name].is_floating_point()}
    return {DRAWS: found} if found else {}


def _put_draws(model: Model, kept: Sequence[str], record: Mapping[str, Any]) -> None:
    for name, numbers in record.get(DRAWS, {}).items():
        if name not in kept or torch.tensor(numbers).shape != model.get_buffer(name).shape:
            raise InvalidInput(f"config.json: {DRAWS} of {name} are not of this model; leave them out to draw others")
        model.get_buffer(name).copy_(torch.tensor(numbers))


__all__ = ["draws", "export", "fill", "modern_name", "some", "strip_prefix"]
