"""Read time series from tables: dates, the values to predict and other numbers, with errors that name file and line.

Dates are guessed from `FORMATS` unless their format is given. Rows must be in order of time, without repetitions. The
spacing is the most frequent step between dates, or a number of months.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import numpy as np

from longspan.data.text import tables, text_files
from longspan.errors import InvalidInput, InvalidOption, suggest

DAYS = ("%Y/%m/%d", "%Y%m%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%b %d %Y", "%d %b %Y", "%Y-%m")
FORMATS = (None, *DAYS, *(f"{day} {time}" for day in DAYS for time in ("%H:%M", "%H:%M:%S")))  # None: ISO 8601
ABSENT = ("", "na", "n/a", "nan", "null", "none", "-")  # what stands for a missing value
COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)(,\d*)?([eE][+-]?\d+)?")  # 1.234,5
MISSING = ("refuse", "previous", "linear")
GAPS = ("refuse", "keep", "fill")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns are read and how; what is None is guessed from the file."""

    date: str | None = None  # "": rows have no dates
    date_format: str | None = None
    values: tuple[str, ...] | None = None
    inputs: tuple[str, ...] | None = None  # none unless given
    decimal: str = "."


@dataclass(frozen=True)
class Spacing:
    """The step from one row to the next: a number of months, or a length of time."""

    months: int = 0
    time: timedelta = timedelta(0)

    def after(self, day: datetime, steps: int, *, of_month: int | None = None) -> datetime:
        """The date `steps` later; a day that a month does not have becomes its last one (`of_month`: which day)."""
        try:
            if not self.months:
                return day + steps * self.time
            month = day.month - 1 + steps * self.months
            first = day.replace(year=day.year + month // 12, month=month % 12 + 1, day=1)
        except (OverflowError, ValueError):
            raise InvalidInput(f"{steps} steps of {self} after {day.date()} is after the year 9999") from None
        length = (Spacing(1).after(first, 1) - first).days if (of_month or day.day) > 28 else 31
        return first.replace(day=min(of_month or day.day, length))

    def __str__(self) -> str:
        if self.months:
            return "a month" if self.months == 1 else f"{self.months} months"
        return "a day" if self.time == timedelta(1) else str(self.time)

    @property
    def season(self) -> int:
        """The rows of the usual season: a year of months, a week of days, a day of shorter steps."""
        if self.months:
            return max(1, 12 // self.months)
        cycle = timedelta(7) if self.time >= timedelta(1) else timedelta(1)
        return max(1, round(cycle / self.time)) if self.time else 1


@dataclass(frozen=True)
class SeriesTable:
    """A series: what was read, and which columns it was read from."""

    path: Path
    columns: Columns  # all of them known now
    lines: tuple[int, ...]  # of each row; 0: filled in
    dates: tuple[datetime, ...] | None
    values: np.ndarray  # (rows, values); NaN: missing
    inputs: np.ndarray  # (rows, inputs); NaN: missing
    spacing: Spacing | None = None
    filled: int = 0  # missing values that were filled in
    gaps: int = 0  # steps that differ from the spacing
    first_gap: int = 0  # the line after the first one

    def __len__(self) -> int:
        return len(self.values)


def read(path: Path, columns: Columns, *, encoding: str | None = None) -> SeriesTable:
    """The series of a file (.csv, .tsv, .jsonl, also packed), with NaN where a value is missing."""
    header = header_of(path, encoding)
    rows = list(tables.rows(path, header, encoding=encoding))
    for name in [columns.date, *(columns.values or ()), *(columns.inputs or ())]:
        if name and name not in header:
            raise InvalidInput(f"{path} has no column {name!r}: {suggest(name, header)}")
    columns = _dated(path, rows, header, columns)
    if columns.values is None:
        numeric = [name for name in header if name != columns.date and _is_numeric(rows[0], name, columns.decimal)]
        numeric = [name for name in numeric if name not in (columns.inputs or ())]
        if not numeric:
            raise InvalidInput(f"{rows[0].where}: no column has a number; name the columns to predict by values")
        columns = replace(columns, values=(numeric[0],))
    assert columns.values is not None
    dates = None
    if columns.date:
        dates = tuple(_date(row, columns) for row in rows)
        _check_order(rows, dates, columns)
    numbers = {
        name: np.array([_number(row, name, columns.decimal) for row in rows], dtype=np.float64)
        for name in (*columns.values, *(columns.inputs or ()))
    }
    values = np.stack([numbers[name] for name in columns.values], 1)
    inputs = [numbers[name] for name in columns.inputs or ()]
    table = SeriesTable(
        path,
        columns,
        tuple(row.line for row in rows),
        dates,
        values,
        np.stack(inputs, 1) if inputs else np.zeros((len(rows), 0)),
    )
    return table if dates is None or len(dates) < 2 else _spaced(table, dates)


def complete(table: SeriesTable, *, missing: str = "refuse", gaps: str = "refuse") -> SeriesTable:
    """The series without missing values and gaps, by these rules.

    `missing`: refuse them, take the previous value, or the line between the neighbours. `gaps`, dates that are not
    evenly spaced: refuse them, keep the rows as if they were, or fill in the missing dates, with missing values.
    """
    if table.gaps and gaps == "refuse":
        raise InvalidInput(
            f"{table.path}, line {table.first_gap}: {_gap(table)}; {table.gaps} of {len(table) - 1} steps differ. "
            'Give gaps = "fill" to add the missing dates, or "keep" to read the rows as if they were evenly spaced'
        )
    if table.gaps and gaps == "fill":
        table = _fill_dates(table)
    absent = np.isnan(table.values).any(1) | np.isnan(table.inputs).any(1)
    if not absent.any():
        return table
    row = int(absent.argmax())
    if missing == "refuse":
        where = f"line {table.lines[row]}" if table.lines[row] else f"the missing date {_spell(table, row)}"
        raise InvalidInput(
            f"{table.path}, {where}: {_absent_name(table, row)} is missing, as in {int(absent.sum())} of {len(table)} "
            'rows. Give missing = "previous" to repeat the value before, or "linear" for the line between neighbours'
        )
    if absent[0] and (missing == "previous" or absent.all()):
        raise InvalidInput(f"{table.path}, line {table.lines[0]}: the first row has no value to repeat; leave it out")
    filled = int(np.isnan(table.values).sum() + np.isnan(table.inputs).sum())
    values, inputs = (_filled(numbers, missing) for numbers in (table.values, table.inputs))
    return replace(table, values=values, inputs=inputs, filled=filled)


def split_future(table: SeriesTable) -> tuple[SeriesTable, SeriesTable]:
    """The rows up to the last value, and those after it, which tell the inputs of the future."""
    known = ~np.isnan(table.values).all(1)
    if not known.any():
        raise InvalidInput(f"{table.path} has no value in {', '.join(table.columns.values or ())}")
    last = len(known) - int(known[::-1].argmax())
    return _rows(table, slice(0, last)), _rows(table, slice(last, None))


def future_dates(table: SeriesTable, count: int) -> list[datetime]:
    """The dates that follow the series."""
    assert table.dates is not None
    spacing = table.spacing or Spacing(time=timedelta(1))
    of_month = max(day.day for day in table.dates[-12:]) if spacing.months else None
    return [spacing.after(table.dates[-1], step, of_month=of_month) for step in range(1, count + 1)]


def format_date(day: datetime, date_format: str | None, *, clock: bool) -> str:
    """A date as the file writes it."""
    if date_format is not None:
        return day.strftime(date_format)
    return day.isoformat(sep=" ") if clock else day.date().isoformat()


def has_clock(dates: Sequence[datetime]) -> bool:
    """Whether any date has a time of day."""
    return any((day.hour, day.minute, day.second) != (0, 0, 0) for day in dates)


def header_of(path: Path, encoding: str | None) -> list[str]:
    """The names of the columns: of the separator that gives most of them."""
    kind = tables.format_of(path)
    if kind not in ("csv", "tsv"):
        return list(next(tables.rows(path, [], encoding=encoding)).fields)
    first = next(text_files.lines(path, encoding), "")
    separators = tables.SEPARATORS if kind == "csv" else ("\t",)
    split = [next(csv.reader([first], delimiter=separator), []) for separator in separators]
    names = [name.removeprefix("\ufeff").strip() for name in max(split, key=len)]
    if not any(names):
        raise InvalidInput(f"{path} is empty: its first line must name the columns")
    if len(set(names)) < len(names):
        twice = next(name for name, count in Counter(names).items() if count > 1)
        raise InvalidInput(f"{path}, line 1: two columns are called {twice!r}")
    if all(parse_number(name, ".") is not None for name in names):
        raise InvalidInput(f"{path}, line 1: expected the names of the columns, got numbers: {first[:60]!r}")
    return names


def _dated(path: Path, rows: Sequence[tables.TableRow], header: Sequence[str], columns: Columns) -> Columns:
    """The column of the dates and their format, guessed if not given."""
    if columns.date == "":
        return columns
    candidates = [columns.date] if columns.date else [name for name in header if name not in (columns.values or ())]
    for name in candidates:
        first = rows[0].fields[name].strip()
        plain = parse_number(first, columns.decimal) is not None and not (len(first) == 8 and first.isdecimal())
        if columns.date is None and plain:
            continue  # a number is not guessed to be a date
        formats: list[str | None] = [columns.date_format] if columns.date_format else _formats(rows, name)
        if formats and _read_date(first, formats[0]) is not None:
            return replace(columns, date=name, date_format=_sharpest(path, rows, name, formats))
        if columns.date is not None:
            raise InvalidInput(_unread(rows[0], name, columns.date_format))
    raise InvalidInput(
        f'{path}, line {rows[0].line}: no column reads as dates; name it by date, or give date = "" for rows without'
    )


def _formats(rows: Sequence[tables.TableRow], name: str) -> list[str | None]:
    """The formats that read all dates or, if there is none, those that read the first one."""
    texts = [row.fields[name].strip() for row in rows]
    first = [each for each in FORMATS if _read_date(texts[0], each) is not None]
    return [each for each in first if all(_read_date(text, each) is not None for text in texts)] or first[:1]


def _sharpest(path: Path, rows: Sequence[tables.TableRow], name: str, formats: list[str | None]) -> str | None:
    """The one format of several that gives dates in order; an error if that does not decide."""
    if len(formats) == 1:
        return formats[0]
    texts = [row.fields[name].strip() for row in rows]
    read = {each: [_read_date(text, each) for text in texts] for each in formats}
    ordered = [each for each, dates in read.items() if all(a < b for a, b in pairwise(dates) if a and b)]
    different = {tuple(read[each]) for each in ordered}
    if len(different) > 1:
        steps = {each: len({b - a for a, b in zip(read[each], read[each][1:]) if a and b}) for each in ordered}
        fewest = min(steps.values())
        ordered = [each for each in ordered if steps[each] == fewest]
        if len({tuple(read[each]) for each in ordered}) > 1:
            spelled = " or ".join(str(each) for each in ordered)
            raise InvalidInput(f"{path}: dates such as {texts[0]!r} may be {spelled}; give date_format")
    return (ordered or formats)[0]


def _read_date(text: str, date_format: str | None) -> datetime | None:
    try:
        day = datetime.fromisoformat(text) if date_format is None else datetime.strptime(text, date_format)
    except ValueError:
        return None
    except Exception as error:  # strptime raises re.error for some formats
        raise InvalidOption(f"date_format {date_format!r} cannot be used: {error}") from None
    return day.replace(tzinfo=None)  # local times of one place


def _date(row: tables.TableRow, columns: Columns) -> datetime:
    assert columns.date is not None
    day = _read_date(row.fields[columns.date].strip(), columns.date_format)
    if day is None:
        raise InvalidInput(_unread(row, columns.date, columns.date_format))
    return day


def _unread(row: tables.TableRow, name: str, date_format: str | None) -> str:
    hint = "give date_format, such as %d.%m.%Y" if date_format is None else f"the format is {date_format}"
    return f"{row.where}: {name} is {row.fields[name][:40]!r}, which is no date that can be read; {hint}"


def _check_order(rows: Sequence[tables.TableRow], dates: Sequence[datetime], columns: Columns) -> None:
    for before, after, row in zip(dates, dates[1:], rows[1:]):
        if after <= before:
            said = format_date(after, columns.date_format, clock=has_clock([before, after]))
            fault = "occurs twice" if after == before else "comes after a later date"
            raise InvalidInput(f"{row.where}: the date {said} {fault}; sort the rows by date, one row for each")


def parse_number(text: str, decimal: str) -> float | None:
    """A finite number with this decimal mark; None: it is not one."""
    text = text.strip()
    if decimal == ",":
        if not COMMA.fullmatch(text):
            return None
        text = text.replace(".", "").replace(",", ".")
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) and "_" not in text else None


def _is_numeric(row: tables.TableRow, name: str, decimal: str) -> bool:
    return parse_number(row.fields[name], decimal) is not None


def _number(row: tables.TableRow, name: str, decimal: str) -> float:
    """A number, or NaN if it is missing."""
    text = row.fields[name].strip()
    if text.lower() in ABSENT:
        return math.nan
    number = parse_number(text, decimal)
    if number is None:
        comma = decimal == "." and parse_number(text, ",") is not None
        hint = 'give decimal = ","' if comma else "leave it empty if it is missing"
        raise InvalidInput(f"{row.where}: {name} must be a number, not {text[:40]!r}; {hint}")
    return number


def _spaced(table: SeriesTable, dates: Sequence[datetime]) -> SeriesTable:
    """The table with its spacing, and how many steps differ from it."""
    steps = [after - before for before, after in pairwise(dates)]
    months = [(b.year - a.year) * 12 + b.month - a.month for a, b in pairwise(dates)]
    same_day = len({day.day for day in dates}) == 1 or all(day.day > 27 for day in dates)
    usual = Counter(steps).most_common(1)[0][0]
    if same_day and min(months) > 0 and timedelta(27) < min(steps) and len(set(steps)) > 1:
        usual_months = Counter(months).most_common(1)[0][0]
        spacing, even = Spacing(months=usual_months), [count == usual_months for count in months]
    else:
        spacing, even = Spacing(time=usual), [step == usual for step in steps]
    gaps = len(even) - sum(even)
    first = table.lines[even.index(False) + 1] if gaps else 0
    return replace(table, spacing=spacing, gaps=gaps, first_gap=first)


def _gap(table: SeriesTable) -> str:
    assert table.dates is not None
    row = table.lines.index(table.first_gap)
    step = table.dates[row] - table.dates[row - 1]
    return f"the date is {step} after the one before, and the spacing is {table.spacing}"


def _fill_dates(table: SeriesTable) -> SeriesTable:
    assert table.dates is not None and table.spacing is not None
    of_month = max(day.day for day in table.dates) if table.spacing.months else None
    index, dates = {day: row for row, day in enumerate(table.dates)}, [table.dates[0]]
    while dates[-1] < table.dates[-1]:
        dates.append(table.spacing.after(table.dates[0], len(dates), of_month=of_month))
        if len(dates) > 100 * len(table):
            raise InvalidInput(f"{table.path}: {_gap(table)}: filling it would take more than {len(dates):,} rows")
    strays = [row for day, row in index.items() if day not in set(dates)]
    if strays:
        raise InvalidInput(
            f"{table.path}, line {table.lines[strays[0]]}: the date {_spell(table, strays[0])} is between two of the "
            f'spacing of {table.spacing}, so gaps cannot be filled; give gaps = "keep"'
        )
    rows = np.array([index.get(day, -1) for day in dates])
    values, inputs = (np.where((rows < 0)[:, None], np.nan, numbers[rows]) for numbers in (table.values, table.inputs))
    lines = tuple(0 if row < 0 else table.lines[row] for row in rows)
    return replace(table, dates=tuple(dates), values=values, inputs=inputs, lines=lines)


def _filled(numbers: np.ndarray, missing: str) -> np.ndarray:
    filled = numbers.copy()
    for column in filled.T:
        absent, rows = np.isnan(column), np.arange(len(column))
        if not absent.any() or absent.all():
            continue
        if missing == "linear":
            column[absent] = np.interp(rows[absent], rows[~absent], column[~absent])
        else:
            column[:] = column[np.maximum.accumulate(np.where(absent, 0, rows))]
    return filled


def _absent_name(table: SeriesTable, row: int) -> str:
    names = [*(table.columns.values or ()), *(table.columns.inputs or ())]
    return names[int(np.isnan(np.concatenate([table.values[row], table.inputs[row]])).argmax())]


def _spell(table: SeriesTable, row: int) -> str:
    assert table.dates is not None
    return format_date(table.dates[row], table.columns.date_format, clock=has_clock(table.dates))


def _rows(table: SeriesTable, which: slice) -> SeriesTable:
    dates = None if table.dates is None else table.dates[which]
    part = replace(table, lines=table.lines[which], dates=dates, values=table.values[which], inputs=table.inputs[which])
    if dates is None or len(dates) < 2:
        return replace(part, gaps=0, first_gap=0)
    return replace(_spaced(part, dates), spacing=table.spacing)


__all__ = [
    "ABSENT",
    "GAPS",
    "MISSING",
    "Columns",
    "SeriesTable",
    "Spacing",
    "complete",
    "format_date",
    "future_dates",
    "has_clock",
    "header_of",
    "parse_number",
    "read",
    "split_future",
]
