"""Run the trials: draw, prune what cannot be built, train, measure, keep. A killed search resumes.

Every trial trains the recipe for its steps in a folder of its own and is measured on the held-out data: quality, the
time of a batch and the bytes of its weights. The study is an SQLite file of Optuna's.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longspan import files
from longspan.adapt.comparison import compare
from longspan.adapt.search.space import Space
from longspan.errors import InvalidInput, InvalidOption, LongspanError, Unsupported
from longspan.models import folder as folders
from longspan.train import fit
from longspan.train import recipe as recipes
from longspan.train.loop import Interrupted
from longspan.train.recipe import Recipe
from longspan.train.run import RESULT

STUDY, TRIALS, RESULTS = "study.db", "trials", "search.json"
NAME = "longspan"
MEASURED = ("milliseconds", "bytes", "parameters")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Budget:
    """What a model may cost; None: no limit."""

    milliseconds: float | None = None  # of a held-out batch
    megabytes: float | None = None  # of weights

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and not value > 0:
                raise InvalidOption(f"the limit of {name} must be positive, not {value:g}")

    def excess(self, milliseconds: float, size: int) -> tuple[float, float]:
        """By how much each limit is exceeded, relative to it; at most 0 within."""
        over = (
            0.0 if self.milliseconds is None else milliseconds / self.milliseconds - 1,
            0.0 if self.megabytes is None else size / 1e6 / self.megabytes - 1,
        )
        return over


@dataclass(frozen=True)
class Tried:
    """A finished trial."""

    number: int
    genes: Mapping[str, Any]
    quality: float
    milliseconds: float
    bytes: int
    parameters: int
    within: bool  # the budget


@dataclass(frozen=True)
class SearchResult:
    """All finished trials and the Pareto front of those within the budget."""

    metric: str
    minimise: bool
    tried: Sequence[Tried]
    front: Sequence[int]  # numbers of trials
    pruned: int
    failed: int
    budget: Budget
    retrained: Mapping[str, Sequence[float]] = field(default_factory=dict)  # quality of each seed, by trial

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class Search:
    """A search in a folder: `run` does more trials, `result` reads what there is."""

    def __init__(
        self,
        recipe: Recipe,
        space: Space,
        out: Path,
        *,
        metric: str = "loss",
        budget: Budget | None = None,
        data: Path | None = None,
        seed: int = 0,
    ) -> None:
        try:
            import optuna
        except ImportError:
            raise InvalidInput("the search needs Optuna: pip install 'longspan[search]'") from None
        optuna.logging.set_verbosity(optuna.logging.ERROR)  # warnings have tracebacks of errors that are reported here
        if "from" in recipe.model:
            raise InvalidOption("a search builds new models; give a recipe whose [model] has a name, not from")
        recipe.options(), recipe.build_task()  # a wrong recipe is an error now, not in every trial
        self.recipe, self.space, self.out, self.data = recipe, space, out, data
        self.metric, self.budget, self.optuna = metric, budget or Budget(), optuna
        self.minimise = metric in ("loss", "perplexity", "bits_per_byte", "bits_per_character", "error", "mae", "mse")
        fresh = not (out / STUDY).exists()
        if fresh and out.exists() and any(out.iterdir()):
            raise InvalidInput(f"{out} is not empty and holds no search; name another folder")
        out.mkdir(parents=True, exist_ok=True)
        identity = {"space": space.hash, "metric": metric, "recipe": _recipe_hash(recipe)}
        self.study = self._open(seed, identity if fresh else {})
        for name, value in identity.items():
            if self.study.user_attrs.get(name) == value:
                continue
            if any(trial.state == optuna.trial.TrialState.COMPLETE for trial in self.study.get_trials(deepcopy=False)):
                raise InvalidInput(f"{out} holds a search with another {name}; give the same, or another folder")
            (out / STUDY).unlink()  # no trial was finished, such as with a metric that the task does not have
            self.study = self._open(seed, identity)
            break
        self.last_reason = ""  # why the last trial could not be built
        self._retry_killed()

    def _open(self, seed: int, attributes: Mapping[str, str]) -> Any:
        study = self.optuna.create_study(
            study_name=NAME,
            storage=f"sqlite:///{(self.out / STUDY).resolve()}",
            directions=["minimize" if self.minimise else "maximize", "minimize"],
            load_if_exists=True,
        )
        # With one seed a resumed search would draw the first trials again.
        drawn = len(study.get_trials(deepcopy=False))
        study.sampler = self.optuna.samplers.TPESampler(seed=seed + drawn, n_startup_trials=6)
        for name, value in attributes.items():
            study.set_user_attr(name, value)
        return study

    # Trials

    def run(self, trials: int, say: Say = lambda line: None) -> SearchResult:
        """Finish trials until there are `trials` that ended, whatever their end; then the result so far."""
        ended = self.optuna.trial.TrialState
        done = (ended.COMPLETE, ended.PRUNED, ended.FAIL)
        while sum(trial.state in done for trial in self.study.get_trials(deepcopy=False)) < trials:
            self.study.optimize(lambda trial: self._objective(trial, say), n_trials=1)
            self._write(self.result())
        self._write(self.result())  # if there was nothing to do, killed trials may still be new
        return self.result()

    def _write(self, result: SearchResult) -> None:
        files.write_text(self.out / RESULTS, json.dumps(result.plain(), indent=1) + "\n")

    def _objective(self, trial: Any, say: Say) -> tuple[float, float]:
        genes = self.space.draw(trial)
        earlier = self._finished(genes)
        trial.set_user_attr("genes", genes)
        try:
            planned = recipes.with_overrides(self.recipe, self.space.overrides(genes))
            row = self._train(planned, self.out / TRIALS / str(trial.number)) if earlier is None else earlier
        except (InvalidOption, Unsupported) as error:
            # Multi-objective studies know no pruning by value; a trial that cannot be built ends before training.
            self.last_reason = str(error)
            say(f"trial {trial.number}: {_short(genes)}: not possible: {error}")
            raise self.optuna.TrialPruned(str(error)) from None
        quality, milliseconds = row["metrics"][self.metric], row["milliseconds"]
        over = self.budget.excess(milliseconds, row["bytes"])
        for name in MEASURED:
            trial.set_user_attr(name, row[name])
        trial.set_user_attr("excess", over)
        for name, value in zip(("latency", "memory"), over):
            trial.set_constraint(name, value)
        note = "" if earlier is None else f", as trial {earlier['number']}"
        note += "" if max(over) <= 0 else ", over the budget"
        say(f"trial {trial.number}: {_short(genes)}: {self.metric} {quality:.4g}, {milliseconds:.3g} ms{note}")
        return quality, milliseconds

    def _finished(self, genes: Mapping[str, Any]) -> dict[str, Any] | None:
        """What a finished trial with the same genes has measured: the same seed would give the same model again."""
        complete = (self.optuna.trial.TrialState.COMPLETE,)
        for trial in self.study.get_trials(deepcopy=False, states=complete):
            if trial.user_attrs["genes"] == genes:
                measured = {name: trial.user_attrs[name] for name in MEASURED}
                return {**measured, "metrics": {self.metric: trial.values[0]}, "number": trial.number}
        return None

    def _train(self, recipe: Recipe, run: Path) -> dict[str, Any]:
        """Train in a folder of its own and measure; only the model's numbers are kept."""
        shutil.rmtree(run, ignore_errors=True)  # of a trial that was killed
        try:
            trainer = recipes.begin(recipe, run, data=self.data)
            fit.train(trainer)
            row = compare({"trial": folders.load(run / RESULT)}, run, data=self.data)[0]
        except Interrupted:
            raise KeyboardInterrupt from None
        finally:
            shutil.rmtree(run, ignore_errors=True)
        if self.metric not in row.get("metrics", {}):
            known = ", ".join(row.get("metrics", {})) or "none"
            raise LongspanError(f"the task has no metric {self.metric!r}; it has {known}")
        return row

    def _retry_killed(self) -> None:
        """A killed process leaves its trial running for ever: end it, and try its genes again."""
        state = self.optuna.trial.TrialState
        for trial in self.study.get_trials(deepcopy=False, states=(state.RUNNING,)):
            self.study._storage.set_trial_state_values(trial._trial_id, state.FAIL)
            shutil.rmtree(self.out / TRIALS / str(trial.number), ignore_errors=True)
            if trial.params:
                self.study.enqueue_trial(trial.params)

    # Results

    def result(self) -> SearchResult:
        """What is known so far."""
        state = self.optuna.trial.TrialState
        trials = self.study.get_trials(deepcopy=False)
        tried = [
            Tried(
                trial.number,
                trial.user_attrs["genes"],
                trial.values[0],
                trial.values[1],
                trial.user_attrs["bytes"],
                trial.user_attrs["parameters"],
                max(trial.user_attrs["excess"]) <= 0,
            )
            for trial in trials
            if trial.state == state.COMPLETE
        ]
        old: Any = _read(self.out / RESULTS).get("retrained", {})
        return SearchResult(
            self.metric,
            self.minimise,
            tried,
            pareto([each for each in tried if each.within], self.minimise),
            sum(trial.state == state.PRUNED for trial in trials),
            sum(trial.state == state.FAIL for trial in trials),
            self.budget,
            old,
        )

    def retrain(self, seeds: int, say: Say = lambda line: None) -> SearchResult:
        """Train every model of the front again with several seeds: one lucky run is no result.

        The numbers are written after each run, and those that are there already are not computed again.
        """
        result = self.result()
        again = {key: list(values)[:seeds] for key, values in result.retrained.items() if int(key) in result.front}
        found = SearchResult(**{**vars(result), "retrained": again})
        for tried in result.tried:
            if tried.number not in result.front:
                continue
            qualities = again.setdefault(str(tried.number), [])
            for seed in range(len(qualities), seeds):
                options = {**self.space.overrides(tried.genes), "train.seed": self.recipe.options().seed + 1 + seed}
                row = self._train(recipes.with_overrides(self.recipe, options), self.out / TRIALS / f"again-{seed}")
                qualities.append(row["metrics"][self.metric])
                self._write(found)
                say(f"trial {tried.number} again, seed {seed}: {self.metric} {qualities[-1]:.4g}")
        return found


def pareto(tried: Sequence[Tried], minimise: bool) -> list[int]:
    """Trials that no other beats in one of quality and time without losing in the other; fastest first."""
    sign = 1 if minimise else -1
    points = sorted(tried, key=lambda each: (each.milliseconds, sign * each.quality))
    front, best = [], float("inf")
    for each in points:
        if sign * each.quality < best:
            front.append(each.number)
            best = sign * each.quality
    return front


def _short(genes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in genes.items())


def _recipe_hash(recipe: Recipe) -> str:
    tables = [recipe.task, recipe.model, recipe.train]
    return hashlib.sha256(
        json.dumps([dict(each) for each in tables], sort_keys=True, default=str).encode()
    ).hexdigest()[:16]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


__all__ = ["Budget", "Search", "SearchResult", "Tried", "pareto"]
