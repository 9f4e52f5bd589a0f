"""Save and load a model: a folder with `config.json`, `model.safetensors` and, if there is one, `tokenizer.json`.

No pickle is read or written. Tied weights are written once, under the first of their names. `manifest.json` has
the checksums of all files. `load` checks them; a folder without a manifest is loaded unchecked.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from longspan import __version__, config, files
from longspan.attention.base import Attention
from longspan.attention.registry import ATTENTION
from longspan.errors import InvalidInput, LongspanError
from longspan.manifest import MANIFEST, check_manifest, write_manifest
from longspan.models import adapters, build_limits
from longspan.models.base import Model
from longspan.models.quantized import quantization, quantize_layers
from longspan.models.registry import MODELS, find
from longspan.parsing import BAD_VALUES, check_safetensors, read_json, refusing
from longspan.registry import load_path

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
MODEL_TYPE = "longspan"  # by which transformers recognises a folder, where `longspan.hub.register` was called
SHELL = "core."  # before the names of weights that transformers wrote


def save(
    model: Model, folder: Path, *, tokenizer: str | None = None, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Writes the configuration, the weights after it, and the checksums last.

    `weights` replace the model's own, such as an average of checkpoints, or the gathered weights of a sharded model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).unlink(missing_ok=True)  # of the model that was here before
    record = {
        "model": model.name,
        "longspan": __version__,
        "model_type": MODEL_TYPE,
        "options": config.plain(model.options),
    }
    if model.adapter is not None:
        record["adapter"] = model.adapter.record()
    scheme = quantization(model)
    if scheme is not None:
        record["quantization"] = scheme
    plugins = _plugins(model)
    if plugins:
        record["plugins"] = plugins
    (folder / CONFIG).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if tokenizer is not None:
        (folder / TOKENIZER).write_text(tokenizer, encoding="utf-8")
    model.write_files(folder)
    tensors = {name: tensor.contiguous() for name, tensor in (weights or unique(model)).items()}
    files.write_tensors(folder / WEIGHTS, tensors, {"format": "pt"})
    extra = [name for name in model.files if (folder / name).is_file()]
    write_manifest(folder, [CONFIG, WEIGHTS, *extra, *([] if tokenizer is None else [TOKENIZER])])


def is_own(record: Mapping[str, Any]) -> bool:
    """Whether a configuration is of longspan's, and not of Hugging Face's."""
    return bool(record.get("model_type", MODEL_TYPE) == MODEL_TYPE)


def load(folder: Path | str) -> Model:
    """Loads a model from its folder, in evaluation mode and in the precision it was saved in."""
    folder = Path(folder)
    record = _record(folder)
    _check_whole(folder)
    _require_plugins(record.get("plugins"), folder)
    cls = find(record["model"])
    with refusing(folder):
        options = config.make(cls.Options, record["options"], f"{folder / CONFIG}")
        weights = _weights(folder)
        if "architectures" in record:
            weights = {name.removeprefix(SHELL): weight for name, weight in weights.items()}
        build_limits.check_layers(build_limits.counts(options), len(weights), folder / CONFIG)
    with refusing(folder, errors=BAD_VALUES):
        with build_limits.allowance(sum(tensor.nbytes for tensor in weights.values()), folder / CONFIG):
            model = cls(options)
            if "adapter" in record:
                adapters.read(record["adapter"], str(folder / CONFIG)).attach(model)
        light = quantize_layers(model, record.get("quantization"))
        kinds = {
            x.dtype for name, x in weights.items() if x.is_floating_point() and name.rpartition(".")[0] not in light
        }
        if len(kinds) == 1:
            model = model.to(kinds.pop())
        fill(model, weights, str(folder / WEIGHTS))
        if model.adapter is not None:
            model.adapter.inside = True
    with refusing(folder):
        model.read_files(folder)
    return model.eval()


def fill(model: nn.Module, weights: Mapping[str, Tensor], source: str) -> None:
    """Copies weights into a model; an error names tensors that are missing, unknown or of another shape."""
    wanted = unique(model)
    missing = [name for name in wanted if name not in weights]
    unknown = [name for name in weights if name not in wanted]
    if missing or unknown:
        faults = [f"{what} {_some(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise InvalidInput(f"{source} {' and '.join(faults)}; it is of another model, or of another version")
    for name, tensor in wanted.items():
        if tensor.shape != weights[name].shape:
            raise InvalidInput(
                f"{source}: {name} is {tuple(weights[name].shape)}, and the model's is {tuple(tensor.shape)}"
            )
    for name, tensor in wanted.items():
        tensor.copy_(weights[name])


def unique(model: nn.Module) -> dict[str, Tensor]:
    """The state dict with each storage once, under its first name."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    tensors = {}
    for name, tensor in model.state_dict(keep_vars=False).items():
        storage = (tensor.data_ptr(), tuple(tensor.shape)) if tensor.numel() else (id(tensor), ())
        if storage not in seen:
            seen.add(storage)
            tensors[name] = tensor
    return tensors


def _plugins(model: Model) -> dict[str, str]:
    """Where the model's kind and its mechanisms come from, as `package.module:Name`, where that is not longspan."""
    mechanisms = {module.name for module in model.modules() if isinstance(module, Attention)}
    sources = {model.name: MODELS.source(model.name)} if model.name in MODELS else {}
    sources |= {name: ATTENTION.source(name) for name in sorted(mechanisms) if name in ATTENTION}
    return {name: source for name, source in sources.items() if source is not None}


def _require_plugins(plugins: Any, folder: Path) -> None:
    """Registers what the folder needs and says which plugin is missing."""
    if not isinstance(plugins, dict):
        return
    for name, source in plugins.items():
        if name in ATTENTION or name in MODELS:
            continue
        try:
            cls = load_path(str(source))
        except LongspanError as error:
            raise InvalidInput(f"{folder} needs the plugin {name!r}: {error}") from None
        (ATTENTION if isinstance(cls, type) and issubclass(cls, Attention) else MODELS).register(cls)


def _record(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise InvalidInput(f"{folder} is not a model of longspan: it has no {CONFIG}")
    record = read_json(path)
    if (
        not isinstance(record, dict)
        or not isinstance(record.get("model"), str)
        or not isinstance(record.get("options"), dict)
    ):
        raise InvalidInput(f"{path} is not a model of longspan: it names no model and options")
    return record


def _check_whole(folder: Path) -> None:
    if (folder / WEIGHTS).is_file():  # if not, loading raises a clearer error
        try:
            check_manifest(folder)
        except InvalidInput as error:
            hint = f"copy it again or, if you changed it yourself, delete {folder / MANIFEST}"
            raise InvalidInput(f"{error}; {hint}") from None


def _weights(folder: Path) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    if not path.is_file():
        pickles = sorted(file.name for file in folder.iterdir() if file.suffix in {".bin", ".pt", ".pth", ".pkl"})
        hint = f"; {pickles[0]} is a pickle, which is never read: convert it to safetensors" if pickles else ""
        raise InvalidInput(f"{folder} has no {WEIGHTS}{hint}")
    return read_weights(path)


def read_weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file."""
    check_safetensors(path)
    try:
        return load_file(path)
    except SafetensorError as error:
        raise InvalidInput(f"{path} cannot be read: {error}") from None


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:4])
    return shown if len(names) <= 4 else f"{shown} and {len(names) - 4} more"


__all__ = ["MODEL_TYPE", "fill", "is_own", "load", "read_weights", "save", "unique"]
