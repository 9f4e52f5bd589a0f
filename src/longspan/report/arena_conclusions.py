"""Of the arena's page: what its numbers show, in sentences, and no more than they show."""

from collections.abc import Sequence
from math import hypot

from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_numbers import percent, size, task_title, times
from longspan.report.palette import title
from longspan.report.results import Relative, Results
from longspan.report.statistics import Score

SAME = 0.05  # speeds and memories that differ by less are not told apart
FEW = 6  # names that are listed; of more, the number is said


def conclusions(results: Results) -> list[str]:
    """One or two sentences for each task: who beats the trivial predictors, and which models differ."""
    return [said for task in results.tasks if (said := _task(results, task))]


def _task(results: Results, task: str) -> str:
    scores = {model: found for model in results.models if (found := results.score(task, model)) is not None}
    if not scores:
        return ""
    return f"{task_title(task)}: {_beyond_trivial(scores, results.baselines(task))} {_between(scores)}".strip()


def _beyond_trivial(scores: dict[str, Score], baselines: dict[str, float]) -> str:
    if not baselines or any(score.error is None for score in scores.values()):
        return ""
    name = max(baselines, key=lambda each: baselines[each])
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


def _between(scores: dict[str, Score]) -> str:
    if len(scores) < 2:
        return ""
    order = sorted(scores, key=lambda model: -scores[model].mean)
    one_seed = any(score.seeds == 1 for score in scores.values())
    warning = " One seed each: how much another seed would change is not known." if one_seed else ""
    first = order[0]
    apart = [model for model in order[1:] if scores[first].separate(scores[model])]
    close = [model for model in order[1:] if model not in apart]
    highest = f"{title(first)} is highest, {_score(scores[first])}"
    if not apart:
        any_two = any(scores[one].separate(scores[other]) for one in order for other in order)
        rest = "no other model differs from it beyond the noise" if any_two else "but no two models differ beyond noise"
        return f"{highest}; {rest}.{warning}"
    if not close:
        return f"{highest}, above all others beyond the noise.{warning}"
    return f"{highest}, above {_names(apart)} beyond the noise, not above {_names(close)}.{warning}"


def facts(results: Results) -> list[tuple[str, str]]:
    """Figures and what they are of; the first in something is named only where it differs from the next."""
    found = []
    for pretrain, what in ((False, "highest average accuracy"), (True, "highest self pre-trained average")):
        averages = {model: each for model in results.models if (each := average(results, model, pretrain)) is not None}
        if averages:
            found.append(_first_average(averages, what))
    others = [each for each in results.relatives if each.model not in (NAIVE, FUSED)]
    fast = [each for each in others if each.speed_ratio]
    if fast:
        best = max(fast, key=lambda each: each.speed_ratio or 0.0)
        assert best.speed_ratio is not None
        found.append((times(best.speed_ratio), _fastest(best, fast)))
    small = [each for each in others if each.memory and each.memory_ratio]
    if small:
        least = min(small, key=lambda each: each.memory_ratio or 0.0)
        assert least.memory_ratio is not None
        found.append((times(least.memory_ratio), _smallest(least, small)))
    return found


def average(results: Results, model: str, pretrain: bool = False) -> tuple[float, float | None] | None:
    """The average over tasks, and its noise; without that where a task has none."""
    mean = results.average(model, pretrain)
    if mean is None:
        return None
    scores = [score for task in results.averaged if (score := results.score(task, model, pretrain)) is not None]
    noises = [score.noise for score in scores if score.noise is not None]
    return mean, hypot(*noises) / len(scores) if len(noises) == len(scores) else None


def _first_average(averages: dict[str, tuple[float, float | None]], what: str) -> tuple[str, str]:
    first = max(averages, key=lambda model: averages[model][0])
    mean, noise = averages[first]

    def open_(other: tuple[float, float | None]) -> bool:
        return noise is None or other[1] is None or mean - other[0] <= hypot(noise, other[1])

    close = [model for model, other in averages.items() if model != first and open_(other)]
    shown = percent(mean) + ("" if noise is None else f" ± {100 * noise:.1f}")
    if len(averages) == 1:
        return shown, f"average accuracy: {title(first)}"
    return shown, f"{what}: {title(first)}" + (f"; within the noise of {_names(close)}" if close else "")


def _fastest(best: Relative, others: Sequence[Relative]) -> str:
    assert best.speed_ratio is not None
    if best.speed_ratio < 1 + SAME:
        nearest = "as fast as it" if best.speed_ratio >= 1 - SAME else "nearest"
        return f"the dense speed: no model is faster than the dense Transformer ({nearest}: {title(best.model)})"
    least = best.speed_ratio / (1 + SAME)
    close = [each.model for each in others if each is not best and (each.speed_ratio or 0.0) > least]
    return f"the dense speed, the fastest: {title(best.model)}" + (f", like {_names(close)}" if close else "")


def _smallest(least: Relative, others: Sequence[Relative]) -> str:
    assert least.memory_ratio is not None and least.memory is not None
    named = f"{title(least.model)}, {size(least.memory)}"
    if least.memory_ratio > 1 - SAME:
        return f"the dense memory: no model takes less than the dense Transformer (nearest: {named})"
    close = [
        each.model for each in others if each is not least and (each.memory_ratio or 9) < least.memory_ratio * 1.05
    ]
    return f"the dense memory, the least: {named}" + (f", like {_names(close)}" if close else "")


def _score(score: Score) -> str:
    return f"{percent(score.mean)}" + ("" if score.noise is None else f" ± {100 * score.noise:.1f}") + " %"


def _names(models: Sequence[str]) -> str:
    if len(models) > FEW:
        return f"{len(models)} models"
    names = [title(model) for model in models]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


__all__ = ["average", "conclusions", "facts"]
