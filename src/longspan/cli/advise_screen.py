"""The printed answer of `longspan advise`: the choice, the ranking, what was ruled out and why, and the code."""

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from longspan.cli.tables import short_bytes
from longspan.cli.terminal import Console

if TYPE_CHECKING:
    from longspan.cli.advise import Quality
    from longspan.measure.advise import Advice, RankedChoice

FIRST = 5  # choices shown without --all


def print_advice(
    console: Console, advice: "Advice", elsewhere: dict[int, str], quality: "Quality | None", *, every: bool = False
) -> None:
    console.print("ranked by time on this machine, not by quality", markup=False)
    console.print(_requirements(advice), markup=False)
    console.print(_verdict(advice), style="bold", markup=False)
    if advice.choices:
        console.print()
        console.print(_ranking(advice, every))
        for line in _notes(advice, elsewhere, quality, every):
            console.print(line, markup=False)
    if advice.ruled_out:
        console.print("\nruled out", markup=False)
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 2), pad_edge=False)
        for name, reason in advice.ruled_out.items():
            table.add_row(f"  {name}", Text(reason))
        console.print(table)
    if advice.choices:
        _print_code(console, advice.choices[0], suggest_arena=quality is None or not quality.users_run)


def _requirements(advice: "Advice") -> str:
    """The requirements in one line, so that the user sees how the flags were understood."""
    q = advice.question
    kinds = {
        "training": "training (forward and backward)",
        "forward": "inference (forward only)",
        "decode": "decoding (a step of one token)",
    }
    size = f"{q.length:,} tokens" + (" before it" if q.decode else "")
    size += f" attending to {q.keys:,} others" if q.keys is not None else ""
    words = [kinds[q.kind], size]
    words += ["causal"] * (q.causal and not q.decode) + ["padding"] * q.padding
    threads = f"{q.threads} thread{'s' * (q.threads > 1)}"
    words += [f"batch {q.batch}", f"{q.heads} heads of {q.head_dim}", threads]
    if advice.room is not None:
        whose = "free on this machine" if q.memory is None else "allowed"
        words.append(f"{short_bytes(advice.room)} {whose}")
    return ", ".join(words)


def _verdict(advice: "Advice") -> str:
    from longspan.measure.advise import EXACT

    if not advice.choices:
        return "no suitable mechanism fits; allow more memory, or reduce the sizes"
    best = advice.choices[0]
    if best.mechanism == EXACT:
        return f"use {EXACT}: nothing is faster than exact attention here"
    about = "about " if best.estimated_from or best.exact_estimated else ""
    if best.faster is None:
        return f"use {best.mechanism}: the fastest that fits"
    gain = f"{about}{best.faster:.3g} times as fast as exact attention"
    return f"use {best.mechanism}: {gain}" + (", which does not fit" if EXACT in advice.ruled_out else "")


def _ranking(advice: "Advice", every: bool) -> Table:
    judged = any(choice.accuracy is not None for choice in advice.choices)
    heads = ["", "", "ms", "µs/token", "× exact", "state" if advice.question.decode else "peak"]
    heads += ["accuracy"] * judged
    rows = [
        ([str(rank), choice.mechanism, *_metrics(choice, judged)], choice.order)
        for rank, choice in enumerate(advice.choices, 1)
        if every or rank <= FIRST or (judged and choice in advice.front)
    ]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for head in heads:
        table.add_column(head, justify="right" if head else "left", no_wrap=True)
    table.add_column("order")
    for cells, order in rows:
        table.add_row(*cells, order)
    return table


def _metrics(choice: "RankedChoice", judged: bool) -> list[str]:
    about = "≈ " if choice.estimated_from else ""
    against = "≈ " if choice.estimated_from or choice.exact_estimated else ""
    cells = [
        f"{about}{_three(1e3 * choice.seconds)}",
        _three(1e6 * choice.per_token),
        "" if choice.faster is None else f"{against}{_three(choice.faster)}",
        "" if choice.memory is None else f"{about}{short_bytes(choice.memory)}",
    ]
    if judged:
        front = " *" if choice.accuracy is not None and choice.behind is None else "  "
        cells.append("–  " if choice.accuracy is None else f"{100 * choice.accuracy:.1f}{front}")
    return cells


def _notes(advice: "Advice", elsewhere: dict[int, str], quality: "Quality | None", every: bool) -> list[str]:
    from longspan.measure.advise import TIE

    lines, hidden = [], len(advice.choices) - FIRST
    if hidden > 0 and not every:
        lines.append(f"{hidden} more with --all")
    tied = [choice.mechanism for choice in advice.choices if choice.tied]
    if len(tied) > 1:
        lines.append(f"equally fast within {TIE:.0%}: {', '.join(tied)}; sorted exact first, then by memory")
    guessed = sorted({choice.estimated_from for choice in advice.choices if choice.estimated_from})
    for lengths in guessed:
        lines.append(f"≈ estimated from {' and '.join(f'{length:,}' for length in lengths)} tokens")
    exact = next((c.faster for c in advice.choices if c.exact_estimated and not c.estimated_from), None)
    if exact is not None:
        lines.append("≈ in × exact: the time of exact attention is an estimate")
    if quality is not None:
        lines += _quality(advice, quality)
    if elsewhere:
        chosen = "; ".join(f"{length:,}: {name}" for length, name in elsewhere.items())
        lines.append(f"best at other lengths measured before: {chosen}")
    return lines


def _quality(advice: "Advice", quality: "Quality") -> list[str]:
    front = " – ".join(choice.mechanism for choice in advice.front)
    lines = [] if quality.users_run else [f"accuracy from the record, not measured here: {quality.source}"]
    lines += [f"* Pareto front, from fastest to most accurate (mean of {', '.join(quality.tasks)}): {front or 'none'}"]
    behind = [f"{choice.mechanism} ({choice.behind})" for choice in advice.choices if choice.behind is not None]
    without = [choice.mechanism for choice in advice.choices if choice.accuracy is None]
    if behind:
        lines.append(f"dominated by one that is no slower and no less accurate: {', '.join(behind)}")
    if without:
        lines.append(f"no accuracy known: {', '.join(without)}")
    return [*lines, "accuracies are those of the arena's models at the arena's sizes, not yours"]


def _print_code(console: Console, best: "RankedChoice", suggest_arena: bool) -> None:
    from longspan.attention import describe
    from longspan.measure import usage

    console.print(f"\n{best.mechanism}: {describe(best.mechanism)['summary']}", markup=False)
    for remark in best.remarks:
        console.print(f"  {remark}", markup=False)
    console.print()
    console.print(usage.python(best.case), markup=False, soft_wrap=True)
    line = usage.recipe(best.case)
    if line is not None:
        console.print(f"\nin a recipe, under [model]: {line}", markup=False, soft_wrap=True)
    if suggest_arena and best.mechanism != "softmax":
        models = f"dense,{best.mechanism}"
        console.print(f"to measure its accuracy: longspan arena --models {models}, then --quality FOLDER here")


def _three(number: float) -> str:
    """Three significant digits, without a power of ten."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


__all__ = ["print_advice"]
