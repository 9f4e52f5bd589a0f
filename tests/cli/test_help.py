"""The help of every command: no text of it is lost, and every command has an example."""

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
from cyclopts import App
from tests.train.starting import environment

from longspan.attention.registry import ATTENTION
from longspan.cli import mechanism_table
from longspan.cli.commands import app
from longspan.cli.main import main


def commands(parent: App, *before: str) -> Iterator[tuple[str, ...]]:
    for name in parent:
        if not name.startswith("-"):
            yield (*before, name)
            yield from commands(parent[name], *before, name)


COMMANDS = list(commands(app))


def called(words: tuple[str, ...]) -> App:
    command = app
    for word in words:
        command = command[word]
    return command


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_word_of_the_help_is_lost(words, capsys, monkeypatch):
    """Markdown takes `<mask>` for a tag and drops it, unless it is code."""
    monkeypatch.setenv("COLUMNS", "300")
    assert main([*words, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.replace("│", " ").split())
    command = called(words)
    written = [command.help]
    if command.default_command is not None:
        written += [argument.parameter.help or "" for argument in command.assemble_argument_collection()]
        written[0] = (command.default_command.__doc__ or "").partition("Parameters\n")[0]
    for text in written:
        for word in re.sub(r"[`*]", "", text).split():
            assert word in shown, word


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_has_an_example(words, capsys):
    if called(words).default_command is None:
        return
    main([*words, "--help"])
    assert f"longspan {' '.join(words)}" in capsys.readouterr().out.split("Examples")[1]


def test_the_examples_of_fill_name_both_masks(capsys):
    main(["fill", "--help"])
    assert "as [MASK] or <mask>." in capsys.readouterr().out


def test_no_help_imports_torch():
    """It takes seconds; help must not."""
    program = (
        "import sys\nfrom longspan.cli.main import main\n"
        f"for words in {[(), *COMMANDS]!r}:\n    assert main([*words, '--help']) == 0\n"
        "print(sorted({'torch', 'numpy', 'tokenizers'} & sys.modules.keys()), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment())
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_list_does_not_import_torch():
    program = (
        "import sys\nfrom longspan.cli.main import main\nassert main(['list']) == 0\n"
        "print('torch' in sys.modules, file=sys.stderr)"
    )
    quiet = {key: value for key, value in environment().items() if key != "LONGSPAN_PLUGINS"}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=quiet)
    assert (done.returncode, done.stderr) == (0, "False\n") and "performer" in done.stdout


def test_the_table_of_mechanisms_is_what_the_classes_declare():
    """If this fails, run `python -m longspan.cli.mechanism_table` and paste its output into that file."""
    built_in = [row for row in mechanism_table.rows_of_registry() if row.name in ATTENTION.entries]
    assert list(mechanism_table.BUILT_IN) == built_in
