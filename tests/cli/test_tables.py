"""Tables lose nothing: whole lines in a pipe, folded cells on a terminal."""

import json
import re

import pytest
from rich.table import Table

from longspan.attention import describe, names
from longspan.cli.main import main
from longspan.cli.tables import output
from longspan.models import catalog
from longspan.models import names as models

LISTS = [["list"], ["list", "--models"], ["list", "--presets"], ["data", "list"], ["show", "routing"], ["show", "gpt2"]]


@pytest.fixture(autouse=True)
def pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)


def test_a_pipe_has_every_line_whole(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in names():
        row = describe(name)
        (line,) = [line for line in lines if line.split()[:1] == [name]]
        assert line.rstrip().endswith(row["paper"]) and f"{row['order']} " in line
    assert main(["list", "--models"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name in models():
        assert any(line.startswith(f"{name} ") and catalog.describe_model(name)["summary"] in line for line in lines)
    assert main(["data", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert main(["data", "list"]) == 0
    out = capsys.readouterr().out
    assert all(row["what"] in out for row in rows)


@pytest.mark.parametrize("width", [24, 47, 80])
@pytest.mark.parametrize("arguments", LISTS, ids=" ".join)
def test_a_terminal_of_any_width_shows_every_character(arguments, width, capsys, monkeypatch):
    assert main(arguments) == 0
    whole = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", str(width))
    assert main(arguments) == 0
    folded = capsys.readouterr().out
    assert max(map(len, folded.splitlines())) <= width
    letters = [sorted(re.sub(r"\s", "", text)) for text in (whole, folded)]
    assert letters[0] == letters[1]


def test_columns_that_stay_whole_fold_where_nothing_else_can(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    table = Table("a", box=None, pad_edge=False)
    table.add_column("b", no_wrap=True)
    table.add_row("x", "abcdefghijklmnopqrstuvwxyz")
    output().print(table)
    assert "".join(capsys.readouterr().out.split()) == "abxabcdefghijklmnopqrstuvwxyz"
