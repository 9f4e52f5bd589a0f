"""Accuracy by length and by depth, over seeds."""

from collections.abc import Sequence

from longspan.inspect.measures.findings import Finding, Grid, Line, LineChart
from longspan.probe.limits.experiment import MODELS, Cell, LimitOptions, guesses
from longspan.probe.limits.languages import LANGUAGES

MEANING = (
    "These are small models, trained for a short time, a few seeds each. A model that fails here may succeed with "
    "another size, other positions or more training; Hahn (2020) proves limits only for lengths without bound, for "
    "hard attention in general and for soft attention as a vanishing difference. A model that succeeds at these "
    "lengths may fail at longer ones."
)
Shares = list[tuple[float, float, float]]  # mean, lowest and highest seed, in percent


def shares(cells: Sequence[Cell], lengths: Sequence[int], words: int, *, by_depth: bool = False) -> Shares:
    """The mean over seeds at each length (or depth), and the lowest and the highest seed."""
    results = []
    for length in lengths:
        values = [100 * (cell.depths if by_depth else cell.lengths)[length] / words for cell in cells]
        results.append((sum(values) / len(values), min(values), max(values)))
    return results


def limit_findings(cells: Sequence[Cell], options: LimitOptions) -> list[Finding]:
    """A finding for each language that was trained."""
    names = dict.fromkeys(cell.language for cell in cells)
    return [_language_finding(name, [cell for cell in cells if cell.language == name], options) for name in names]


def _language_finding(name: str, cells: Sequence[Cell], options: LimitOptions) -> Finding:
    language = LANGUAGES[name]
    models = list(dict.fromkeys(cell.model for cell in cells))
    by_model = {model: [cell for cell in cells if cell.model == model] for model in models}
    lengths, depths = list(cells[0].lengths), list(cells[0].depths)
    seeds = len({cell.seed for cell in cells})
    longest, double = language.fit(options.longest), language.fit(2 * options.longest)
    curves = {model: shares(own, lengths, options.words) for model, own in by_model.items()}
    rules = {length: guesses(language, options, length) for length in lengths}
    said = []
    for model, curve in curves.items():
        trained, twice = curve[lengths.index(longest)][0], curve[lengths.index(double)][0]
        said.append(f"{MODELS[model].title} {trained:.1f} % and {twice:.1f} %")
    rows = [
        (MODELS[model].title, length, *curve[at], *(100 * share for share in rules[length].values()))
        for model, curve in curves.items()
        for at, length in enumerate(lengths)
    ]
    head = ("model", "length", "right, %", "lowest seed", "highest seed", *(f"{rule}, %" for rule in rules[longest]))
    figures: list[LineChart | Grid] = [_chart(f"{name}: by length", "length", lengths, curves, rules)]
    if depths:
        deep = {model: shares(own, depths, options.words, by_depth=True) for model, own in by_model.items()}
        figures.append(_chart(f"{name}: by largest depth, at length {longest}", "depth", depths, deep, {}))
    figures.append(Grid("Right answers after the last letter", head, rows))
    return Finding(
        name,
        f"{name}: {language.what}",
        f"Right after words of {longest} letters, the longest of training, and of {double}: {'; '.join(said)}.",
        f"Means of {seeds} seed{'s' if seeds > 1 else ''}; bands reach from the lowest to the highest. "
        f"The commonest label has {100 * rules[double]['commonest label']:.1f} %. All models read the same "
        f"{options.words} test words of each length; words as short as those of training may have been seen.",
        figures,
        {
            "lengths": {model: dict(zip(map(str, lengths), curve)) for model, curve in curves.items()},
            "depths": {
                model: dict(zip(map(str, depths), shares(own, depths, options.words, by_depth=True)))
                for model, own in by_model.items()
            },
            "rules": {str(length): value for length, value in rules.items()},
            "seeds": seeds,
            "parameters": {model: own[0].parameters for model, own in by_model.items()},
            "cpu_seconds": sum(cell.cpu_seconds for cell in cells),
        },
    )


def _chart(
    title: str, across: str, places: Sequence[int], curves: dict[str, Shares], rules: dict[int, dict[str, float]]
) -> LineChart:
    lines = [
        Line(
            MODELS[model].title,
            [(float(place), mean) for place, (mean, _, _) in zip(places, curve)],
            band=[(low, high) for _, low, high in curve],
        )
        for model, curve in curves.items()
    ]
    for rule in next(iter(rules.values()), {}):
        lines.append(Line(rule, [(float(place), 100 * rules[place][rule]) for place in places], control=True))
    return LineChart(title, across, "right, %", lines, log_across=across == "length")


__all__ = ["MEANING", "limit_findings", "shares"]
