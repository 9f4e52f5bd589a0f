"""docs/coverage.md: a row for everything that the lectures show, and nothing in it that does not exist."""

import re
from pathlib import Path

import pytest

from longspan.cli.commands import app

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip("|\n").split(" | ")]
    for line in (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8").splitlines()
    if re.match(r"\| \d+ \|", line)
]


def quoted(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def test_the_rows_are_numbered_without_gaps():
    assert [int(row[0]) for row in ROWS] == list(range(1, 205))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_what_a_row_names_exists(row: list[str]):
    _, _, modules, commands, tests, _ = row
    assert all((ROOT / "src" / "longspan" / module).exists() for module in quoted(modules)), modules
    assert all((ROOT / "tests" / test).is_file() for test in quoted(tests)), tests
    for command in quoted(commands):
        check_command(command)
    assert quoted(modules) and quoted(commands) and quoted(tests)


def check_command(text: str) -> None:
    """Fails if a command, its recipe or one of its flags does not exist."""
    words = text.split()
    assert words[0] == "longspan" and words[1] in app, text
    command = app[words[1]]
    if len(words) > 2 and words[2] in command:
        command = command[words[2]]
    if words[1] == "train" and len(words) > 2 and words[2].islower() and words[2][0] != "-":
        assert (ROOT / "src" / "longspan" / "recipes" / f"{words[2]}.toml").is_file(), f"there is no recipe {words[2]}"
    for flag in (word for word in words if word.startswith("--") and "." not in word):
        names = {name for argument in command.assemble_argument_collection() for name in argument.names}
        assert flag in names, f"{text}: {sorted(names)}"
