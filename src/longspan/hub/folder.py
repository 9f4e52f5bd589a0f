"""A folder of Hugging Face's, or of ours, to a model and back."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.data import Tokenizer
from longspan.data.files import read_json
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import families, sidecar_files
from longspan.hub.families.base import Asked, Family, label_names
from longspan.hub.formats import safetensors_files
from longspan.hub.locate import NAMES, RECIPE
from longspan.hub.pretrained import Pretrained
from longspan.hub.skip_init import KINDS, common_type, unfilled
from longspan.hub.tensor_names import speaks_of
from longspan.hub.weight_mapping import draws, export, fill, modern_name, strip_prefix
from longspan.models import build_limits, registry
from longspan.models import folder as own_folder
from longspan.models.base import Model
from longspan.nn.heads import Head
from longspan.parsing import refusing

CONFIG = "config.json"


def load(
    path: Path | str,
    *,
    tasks: Sequence[Asked] | None = None,
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
    tasks: Sequence[Asked] | None,
    dtype: torch.dtype | None,
    options: Mapping[str, Any] | None = None,
) -> Pretrained:
    """The model that a configuration describes, with the tensors `found`, by default those of the folder `where`."""
    family = families.find(str(record["model_type"]), where)
    if record.get("is_decoder") and family.decoder is not None:
        family = family.decoder
    try:
        with refusing(where, f"has a {CONFIG}, or weights, that cannot be read"):
            held = safetensors_files.Tensors(where) if found is None else found
            return _assemble(record, held, family, tasks, dtype, options or {})
    except InvalidOption as error:
        keys = [each.theirs for each in family.fields if f"option {each.ours} " in str(error)]
        raise InvalidOption(f"{where}: {CONFIG}: {''.join(f'{key}: ' for key in keys)}{error}") from None
    except (InvalidInput, Unsupported) as error:
        raise type(error)(str(error) if str(where) in str(error) else f"{where}: {error}") from None


def _assemble(
    record: dict[str, Any],
    found: Mapping[str, Tensor],
    family: Family,
    tasks: Sequence[Asked] | None,
    dtype: torch.dtype | None,
    given: Mapping[str, Any],
) -> Pretrained:
    if record.get("quantization_config"):
        raise Unsupported("config.json: weights with a quantization_config are not read; convert them to float16")
    layers = {each.theirs: each.read(record) for each in family.fields if each.ours.endswith("layers")}
    build_limits.check_layers(layers, len(found), CONFIG)
    wanted = _file_tasks(family, record, found) if tasks is None else tasks
    options = {**family.options(record, wanted), **given}
    cls = registry.find(family.model)
    kind = dtype or common_type(found)
    weights = getattr(found, "nbytes", None) or sum(found[name].nbytes for name in found)
    with unfilled(kind), build_limits.allowance(weights, "the configuration"), torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # what mechanisms draw is the same at every load
        model = cls(config.make(cls.Options, options, family.name))
    unused, fresh = fill(model, found, family, record, kind, chosen=tasks is not None, given=given)
    labels = label_names(record)
    counts = {head.labels for head in options.get("tasks", ())}
    return Pretrained(model.eval(), family.name, record, labels if len(labels) in counts else [], unused, fresh)


def _file_tasks(family: Family, record: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The tasks of a file's architecture; the pooler of a body alone may have been left out."""
    tasks, rules = list(family.tasks(record)), family.rules("pool")
    if "pool" in tasks and not any(speaks_of(rules, strip_prefix(modern_name(name), family.base)) for name in names):
        tasks.remove("pool")
    return tasks


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
    record = {**kept, **written, **draws(given.model, found)}
    found.check(given.model.options, record)
    theirs = export(given.model, found, record)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sidecar_files.write(given, folder, tokenizer)
    safetensors_files.write(folder, theirs, shard_bytes=shard_bytes)


def _named_labels(model: Model) -> list[str]:
    """What a model's own options call its labels."""
    heads: Sequence[Head] = getattr(model.options, "tasks", None) or ()
    return next((list(head.names) for head in heads if head.names), [])


def _record(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise InvalidInput(
            f"{folder} is no model: it has no {CONFIG} (a model), no {RECIPE} (a run) and no .gguf file; give {NAMES}"
        )
    record = read_json(path)
    if not ("model_type" in record or "model" in record):
        raise InvalidInput(f"{path} says neither model_type (Hugging Face's) nor model (longspan's)")
    return record


__all__ = ["CONFIG", "assemble", "load", "save"]
