"""What the tests of the arena share: real data, where there is any."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def data() -> Path:
    """The folder of data sets; without one the test says so."""
    if "LONGSPAN_DATA" not in os.environ:
        pytest.skip("LONGSPAN_DATA names no folder of data sets")
    return Path(os.environ["LONGSPAN_DATA"])
