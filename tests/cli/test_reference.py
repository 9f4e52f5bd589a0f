"""The reference is complete: every command, every option of commands, mechanisms and models is in it."""

import re
import subprocess
from pathlib import Path

import pytest
from tests.cli.test_help import COMMANDS, called

from longspan.attention.registry import ATTENTION, describe
from longspan.cli import reference_page
from longspan.cli.main import main
from longspan.models.catalog import describe_model
from longspan.models.registry import MODELS


@pytest.fixture(scope="module")
def commands() -> str:
    return reference_page.commands()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_and_option_is_in_the_reference(words: tuple[str, ...], commands: str):
    name = " ".join(words)
    section = re.split(r"^#+ (?=longspan )", commands, flags=re.MULTILINE)
    (mine,) = [text for text in section if text.startswith(f"longspan {name}\n")]
    command = called(words)
    if command.default_command is None:
        return
    for argument in command.assemble_argument_collection():
        if argument.show and argument.parameter.show is not False:
            assert any(spelling in mine for spelling in argument.names), argument.names


def test_usage_lines_name_longspan_only(commands: str):
    usages = re.findall(r"^```console\n(.*)\n```", commands, flags=re.MULTILINE)
    assert len(usages) == sum(called(words).default_command is not None for words in COMMANDS)
    assert all(usage.startswith("longspan ") and " -m " not in usage for usage in usages)


def test_every_option_of_a_mechanism_and_a_model_is_in_the_reference():
    mechanisms, models = reference_page.mechanisms(), reference_page.models()
    for page, names, facts in ((mechanisms, ATTENTION.entries, describe), (models, MODELS.entries, describe_model)):
        for name in names:
            section = page.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert [option["name"] for option in facts(name)["options"]] == re.findall(r"^\| `(\w+)` \|", section, re.M)


def test_pages_that_did_not_change_are_not_written_again(tmp_path: Path):
    reference_page.write(tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    reference_page.write(tmp_path)
    assert {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == before
    assert sorted(before) == ["commands.md", "mechanisms.md", "models.md"]


def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "longspan.bash"
    script.write_text(capsys.readouterr().out)
    program = f"""
        source {script}
        COMP_WORDS=(longspan sw); COMP_CWORD=1; _longspan; echo "${{COMPREPLY[@]}}"
        COMP_WORDS=(longspan swap --keep); COMP_CWORD=2; _longspan; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["swap", "--keep-worst"]


def test_an_unknown_shell_is_one_line(capsys: pytest.CaptureFixture[str]):
    assert main(["completion", "csh"]) == 2
    assert capsys.readouterr().err.startswith('longspan: Invalid value "csh" for SHELL.')
