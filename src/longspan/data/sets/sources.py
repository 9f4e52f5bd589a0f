"""Checksums, addresses and licences of the files of named data sets, read from sources.toml."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class DataSource:
    """Where one file comes from."""

    sha256: str  # of the content, unpacked
    url: str | None = None  # None: read from the folder of data sets only
    member: str | None = None  # the file's name inside an archive


@cache
def sources() -> Mapping[str, DataSource]:
    """The source of each file, by its path in the folder of data sets."""
    return {path: DataSource(**entry) for path, entry in _tables()["files"].items()}


@cache
def terms() -> Mapping[str, str]:
    """The licence of each set and whom it asks to cite, by its folder."""
    return dict(_tables()["terms"])


def _tables() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("sources.toml").read_text(encoding="utf-8"))


__all__ = ["DataSource", "sources", "terms"]
