"""Guesses of columns: by name first, then by content; each says why."""

from pathlib import Path

from longspan.data.text.columns import Guess, guess_columns
from longspan.data.text.tables import TableRow

ROLES = {"text": "text", "label": "label"}


def table(*rows: dict[str, str]) -> list[TableRow]:
    return [TableRow(Path("a.csv"), number, row) for number, row in enumerate(rows, start=2)]


def test_expected_names_come_before_usual_ones() -> None:
    rows = table({"sentence": "a b", "Text": "c", "label": "x", "class": "y"})
    assert guess_columns(rows, ROLES) == {
        "text": Guess("Text", "a usual name"),
        "label": Guess("label", "its name"),
    }


def test_without_a_known_name_the_longest_is_the_text_and_the_fewest_values_the_label() -> None:
    rows = table(*({"a": str(n), "b": f"something longer {n}", "c": "ja" if n % 2 else "nein"} for n in range(10)))
    assert guess_columns(rows, ROLES) == {
        "text": Guess("b", "the longest texts, 18 characters on average"),
        "label": Guess("c", "2 different values in 10 rows"),
    }


def test_a_role_that_no_column_fits_has_none() -> None:
    rows = table(*({"text": "x", "note": f"every one is different {n}"} for n in range(10)))
    assert guess_columns(rows, ROLES) == {"text": Guess("text", "its name")}
    assert guess_columns([], ROLES) == {}
