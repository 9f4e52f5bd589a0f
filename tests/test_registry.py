"""Plugins by decorator, path and entry point; untrusted ones are not imported."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from longspan import registry as library
from longspan.attention.registry import ATTENTION, build, describe, names
from longspan.errors import InvalidInput, UnknownName
from longspan.registry import PLUGINS, trust

MINE = """
import torch
from longspan.attention.mechanisms.window import WindowAttention
from longspan.attention.registry import ATTENTION

@ATTENTION.register
class Mine(WindowAttention):
    \"\"\"A window of one's own.\"\"\"
    name = "mine_window"

class Plain(WindowAttention):
    name = "plain_window"

class NotAttention:
    name = "nothing"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a plugin, as the current one; nothing of it stays behind."""
    (tmp_path / "my_plugin.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLUGINS, "")
    monkeypatch.setattr(ATTENTION, "registered", {})
    monkeypatch.delitem(sys.modules, "my_plugin", raising=False)
    yield tmp_path
    sys.modules.pop("my_plugin", None)


def test_a_path_is_imported_once_the_user_has_named_it(folder: Path) -> None:
    with pytest.raises(
        UnknownName, match=r"my_plugin:Plain is a plugin that is not installed.*LONGSPAN_PLUGINS=my_plug"
    ):
        ATTENTION.find("my_plugin:Plain")
    assert "my_plugin" not in sys.modules
    trust("my_plugin:Plain")
    assert ATTENTION.find("my_plugin:Plain").name == "plain_window"
    assert os.environ[PLUGINS].split(",")[0] == f"my_plugin:Plain={folder}"


def test_a_class_that_the_user_named_gets_its_own_name(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert ATTENTION.adopt("my_plugin:Plain") == ATTENTION.adopt("my_plugin:Plain") == "plain_window"
    assert build("plain_window", heads=2, head_dim=4).name == "plain_window"
    code = "from longspan.attention.registry import find; print(find('plain_window').__qualname__)"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=elsewhere, check=True)
    assert child.stdout == "Plain\n"


def test_a_decorated_class_is_known_by_its_name_everywhere(folder: Path) -> None:
    trust("my_plugin")
    assert "mine_window" in names()
    assert build("mine_window", heads=2, head_dim=4, window=3).options.window == 3
    assert describe("mine_window")["name"] == "mine_window"
    assert ATTENTION.source("mine_window") == "my_plugin:Mine" and ATTENTION.source("window") is None


def test_a_child_process_knows_the_plugin(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    trust("my_plugin")
    names()
    code = "from longspan.attention.registry import find; print(find('mine_window').__qualname__)"
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=elsewhere, check=True)
    assert child.stdout == "Mine\n"


def test_an_entry_point_of_an_installed_package(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    information = folder / "my_plugin-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: my-plugin\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[longspan.attention]\nplain_window = my_plugin:Plain\n")
    monkeypatch.syspath_prepend(folder)
    importlib.invalidate_caches()
    library._entry_points.cache_clear()
    try:
        assert "plain_window" in names()
        assert build("plain_window", heads=2, head_dim=4).name == "plain_window"
    finally:
        library._entry_points.cache_clear()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_plugin:NotAttention", r"must be a subclass of longspan\.attention\.base\.Attention"),
        ("my_plugin:Missing", "my_plugin has no 'Missing'"),
        ("nowhere_at_all:Mine", "there is no module 'nowhere_at_all'"),
        ("my_plugin:", "a plugin is given as package.module:Name"),
        ("my plugin:Mine", "a plugin is given as package.module:Name"),
    ],
)
def test_what_is_no_plugin_says_why(folder: Path, path: str, message: str) -> None:
    trust(path)
    with pytest.raises((InvalidInput, UnknownName), match=message):
        ATTENTION.find(path)


def test_a_name_that_is_taken(folder: Path) -> None:
    trust("my_plugin")
    names()
    other = type("Other", (ATTENTION.find("window"),), {"name": "mine_window"})
    with pytest.raises(InvalidInput, match="attention 'mine_window' is already registered; give Other another name"):
        ATTENTION.register(other)
    with pytest.raises(InvalidInput, match="attention 'window' is already registered"):
        ATTENTION.register(type("Other", (ATTENTION.find("window"),), {"name": "window"}))


def test_a_plugin_that_fails_to_import(folder: Path) -> None:
    (folder / "broken_plugin.py").write_text("1 / 0\n")
    trust("broken_plugin")
    with pytest.raises(InvalidInput, match="the plugin broken_plugin cannot be imported: ZeroDivisionError"):
        ATTENTION.find("broken_plugin:Mine")
