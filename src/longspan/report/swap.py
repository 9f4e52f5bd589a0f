"""The page of a swap: what other attention costs a trained model, beside the original."""

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path

from longspan import files
from longspan.adapt.measures.decoding import DecodingCost, DecodingPoint
from longspan.adapt.measures.intervals import Estimate
from longspan.adapt.measures.layer_error import FLOOR, HeadError, LayerError
from longspan.adapt.measures.loss_by_position import LossComparison
from longspan.adapt.measures.recall import CHANCE, RecallCell, RecallReport
from longspan.adapt.swap_report import SwapReport
from longspan.report import charts, palette, plots
from longspan.report.arena_numbers import size
from longspan.report.charts import DASHES, ChartAxis, ChartLine, curves
from longspan.report.page import Html, page, table, tag
from longspan.report.plots import heat_map
from longspan.report.theme import SCRIPT, STYLE

ORIGINAL, SWAPPED = "dense", "fixed-pattern"  # whose colours the two models have


def write_swap_page(report: SwapReport, path: Path | str) -> None:
    """Writes the page, whole or not at all."""
    files.write_text(path, swap_page(report))


def swap_page(report: SwapReport) -> str:
    """The whole page."""
    sections = [_layers(report.layers)]
    if report.loss is not None:
        sections.insert(0, _losses(report.loss, report.beyond))
    if report.recall is not None:
        sections.append(_recall(report.recall["original"], report.recall["swapped"]))
    if report.decoding is not None:
        sections.append(_decoding(report.decoding["original"], report.decoding["swapped"]))
    if report.encoder:
        sections.insert(0, _encoder(report))
    title = f"{Path(report.original).name} with another attention"
    return page(
        title,
        _head(title, report),
        *sections,
        style=charts.STYLE + palette.style() + plots.STYLE + STYLE,
        script=SCRIPT,
    )


def _head(title: str, report: SwapReport) -> Html:
    mechanisms = dict.fromkeys(layer.mechanism for layer in report.layers if layer.swapped)
    count = sum(layer.swapped for layer in report.layers)
    new = f"{', '.join(mechanisms) or 'nothing'} in {count} of {len(report.layers)} layers"
    said = f"Original: {report.original}. New: {new}."
    how = f"{report.texts} texts of {report.length:,} tokens, the same for both models."
    parts = [tag("h1", title), tag("p", report.sentence, css="lede"), tag("p", f"{said} {how}", css="quiet")]
    parts.append(tag("p", _borders(report), css="quiet"))
    if report.notes:
        parts.append(tag("ul", *(tag("li", note) for note in report.notes)))
    return tag("header", *parts)


def _borders(report: SwapReport) -> str:
    reach = report.reach
    if reach.window is None:
        return "No layer has a window."
    sinks = f" and the first {reach.sinks} tokens" if reach.sinks else ""
    field = (
        "some layers read further, so the whole text can be carried on"
        if reach.field is None
        else f"all layers together carry nothing further than {reach.field:,} tokens (layers × window)"
    )
    return f"Borders: a layer reads {reach.window:,} tokens back{sinks}; {field}."


# Loss


def _losses(loss: LossComparison, beyond: LossComparison | None) -> Html:
    parts = [tag("h2", "Loss by position"), tag("p", _loss_words(loss), css="lede")]
    figures = [tag("figure", tag("h3", "The given texts"), _loss_chart(loss))]
    if beyond is not None:
        heading = f"Texts joined past the trained length of {beyond.trained_length:,}"
        figures.append(tag("figure", tag("h3", heading), _loss_chart(beyond)))
    parts.append(tag("div", *figures, css="charts"))
    longest = loss if beyond is None else beyond
    parts.append(
        tag("p", "Nats a token; the interval of the difference is a paired bootstrap over texts, 95 %.", css="quiet")
    )
    rows = [
        [
            f"{block.first:,}–{block.last:,}",
            _number(block.original),
            _number(block.swapped),
            "–" if block.difference is None else f"{block.difference.mean:+.3f}",
            "–" if block.difference is None else _interval(block.difference),
        ]
        for block in longest.blocks
    ]
    grid = table(("tokens", "original", "swapped", "difference", "interval"), rows, numbers=range(1, 5))
    parts.append(tag("details", tag("summary", "Every block"), grid))
    return tag("section", *parts)


def _loss_words(loss: LossComparison) -> str:
    if loss.original is None or loss.difference is None:
        return f"{loss.swapped:.3f} nats a token."
    rise = max((b for b in loss.blocks if b.difference is not None), key=lambda b: _mean(b.difference), default=None)
    said = f"Original {loss.original:.3f}, swapped {loss.swapped:.3f} nats a token."
    if rise is not None and _mean(rise.difference) > 0:
        said += f" The difference is largest at tokens {rise.first:,} to {rise.last:,}: {_mean(rise.difference):+.3f}."
    return said


def _mean(estimate: Estimate | None) -> float:
    return 0.0 if estimate is None else estimate.mean


def _loss_chart(loss: LossComparison) -> Html:
    exact = [((b.first + b.last) / 2, b.original, b) for b in loss.blocks if b.original is not None]
    ours = [((b.first + b.last) / 2, b.swapped, b) for b in loss.blocks]
    lines = [
        ChartLine(
            name, kind, [(x, y) for x, y, _ in points], [f"{y:.3f} at {b.first}–{b.last}" for _, y, b in points], d
        )
        for name, kind, points, d in (("original", ORIGINAL, exact, DASHES[1]), ("swapped", SWAPPED, ours, ""))
    ]
    up = ChartAxis("nats a token", lambda value: f"{value:.3g}", left=52)
    return curves(lines, ChartAxis("position"), up, "Loss by position", width=460, height=300)


# Layers


def _layers(layers: Sequence[LayerError]) -> Html:
    how = (
        "Teacher-forced: each layer reads what the original's layer reads, so the error is its own. Free-running: it "
        "reads what the swapped model hands it, so the error has added up. KL(exact ‖ swapped) is a mean over rows, in "
        f"nats; weights below {FLOOR:g} count as that, so that a key outside a window costs nats and not infinity."
    )
    figures = []
    for heading, pick, value in (
        ("Relative error of the output, teacher-forced", _forced, _output),
        ("Relative error of the output, free-running", _free, _output),
        ("KL in nats, teacher-forced", _forced, _kl),
        ("KL in nats, free-running", _free, _kl),
    ):
        drawn = _map(heading, layers, pick, value)
        if drawn is not None:
            figures.append(tag("figure", tag("h3", heading), drawn))
    head = ("layer", "attention", "own error", "error so far", "own KL", "KL so far", "weight not read")
    rows = [
        [
            layer.layer,
            layer.mechanism + ("" if layer.swapped else ", kept"),
            f"{layer.forced_output:.1%}",
            f"{layer.free_output:.1%}",
            _number(_over(layer.forced, _kl)),
            _number(_over(layer.free, _kl)),
            _percent(_over(layer.forced, lambda error: error.missed)),
        ]
        for layer in layers
    ]
    return tag(
        "section",
        tag("h2", "Errors of each layer and head"),
        tag("p", how, css="quiet"),
        tag("div", *figures, css="charts"),
        table(head, rows, numbers=range(2, 7)),
    )


def _forced(layer: LayerError) -> tuple[HeadError, ...]:
    return layer.forced


def _free(layer: LayerError) -> tuple[HeadError, ...]:
    return layer.free


def _output(error: HeadError) -> float | None:
    return error.output


def _kl(error: HeadError) -> float | None:
    return error.kl


def _map(
    heading: str,
    layers: Sequence[LayerError],
    pick: Callable[[LayerError], tuple[HeadError, ...]],
    value: Callable[[HeadError], float | None],
) -> Html | None:
    """Layers by heads; None if no head has the value."""
    values = [[value(error) for error in pick(layer)] for layer in layers]
    if not any(number is not None for row in values for number in row):
        return None
    heads = max(len(row) for row in values)
    shown = [[0.0 if number is None else number for number in row] + [0.0] * (heads - len(row)) for row in values]
    rows, columns = [str(layer.layer) for layer in layers], [str(head) for head in range(heads)]
    return heat_map(heading, rows, columns, shown, across="head", up="layer")


def _over(errors: Sequence[HeadError], value: Callable[[HeadError], float | None]) -> float | None:
    known = [number for number in map(value, errors) if number is not None]
    return sum(known) / len(known) if known else None


# Recall


def _recall(original: RecallReport, swapped: RecallReport) -> Html:
    how = (
        f"The most likely of ten answers; a guess is right in {CHANCE:.0%}. A needle is a number in running text. "
        "Pairs are ten pairs of random tokens, one of which is asked for after a gap. Intervals are Wilson's, 95 %."
    )
    parts = [tag("h2", "Recall"), tag("p", how, css="quiet")]
    beyond = original.beyond_window()
    if beyond is not None and beyond.at_chance:
        parts.append(
            tag(
                "p",
                "The original itself is at chance beyond the window: here recall cannot judge the swap.",
                css="warning",
            )
        )
    if swapped.note:
        parts.append(tag("p", swapped.note, css="quiet"))
    head = ("asked", "distance", "place", "original", "swapped", "trials", "swapped is")
    rows = [
        [
            f"needle at {cell.at:.0%} of the text" if cell.kind == "needle" else f"pairs, {cell.at:g} windows back",
            f"{cell.distance:,}",
            cell.place,
            _share(exact),
            _share(cell),
            cell.count,
            cell.note or ("at chance" if cell.at_chance else "above chance"),
        ]
        for exact, cell in zip(original.cells, swapped.cells)
    ]
    parts.append(table(head, rows, numbers=(1, 3, 4, 5)))
    return tag("section", *parts)


def _share(cell: RecallCell) -> object:
    if not cell.count:
        return "–"
    range_ = tag("small", f" {cell.low:.0%}–{cell.high:.0%}", css="quiet")
    return tag("span", f"{cell.share:.0%}", range_)


# Decoding


def _decoding(original: DecodingCost, swapped: DecodingCost) -> Html:
    said = (
        f"State: the original {original.memory}, swapped {swapped.memory}. "
        f"Time of a token: the original {original.time}, swapped {swapped.time}."
    )
    figures = [
        _cost_chart("State", original, swapped, lambda point: point.state_bytes / 2**20, "MiB", _mebibytes),
        _cost_chart("Time of one more token", original, swapped, lambda point: point.milliseconds, "ms", _three_digits),
    ]
    parts = [tag("h2", "Decoding"), tag("p", said, css="lede")]
    how = "Both models read the same tokens and take turns at every timed one; the least CPU time of a token counts."
    parts.append(tag("p", how, css="quiet"))
    parts.append(tag("div", *(figure for figure in figures if figure), css="charts"))
    points = {point.length: point for point in swapped.points}
    exact = {point.length: point for point in original.points}
    rows = []
    for length in sorted({*points, *exact}):
        pair = (exact.get(length), points.get(length))
        cells = ["–" if point is None else size(point.state_bytes) for point in pair]
        times = ["–" if point is None else f"{point.milliseconds:.3g}" for point in pair]
        rows.append([f"{length:,}", *cells, *times])
    head = ("tokens", "state, original", "state, swapped", "ms, original", "ms, swapped")
    parts.append(table(head, rows, numbers=range(5)))
    parts += [
        tag("p", f"{name}: {cost.note}.", css="quiet")
        for name, cost in (("Original", original), ("Swapped", swapped))
        if cost.note
    ]
    return tag("section", *parts)


def _mebibytes(value: float) -> str:
    return size(value * 2**20)


def _three_digits(value: float) -> str:
    return f"{value:.3g}"


def _cost_chart(
    heading: str,
    original: DecodingCost,
    swapped: DecodingCost,
    value: Callable[[DecodingPoint], float],
    unit: str,
    shown: Callable[[float], str],
) -> Html | None:
    lines = []
    for name, kind, cost, dash in (("original", ORIGINAL, original, DASHES[1]), ("swapped", SWAPPED, swapped, "")):
        drawn = [(float(point.length), value(point)) for point in cost.points if value(point) > 0]
        tips = [f"{y:.3g} {unit} at {x:,.0f} tokens" for x, y in drawn]
        lines.append(ChartLine(name, kind, drawn, tips, dash))
    if not any(len(line.points) > 1 for line in lines):
        return None
    across = ChartAxis("tokens read", lambda value: f"{value / 1024:g}K" if value % 1024 == 0 else f"{value:g}", True)
    up = ChartAxis("" if unit == "MiB" else unit, shown, factors=True, left=66)
    return tag("figure", tag("h3", heading), curves(lines, across, up, heading, width=460, height=300))


# Encoders


def _encoder(report: SwapReport) -> Html:
    head = ("length", "tokens", "texts", "mean cosine", "interval", "least", "compared with", "masked tokens", "")
    rows = []
    for point in report.encoder:
        masked = "–"
        if point.masked is not None:
            found = point.masked
            masked = (
                f"agree {found.agree:.1%} ({found.low:.1%}–{found.high:.1%}) of {found.count:,}; "
                f"right: original {found.original:.1%}, swapped {found.swapped:.1%}"
            )
        rows.append(
            [
                f"{point.times}×",
                f"{point.length:,}",
                point.texts,
                "–" if point.cosine is None else f"{point.cosine.mean:.4f}",
                "–" if point.cosine is None else _interval(point.cosine, ".4f"),
                _number(point.least, ".4f"),
                point.against,
                masked,
                point.note,
            ]
        )
    words = "Sentence vectors of both models for the same texts, at their length and at four times that length."
    return tag(
        "section",
        tag("h2", "Sentence vectors"),
        tag("p", words, css="quiet"),
        table(head, rows, numbers=range(1, 6)),
    )


def _interval(estimate: Estimate, how: str = "+.3f") -> str:
    if estimate.low is None or estimate.high is None:
        return "–"
    return f"{estimate.low:{how}} to {estimate.high:{how}}"


def _number(value: float | None, how: str = ".3f") -> str:
    return "–" if value is None or not isfinite(value) else f"{value:{how}}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


__all__ = ["swap_page", "write_swap_page"]
