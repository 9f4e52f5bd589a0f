"""The pages are run: what they show works, and what exists is shown."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

from longspan import models
from longspan.attention import registry
from longspan.audit import audit, settings
from longspan.cli.commands import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_mechanism_of_the_page_passes_the_whole_audit(tmp_path, monkeypatch):
    page = ROOT / "docs" / "adding-a-mechanism.md"
    (code,) = blocks(page, "python")
    path = tmp_path / "block_local.py"
    path.write_text(code, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("longspan.attention.block_local", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "longspan.attention.block_local", module)
    spec.loader.exec_module(module)

    line, small = (re.search(r'"block_local": (.*),', text).group(1) for text in blocks(page, "text")[:2])
    monkeypatch.setitem(registry.ATTENTION.entries, "block_local", eval(line))
    monkeypatch.setitem(settings.SMALL, "block_local", eval(small))
    certificate = audit("block_local")
    assert certificate.passed, certificate.table(failed_only=True)
    assert {"oracle", "oracle_gradients", "export", "cost", "size"} <= {f.check for f in certificate.findings}


def test_the_examples_of_the_readme_run():
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("page", ["models.md", "decoding.md", "pretrained.md"])
def test_the_python_of_the_page_runs(page: str, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for code in blocks(ROOT / "docs" / page, "python"):
        exec(compile(code, page, "exec"), {})


def test_every_kind_of_model_is_in_its_page():
    page = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert [name for name in models.names() if f"`{name}`" not in page] == []


def test_the_python_of_the_audit_page_runs(capsys):
    first, _ = blocks(ROOT / "docs" / "audit.md", "python")
    exec(compile(first, "audit.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "fail" and printed[-1] == "pass"
    assert [line.split()[1].rstrip(":") for line in printed if line.startswith(("FAIL", "not measured"))] == [
        "causal_perturbation",
        "causal_gradient",
        "prefix",
        "training_causal",
    ]


def test_the_families_of_the_readme_are_those_of_the_registry():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    table = readme.partition("| family | names |\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:3]] for line in table.splitlines()[1:]]
    assert {family: re.findall(r"`(\w+)`", names) for family, names in rows} == registry.by_survey_class()
    assert f"{len(registry.names())} mechanisms" in readme


def test_every_command_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in app:
        if not command.startswith("-"):
            assert f"longspan {command}" in readme, f"{command} is not in the README"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_the_page_have_flags_that_exist(page: Path):
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.findall(r"(?:^|\| )(longspan [^|>]*)", line):
                words = shlex.split(command, comments=True)[1:]
                if words[0] not in ("train", "resume") and "…" not in command:
                    app.parse_args(words, exit_on_error=False, print_error=False)
