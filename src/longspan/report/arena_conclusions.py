"""The first sentences of the arena page: what its numbers show, and no more."""

from collections.abc import Sequence
from itertools import combinations
from math import hypot

from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_numbers import percent, size, task_list, task_title, times
from longspan.report.palette import KINDS, kind, title
from longspan.report.results import Relative, Results
from longspan.report.statistics import Score

SAME = 0.05  # speeds and memories that differ by less count as equal
FEW = 6  # most names that are listed; of more, only the number is given


def conclusions(results: Results) -> list[str]:
    """One or two sentences for each task: which models beat the trivial predictors, and which models differ."""
    return [sentence for task in results.tasks if (sentence := _task(results, task))]


def _task(results: Results, task: str) -> str:
    scores = {model: score for model in results.models if (score := results.score(task, model)) is not None}
    if not scores:
        return ""
    return f"{task_title(task)}: {_against_trivial(scores, results.baselines(task))} {_between_models(scores)}".strip()


def learned(results: Results) -> str:
    """What the run shows about kinds of models, each represented by its best on a task; "" if there is one kind only.

    A kind leads on a task if its best model is above the best of every other kind beyond the noise.
    """
    best = {task: _best_of_kinds(results, task) for task in results.tasks}
    best = {task: models for task, models in best.items() if len(models) > 1}
    if not best:
        return ""
    kinds = [name for name in KINDS if any(name in models for models in best.values())]
    pairs = [
        pair
        for pair in combinations(kinds, 2)
        if any(pair[0] in models and pair[1] in models for models in best.values())
    ]
    same = [pair for pair in pairs if not any(_apart(results, task, best[task], pair) for task in best)]
    where = task_list(list(best))
    if len(same) == len(pairs):
        return f"No two kinds of models differ by more than the noise on {where}: this run ranks none of them."
    leaders = {task: _leader(results, task, models) for task, models in best.items()}
    leading: dict[str, list[str]] = {}
    for task, leader in leaders.items():
        if leader is not None:
            leading.setdefault(leader, []).append(task)
    undecided = [task_title(task) for task, leader in leaders.items() if leader is None]
    clauses = [
        f"{KINDS[name][0]} models lead on {_and([_lead(results, task, best[task][name]) for task in tasks])}"
        for name, tasks in leading.items()
    ]
    if undecided:
        clauses.append(f"on {_and(undecided)} no kind is ahead of all others beyond the noise")
    if len(leading) > 1:
        first = f"No kind of model is best at everything: {'; '.join(clauses)}."
    elif leading and not undecided and len(best) > 1:
        first = f"One kind of model is best at everything: {'; '.join(clauses)}."
    else:
        first = f"{'; '.join(clauses)}."
        first = first[0].upper() + first[1:]
    scores = [
        score for task, models in best.items() for model in models.values() if (score := results.score(task, model))
    ]
    one_seed = any(score.seeds == 1 for score in scores)
    caution = "With one seed each, that is the noise of the test alone." if one_seed else ""
    return " ".join(filter(None, (first, _told_apart(len(pairs), same), caution)))


def _best_of_kinds(results: Results, task: str) -> dict[str, str]:
    """The model with the highest mean of each kind."""
    best: dict[str, str] = {}
    for model in results.models:
        score = results.score(task, model)
        if score is None:
            continue
        other = results.score(task, best[kind(model)]) if kind(model) in best else None
        if other is None or score.mean > other.mean:
            best[kind(model)] = model
    return best


def _apart(results: Results, task: str, best: dict[str, str], pair: tuple[str, str]) -> bool:
    one, other = (results.score(task, best[name]) if name in best else None for name in pair)
    return one is not None and other is not None and one.separate(other)


def _leader(results: Results, task: str, best: dict[str, str]) -> str | None:
    scores = {name: score for name, model in best.items() if (score := results.score(task, model)) is not None}
    first = max(scores, key=lambda name: scores[name].mean)
    return first if all(scores[first].separate(scores[name]) for name in scores if name != first) else None


def _lead(results: Results, task: str, model: str) -> str:
    score = results.score(task, model)
    assert score is not None
    return f"{task_title(task)} ({title(model)}, {_score(score)})"


def _told_apart(pairs: int, same: Sequence[tuple[str, str]]) -> str:
    if pairs == 1:
        return ""
    if not same:
        return f"All {pairs} pairs of kinds differ by more than the noise on at least one task."
    alike = _and([f"{KINDS[one][0]} and {KINDS[other][0]}" for one, other in same], "; ", "; ")
    told = f"{pairs - len(same)} of {pairs} pairs of kinds differ by more than the noise on at least one task"
    return f"{told}, all but {alike}."


def _and(names: Sequence[str], comma: str = ", ", last: str = " and ") -> str:
    return names[0] if len(names) == 1 else f"{comma.join(names[:-1])}{last}{names[-1]}"


def _against_trivial(scores: dict[str, Score], baselines: dict[str, float]) -> str:
    if not baselines or any(score.error is None for score in scores.values()):
        return ""
    name = max(baselines, key=lambda baseline: baselines[baseline])
    best = f"the best trivial predictor ({name.replace('_', ' ')}, {percent(baselines[name])} %)"
    above = [model for model, score in scores.items() if score.above(baselines[name])]
    below = [model for model in scores if model not in above]
    if not above:
        return f"no model beats {best} beyond the noise."
    if not below:
        who = title(above[0]) if len(above) == 1 else f"all {len(above)} models"
        return f"{who} beat{'s' * (len(above) == 1)} {best} beyond the noise."
    do = "does" if len(below) == 1 else "do"
    return f"{_names(above)} beat{'s' * (len(above) == 1)} {best} beyond the noise; {_names(below)} {do} not."


def _between_models(scores: dict[str, Score]) -> str:
    if len(scores) < 2:
        return ""
    order = sorted(scores, key=lambda model: -scores[model].mean)
    one_seed = any(score.seeds == 1 for score in scores.values())
    warning = " With one seed each, the variation between seeds is unknown." if one_seed else ""
    first = order[0]
    apart = [model for model in order[1:] if scores[first].separate(scores[model])]
    close = [model for model in order[1:] if model not in apart]
    highest = f"{title(first)} is highest, {_score(scores[first])}"
    if not apart:
        any_two = any(scores[one].separate(scores[other]) for one in order for other in order)
        rest = "no other model differs from it beyond the noise" if any_two else "no two models differ beyond the noise"
        return f"{highest}; {rest}.{warning}"
    if not close:
        return f"{highest}, above all others beyond the noise.{warning}"
    return f"{highest}, above {_names(apart)} beyond the noise, not above {_names(close)}.{warning}"


def facts(results: Results) -> list[tuple[str, str]]:
    """The page's key numbers with their captions; a close second is named too."""
    cards = []
    for pretrain, what in ((False, "highest average accuracy"), (True, "highest self pre-trained average")):
        averages = {m: known for m in results.models if (known := average_and_noise(results, m, pretrain)) is not None}
        if averages:
            cards.append(_highest_average(averages, what))
    others = [relative for relative in results.relatives if relative.model not in (NAIVE, FUSED)]
    timed = [relative for relative in others if relative.speed_ratio]
    if timed:
        best = max(timed, key=lambda relative: relative.speed_ratio or 0.0)
        assert best.speed_ratio is not None
        cards.append((times(best.speed_ratio), _fastest(best, timed)))
    weighed = [relative for relative in others if relative.memory and relative.memory_ratio]
    if weighed:
        least = min(weighed, key=lambda relative: relative.memory_ratio or 0.0)
        assert least.memory_ratio is not None
        cards.append((times(least.memory_ratio), _smallest(least, weighed)))
    return cards


def average_and_noise(results: Results, model: str, pretrain: bool = False) -> tuple[float, float | None] | None:
    """The average over tasks and its noise, which is None if that of a task is unknown."""
    mean = results.average(model, pretrain)
    if mean is None:
        return None
    scores = [score for task in results.averaged if (score := results.score(task, model, pretrain)) is not None]
    noises = [score.noise for score in scores if score.noise is not None]
    return mean, hypot(*noises) / len(scores) if len(noises) == len(scores) else None


def _highest_average(averages: dict[str, tuple[float, float | None]], what: str) -> tuple[str, str]:
    first = max(averages, key=lambda model: averages[model][0])
    mean, noise = averages[first]

    def within_noise(other: tuple[float, float | None]) -> bool:
        return noise is None or other[1] is None or mean - other[0] <= hypot(noise, other[1])

    close = [model for model, other in averages.items() if model != first and within_noise(other)]
    shown = percent(mean) + ("" if noise is None else f" ± {100 * noise:.1f}")
    if len(averages) == 1:
        return shown, f"average accuracy: {title(first)}"
    return shown, f"{what}: {title(first)}" + (f"; within the noise of {_names(close)}" if close else "")


def _fastest(best: Relative, others: Sequence[Relative]) -> str:
    assert best.speed_ratio is not None
    if best.speed_ratio < 1 + SAME:
        nearest = "as fast" if best.speed_ratio >= 1 - SAME else "nearest"
        return f"of the dense speed: no model is faster than the dense Transformer ({nearest}: {title(best.model)})"
    least = best.speed_ratio / (1 + SAME)
    close = [other.model for other in others if other is not best and (other.speed_ratio or 0.0) > least]
    return f"the dense speed: {title(best.model)} is fastest" + (f", as is {_names(close)}" if close else "")


def _smallest(least: Relative, others: Sequence[Relative]) -> str:
    assert least.memory_ratio is not None and least.memory is not None
    name, memory = title(least.model), size(least.memory)
    if least.memory_ratio > 1 - SAME:
        return f"of the dense memory: no model needs less than the dense Transformer (nearest: {name}, {memory})"
    most = least.memory_ratio * (1 + SAME)
    close = [other.model for other in others if other is not least and (other.memory_ratio or 9) < most]
    return f"of the dense memory: {name} needs least, {memory}" + (f", as does {_names(close)}" if close else "")


def _score(score: Score) -> str:
    return f"{percent(score.mean)}" + ("" if score.noise is None else f" ± {100 * score.noise:.1f}") + " %"


def _names(models: Sequence[str]) -> str:
    if len(models) > FEW:
        return f"{len(models)} models"
    return _and([title(model) for model in models])


__all__ = ["average_and_noise", "conclusions", "facts", "learned"]
