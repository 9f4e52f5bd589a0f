"""Load a model from disk: a folder of Hugging Face's or of longspan's, a .gguf file, or a .bin of llama2.c.

`load` finds the checkpoint (`locate`), reads its configuration and opens its tensors (`formats/`), builds the model
without initialising it (`skip_init`), fills it (`weight_mapping`), and adds tokenizer and settings (`sidecar_files`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from longspan import config
from longspan.data.files import read_json
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import adapter_files, families, sidecar_files
from longspan.hub.changed_options import rebuild
from longspan.hub.families.base import Family, HeadRequest, label_names
from longspan.hub.formats import gguf, llama2c
from longspan.hub.formats.safetensors_files import Tensors
from longspan.hub.locate import NAMES, RECIPE, locate
from longspan.hub.pretrained import Pretrained, head_labels
from longspan.hub.skip_init import DTYPES, common_dtype, skip_init
from longspan.hub.tensor_names import covers
from longspan.hub.weight_mapping import fill_weights, modern_name
from longspan.models import build_limits, registry
from longspan.models import folder as own_folder
from longspan.models.base import Model
from longspan.models.folder import CONFIG
from longspan.parsing import BAD_VALUES, refusing

FILES = {".gguf": gguf.read, ".bin": llama2c.read}  # each gives a configuration and tensors, named as Hugging Face does


def load(
    path: Path | str,
    *,
    tasks: Sequence[HeadRequest] | None = None,
    dtype: torch.dtype | None = None,
    tokenizer: bool = True,
    options: Mapping[str, Any] | None = None,
    adapter: Path | str | None = None,
) -> Pretrained:
    """Load the model of a folder or file, in evaluation mode; weights are mapped from the file where possible.

    `path` is the folder of a model (longspan's or Hugging Face's), the folder of a run, a .gguf file, a .bin of
    llama2.c, or `package:NAME` for the model inside an installed package.

    `tasks` chooses other heads than the file's: those it lacks start untrained and are listed in `fresh`. `dtype` is
    the file's unless given; files (GGUF, llama2.c) give float32. `tokenizer=False` skips the tokenizer. `options`
    override what the checkpoint's configuration says: another attention, another max_length. `adapter` is the folder of
    an adapter that was trained on this model (`longspan adapt`).
    """
    path = locate(path)
    _check_dtype(dtype)
    if _is_own_folder(path):
        pretrained = _load_own_folder(path, tasks, dtype, options or {})
    else:
        record, tensors = _read_folder(path) if path.is_dir() else read_file(path)
        if dtype is None and path.is_file():
            dtype = torch.float32
        pretrained = _build_and_fill(path, record, tensors, tasks, dtype, options or {})
    pretrained.path = path
    if adapter is not None:
        pretrained.model = adapter_files.attach(pretrained.model, Path(adapter))
        pretrained.labels = head_labels(pretrained.model)
    sidecar_files.attach(pretrained, path, tokenizer=tokenizer)
    return pretrained


def _check_dtype(dtype: torch.dtype | None) -> None:
    if dtype is not None and dtype not in DTYPES:
        raise InvalidInput(f"dtype must be one of {', '.join(str(known) for known in DTYPES)}, not {dtype}")


# Folders of longspan


def _is_own_folder(path: Path) -> bool:
    return path.is_dir() and own_folder.is_own(_read_config(path))


def _load_own_folder(
    path: Path, tasks: Sequence[HeadRequest] | None, dtype: torch.dtype | None, options: Mapping[str, Any]
) -> Pretrained:
    if tasks is not None:
        raise Unsupported("tasks can be chosen for folders of Hugging Face's; this one is longspan's own")
    model = own_folder.load(path)
    if options:
        if model.adapter is not None:
            raise Unsupported(f"{path} has an adapter ({model.adapter.name}): its options cannot be changed")
        with _same_draws():
            model, _ = rebuild(model, options, path / CONFIG)
        model.read_files(path)
    return Pretrained(model if dtype is None else model.to(dtype), labels=head_labels(model))


# Folders of Hugging Face and files


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise InvalidInput(
            f"{folder} is no model: it has no {CONFIG} (a model), no {RECIPE} (a run) and no .gguf file; give {NAMES}"
        )
    record = read_json(path)
    if not ("model_type" in record or "model" in record):
        raise InvalidInput(f"{path} says neither model_type (Hugging Face's) nor model (longspan's)")
    return record


def _read_folder(folder: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    record = _read_config(folder)
    families.of_config(record, folder)  # an unknown family is a better answer than a missing weight file
    with refusing(folder, "has weights that cannot be read"):
        return record, Tensors(folder)


def read_file(path: Path) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """The configuration and the tensors of a model file, named as Hugging Face names them."""
    if path.suffix not in FILES:
        raise Unsupported(f"{path} is no model: of files, {' and '.join(FILES)} are read; give {NAMES}")
    return FILES[path.suffix](path)


def _build_and_fill(
    path: Path,
    record: dict[str, Any],
    tensors: Mapping[str, Tensor],
    tasks: Sequence[HeadRequest] | None,
    dtype: torch.dtype | None,
    changed: Mapping[str, Any],
) -> Pretrained:
    """The model that a configuration describes, filled with the tensors; `changed` options override the record's."""
    family = families.of_config(record, path, tasks)
    wrong = f"has a {CONFIG}, or weights, that cannot be read"
    with _naming(path, family):
        with refusing(path, wrong):
            _check_supported(record, family, tensors)
            record = {**family.complete(record, tensors)}
            heads = _tasks_in_file(family, record, tensors) if tasks is None else tasks
            changed = config.current_names(registry.find(family.model).Options, changed, family.name)
            options = {**family.options(record, heads), **changed}
            labels = label_names(record)
            dtype = dtype or common_dtype(tensors)
        with refusing(path, wrong, errors=BAD_VALUES):
            model = _build_unfilled(family, options, tensors, dtype)
            unused, fresh = fill_weights(
                model, tensors, family, record, dtype, heads_chosen=tasks is not None, changed=changed
            )
    if len(labels) not in {head.labels for head in options.get("tasks", ())}:
        labels = []
    return Pretrained(model.eval(), family.name, record, labels, unused, fresh)


@contextmanager
def _naming(path: Path, family: Family) -> Iterator[None]:
    """Makes every error name the checkpoint and, for a bad option, the key of config.json that it came from."""
    try:
        yield
    except InvalidOption as error:
        keys = [field.theirs for field in family.fields if f"option {field.ours} " in str(error)]
        raise InvalidOption(f"{path}: {CONFIG}: {''.join(f'{key}: ' for key in keys)}{error}") from None
    except (InvalidInput, Unsupported) as error:
        raise type(error)(str(error) if str(path) in str(error) else f"{path}: {error}") from None


def _check_supported(record: Mapping[str, Any], family: Family, tensors: Mapping[str, Tensor]) -> None:
    if record.get("quantization_config"):
        raise Unsupported(f"{CONFIG}: weights with a quantization_config are not read; convert them to float16")
    layers = {field.theirs: field.read(record) for field in family.fields if field.ours.endswith("layers")}
    build_limits.check_layers(layers, len(tensors), CONFIG)


def _tasks_in_file(family: Family, record: Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """The tasks of the configuration's architecture; a pooler that the file lacks is left out."""
    tasks, rules = list(family.tasks(record)), family.rules("pool")
    if "pool" in tasks and not any(covers(rules, modern_name(name).removeprefix(family.base)) for name in names):
        tasks.remove("pool")
    return tasks


def _build_unfilled(
    family: Family, options: Mapping[str, Any], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> Model:
    cls = registry.find(family.model)
    size = getattr(tensors, "nbytes", None) or sum(tensors[name].nbytes for name in tensors)
    with skip_init(dtype), build_limits.allowance(size, "the configuration"), _same_draws():
        return cls(config.make(cls.Options, options, family.name))


@contextmanager
def _same_draws() -> Iterator[None]:
    """What mechanisms draw when they are built (random blocks, random features) is the same at every load."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        yield


__all__ = ["load", "read_file"]
