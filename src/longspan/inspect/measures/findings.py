"""What a measure found: values for programs, and figures, tables and sentences for a page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CAUTION = (
    "Weights show where a head reads, not why the model answers. Read maps and rankings beside the ablation results."
)
COUNTING = "Layers, heads and positions are counted from 0."


@dataclass(frozen=True)
class Line:
    """A line of a chart; a control is drawn dashed and grey. `band` has the low and high end at each point."""

    name: str
    points: Sequence[tuple[float, float]]
    control: bool = False
    band: Sequence[tuple[float, float]] = ()


@dataclass(frozen=True)
class LineChart:
    title: str
    across: str
    up: str
    lines: Sequence[Line]
    log_across: bool = False
    log_up: bool = False


@dataclass(frozen=True)
class HeatMap:
    """Numbers as shades: rows by columns. `diverging` centres the colours at 0."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Sequence[float]]
    across: str = "head"
    up: str = "layer"
    diverging: bool = False


@dataclass(frozen=True)
class Scatter:
    """Named points in a plane, coloured by group."""

    title: str
    points: Sequence[tuple[float, float]]
    names: Sequence[str]
    groups: Sequence[str]
    across: str = ""  # titles of the axes; without them the plane has no axes with numbers
    up: str = ""
    joined: str = ""  # the group whose points a line of steps joins, such as a Pareto front
    labels: Sequence[str] = ()  # written beside the points; names are shown on hovering only


@dataclass(frozen=True)
class Grid:
    """A table; numbers are shown with four digits."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[object]]


Figure = LineChart | HeatMap | Scatter | Grid


@dataclass(frozen=True)
class Finding:
    """The result of a measure, or the reason why it does not apply (`skipped`)."""

    name: str
    title: str
    sentence: str = ""  # what it says, in one plain sentence
    control: str = ""  # what it was compared with
    figures: Sequence[Figure] = ()
    values: Mapping[str, Any] = field(default_factory=dict)  # every number, for JSON
    skipped: str = ""

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        if self.skipped:
            return {"title": self.title, "skipped": self.skipped}
        return {"title": self.title, "sentence": self.sentence, "control": self.control, **self.values}


__all__ = ["CAUTION", "COUNTING", "Figure", "Finding", "Grid", "HeatMap", "Line", "LineChart", "Scatter"]
