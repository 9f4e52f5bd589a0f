"""The code and commands of the documentation run, and the pages name everything that exists."""

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from benchmarks import systems
from longspan import models
from longspan.attention import registry
from longspan.audit import resolve, settings
from longspan.cli import recipe_page
from longspan.cli.commands import app
from longspan.cli.main import main
from longspan.registry import PLUGINS

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
PAGES = [page for page in PAGES if not {"_build", "generated"} & set(page.parts)]


def page_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def my_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with the module of docs/adding-a-mechanism.md, as the current one; nothing of it stays behind."""
    module, _ = blocks(ROOT / "docs" / "adding-a-mechanism.md", "python")
    (tmp_path / "my_attention.py").write_text(module, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setattr(registry.ATTENTION, "registered", {})
    yield tmp_path
    sys.modules.pop("my_attention", None)


@pytest.mark.slow
def test_the_mechanism_of_the_page_passes_the_whole_audit(my_attention: Path, capsys: pytest.CaptureFixture[str]):
    (command,) = [
        line for block in blocks(ROOT / "docs" / "adding-a-mechanism.md", "sh") for line in block.splitlines()
    ]
    assert main([*shlex.split(command)[1:], "--json", "--workers", "1"]) == 0
    (certificate,) = json.loads(capsys.readouterr().out)
    assert certificate["verdict"] == "pass"
    checks = {finding["check"] for finding in certificate["findings"]}
    assert {"oracle", "oracle_gradients", "export", "cost", "size"} <= checks


def test_the_mechanism_of_the_page_is_used_by_name_and_loaded_from_a_folder(my_attention: Path):
    _, use = blocks(ROOT / "docs" / "adding-a-mechanism.md", "python")
    names: dict[str, Any] = {}
    exec(compile(use, "adding-a-mechanism.md", "exec"), names)
    ids = torch.randint(256, (2, 40))
    assert names["y"].shape == (2, 100, 64)
    assert torch.equal(names["model"].eval()(ids), names["again"](ids))
    code = "import longspan; print(longspan.load('block-local-encoder').model.options.attention[1].name)"
    environment = {**os.environ, PLUGINS: "my_attention"}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert child.stdout == "block_local\n"
    environment = {**os.environ, PLUGINS: ""}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert child.returncode != 0 and "needs the plugin 'block_local': my_attention:" in child.stderr


def test_the_mechanism_of_the_page_can_move_into_the_package(my_attention: Path, monkeypatch: pytest.MonkeyPatch):
    page = (ROOT / "docs" / "adding-a-mechanism.md").read_text(encoding="utf-8")
    line, small = (re.search(rf'"block_local": ({form}),\n', page).group(1) for form in (r'"[^"]*"', r"\(.*\)"))
    path = eval(line)
    code = (my_attention / "my_attention.py").read_text(encoding="utf-8")
    module = ModuleType(path.partition(":")[0])
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(code.replace("import longspan\n", "").replace("@longspan.register_attention\n", ""), module.__dict__)
    monkeypatch.setitem(registry.ATTENTION.entries, "block_local", path)
    monkeypatch.setitem(settings.SMALL, "block_local", eval(small))
    assert registry.ATTENTION.registered == {}
    assert [subject.module.options.block for subject in resolve("block_local")] == [5]


def test_the_examples_of_the_readme_run():
    for code in blocks(ROOT / "README.md", "python"):
        exec(compile(code, "README.md", "exec"), {})


@pytest.mark.parametrize("page", ["models.md", "decoding.md", "pretrained.md", "hugging-face.md", "inspect.md"])
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


def test_the_systems_of_the_readme_are_those_of_the_code():
    """If this fails, paste the output of `python -m benchmarks.systems` into README.md."""
    assert systems.table() in (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_class_of_the_survey_is_in_the_page_of_mechanisms():
    page = (ROOT / "docs" / "mechanisms" / "README.md").read_text(encoding="utf-8")
    assert [name for name in registry.names() if name != "softmax" and f"`{name}`" not in page] == []


def test_every_command_is_in_its_page():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for command in app:
        if not command.startswith("-"):
            assert f"longspan {command}" in page, f"{command} is not in docs/commands.md"


README_COMMANDS = [
    shlex.split(line, comments=True)[1:]
    for block in blocks(ROOT / "README.md", "sh")
    for line in block.splitlines()
    if line.startswith("longspan ")
]


@pytest.mark.slow
@pytest.mark.parametrize("words", README_COMMANDS, ids=lambda words: words[0])
def test_the_commands_of_the_readme_run(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LONGSPAN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(settings.SMALL, "window", settings.SMALL["window"][:1])  # the contract has the other forms
    (tmp_path / "reviews.csv").write_text("review,stars\n" + "A fine film.,5\nDull.,1\n" * 20, encoding="utf-8")
    assert main(words) == 0
    assert capsys.readouterr().out


def test_the_site_has_every_page(tmp_path: Path):
    """Sphinx reads the pages that index.md and its sub-pages name; a page that none names would be lost."""
    listed = re.findall(r"^([\w/.-]+)$", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"), re.MULTILINE)
    listed += [
        f"reference/{name}".replace("reference/../", "")
        for name in re.findall(r"^([\w/.-]+)$", (ROOT / "docs/reference/README.md").read_text("utf-8"), re.MULTILINE)
    ]
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    pages = {page for page in pages if not page.startswith(("_build", "reference/generated"))} - {"index"}
    assert pages - set(listed) == set()


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path):
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "longspan swap" in (tmp_path / "reference" / "generated" / "commands.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_links_lead_somewhere(page: Path):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_commands_of_the_page_have_flags_that_exist(page: Path):
    for block in blocks(page, "sh"):
        for line in block.replace("\\\n", " ").splitlines():
            for command in re.findall(r"(?:^|\| )(longspan [^|>]*)", line):
                words = shlex.split(command, comments=True)[1:]
                if words[0] not in ("train", "resume") and "…" not in command:
                    app.parse_args(words, exit_on_error=False, print_error=False)


def test_the_architecture_names_functions_that_exist():
    source = ROOT / "src" / "longspan"
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)`\s+`([\w.]+)`", page)
    assert len(named) > 40
    wrong = [f"{path}: {name}" for path, name in named if not defines(source / path, name)]
    assert wrong == []
    paths = [path for path in re.findall(r"`([\w/]+/[\w/]+\.py)`", page) if not path.startswith("tests/")]
    assert [path for path in paths if not (source / path).exists()] == []


def defines(path: Path, name: str) -> bool:
    """Whether a file defines a class, a function, or a method `Class.name`."""
    nodes: Any = ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
    for part in name.split("."):
        found = [node for node in nodes if getattr(node, "name", None) == part]
        if not found:
            return False
        nodes = getattr(found[0], "body", [])
    return True


def test_the_architecture_names_every_room():
    source = ROOT / "src" / "longspan"
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {path.parent.name for path in source.rglob("*.py") if path.parent != source}
    assert sorted(room for room in rooms if f"{room}/" not in page) == []
    assert sorted(path.name for path in source.glob("[a-z]*.py") if path.name not in page) == []


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_the_prose_of_the_page_fits_and_stands_alone(page: Path):
    text = page.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    assert [line for line in prose.splitlines() if len(line) > 100 and not line.lstrip().startswith(("|", "!["))] == []
    assert [word for word in ("shared/data", "shared/spec", "spec, section", "(spec:") if word in text] == []


def test_the_keys_of_recipes_are_those_of_the_code():
    """If this fails: python -m longspan.cli.recipe_page > docs/recipe-keys.md"""
    assert (ROOT / "docs" / "recipe-keys.md").read_text(encoding="utf-8") == recipe_page.page()
