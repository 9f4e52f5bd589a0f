"""What `longspan inspect` prints: the heads that stand out, the errors, and the steps of a generated text."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from longspan.cli.tables import output

if TYPE_CHECKING:
    from longspan.inspect.records import HeadRecord, ModuleRecord, Record

MOST = 12  # heads in the table
SHOWN = 4  # alternatives of a step


def show(record: "Record", written: Path | None) -> None:
    """A short account of a record."""
    console, model = output(), record.model
    tokens = ", ".join(f"{len(axis)} {name}" for name, axis in record.axes.items())
    console.print(f"{model.name}: {model.kind}, {tokens} tokens", markup=False, soft_wrap=True)
    for module in record.modules:
        if module.standing == "none":
            console.print(f"{module.title} ({module.mechanism}): {module.sentence}", markup=False, soft_wrap=True)
    if record.generated is not None:
        console.print(_steps(record))
    if record.against:
        console.print(_errors(record))
    elif record.generated is None:
        console.print(_heads(record))
    detailed, omitted = len(record.budget.detailed), record.budget.omitted
    if omitted:
        hint = "name heads by --heads, or give --size"
        console.print(f"{detailed} heads have detail, {omitted} only overviews: {hint}", soft_wrap=True)
    for note in record.notes:
        console.print(note, markup=False, soft_wrap=True)
    console.print(record.caution, markup=False, soft_wrap=True)
    if written is not None:
        console.print(f"wrote {written}", markup=False, soft_wrap=True)


def _all_heads(record: "Record") -> list[tuple["ModuleRecord", "HeadRecord"]]:
    return [(module, head) for module in record.modules for head in module.heads]


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    return table


def _heads(record: "Record") -> Table:
    """The heads with the most mass at one place."""
    found = []
    for module, head in _all_heads(record):
        sums = head.sums
        special = {f"on {record.axes[module.keys].tokens[0]}": sums.first} if len(sums.received) else {}
        places = {"previous": sums.previous, "next": sums.next, "itself": sums.self, **special}
        where = max(places, key=lambda name: places[name])
        found.append((places[where], module, head, where))
    found.sort(key=lambda row: -row[0])
    table = _table("head", "reads", "mass", "entropy", "largest")
    for mass, module, head, where in found[:MOST]:
        place = f"{module.title}, head {head.index}"
        numbers = (f"{mass:.3f}", f"{head.sums.entropy.mean():.2f}", f"{head.sums.largest:.3f}")
        table.add_row(place, escape(where), *numbers)
    return table


def _errors(record: "Record") -> Table:
    """The error of each module: mean over its heads, with the control."""
    table = _table("against " + record.against, "KL", "variation", "output", "top-1", "nowhere", "nonsense: variation")
    for module in record.modules:
        differences = [head.difference for head in module.heads if head.difference is not None]
        if not differences:
            continue
        kls = [each.errors.kl for each in differences if each.errors.kl is not None]
        means = [
            sum(getattr(each.errors, name) for each in differences) / len(differences)
            for name in ("variation", "output", "top1", "nowhere")
        ]
        control = sum(each.control.variation for each in differences) / len(differences)
        kl = f"{sum(kls) / len(kls):.3f}" if len(kls) == len(differences) else "-"
        place = f"{module.title} ({module.mechanism})"
        table.add_row(place, kl, *(f"{mean:.3f}" for mean in means), f"{control:.3f}")
    return table


def _steps(record: "Record") -> Table:
    assert record.generated is not None
    table = _table("token", "probability", "led from", "cache", "instead of")
    for step in record.generated.steps:
        own = next(choice for choice in step.choices if choice.id == step.id)
        others = [
            f"{choice.token.strip() or choice.token} {choice.probability:.3f}{' cut' if choice.cut else ''}"
            for choice in step.choices
            if choice.id != step.id
        ]
        led = "-" if step.first_led is None else f"state {step.first_led}"
        cache = "-" if step.cache_bytes is None else f"{step.cache_bytes:,} B"
        table.add_row(
            escape(repr(step.token)[1:-1]), f"{own.probability:.3f}", led, cache, escape(", ".join(others[:SHOWN]))
        )
    return table
