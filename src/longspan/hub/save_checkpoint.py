"""Save a model as a folder that Hugging Face's `from_pretrained` reads."""

import json
from pathlib import Path

from longspan.data import Tokenizer
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import families, sidecar_files
from longspan.hub.formats import safetensors_files
from longspan.hub.pretrained import Pretrained, head_labels
from longspan.hub.weight_mapping import export_weights, integer_buffers
from longspan.models.base import Model
from longspan.models.folder import CONFIG
from longspan.models.image_base import ImageHeads


def save(
    model: Pretrained | Model,
    folder: Path | str,
    *,
    family: str | None = None,
    tokenizer: Tokenizer | None = None,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Write a folder that Hugging Face's `from_pretrained` reads.

    `family` (such as "bert") is needed for a model that was not loaded from a checkpoint of Hugging Face's.
    `tokenizer` replaces the model's own.
    """
    folder = Path(folder)
    pretrained = model if isinstance(model, Pretrained) else Pretrained(model, family)
    name = family or pretrained.family
    if name is None:
        raise InvalidInput("say as which family the model is to be written, such as family='bert'")
    model = pretrained.model
    target = families.find(name, name)
    for other in (target.decoder, target.encoder):
        if other is not None and target.model != model.name == other.model:
            target = other
    if target.model != model.name:
        raise Unsupported(f"a {target.name} is written from a model {target.model!r}, and this is {model.name!r}")
    before = pretrained.config.get("architectures") or [None]
    written = target.config(model.options, pretrained.labels or head_labels(model), before[0])
    written["dtype"] = str(model.dtype).removeprefix("torch.")
    kept = {key: value for key, value in pretrained.config.items() if key not in ("torch_dtype", "num_labels")}
    record = {**kept, **written, **integer_buffers(model, target)}
    target.check(model.options, record)
    tensors = export_weights(model, target, record)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    sidecar_files.write(pretrained, folder, tokenizer)
    if isinstance(model, ImageHeads):
        model.write_files(folder)
    safetensors_files.write(folder, tensors, shard_bytes=shard_bytes)


__all__ = ["save"]
