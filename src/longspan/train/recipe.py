"""Recipes: TOML files with the tables [task], [model] and [train], and the runs that are made from them.

`read` a file, `begin` a run (or `resume` one) to get a `Trainer`, and pass it to `fit.train`.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
import torch

import longspan
from longspan import config, files, registry
from longspan.data.text.sentence_tokens import sentence_options
from longspan.data.tokenizers.tokenizer import Tokenizer
from longspan.data.tokenizers.tokenizer_files import read_tokenizer
from longspan.errors import InvalidInput, InvalidOption, LongspanError, UnknownName, suggest
from longspan.hub.changed_options import rebuild
from longspan.hub.finetune import default_head, freeze, on_frozen_features, tune
from longspan.hub.load_checkpoint import load
from longspan.hub.locate import PACKAGE, locate
from longspan.models import folder as model_folder
from longspan.models import presets
from longspan.models import registry as models
from longspan.models.base import EncoderDecoder, Model, SentenceHeads, TextHeads
from longspan.models.image_base import ImageHeads
from longspan.models.word_base import NamedRows
from longspan.nn.heads import Head
from longspan.parsing import read_toml
from longspan.tasks import registry as tasks
from longspan.tasks.base import DataPaths, Prepared, Task, located
from longspan.train import checkpoint, extensions, saving
from longspan.train.evaluate import collect_metrics, evaluate_final
from longspan.train.extensions import EXTENSIONS, Extension, to_toml
from longspan.train.loop import Trainer
from longspan.train.malloc import out_of_memory
from longspan.train.options import TrainOptions
from longspan.train.processes import Processes
from longspan.train.run import CONFIG, SEEDS, SPLIT, Run
from longspan.train.run import DATA as TOKEN_FILES

TABLES = ("task", "model", "train")
DATA = "data"  # key of the folder of data sets, beside the tables
PLUGINS = "plugins"  # modules, or module:Name, that add mechanisms, models or tasks; beside the tables


@dataclass(frozen=True)
class Recipe:
    """The tables of a recipe file, with overrides applied."""

    task: Mapping[str, Any]
    model: Mapping[str, Any]
    train: Mapping[str, Any]
    source: str
    data: Path | None = None  # the folder of data sets
    plugins: tuple[str, ...] = ()
    extras: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # further tables, by name

    def extensions(self) -> list[Extension]:
        return extensions.build(self.extras, self.source)

    def options(self) -> TrainOptions:
        where = f"{self.source}: [train]"
        with _naming(where):
            return config.make(TrainOptions, self.train, where)

    def build_task(self) -> Task:
        where = f"{self.source}: [task]"
        name, options = _named(self.task, where)
        with _naming(where):
            return tasks.build(name, **options)

    def build_model(self, needs: Mapping[str, Any], tokenizer: Tokenizer | None = None) -> Model:
        """The model with the options that its task needs; an option that both give must be equal.

        A model with a global token per sentence gets the tokens that end sentences from `tokenizer`.

        `from` in the table names a pretrained model instead of `name`; `trained` says which parameters are trained,
        `head` sets options of its head, and `fresh` initialises its weights anew, as a control for pre-training.
        """
        table = dict(self.model)
        with _naming(f"{self.source}: [model]"):
            on_frozen_features(table)
            shape, trained = table.pop("head", {}), table.pop("trained", "all")
            model = self._tuned(table, needs, shape) if "from" in table else self._new(table, needs, shape, tokenizer)
            if isinstance(model, ImageHeads) and "image_size" in needs:
                model.check_data(needs["image_size"], needs["channels"])
            freeze(model, trained)
        # Refuse examples that are too long now, not at the batch that has one.
        longest, room = getattr(self.build_task().options, "length", None), getattr(model.options, "max_length", None)
        source = getattr(model.options, "source_length", None)
        if source is not None:  # heads read the text through the decoder too, other tasks through the encoder alone
            room = min(source, room or source) if "tasks" in needs else source
        if isinstance(model, TextHeads) and longest is not None and room is not None and longest > room:
            raise InvalidOption(f"{self.source}: [task] length is {longest}, but the model holds only {room} tokens")
        return model

    def _new(
        self, table: dict[str, Any], needs: Mapping[str, Any], shape: Any, tokenizer: Tokenizer | None = None
    ) -> Model:
        where = f"{self.source}: [model]"
        name, options = _named(table, where)
        cls = models.find(presets.find(name).model if name in presets.PRESETS else name)
        if issubclass(cls, SentenceHeads) and tokenizer is not None:
            options = {**sentence_options(tokenizer), **options}
        if "tasks" in needs and issubclass(cls, EncoderDecoder) and tokenizer is not None:
            first = next((token for token in (tokenizer.bos, tokenizer.cls, tokenizer.pad) if token is not None), None)
            options = {"start": first, **options}  # its decoder reads the text after it
        if "tasks" in needs:
            heads = [config.plain(default_head(cls, _head(head))) for head in needs["tasks"]]
            needs = {**needs, "tasks": tuple(Head.read({**head, **shape}) for head in heads)}
        for key, value in needs.items():
            if key in options and options[key] != value:
                raise InvalidOption(f"{where} {key} is {options[key]!r}, but the task needs {value!r}; leave it out")
        return models.build(name, **{**options, **needs})

    def _tuned(self, options: dict[str, Any], needs: Mapping[str, Any], shape: Any) -> Model:
        if "name" in options:
            raise InvalidOption(f"{self.source}: [model] has both name and from; give one of the two")
        folder, fresh = self._origin(), options.pop("fresh", False)
        del options["from"]
        if not isinstance(fresh, bool):
            raise InvalidOption(f"{self.source}: [model] fresh must be true or false, not {fresh!r}")
        heads = [_head(head) for head in needs.get("tasks", ())]
        model = tune(folder, heads, shape=shape, options=options or None).model
        rows, wanted = model.token_rows, needs.get("vocabulary", 0)
        if rows is not None and wanted > rows:
            model = self._with_tokens(model, folder, rows, wanted)
        return type(model)(model.options) if fresh else model

    def _with_tokens(self, model: Model, folder: Path, rows: int, wanted: int) -> Model:
        """The pretrained model with embeddings for tokens that the task has added to its tokenizer."""
        tokenizer = self.tokenizer()
        if tokenizer is None or tokenizer.size > rows:
            raise InvalidInput(f"{folder} has embeddings for {rows} tokens, but the task has {wanted}")
        return rebuild(model, {"vocabulary": wanted}, folder, new_tokens=True)[0]

    def _origin(self) -> Path:
        """The folder or file of the pretrained model."""
        try:
            return locate(self.model["from"])
        except InvalidInput as error:
            raise InvalidInput(f"{self.source}: [model] from: {error}") from None

    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the pretrained model; None: there is no such model, and the task learns a tokenizer."""
        if "from" not in self.model:
            return next((own for extra in self.extensions() if (own := extra.tokenizer()) is not None), None)
        folder = self._origin()
        tokenizer = read_tokenizer(folder) if folder.is_dir() else load(folder).tokenizer
        if tokenizer is None and self.build_task().reads_text:
            raise InvalidInput(f"{folder} has no tokenizer: add its tokenizer.json or its vocabulary files")
        return tokenizer


@contextmanager
def _naming(where: str) -> Iterator[None]:
    """Begin errors about options with the table they are in."""
    try:
        yield
    except (InvalidOption, UnknownName) as error:
        raise type(error)(str(error) if where in str(error) else f"{where}: {error}") from None


def read(path: Path, overrides: Mapping[str, Any] | None = None, *, own: bool = True) -> Recipe:
    """Read a recipe from its file and apply `overrides`, such as `{"train.steps": 100}`.

    Plugins that the recipe lists are imported: from anywhere if the recipe is the user's `own`; those of a run only if
    they are installed, imported already or listed in LONGSPAN_PLUGINS.
    """
    path = find(path)
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder, but a recipe is a TOML file")
    content = read_toml(path)
    data = content.pop(DATA, None)
    if data is not None and not isinstance(data, str):
        raise InvalidOption(f"{path}: data must be the path of the folder of data sets, not {data!r}")
    plugins = _plugins(content.pop(PLUGINS, []), overrides or {}, path, own)
    for key in content:
        if key not in (known := [*TABLES, *EXTENSIONS.names()]):
            raise InvalidOption(f"{path} has an unknown table [{key}]: {suggest(key, known)}")
    for name in TABLES:
        if not isinstance(content.setdefault(name, {}), dict):
            raise InvalidOption(f"{path}: {name} must be a table")
    apply(content, overrides or {})
    folder = None if data is None else Path(data)
    extras = {name: table for name, table in content.items() if name not in TABLES}
    return Recipe(content["task"], content["model"], content["train"], str(path), folder, plugins, extras)


def apply(content: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Set values by their dotted names, such as `train.steps`."""
    for name, value in overrides.items():
        *tables, key = name.split(".")
        if not tables or tables[0] not in (*TABLES, *EXTENSIONS.names()):
            raise InvalidOption(f"there is no option {name!r}; names begin with task., model. or train.")
        inner = content
        for table in tables:
            inner = inner.setdefault(table, {})
            if not isinstance(inner, dict):
                raise InvalidOption(f"there is no option {name!r}: {table} is a value, not a table")
        inner[key] = value


def with_overrides(recipe: Recipe, overrides: Mapping[str, Any]) -> Recipe:
    """A recipe that no file holds, with values by their dotted names; `steps` replaces `epochs`, and the reverse."""
    content = {"task": _copy(recipe.task), "model": _copy(recipe.model), "train": _copy(recipe.train)}
    content |= {name: _copy(table) for name, table in recipe.extras.items()}
    for key, other in (("train.steps", "epochs"), ("train.epochs", "steps")):
        if key in overrides and f"train.{other}" not in overrides:
            content["train"].pop(other, None)
    plugins = _plugins([], {**overrides, "task.name": recipe.task["name"]}, Path(recipe.source), True)
    apply(content, overrides)
    task, model, train = (content.pop(name) for name in TABLES)
    return Recipe(task, model, train, recipe.source, recipe.data, plugins, content)


def _copy(table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in table.items()}


def find(path: Path) -> Path:
    """A recipe's file: a path, or the name of a recipe that comes with longspan.

    A folder of that name, such as the run of an earlier training, does not hide the recipe.
    """
    packaged = Path(longspan.__file__).parent / "recipes"
    named = packaged / f"{path}.toml"
    if named.is_file() and (path.is_dir() or not path.exists()) and not path.is_symlink():
        return named
    if path.exists() or path.is_symlink():  # a broken link is reported when it is read
        return path
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
    """The trainer for a new run in `folder`. All checks of the recipe and its data happen here."""
    run, processes = folder if isinstance(folder, Run) else Run(folder), processes or Processes()
    options, task = recipe.options(), recipe.build_task()
    data = recipe.data if data is None else data

    with ExitStack() as held:
        processes.together(lambda: held.enter_context(run.held()) if processes.first else None)
        processes.together(run.refuse_used)
        if processes.first:
            (run.folder / SPLIT).unlink(missing_ok=True)  # of a run that never saved
        prepared = _prepare(task, run, data, options, processes, recipe.tokenizer())
        trainer = _trainer(recipe, run, prepared, options, processes)
        if processes.first:
            # Paths are absolute, so that the run can be opened from any folder. All options of the model are in the
            # config.json of each checkpoint.
            task_table = {"name": recipe.task["name"], **config.plain(located(task.options))}
            model_table, train_table = _located_model(recipe.model), config.plain(options)
            extras = {extension.name: extension.located() for extension in recipe.extensions()}
            resolved = Recipe(task_table, model_table, train_table, recipe.source, data, recipe.plugins, extras)
            _write_config(run, resolved)
    return trainer


def resume(folder: Path | Run, *, data: Path | None, processes: Processes | None = None) -> Trainer:
    """The trainer for an existing run; `fit.train(trainer, resume=True)` restores its newest checkpoint."""
    run, processes = folder if isinstance(folder, Run) else Run(folder), processes or Processes()
    recipe = of_run(run)
    options, task = recipe.options(), recipe.build_task()
    newest, _ = checkpoint.newest(run.checkpoints)
    tokenizer = None if newest is None else read_tokenizer(newest / saving.MODEL)
    prepared = _prepare(task, run, recipe.data if data is None else data, options, processes, tokenizer)
    if processes.first and data is not None and _absolute(data) != str(recipe.data):
        _write_config(run, replace(recipe, data=data))  # the data have moved
    return _trainer(recipe, run, prepared, options, processes)


@dataclass(frozen=True)
class Evaluated:
    """The model that was evaluated, its metrics, and a table with details, if the task has one."""

    model: Path
    metrics: dict[str, float]
    table: list[dict[str, Any]]


def evaluate(
    folder: Path,
    *,
    split: str = "held_out",
    data: Path | None = None,
    processes: Processes | None = None,
    task_options: Mapping[str, Any] | None = None,
) -> Evaluated:
    """Evaluate a run's final model, or its newest checkpoint, on a split of its data.

    `task_options` replace options of the run's task, such as `{"stride": 32}`.
    """
    run, processes = Run(folder), processes or Processes()
    recipe = of_run(run)
    recipe = replace(recipe, task={**recipe.task, **(task_options or {})})
    options, task = recipe.options(), recipe.build_task()
    where = locate(run.folder)
    model = model_folder.load(where).to(processes.device)
    with TemporaryDirectory() as work:  # the run's token files may be in use
        paths = DataPaths(recipe.data if data is None else data, Path(work), options.seed, run.folder / SPLIT)
        prepared = task.prepare(paths, read_tokenizer(where))
        chosen = {"held_out": prepared.held_out, "test": prepared.test, "train": prepared.train}.get(split)
        if chosen is None:
            raise InvalidInput(f"{recipe.source}: the task has no {split} data")
        _same_labels(model, prepared, where)
        objective = prepared.objectives.get(split, prepared.objective)
        metrics = collect_metrics(model, chosen, objective, processes)
        final = evaluate_final(model, chosen, objective, processes)
        return Evaluated(where, {**metrics.result(), **final} if metrics else final, metrics.table() if metrics else [])


def _same_labels(model: Model, prepared: Prepared, where: Path) -> None:
    """Refuse data with other labels than the model's: a model knows only their numbers."""
    of_model = {head.task: head.names for head in getattr(model.options, "tasks", None) or ()}
    for head in map(_head, prepared.needs.get("tasks", ())):
        known = of_model.get(head.task)
        if known is not None and head.names is not None and known != head.names:
            raise InvalidInput(f"{where} has the labels {', '.join(known)}, but the data have {', '.join(head.names)}")


def of_run(run: Run) -> Recipe:
    """The recipe of an existing run, from its config.toml."""
    path = run.folder / CONFIG
    if (run.folder / SEEDS).is_file():
        raise InvalidInput(f"{run.folder} is a set of seeds; name one of its runs, such as {run.folder / 'seed-0'}")
    if not path.is_file():
        raise InvalidInput(f"{run.folder} is not a run: it has no {CONFIG}")
    return read(path, own=False)


def _write_config(run: Run, recipe: Recipe) -> None:
    """Write the `config.toml` of a run, atomically."""
    data = None if recipe.data is None else _absolute(recipe.data)
    tables = {"task": recipe.task, "model": recipe.model, "train": recipe.train, **recipe.extras}
    text = to_toml({DATA: data, PLUGINS: list(recipe.plugins) or None, **tables})
    files.write_text(run.folder / CONFIG, text)


def _located_model(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """The [model] table, with `from` as an absolute path if it is a path or in the local Hugging Face cache."""
    name = str(table.get("from", PACKAGE))
    if name.startswith(PACKAGE):
        return table
    return {**table, "from": _absolute(name if Path(name).exists() else locate(name))}


def _absolute(path: Path | str) -> str:
    return os.path.abspath(path)  # noqa: PTH100  (unlike Path.resolve, keeps symbolic links)


def _prepare(
    task: Task, run: Run, data: Path | None, options: TrainOptions, processes: Processes, tokenizer: Tokenizer | None
) -> Prepared:
    """The task's data, the same in all processes: the first one learns the tokenizer and sends it to the others."""
    # One folder per process, so that none writes where another reads.
    work = run.folder / TOKEN_FILES if processes.first else run.folder / TOKEN_FILES / f"process-{processes.rank}"
    paths = DataPaths(data, work, options.seed, run.folder / SPLIT)
    learned: tuple[str, dict[str, str]] | None = None

    def prepare() -> Prepared:
        try:
            return task.prepare(paths, tokenizer)
        except OSError as error:  # such as a full disk; `together` passes on LongspanError only
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
            text, special = learned
            tokenizer = Tokenizer(tokenizers.Tokenizer.from_str(text), special)
        prepared = processes.together(prepare)
    fingerprints = processes.gather(prepared.train.fingerprint())
    if len(set(fingerprints)) > 1:
        raise InvalidInput(f"the processes read different data: {'; '.join(fingerprints)}")
    return prepared


def _trainer(recipe: Recipe, run: Run, prepared: Prepared, options: TrainOptions, processes: Processes) -> Trainer:
    torch.manual_seed(options.seed)
    try:
        model = recipe.build_model(prepared.needs, prepared.tokenizer)
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        raise InvalidInput(
            f"{recipe.source}: [model]: out of memory: the model is too large for this machine"
        ) from None
    if prepared.words is not None and isinstance(model, NamedRows):
        model.name_rows(prepared.words)
    if prepared.pixel_scale is not None and isinstance(model, ImageHeads):
        model.pixel_scale = prepared.pixel_scale
    objective = prepared.objective
    for extension in recipe.extensions():
        with _naming(f"{recipe.source}: [{extension.name}]"):
            extension.adapt_model(model, recipe.model, options)
            objective = extension.adapt_objective(objective, model, prepared)
    # The same initial weights in all processes, then different random numbers.
    torch.manual_seed(options.seed + processes.rank)
    return Trainer(
        run,
        model,
        prepared.train,
        objective,
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


__all__ = ["Evaluated", "Recipe", "begin", "evaluate", "of_run", "read", "resume", "to_toml", "with_overrides"]
