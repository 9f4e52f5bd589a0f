"""A folder of Hugging Face's, or of ours, to a model and back."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longspan import config
from longspan.data import Tokenizer
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import around, families, tensors
from longspan.hub.family import LABELLED, Family, label_names
from longspan.hub.names import Rule, match, speaks_of, to_ours, to_theirs
from longspan.hub.sentence import Sentence
from longspan.hub.weights import KINDS, common_type, draw, put, unfilled
from longspan.models import folder as own_folder
from longspan.models import registry
from longspan.models.base import Model
from longspan.nn.heads import Head

CONFIG = "config.json"
DRAWS = "longspan_draws"  # of config.json: what mechanisms drew when the model was made (Big Bird's random blocks)


@dataclass
class Pretrained:
    """A model as it was found on disk, with what belongs to it."""

    model: Model
    family: str | None = None  # `model_type` of Hugging Face's; None: a folder of ours
    config: dict[str, Any] = field(default_factory=dict)  # as found, so that what we do not use is written back
    labels: list[str] = field(default_factory=list)  # the names of a classifier's labels
    unused: list[str] = field(default_factory=list)  # tensors of heads that were not asked for
    fresh: list[str] = field(default_factory=list)  # tensors of heads that the file lacks: not trained yet
    tokenizer: Tokenizer | None = None
    generation: dict[str, Any] = field(default_factory=dict)  # generation_config.json, as found
    sentence: Sentence | None = None  # how its authors make one vector of a text
    path: Path | None = None  # where it was found


def load(
    path: Path | str,
    *,
    tasks: Sequence[Head | str] | None = None,
    dtype: torch.dtype | None = None,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """The model of a folder, in evaluation mode, its weights mapped from the file and not copied where that can be.

    `tasks` asks for other heads than the file's: those it lacks start untrained and are listed in `fresh`. `dtype` is
    that of the file unless given. `options` of the model go before those that its configuration says.
    """
    folder = Path(path)
    record = _record(folder)
    if dtype is not None and dtype not in KINDS:
        raise InvalidInput(f"dtype must be one of {', '.join(str(kind) for kind in KINDS)}, not {dtype}")
    if "model_type" not in record:
        if tasks is not None or options is not None:
            what = "options" if tasks is None else "tasks"
            raise Unsupported(f"{what} can be chosen for folders of Hugging Face's; this one is longspan's own")
        model = own_folder.load(folder)
        return Pretrained(model if dtype is None else model.to(dtype), labels=_named_labels(model))
    return assemble(record, None, folder, tasks, dtype, options)


def assemble(
    record: dict[str, Any],
    found: Mapping[str, Tensor] | None,
    where: Path,
    tasks: Sequence[Head | str] | None,
    dtype: torch.dtype | None,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """The model that a configuration describes, with the tensors `found`, by default those of the folder `where`."""
    family = families.find(str(record["model_type"]), where)
    if record.get("is_decoder") and family.decoder is not None:
        family = family.decoder
    try:
        return _assemble(
            record, tensors.Tensors(where) if found is None else found, family, tasks, dtype, options or {}
        )
    except InvalidOption as error:
        keys = [each.theirs for each in family.fields if f"option {each.ours} " in str(error)]
        raise InvalidOption(f"{where}: {CONFIG}: {''.join(f'{key}: ' for key in keys)}{error}") from None
    except (InvalidInput, Unsupported) as error:
        raise type(error)(str(error) if str(where) in str(error) else f"{where}: {error}") from None


def _assemble(
    record: dict[str, Any],
    found: Mapping[str, Tensor],
    family: Family,
    tasks: Sequence[Head | str] | None,
    dtype: torch.dtype | None,
    given: Mapping[str, Any],
) -> Pretrained:
    if record.get("quantization_config"):
        raise Unsupported("config.json: weights with a quantization_config are not read; convert them to float16")
    wanted = _file_tasks(family, record, found) if tasks is None else tasks
    options = {**family.options(record, wanted), **given}
    cls = registry.find(family.model)
    kind = dtype or common_type(found)
    with unfilled(kind), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # what mechanisms draw is the same at every load
        model = cls(config.make(cls.Options, options, family.name))
    unused, fresh = fill(model, found, family, record, kind, chosen=tasks is not None)
    labels = label_names(record)
    counts = {head.labels for head in options.get("tasks", ())}
    return Pretrained(model.eval(), family.name, record, labels if len(labels) in counts else [], unused, fresh)


def _file_tasks(family: Family, record: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The tasks of a file's architecture; the pooler of a body alone may have been left out."""
    tasks, rules = list(family.tasks(record)), family.rules("pool")
    if "pool" in tasks and not any(speaks_of(rules, _bare(_today(name), family.base)) for name in names):
        tasks.remove("pool")
    return tasks


def fill(
    model: Model,
    found: Mapping[str, Tensor],
    family: Family,
    record: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    chosen: bool = False,
) -> tuple[list[str], list[str]]:
    """Puts their tensors into a model: those of heads that it has not, and those of its heads that were not there."""
    files = {_today(name): name for name in found if not any(re.fullmatch(each, name) for each in family.ignored)}
    named = family.named(record)
    base = family.bases.get(named, family.base)
    tied = bool(record.get("tie_word_embeddings", family.tied))
    ties = {name: of for name, of in family.ties.items() if tied or name not in family.untied}
    sizes = {name: tensor.shape for name, tensor in own_folder.unique(model).items()}
    matches, kept = match(_rules(model, family), sizes)
    # Heads that were asked for may be of another make than this family's: then no file has their tensors.
    fresh = _without_rule(model, kept)
    assert chosen or not fresh, f"{family.name} has no rule for {some(fresh)}"
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
        for name, tensor in to_ours(each, parts, sizes).items():
            put(model, name, tensor, dtype, " and ".join(present))
    left = [name for name in files if name not in taken]
    left = [name for name in left if not _repeats(name, ties, files, found, base)]
    heads = [*family.output, *(rule for task in family.heads for rule in family.rules(task))]
    unknown = [name for name in left if not speaks_of(heads, _bare(name, base))]
    if missing or unknown:
        said = [f"{what} {some(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise InvalidInput(f"the file {' and '.join(said)}; it is of another architecture than config.json says")
    draw(model, fresh, model.options.init_std)
    return left, fresh


def save(
    model: Pretrained | Model,
    folder: Path | str,
    *,
    family: str | None = None,
    tokenizer: Tokenizer | None = None,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes a folder that Hugging Face's `from_pretrained` reads; `family` says as what, where that is not known.

    `tokenizer` stands instead of the model's own.
    """
    folder = Path(folder)
    given = model if isinstance(model, Pretrained) else Pretrained(model, family)
    kind = family or given.family
    if kind is None:
        raise InvalidInput("say as which family the model is to be written, such as family='bert'")
    found = families.find(kind, kind)
    if found.decoder is not None and found.decoder.model == given.model.name:
        found = found.decoder
    if found.model != given.model.name:
        raise Unsupported(f"a {found.name} is written from a model {found.model!r}, and this is {given.model.name!r}")
    before = given.config.get("architectures") or [None]
    written = found.config(given.model.options, given.labels or _named_labels(given.model), before[0])
    written["dtype"] = str(given.model.dtype).removeprefix("torch.")
    kept = {key: value for key, value in given.config.items() if key not in ("torch_dtype", "num_labels")}
    record = {**kept, **written, **_draws(given.model, found)}
    found.check(given.model.options, record)
    theirs = export(given.model, found, record)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    around.write(given, folder, tokenizer)
    tensors.write(folder, theirs, shard_bytes=shard_bytes)


def export(model: Model, family: Family, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's tensors under their names."""
    own, named = own_folder.unique(model), record["architectures"][0]
    matches, kept = match(_rules(model, family), own)
    unnamed = _without_rule(model, kept)
    if unnamed:
        raise Unsupported(f"{family.name} has no name for {some(unnamed)}; its heads are of another make")
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


def _today(name: str) -> str:
    """The first releases called the weight and bias of a norm gamma and beta."""
    return re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], name)


def _spellings(name: str, family: Family, ties: Mapping[str, str], tied: bool) -> list[str]:
    """The names under which a tensor may be in a file, the one that counts first."""
    found = [] if tied or name not in family.instead else [family.instead[name]]
    return [*found, name, *(other for other, of in ties.items() if of == name)]


def _find(files: Mapping[str, str], names: Sequence[str], base: str) -> str | None:
    return next((each for name in names for each in (base + name, name) if each in files), None)


def _bare(name: str, base: str) -> str:
    return name.removeprefix(base)


def _repeats(
    name: str, ties: Mapping[str, str], files: Mapping[str, str], found: Mapping[str, Tensor], base: str
) -> bool:
    """Whether a tensor is another one once more, as it must be where the two are tied."""
    first = ties.get(_bare(name, base))
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


def _named_labels(model: Model) -> list[str]:
    """What a model's own options call its labels."""
    heads: Sequence[Head] = getattr(model.options, "tasks", None) or ()
    return next((list(head.names) for head in heads if head.names), [])


def _without_rule(model: nn.Module, names: Sequence[str]) -> list[str]:
    """Of the names that no rule speaks of, those of heads; a mechanism's own draws are in no checkpoint there."""
    buffers = dict(model.named_buffers())
    found = [name for name in names if name not in buffers]
    assert all(name.startswith("heads.") for name in found), f"no rule for {some(found)}"
    return found


def _draws(model: Model, family: Family) -> dict[str, Any]:
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


def _record(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise InvalidInput(f"{folder} is no model: it has no {CONFIG}")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InvalidInput(f"{path} is not JSON: {error}") from None
    if not isinstance(record, dict) or not ("model_type" in record or "model" in record):
        raise InvalidInput(f"{path} says neither model_type (Hugging Face's) nor model (longspan's)")
    return record


__all__ = ["Pretrained", "assemble", "export", "fill", "load", "save"]
