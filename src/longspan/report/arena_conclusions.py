"""The first sentences of the arena page: what its numbers show, and no more."""

from collections.abc import Sequence
from math import hypot

from longspan.arena.runs.efficiency import FUSED, NAIVE
from longspan.report.arena_numbers import percent, size, task_title, times
from longspan.report.palette import title
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
    names = [title(model) for model in models]
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


__all__ = ["average_and_noise", "conclusions", "facts"]
