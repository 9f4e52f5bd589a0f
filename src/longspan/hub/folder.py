"""A folder of Hugging Face's, or of ours, to a model and back."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from longspan import config
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.hub import families, tensors
from longspan.hub.family import Family, label_names
from longspan.hub.names import Match, match, speaks_of, to_ours, to_theirs
from longspan.models import folder as own_folder
from longspan.models import registry
from longspan.models.base import Model
from longspan.models.headed import Headed, build_heads
from longspan.nn.heads import Head

CONFIG = "config.json"


@dataclass
class Pretrained:
    """A model as it was found on disk, with what belongs to it."""

    model: Model
    family: str | None = None  # `model_type` of Hugging Face's; None: a folder of ours
    config: dict[str, Any] = field(default_factory=dict)  # as found, so that what we do not use is written back
    labels: list[str] = field(default_factory=list)  # the names of a classifier's labels
    unused: list[str] = field(default_factory=list)  # tensors of heads that were not asked for
    fresh: list[str] = field(default_factory=list)  # tensors of heads that the file lacks: not trained yet


def load(
    path: Path | str, *, tasks: Sequence[Head | str] | None = None, dtype: torch.dtype | None = None
) -> Pretrained:
    """The model of a folder, in evaluation mode, its weights mapped from the file and not copied where that can be.

    `tasks` asks for other heads than the file's: those it lacks start untrained and are listed in `fresh`. `dtype` is
    that of the file unless given.
    """
    folder = Path(path)
    record = _record(folder)
    if "model_type" not in record:
        if tasks is not None:
            raise Unsupported("tasks can be chosen for folders of Hugging Face's; this one is longspan's own")
        model = own_folder.load(folder)
        return Pretrained(model if dtype is None else model.to(dtype))
    return assemble(record, None, folder, tasks, dtype)


def assemble(
    record: dict[str, Any],
    found: Mapping[str, Tensor] | None,
    where: Path,
    tasks: Sequence[Head | str] | None,
    dtype: torch.dtype | None,
) -> Pretrained:
    """The model that a configuration describes, with the tensors `found`, by default those of the folder `where`."""
    family = families.find(str(record["model_type"]), where)
    if record.get("is_decoder") and family.decoder is not None:
        family = family.decoder
    try:
        cls = registry.find(family.model)
        options = config.make(cls.Options, family.options(record, tasks), CONFIG)
        found = tensors.Tensors(where) if found is None else found
        kind = dtype or _kind(found)
        with _unfilled(kind):
            model = cls(options)
        unused, fresh = fill(model, found, family, record, kind, chosen=tasks is not None)
    except (InvalidInput, InvalidOption, Unsupported) as error:
        raise type(error)(str(error) if str(where) in str(error) else f"{where}: {error}") from None
    return Pretrained(model.eval(), family.name, record, label_names(record), unused, fresh)


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
    twins = {of: name for name, of in ties.items()}  # of two that are tied, some files have the other
    sizes = {name: tensor.shape for name, tensor in own_folder.unique(model).items()}
    rules = [*family.body, *family.output]
    for task in getattr(model, "heads", {}):
        rules.extend(family.rules(task))
    matches, kept = match(rules, sizes)
    _check_kept(model, kept)
    live = {} if tied else family.untied_names(rules)
    missing: list[str] = []
    fresh: list[str] = []
    taken: set[str] = set()
    for each in matches:
        names = [
            _find(files, live.get(name, name), base)
            or _find(files, name, base)
            or _find(files, twins.get(name, name), base)
            for name in each.theirs
        ]
        if None in names:
            # Heads that were asked for may be new, and so may an output layer, where the file's class has none.
            asked = chosen and each.ours[0].startswith("heads.")
            optional = asked or (each.rule in family.output and named not in family.speakers)
            lacking = [wanted for wanted, name in zip(each.theirs, names) if name is None]
            (fresh if optional else missing).extend(each.ours if optional else lacking)
            continue
        present = [name for name in names if name is not None]
        taken.update(present)
        parts = [found[files[name]] for name in present]
        for name, tensor in to_ours(each, parts, sizes).items():
            _put(model, name, tensor.to(dtype) if tensor.is_floating_point() else tensor)
    left = [name for name in files if name not in taken]
    left = [name for name in left if not _repeats(name, ties, files, found, base)]
    others = [*family.body, *family.output, *(rule for task in family.heads for rule in family.rules(task))]
    unknown = [name for name in left if not speaks_of(others, _bare(name, base))]
    if missing or unknown:
        said = [f"{what} {some(names)}" for what, names in (("lacks", missing), ("has unknown", unknown)) if names]
        raise InvalidInput(f"the file {' and '.join(said)}; it is of another architecture than config.json says")
    _renew(model, fresh)
    return left, fresh


def save(
    model: Pretrained | Model,
    folder: Path | str,
    *,
    family: str | None = None,
    tokenizer: str | None = None,
    shard_bytes: int = 5 * 10**9,
) -> None:
    """Writes a folder that Hugging Face's `from_pretrained` reads; `family` says as what, where that is not known."""
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
    written = found.config(given.model.options, given.labels, before[0])
    written["dtype"] = str(given.model.dtype).removeprefix("torch.")
    record = {**{key: value for key, value in given.config.items() if key != "torch_dtype"}, **written}
    found.check(given.model.options, record)
    theirs = export(given.model, found, written)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / CONFIG).write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if tokenizer is not None:
        (folder / own_folder.TOKENIZER).write_text(tokenizer, encoding="utf-8")
    tensors.write(folder, theirs, shard_bytes=shard_bytes)


def export(model: Model, family: Family, record: Mapping[str, Any]) -> dict[str, Tensor]:
    """A model's tensors under their names."""
    own, named = own_folder.unique(model), record["architectures"][0]
    rules = [*family.body, *family.output]
    bodies = {*family.body}
    for task in getattr(model, "heads", {}):
        rules.extend(family.rules(task))
    matches, kept = match(rules, own)
    _check_kept(model, kept)
    live = {} if record.get("tie_word_embeddings", family.tied) else family.untied_names(rules)
    found = {}
    for each in matches:
        if each.rule in family.output and named not in family.speakers:
            continue
        prefix = family.prefix(named) if each.rule in bodies or each.rule.inside else ""
        for name, tensor in to_theirs(each, [own[name] for name in each.ours], model.options).items():
            found[prefix + name] = tensor
            if name in live:
                found[prefix + live[name]] = tensor
    return found


# Names


def _today(name: str) -> str:
    """The first releases called the weight and bias of a norm gamma and beta."""
    return re.sub(r"(?<=LayerNorm\.)(gamma|beta)$", lambda old: {"gamma": "weight", "beta": "bias"}[old[0]], name)


def _find(files: Mapping[str, str], name: str, base: str) -> str | None:
    return next((each for each in (base + name, name) if each in files), None)


def _bare(name: str, base: str) -> str:
    return name.removeprefix(base)


def _repeats(
    name: str, ties: Mapping[str, str], files: Mapping[str, str], found: Mapping[str, Tensor], base: str
) -> bool:
    """Whether a tensor is another one once more, as it must be where the two are tied."""
    first = ties.get(_bare(name, base))
    if first is None:
        return False
    other = _find(files, first, base)
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


def _check_kept(model: nn.Module, names: Sequence[str]) -> None:
    """What no rule speaks of may be a mechanism's own draws, which checkpoints there do not have."""
    buffers = dict(model.named_buffers())
    assert all(name in buffers for name in names), f"no rule for {some([n for n in names if n not in buffers])}"


# Numbers


class _NotDrawn(TorchFunctionMode):
    """Parameters are left as they lie in memory: what is about to be overwritten need not be drawn."""

    DRAWS = ("normal_", "uniform_", "zero_", "fill_", "mul_", "zeros_", "ones_", "xavier_uniform_", "kaiming_uniform_")

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        first = args[0] if args else kwargs.get("tensor")
        if isinstance(first, nn.Parameter) and getattr(func, "__name__", "") in self.DRAWS:
            return first
        return func(*args, **kwargs)


@contextmanager
def _unfilled(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _NotDrawn():
            yield
    finally:
        torch.set_default_dtype(before)


def _put(model: nn.Module, name: str, tensor: Tensor) -> None:
    owner, _, leaf = name.rpartition(".")
    getattr(model.get_submodule(owner), leaf).data = tensor


def _renew(model: Model, fresh: Sequence[str]) -> None:
    """Draws the heads that are new; the file's other ones stay."""
    tasks = {name.split(".")[1] for name in fresh if name.startswith("heads.")}
    if tasks:
        assert isinstance(model, Headed)
        drawn = build_heads(model.options, _width(model), getattr(model.options, "vocabulary", None))
        for task in tasks:
            for part in drawn[task].modules():
                if isinstance(part, nn.Linear):
                    nn.init.normal_(part.weight, std=model.options.init_std)
                    if part.bias is not None:
                        nn.init.zeros_(part.bias)
            model.heads[task] = drawn[task].to(model.dtype)
    for name in fresh:
        if not name.startswith("heads."):
            owner, _, leaf = name.rpartition(".")
            nn.init.normal_(getattr(model.get_submodule(owner), leaf), std=model.options.init_std)


def _width(model: Model) -> int:
    stack = getattr(model, "stack", None)
    return stack.out_width if stack is not None else int(model.options.width)


def _kind(found: Mapping[str, Tensor]) -> torch.dtype:
    """The type of the first tensor of numbers; a file has one."""
    for name in found:
        tensor = found[name]
        if tensor.is_floating_point():
            return tensor.dtype
    raise InvalidInput("the file holds no weights")


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


__all__ = ["Match", "Pretrained", "assemble", "export", "fill", "load", "save"]
