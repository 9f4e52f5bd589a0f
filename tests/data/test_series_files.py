"""Tables of series: which columns are found, which dates are read, and what is said of bad rows."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from longspan.data.series_files import Columns, Spacing, complete, future_dates, read, split_future
from longspan.errors import InvalidInput


def table(folder: Path, text: str, name: str = "series.csv", **columns: object):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return read(path, Columns(**columns))  # type: ignore[arg-type]


def test_columns_are_found(tmp_path: Path) -> None:
    found = table(tmp_path, "name,when,price,sold\na,2020-01-01,1.5,3\nb,2020-01-02,2,4\n")
    assert found.columns.date == "when" and found.columns.values == ("price",) and found.columns.inputs is None
    assert found.values.tolist() == [[1.5], [2.0]] and found.spacing == Spacing(time=timedelta(1))
    found = table(tmp_path, "when;price;sold\n01.02.2020;1.000,5;3\n02.02.2020;2;4\n", decimal=",", inputs=("sold",))
    assert found.values.tolist() == [[1000.5], [2.0]] and found.inputs.tolist() == [[3.0], [4.0]]
    found = table(tmp_path, '{"t": "2020-01-01", "v": 1}\n{"t": "2020-01-02", "v": null}\n', "series.jsonl")
    assert found.columns.values == ("v",) and np.isnan(found.values[1, 0])
    found = table(tmp_path, "v\tw\n1\t2\n3\t4\n", "series.tsv", date="", values=("w", "v"))
    assert found.dates is None and found.values.tolist() == [[2.0, 1.0], [4.0, 3.0]]


@pytest.mark.parametrize(
    ("dates", "first", "date_format"),
    [
        (["2020-02-01", "2020-02-02"], datetime(2020, 2, 1), None),
        (["2020-02-01T10:00", "2020-02-01T11:00"], datetime(2020, 2, 1, 10), None),
        (["2020-02-01 10:00:00+02:00", "2020-02-01 11:00:00+02:00"], datetime(2020, 2, 1, 10), None),
        (["01.02.2020", "02.02.2020"], datetime(2020, 2, 1), "%d.%m.%Y"),
        (["31/01/2020", "01/02/2020"], datetime(2020, 1, 31), "%d/%m/%Y"),
        (["01/31/2020 08:30", "02/01/2020 08:30"], datetime(2020, 1, 31, 8, 30), "%m/%d/%Y %H:%M"),
        (["01/02/2020", "02/02/2020", "03/02/2020", "04/02/2020"], datetime(2020, 2, 1), "%d/%m/%Y"),  # evenly spaced
        (["2020-11", "2020-12", "2021-01"], datetime(2020, 11, 1), "%Y-%m"),
    ],
)
def test_formats_are_guessed(tmp_path: Path, dates: list[str], first: datetime, date_format: str | None) -> None:
    found = table(tmp_path, "date,v\n" + "".join(f"{day},1\n" for day in dates))
    assert found.dates is not None and found.dates[0] == first and found.columns.date_format == date_format
    assert found.gaps == 0


BAD = {
    "a date that is none": (
        "date,v\n2020-01-01,1\n2020-01-32,2\n",
        {},
        r"series\.csv, line 3: date is '2020-01-32', which is no date that can be read; give date_format",
    ),
    "another format": (
        "date,v\n1.2.2020,1\n",
        {"date": "date", "date_format": "%Y-%m-%d"},
        r"line 2: date is '1\.2\.2020', which is no date that can be read; the format is %Y-%m-%d",
    ),
    "dates that go back": (
        "date,v\n2020-01-02,1\n2020-01-01,2\n",
        {},
        r"line 3: the date 2020-01-01 comes after a later date; sort the rows",
    ),
    "a date twice": ("date,v\n2020-01-01,1\n2020-01-01,2\n", {}, r"line 3: the date 2020-01-01 occurs twice"),
    "two readings": (
        "date,v\n01/02/2020,1\n",
        {},
        r"dates such as '01/02/2020' may be %d/%m/%Y or %m/%d/%Y; give date_format",
    ),
    "no dates": ("a,v\nx,1\n", {}, r'line 2: no column reads as dates; name it by date, or give date = ""'),
    "text": ("date,v\n2020-01-01,1\n2020-01-02,many\n", {}, r"line 3: v must be a number, not 'many'"),
    "a comma": ('date,v\n2020-01-01,1\n2020-01-02,"1,5"\n', {}, r"line 3: v must be .* give decimal = \",\""),
    "infinity": ("date,v\n2020-01-01,inf\n", {"values": ("v",)}, r"line 2: v must be a number, not 'inf'"),
    "no column": ("date,v\n2020-01-01,1\n", {"values": ("w",)}, r"series\.csv has no column 'w': did you mean 'v'"),
    "no numbers": ("date,v\n2020-01-01,x\n", {}, r"line 2: no column has a number"),
    "no header": ("1,2\n3,4\n", {}, r"line 1: expected the names of the columns, got numbers: '1,2'"),
    "a name twice": ("date,v,v\n2020-01-01,1,2\n", {}, r"line 1: two columns are called 'v'"),
    "nothing": ("", {}, r"series\.csv is empty"),
    "a header only": ("date,v\n", {}, r"series\.csv has no rows"),
    "a short row": ("date,v\n2020-01-01,1\n2020-01-02\n", {}, r"line 3: 1 fields, and 2 columns are expected"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_rows_are_named(tmp_path: Path, case: str) -> None:
    text, columns, message = BAD[case]
    with pytest.raises(InvalidInput, match=message):
        table(tmp_path, text, **columns)


GAPPY = "date,v\n2020-01-01,1\n2020-01-02,2\n2020-01-03,\n2020-01-05,5\n2020-01-06,6\n"


def test_gaps_and_missing_values(tmp_path: Path) -> None:
    found = table(tmp_path, GAPPY)
    assert found.gaps == 1 and found.first_gap == 5
    with pytest.raises(InvalidInput, match=r"series\.csv, line 5: the date is 2 days, 0:00:00 after the one before"):
        complete(found)
    with pytest.raises(InvalidInput, match=r"line 4: v is missing, as in 1 of 5 rows\. Give missing = \"previous\""):
        complete(found, gaps="keep")
    kept = complete(found, gaps="keep", missing="previous")
    assert kept.values[:, 0].tolist() == [1, 2, 2, 5, 6] and kept.filled == 1
    filled = complete(found, gaps="fill", missing="linear")
    assert filled.values[:, 0].tolist() == [1, 2, 3, 4, 5, 6] and filled.filled == 2
    assert filled.dates is not None and filled.dates[3] == datetime(2020, 1, 4) and filled.lines[3] == 0
    with pytest.raises(InvalidInput, match="line 2: the first row has no value to repeat"):
        complete(table(tmp_path, "date,v\n2020-01-01,\n2020-01-02,1\n", values=("v",)), missing="previous")
    stray = "date,v\n2020-01-01,1\n2020-01-02,1\n2020-01-03,1\n2020-01-04 06:00,1\n2020-01-06,1\n"
    with pytest.raises(InvalidInput, match=r"line 5: the date 2020-01-04 06:00:00 is between two"):
        complete(table(tmp_path, stray), gaps="fill", missing="linear")


def test_spacing_and_what_follows(tmp_path: Path) -> None:
    months = table(tmp_path, "date,v\n2020-01-31,1\n2020-02-29,2\n2020-03-31,3\n")
    assert months.spacing == Spacing(months=1) and months.gaps == 0 and months.spacing.season == 12
    assert [day.strftime("%m-%d") for day in future_dates(months, 3)] == ["04-30", "05-31", "06-30"]
    hours = table(tmp_path, "date,v\n2020-01-01 22:00,1\n2020-01-01 23:00,2\n2020-01-02 00:00,3\n")
    assert hours.spacing is not None and hours.spacing.season == 24
    assert future_dates(hours, 2)[-1] == datetime(2020, 1, 2, 2)
    late = table(tmp_path, "date,v\n9999-12-30,1\n9999-12-31,2\n")
    with pytest.raises(InvalidInput, match="1 steps of a day after 9999-12-31 is after the year 9999"):
        future_dates(late, 1)
    assert Spacing(time=timedelta(1)).season == 7 and Spacing(months=3).season == 4


def test_rows_without_values_are_the_future(tmp_path: Path) -> None:
    found = table(tmp_path, "date,v,w\n2020-01-01,1,1\n2020-01-02,,2\n2020-01-03,3,3\n2020-01-04,,4\n", inputs=("w",))
    past, future = split_future(found)
    assert len(past) == 3 and future.inputs.tolist() == [[4.0]] and future.lines == (5,)
    with pytest.raises(InvalidInput, match=r"series\.csv has no value in v"):
        split_future(table(tmp_path, "date,v\n2020-01-01,\n", values=("v",)))
