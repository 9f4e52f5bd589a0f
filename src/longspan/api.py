"""The functions of `import longspan`: thin, typed names for what the packages below do."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from longspan.arena.tasks.registry import TASKS as ARENA_TASKS
from longspan.arena.tasks.registry import ArenaTask
from longspan.attention.base import Attention
from longspan.attention.registry import ATTENTION
from longspan.models import presets
from longspan.models.base import CausalModel, Model
from longspan.models.registry import MODELS, build
from longspan.tasks.base import Task
from longspan.tasks.registry import TASKS

if TYPE_CHECKING:
    from torch import nn

    from longspan.audit import Certificate, Claims
    from longspan.decode import Beam, Generation, Sampling
    from longspan.hub import Pretrained
    from longspan.measure.advise import Advice

Source = str | Path


# Names


def list_attention(pattern: str = "*", **supports: bool) -> list[str]:
    """Names of attention mechanisms, plugins too; `supports` keeps those with these abilities.

    >>> longspan.list_attention(causal=True, streaming=True)
    """
    return [
        name
        for name in ATTENTION.names()
        if fnmatch(name, pattern)
        and all(getattr(ATTENTION.find(name).supports, ability) == wanted for ability, wanted in supports.items())
    ]


def list_models(pattern: str = "*", *, presets_only: bool = False) -> list[str]:
    """Names that `create_model` takes: kinds of models, and presets of the papers' sizes.

    >>> longspan.list_models("gpt*")
    """
    kinds = [] if presets_only else MODELS.names()
    return [name for name in [*kinds, *presets.names()] if fnmatch(name, pattern)]


def create_model(name: str, **options: Any) -> Model:
    """A new model by name: a kind with its options, or a preset, whose options may be changed.

    >>> longspan.create_model("gpt2", attention="window")
    >>> longspan.create_model("decoder", vocabulary=256, width=128, layers=2, heads=4)
    """
    return build(name, **options)


# Models that exist


def load(source: Source, **options: Any) -> "Pretrained":
    """A model with its tokenizer: from a folder of ours or of Hugging Face's, a run, a .gguf file, or `package:NAME`.

    Keywords are those of `longspan.hub.load`, such as `dtype` and `tasks`.
    """
    from longspan import hub

    return hub.load(source, **options)


@overload
def generate(model: "Source | Pretrained", prompts: str, **options: Any) -> str: ...
@overload
def generate(model: "Source | Pretrained", prompts: Sequence[str], **options: Any) -> list[str]: ...
@overload
def generate(model: CausalModel, prompts: Sequence[Sequence[int]], **options: Any) -> "Generation": ...


def generate(
    model: "Source | Pretrained | CausalModel",
    prompts: "str | Sequence[str] | Sequence[Sequence[int]]",
    *,
    max_new: int | None = None,
    sampling: "Sampling | None" = None,
    beam: "Beam | None" = None,
    **options: Any,
) -> "str | list[str] | Generation":
    """Text that continues a prompt, or each of several; greedy unless `sampling` or `beam` is given.

    A model without a tokenizer takes token ids and gives a `decode.Generation`.

    >>> longspan.generate("FOLDER", "The capital of France is", max_new=5)
    """
    if isinstance(model, CausalModel):
        from longspan import decode

        return decode.generate(model, prompts, max_new=max_new or 100, sampling=sampling or decode.GREEDY, **options)  # type: ignore[arg-type]
    from longspan import hub

    pretrained = hub.load(model) if isinstance(model, (str, Path)) else model
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    results = hub.generate(pretrained, texts, max_new=max_new, sampling=sampling, beam=beam, **options)  # type: ignore[arg-type]
    best = [candidates[0].text for candidates in results]
    return best[0] if isinstance(prompts, str) else best


# Trust and choice


def check(target: "str | nn.Module | type[Attention]", claims: "Claims | None" = None, **options: Any) -> "Certificate":
    """The audit of a mechanism, a layer or a model: is it causal, is padding inert, does it decode as it trains?

    Keywords are those of `longspan.audit.audit`. `print(longspan.check(layer).table())` shows every finding.
    """
    from longspan.audit import audit

    return audit(target, claims, **options)


def advise(
    length: int, *, refresh: bool = False, accuracy: Mapping[str, float] | None = None, **requirements: Any
) -> "Advice":
    """The mechanisms that can do a job on this machine, fastest first; what is not known yet is measured.

    `requirements` are the fields of `longspan.measure.requirements.Requirements`: causal, decode, padding, batch, …
    """
    from longspan.measure import advise as library
    from longspan.measure.process import MeasureProcesses
    from longspan.measure.requirements import Requirements
    from longspan.measure.run_case import Patience
    from longspan.measure.store import Store

    question = Requirements(length=length, **requirements)
    with MeasureProcesses(Patience(call=5.0, case=15.0)) as processes:
        return library.advise(question, processes.measure, Store(), refresh=refresh, accuracy=accuracy)


# Plugins


def register_attention(cls: type[Attention]) -> type[Attention]:
    """A decorator: your mechanism by its `name`, wherever a built-in one is accepted."""
    return ATTENTION.register(cls)


def register_model(cls: type[Model]) -> type[Model]:
    """A decorator: your kind of model by its `name`."""
    return MODELS.register(cls)


def register_task(cls: type[Task]) -> type[Task]:
    """A decorator: your training task by its `name`."""
    return TASKS.register(cls)


def register_arena_task(cls: type[ArenaTask]) -> type[ArenaTask]:
    """A decorator: your task of the arena by its `name`."""
    return ARENA_TASKS.register(cls)


__all__ = [
    "advise",
    "check",
    "create_model",
    "generate",
    "list_attention",
    "list_models",
    "load",
    "register_arena_task",
    "register_attention",
    "register_model",
    "register_task",
]
