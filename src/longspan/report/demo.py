"""The page of `longspan demo`."""

from collections.abc import Sequence

import torch

from longspan.demo.crossover import FUSED, HEADS, WIDTH, Crossover
from longspan.demo.leaks import Leak
from longspan.demo.learning import HALF, Learned
from longspan.report import charts, palette, plots
from longspan.report.charts import ChartAxis, ChartLine, curves
from longspan.report.page import Html, page, table, tag
from longspan.report.plots import heat_map
from longspan.report.theme import SCRIPT, STYLE

KINDS = {
    "softmax": "dense",
    "window": "fixed-pattern",
    "linear": "kernel",
    "performer": "kernel",
    "nystrom": "low-rank",
}
DASHES = {"performer": "6 3"}
SHEET = "svg.sheet { width: 100%; height: auto; max-width: 60rem; }"


def demo_page(gallery: str, leaks: Sequence[Leak], times: Crossover, learned: Sequence[Learned], machine: str) -> str:
    """One page: what mechanisms read, who leaks, what pays on this machine, and models that learned just now."""
    sheet = gallery[gallery.index("<svg") :].replace("<svg ", '<svg class="sheet" ', 1)
    return page(
        "longspan demo",
        tag("h1", "longspan: every Transformer attention in one place"),
        tag("p", "Made on this machine just now, except where a date is given.", css="lede"),
        tag("h2", "What each mechanism reads"),
        tag("p", "Rows are queries, columns are keys, on the same 64 tokens. ", tag("code", "longspan gallery --html")),
        Html(sheet),
        tag("h2", "Who leaks"),
        tag("p", leak_sentence(leaks), css="lede"),
        _leak_table(leaks),
        tag("h2", "What pays on this machine"),
        tag("p", crossover_sentence(times), css="lede"),
        tag("div", _crossover_chart(times), css="charts"),
        tag("p", f"Forward pass, {HEADS} heads of {WIDTH}, float32, least of several turns. {machine}", css="quiet"),
        tag("h2", "A little model that learned while you watched"),
        tag("p", learning_sentence(learned), css="lede"),
        tag("div", _accuracy_chart(learned), *(_map(each) for each in learned), css="charts"),
        tag("h2", "Next"),
        _next_steps(),
        style=charts.STYLE + palette.style() + plots.STYLE + STYLE + SHEET,
        script=SCRIPT,
    )


def leak_sentence(leaks: Sequence[Leak]) -> str:
    """What the table says, from its numbers."""
    ours = [leak.ours for leak in leaks if leak.ours is not None]
    worst = max(ours, default=0.0)
    refused = sum(leak.ours is None for leak in leaks)
    mine = "0 everywhere" if worst == 0 else f"at most {worst:.1g}"
    more = f", and {refused} of these forms we refuse, because the paper has none" if refused else ""
    return f"The largest change of an output that must not change: 0 is right. Ours: {mine}{more}."


def crossover_sentence(times: Crossover) -> str:
    """From which length each mechanism is faster, from the numbers."""
    parts = []
    for name in times.seconds:
        if name != FUSED:
            first = times.pays_from(name)
            parts.append(f"{name} {'not up to ' + str(times.lengths[-1]) if first is None else f'from {first}'}")
    return f"Faster than PyTorch's fused attention, in tokens: {', '.join(parts)}."


def learning_sentence(learned: Sequence[Learned]) -> str:
    """Who copied how much in the end, from the numbers."""
    shares = ", ".join(f"{each.name} {each.accuracy[-1]:.0%}" for each in learned)
    return (
        f"Each text is {HALF} random symbols, a separator, and the same symbols again. Copied after "
        f"{learned[0].steps[-1] + 1} steps: {shares}. The answer stands {HALF + 1} tokens back; two layers of a window "
        "of 8 reach 16. The maps show where the head reads that looks back most."
    )


def _leak_table(leaks: Sequence[Leak]) -> Html:
    rows = [
        [
            leak.package,
            leak.what,
            f"{leak.change:.2g}",
            leak.mechanism,
            "refused" if leak.ours is None else f"{leak.ours:.2g}",
        ]
        for leak in leaks
    ]
    note = tag("p", "Packages: small models with random weights, November 2026. Ours: measured now.", css="quiet")
    return tag("div", table(["package", "what it does", "change", "ours", "change"], rows, numbers=(2, 4)), note)


def _crossover_chart(times: Crossover) -> Html:
    lines = [
        ChartLine(
            name,
            KINDS.get(name, "dense"),
            [(float(length), 1000 * second) for length, second in zip(times.lengths, seconds)],
            [f"{length} tokens, {1000 * second:.3g} ms" for length, second in zip(times.lengths, seconds)],
            DASHES.get(name, ""),
        )
        for name, seconds in times.seconds.items()
    ]
    across = ChartAxis("tokens", factors=True, halves=True)
    return curves(lines, across, ChartAxis("milliseconds", factors=True), "Time of a forward pass by length", width=560)


def _accuracy_chart(learned: Sequence[Learned]) -> Html:
    lines = [
        ChartLine(
            each.name,
            KINDS[each.name],
            [(float(step), 100 * share) for step, share in zip(each.steps, each.accuracy)],
            [f"step {step}, {share:.0%}" for step, share in zip(each.steps, each.accuracy)],
        )
        for each in learned
    ]
    return curves(lines, ChartAxis("step"), ChartAxis("% copied", holds=(0.0, 100.0)), "Symbols copied right, by step")


def _map(learned: Learned) -> Html:
    """The head whose queries of the second half look farthest back."""
    maps = learned.maps.flatten(0, 1)
    positions = torch.arange(maps.shape[-1])
    distance = (positions[:, None] - positions)[HALF:]
    back = (maps[:, HALF:] * distance.clamp(min=0)).sum((1, 2))
    chosen = maps[int(back.argmax())]
    names = [str(index) for index in range(chosen.shape[0])]
    drawing = heat_map(f"{learned.name}: where a head reads", names, names, chosen.tolist(), across="key", up="query")
    return tag("figure", tag("h3", f"{learned.name}: where a head reads"), drawing)


def _next_steps() -> Html:
    steps = (
        ("longspan advise --length 8192 --causal", "the fastest attention for your sizes on this machine"),
        ("longspan arena", "train and compare mechanisms on tasks that separate them"),
        (
            "longspan swap FOLDER --attention window:window=511,sinks=4 --out NEW",
            "another attention in a trained model",
        ),
        ("longspan train --task classify --train my.csv", "your own data"),
    )
    return tag("ul", *(tag("li", tag("code", command), f": {what}") for command, what in steps))
