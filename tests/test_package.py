"""The wheel holds every file that the code reads."""

import tomllib
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[1]


def test_every_data_file_is_in_the_wheel():
    """One that no pattern names would be missing after `pip install`, and nowhere else."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["longspan"]
    files = [path for path in (ROOT / "src" / "longspan").rglob("*") if path.is_file()]
    data = [path for path in files if path.suffix not in (".py", ".pyc")]
    endings = {PurePath(pattern).suffix or pattern for pattern in patterns}
    assert len(data) > 50
    assert [str(path) for path in data if path.suffix not in endings and path.name not in patterns] == []
