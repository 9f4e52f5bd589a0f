"""Recipes: TOML files with a task, a model and how it is trained; and the runs that are made of them."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch

import longspan
from longspan import config, files, registry
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_tokenizer
from longspan.errors import InvalidInput, InvalidOption, LongspanError, UnknownName, suggest
from longspan.hub.finetune import default_head, freeze, tune
from longspan.hub.locate import PACKAGE, locate
from longspan.models import folder as model_folder
from longspan.models import presets
from longspan.models import registry as models
from longspan.models.base import Model, TextHeads
from longspan.nn.heads import Head
from longspan.parsing import read_toml
from longspan.tasks import registry as tasks
from longspan.tasks.base import DataPaths, Prepared, Task, located
from longspan.train import checkpoint, saving
from longspan.train.loop import Trainer, figures_of, measure_finally
from longspan.train.malloc import out_of_memory
from longspan.train.options import TrainOptions
from longspan.train.processes import Processes
from longspan.train.run import CONFIG, Run
from longspan.train.run import DATA as KEPT

TABLES = ("task", "model", "train")
DATA = "data"  # the folder of data sets, beside the tables
PLUGINS = "plugins"  # modules, or module:Name, with mechanisms, models or tasks of others; beside the tables


@dataclass(frozen=True)
class Recipe:
    """What a file says, with what was said beside it."""

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    source: str
    data: Path | None = None  # the folder of data sets
    plugins: tuple[str, ...] = ()

    def options(self) -> TrainOptions:
        where = f"{self.source}: [train]"
        with _naming(where):
            return config.make(TrainOptions, self.train, where)

    def build_task(self) -> Task:
        where = f"{self.source}: [task]"
        name, given = _named(self.task, where)
        with _naming(where):
            return tasks.build(name, **given)

    def build_model(self, needs: Mapping[str, Any]) -> Model:
        """The model, with what its task needs of it; what both say must be the same.

        `from` names a pretrained one instead of `name`; `trained` says how much of it is, `head` how its head is made,
        and `fresh` that its weights are drawn anew: the control of what pre-training gave.
        """
        table = dict(self.model)
        shape, trained = table.pop("head", {}), table.pop("trained", "all")
        with _naming(f"{self.source}: [model]"):
            model = self._tuned(table, needs, shape) if "from" in table else self._new(table, needs, shape)
            freeze(model, trained)
        # A model must hold the longest example: that is said now, and not by the batch that has it.
        longest, room = getattr(self.build_task().options, "length", None), getattr(model.options, "max_length", None)
        if isinstance(model, TextHeads) and longest is not None and room is not None and longest > room:
            raise InvalidOption(f"{self.source}: [task] length is {longest}, and the model holds {room} tokens")
        return model

    def _new(self, table: dict[str, Any], needs: Mapping[str, Any], shape: Any) -> Model:
        where = f"{self.source}: [model]"
        name, given = _named(table, where)
        if "tasks" in needs:
            cls = models.find(presets.find(name).model if name in presets.PRESETS else name)
            made = [config.plain(default_head(cls, _head(head))) for head in needs["tasks"]]
            needs = {**needs, "tasks": tuple(Head.read({**head, **shape}) for head in made)}
        for key, value in needs.items():
            if key in given and given[key] != value:
                raise InvalidOption(f"{where} {key} is {given[key]!r}, and the task needs {value!r}; leave it out")
        return models.build(name, **{**given, **needs})

    def _tuned(self, given: dict[str, Any], needs: Mapping[str, Any], shape: Any) -> Model:
        if "name" in given:
            raise InvalidOption(f"{self.source}: [model] has a name and a folder it is from; give one of the two")
        folder, fresh = self._origin(), given.pop("fresh", False)
        del given["from"]
        if not isinstance(fresh, bool):
            raise InvalidOption(f"{self.source}: [model] fresh must be true or false, not {fresh!r}")
        found = tune(folder, [_head(each) for each in needs.get("tasks", ())], shape=shape, options=given or None)
        rows = getattr(found.model.options, "vocabulary", None)
        if rows is not None and needs.get("vocabulary", 0) > rows:
            raise InvalidInput(f"{folder} has rows for {rows} tokens, and the task has {needs['vocabulary']}")
        return type(found.model)(found.model.options) if fresh else found.model

    def _origin(self) -> Path:
        """The folder that the model is from."""
        try:
            folder = locate(self.model["from"])
        except InvalidInput as error:
            raise InvalidInput(f"{self.source}: [model] from: {error}") from None
        if not folder.is_dir():
            raise InvalidInput(f"{self.source}: [model] from: {folder} is a file; convert it to a folder first")
        return folder

    def tokenizer(self) -> Tokenizer | None:
        """That of the pretrained model, where there is one; a task learns its own otherwise."""
        if "from" not in self.model:
            return None
        folder = self._origin()
        found = read_tokenizer(folder)
        if found is None:
            raise InvalidInput(f"{folder} has no tokenizer: put its tokenizer.json, or its vocabulary files, beside it")
        return found


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """What is wrong with an option is said with the table it stands in."""
    try:
        yield
    except (InvalidOption, UnknownName) as error:
        raise type(error)(str(error) if where in str(error) else f"{where}: {error}") from None


def read(path: Path, overrides: Mapping[str, Any] | None = None, *, own: bool = True) -> Recipe:
    """A recipe from its file; `overrides` are `{"train.steps": 100}` and the like.

    Its plugins are imported: those of the user's `own` recipe from wherever they are, those of a run only if they are
    installed, imported already or listed in LONGSPAN_PLUGINS.
    """
    path = find(path)
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder, and a recipe is a TOML file")
    found = read_toml(path)
    data = found.pop(DATA, None)
    if data is not None and not isinstance(data, str):
        raise InvalidOption(f"{path}: data must be the path of the folder of data sets, not {data!r}")
    plugins = _plugins(found.pop(PLUGINS, []), overrides or {}, path, own)
    for key in found:
        if key not in TABLES:
            raise InvalidOption(f"{path} has a table [{key}]: {suggest(key, TABLES)}")
    for name in TABLES:
        if not isinstance(found.setdefault(name, {}), dict):
            raise InvalidOption(f"{path}: {name} must be a table")
    for name, value in (overrides or {}).items():
        *tables, key = name.split(".")
        if not tables or tables[0] not in TABLES:
            raise InvalidOption(f"no option is called {name!r}; they are called task.…, model.… and train.…")
        inner = found
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise InvalidOption(f"no option is called {name!r}: {table} has none inside")
        inner[key] = value
    folder = None if data is None else Path(data)
    return Recipe(found["task"], found["model"], found["train"], str(path), folder, plugins)


def find(path: Path) -> Path:
    """A recipe's file: a path, or the name of a recipe that comes with longspan."""
    packaged = Path(longspan.__file__).parent / "recipes"
    if path.exists():
        return path
    if (named := packaged / f"{path}.toml").is_file():
        return named
    hint = suggest(path.stem, [recipe.stem for recipe in packaged.glob("*.toml")])
    raise InvalidInput(f"there is no recipe {path}: {hint}")


def _plugins(listed: Any, overrides: Mapping[str, Any], path: Path, own: bool) -> tuple[str, ...]:
    """Imports the plugins that a recipe lists, and those that overrides name by their path."""
    if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
        raise InvalidOption(f"{path}: {PLUGINS} must be a list of modules, not {listed!r}")
    named = [value for value in overrides.values() if isinstance(value, str) and registry.is_path(value)]
    for name in (plugins := list(dict.fromkeys([*listed, *named]))):
        if own:
            registry.trust(name)
        try:
            registry.load_path(name)
        except LongspanError as error:
            raise InvalidInput(f"{path} needs the plugin {name}: {error}") from None
    return tuple(plugins)


def begin(recipe: Recipe, folder: Path | Run, *, data: Path | None, processes: Processes | None = None) -> Trainer:
    """A trainer for a recipe in a folder: all that can be wrong with it is found here."""
    run, processes = folder if isinstance(folder, Run) else Run(folder), processes or Processes()
    options, task = recipe.options(), recipe.build_task()
    data = recipe.data if data is None else data

    with ExitStack() as held:
        processes.together(lambda: held.enter_context(run.held()) if processes.first else None)
        processes.together(run.refuse_used)
        prepared = _prepare(task, run, data, options, processes, recipe.tokenizer())
        trainer = _trainer(recipe, run, prepared, options, processes)
        if processes.first:
            # Paths are absolute, so that the run can be opened from any folder. The options of the model all stand in
            # the config.json of each checkpoint.
            own = {"name": recipe.task["name"], **config.plain(located(task.options))}
            model = _located_model(recipe.model)
            kept = Recipe(own, model, config.plain(options), recipe.source, data, recipe.plugins)
            _write_config(run, kept)
    return trainer


def resume(folder: Path | Run, *, data: Path | None, processes: Processes | None = None) -> Trainer:
    """A trainer for a run that was begun, as its folder says; `session.train(…, resume=True)` goes on with it."""
    run, processes = folder if isinstance(folder, Run) else Run(folder), processes or Processes()
    recipe = of_run(run)
    options, task = recipe.options(), recipe.build_task()
    found, _ = checkpoint.newest(run.checkpoints)
    tokenizer = None if found is None else read_tokenizer(found / saving.MODEL)
    prepared = _prepare(task, run, recipe.data if data is None else data, options, processes, tokenizer)
    if processes.first and data is not None and _absolute(data) != str(recipe.data):
        _write_config(run, replace(recipe, data=data))  # the data have moved
    return _trainer(recipe, run, prepared, options, processes)


@dataclass(frozen=True)
class Evaluated:
    """Which model was measured, its figures, and rows for whoever wants to know more."""

    model: Path
    figures: dict[str, float]
    table: list[dict[str, Any]]


def evaluate(
    folder: Path, *, split: str = "held_out", data: Path | None = None, processes: Processes | None = None
) -> Evaluated:
    """The figures of a run's result, or of its newest checkpoint, on a split of its data."""
    run, processes = Run(folder), processes or Processes()
    recipe = of_run(run)
    options, task = recipe.options(), recipe.build_task()
    where = locate(run.folder)
    model = model_folder.load(where).to(processes.device)
    with TemporaryDirectory() as work:  # the run's own files may be in use
        place = DataPaths(recipe.data if data is None else data, Path(work), options.seed)
        prepared = task.prepare(place, read_tokenizer(where))
        chosen = {"held_out": prepared.held_out, "test": prepared.test, "train": prepared.train}.get(split)
        if chosen is None:
            raise InvalidInput(f"{recipe.source}: the task has no {split} data")
        _same_labels(model, prepared, where)
        objective = prepared.objectives.get(split, prepared.objective)
        found = figures_of(model, chosen, objective, processes)
        last = measure_finally(model, chosen, objective, processes)
        return Evaluated(where, {**found.result(), **last} if found else last, found.table() if found else [])


def _same_labels(model: Model, prepared: Prepared, where: Path) -> None:
    """Labels are numbers to a model: data in which they mean something else would be measured without a word."""
    held = {head.task: head.names for head in getattr(model.options, "tasks", None) or ()}
    for head in map(_head, prepared.needs.get("tasks", ())):
        known = held.get(head.task)
        if known is not None and head.names is not None and known != head.names:
            raise InvalidInput(f"{where} has the labels {', '.join(known)}, and the data {', '.join(head.names)}")


def of_run(run: Run) -> Recipe:
    """The recipe that a run was begun with."""
    path = run.folder / CONFIG
    if not path.is_file():
        raise InvalidInput(f"{run.folder} is no run: it has no {CONFIG}")
    return read(path, own=False)


def _write_config(run: Run, recipe: Recipe) -> None:
    """`config.toml` of a run, replaced as a whole."""
    data = None if recipe.data is None else _absolute(recipe.data)
    tables = {"task": recipe.task, "model": recipe.model, "train": recipe.train}
    text = to_toml({DATA: data, PLUGINS: list(recipe.plugins) or None, **tables})
    files.write_text(run.folder / CONFIG, text)


def _located_model(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The table of a model with an absolute path of the folder it is from, where it is a path."""
    name = str(table.get("from", PACKAGE))
    return table if name.startswith(PACKAGE) else {**table, "from": _absolute(name)}


def _absolute(path: Path | str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  (symbolic links stay as the user named them)


def _prepare(
    task: Task, run: Run, data: Path | None, options: TrainOptions, processes: Processes, tokenizer: Tokenizer | None
) -> Prepared:
    """The task's data, the same in all processes: the first one learns the tokenizer, and the others are told."""
    # Each in a folder of its own: nobody writes where another reads.
    work = run.folder / KEPT if processes.first else run.folder / KEPT / f"process-{processes.rank}"
    place = DataPaths(data, work, options.seed)
    learned: tuple[str, dict[str, str]] | None = None

    def prepare() -> Prepared:
        try:
            return task.prepare(place, tokenizer)
        except OSError as error:  # such as a full disk; the other processes must know
            raise InvalidInput(f"{error.filename or work}: {error.strerror or error}") from None

    if processes.first:
        prepared = processes.together(prepare)
        if prepared.tokenizer is not None:
            learned = prepared.tokenizer.to_json(), prepared.tokenizer.special
        processes.same(learned)
        processes.together(lambda: None)
    else:
        processes.together(lambda: None)
        learned = processes.same(learned)
        if learned is not None and tokenizer is None:
            tokenizer = _told(learned)
        prepared = processes.together(prepare)
    made = processes.gather(prepared.train.fingerprint())
    if len(set(made)) > 1:
        raise InvalidInput(f"the processes read different data: {'; '.join(made)}")
    return prepared


def _told(learned: tuple[str, dict[str, str]]) -> Tokenizer:
    return Tokenizer(tokenizers.Tokenizer.from_str(learned[0]), learned[1])


def _trainer(recipe: Recipe, run: Run, prepared: Prepared, options: TrainOptions, processes: Processes) -> Trainer:
    torch.manual_seed(options.seed)
    try:
        model = recipe.build_model(prepared.needs)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise InvalidInput(
            f"{recipe.source}: [model]: out of memory: the model is too large for this machine"
        ) from None
    # The same weights everywhere, and then draws of its own in each process.
    torch.manual_seed(options.seed + processes.rank)
    return Trainer(
        run,
        model,
        prepared.train,
        prepared.objective,
        options,
        held_out=prepared.held_out,
        test=prepared.test,
        processes=processes,
        tokenizer=prepared.tokenizer,
        facts=prepared.facts,
    )


def _head(value: Any) -> Head:
    return value if isinstance(value, Head) else Head.read(value)


def _named(table: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    if not isinstance(table.get("name"), str):
        raise InvalidOption(f'{where} has no name; give one, such as name = "decoder"')
    return table["name"], {key: value for key, value in table.items() if key != "name"}


def to_toml(tables: Mapping[str, Any]) -> str:
    """What `tomllib` reads back; None is left out, as TOML has no such thing."""
    lines: list[str] = []
    _table(tables, "", lines)
    return "\n".join(lines).strip() + "\n"


def _table(values: Mapping[str, Any], path: str, lines: list[str]) -> None:
    inner = {key: value for key, value in values.items() if isinstance(value, Mapping)}
    for key, value in values.items():
        if key not in inner and value is not None:
            lines.append(f"{_key(key)} = {_value(value)}")
    for key, value in inner.items():
        name = f"{path}.{_key(key)}" if path else _key(key)
        lines.extend(["", f"[{name}]"])
        _table(value, name, lines)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(key)} = {_value(part)}" for key, part in value.items() if part is not None) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(part) for part in value) + "]"
    return json.dumps(value, ensure_ascii=False)  # TOML writes texts, numbers and truth values as JSON does


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


__all__ = ["Evaluated", "Recipe", "begin", "evaluate", "of_run", "read", "resume", "to_toml"]
