"""What a search found, as a figure, a table and a sentence."""

from statistics import fmean, stdev

from longspan.adapt.search.study import SearchResult, Tried
from longspan.inspect.measures.findings import Finding, Grid, Scatter

FRONT = "Pareto front"
CAUTION = (
    "Short training favours small and fast models, and a trial is one run with one seed. Train the front again with "
    "several seeds and for longer before you choose."
)


def search_finding(result: SearchResult) -> Finding:
    """Quality against time of every trial, with the Pareto front named."""
    if not result.tried:
        return Finding("search", "Search", skipped="no trial has finished")
    sign = 1 if result.minimise else -1
    front = [next(each for each in result.tried if each.number == number) for number in result.front]
    if front:
        best, fast = min(front, key=lambda each: sign * each.quality), front[0]
        sentence = (
            f"Best {result.metric} {best.quality:.4g} in {best.milliseconds:.3g} ms (trial {best.number}: "
            f"{describe(best)}); fastest of the front {fast.milliseconds:.3g} ms with {fast.quality:.4g} (trial "
            f"{fast.number}: {describe(fast)})."
        )
    else:
        sentence = f"None of the {len(result.tried)} trials is within the budget."
    shown: list[Tried] = []  # choices that were drawn again have the numbers of their first trial
    for each in result.tried:
        if not any(each.genes == other.genes for other in shown):
            shown.append(each)
    groups = [_group(each, result) for each in shown]
    return Finding(
        "search",
        "Search",
        sentence,
        f"{len(result.tried)} trials finished, {result.pruned} could not be built, {result.failed} failed.",
        [
            Scatter(
                f"{result.metric} against the time of a held-out batch",
                [(each.milliseconds, each.quality) for each in shown],
                [_tip(each, result) for each in shown],
                groups,
                "milliseconds of a held-out batch",
                result.metric,
                FRONT,
                [str(each.number) if each.number in result.front else "" for each in shown],
            ),
            Grid(
                "The Pareto front, fastest first",
                ("trial", "model", result.metric, "ms", "MB", "parameters", "again: mean", "again: deviation"),
                [_row(each, result) for each in front],
            ),
            Grid(
                "All models that were trained",
                ("trial", "model", result.metric, "ms", "MB", "within the budget"),
                [
                    (each.number, describe(each), each.quality, each.milliseconds, each.bytes / 1e6, _yes(each.within))
                    for each in shown
                ],
            ),
        ],
        result.plain(),
    )


def describe(tried: Tried) -> str:
    """The genes in a few words."""
    genes = dict(tried.genes)
    size = f"{genes.pop('depth')} × {genes.pop('width')}"
    groups = []
    for name in [key for key in genes if key.startswith("mechanism_")]:
        window = genes.get(name.replace("mechanism", "window"))
        groups.append(str(genes[name]) + ("" if window is None else f" {window}"))
    shared = "" if "kv_heads" not in genes else f", {genes['kv_heads']} key heads"
    return f"{size}, {' then '.join(groups)}{shared}"


def _tip(tried: Tried, result: SearchResult) -> str:
    return f"trial {tried.number}: {describe(tried)}: {result.metric} {tried.quality:.4g}, {tried.milliseconds:.3g} ms"


def _group(tried: Tried, result: SearchResult) -> str:
    if tried.number in result.front:
        return FRONT
    return "dominated" if tried.within else "over the budget"


def _row(tried: Tried, result: SearchResult) -> tuple[object, ...]:
    again = list(result.retrained.get(str(tried.number), ()))
    mean = fmean(again) if again else "–"
    deviation = stdev(again) if len(again) > 1 else "–"
    return (
        tried.number,
        describe(tried),
        tried.quality,
        tried.milliseconds,
        tried.bytes / 1e6,
        tried.parameters,
        mean,
        deviation,
    )


def _yes(value: bool) -> str:
    return "yes" if value else "no"


__all__ = ["CAUTION", "describe", "search_finding"]
