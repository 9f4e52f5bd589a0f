"""docs/families.md says of every family what was tried on it, and it is still so."""

from pathlib import Path

import pytest

from benchmarks.family_table import PAGE as TEXT
from benchmarks.family_table import row
from longspan.hub import families

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_every_family_has_a_row():
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")][1:]
    missing = "write the page again: python -m benchmarks.family_table > docs/families.md"
    assert rows == families.names(), missing


@pytest.mark.slow
@pytest.mark.parametrize("name", families.names()[::3])
def test_a_row_is_what_is_measured(name: str):
    assert row(name) in PAGE.read_text().splitlines()


def test_the_text_around_the_rows_is_that_of_the_benchmark():
    before, after = TEXT.split("ROWS")
    page = PAGE.read_text()
    assert page.startswith(before) and page.endswith(after)
