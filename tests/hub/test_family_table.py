"""docs/families.md says of every family what was tried on it, and it is still so."""

from pathlib import Path

import pytest

from benchmarks.family_table import table
from longspan.hub import families

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_every_family_has_a_row():
    rows = [line.split("`")[1] for line in PAGE.read_text().splitlines() if line.startswith("| `")][1:]
    missing = "write the page again: python -m benchmarks.family_table > docs/families.md"
    assert rows == families.names(), missing


@pytest.mark.slow
def test_the_page_is_what_is_measured():
    assert PAGE.read_text() == table()
