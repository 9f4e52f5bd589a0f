"""A mechanism and tasks from outside the package, used everywhere a built-in one is."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import longspan
from longspan.arena.models import registry as arena_models
from longspan.arena.tasks.registry import TASKS as ARENA_TASKS
from longspan.attention.registry import ATTENTION
from longspan.cli.main import main
from longspan.errors import InvalidInput
from longspan.models import build, load
from longspan.registry import PLUGINS

PLUGIN = '''
"""Attention to the token before, and a task that needs no more."""

from dataclasses import dataclass

import numpy as np

from longspan import config
from longspan.arena.tasks.examples import LabelledSequences, Splits
from longspan.arena.tasks.registry import ArenaTask
from longspan.attention.mechanisms.window import WindowAttention
from longspan.config import option


class Neighbour(WindowAttention):
    name = "neighbour"

    @dataclass(frozen=True, kw_only=True)
    class Options(WindowAttention.Options):
        window: int = option(2, "keys that are read", low=1)


class First(ArenaTask):
    """Which token is the first?"""

    name, title, generated = "first", "First token", True

    @dataclass(frozen=True, kw_only=True)
    class Options(config.Options):
        length: int = option(8, "tokens of a text", low=1)

    def splits(self, place, seed=0):
        draw = np.random.default_rng(seed)

        def some(count, name):
            tokens = draw.integers(1, 5, (count, self.options.length)).astype(np.uint8)
            starts = np.arange(count + 1, dtype=np.int64) * self.options.length
            return LabelledSequences(tokens.ravel(), starts, tokens[:, 0].astype(np.int64) - 1, name)

        parts = {"train": some(256, "train"), "held_out": some(64, "held out"), "test": some(64, "test")}
        return Splits(**parts, vocabulary=5, classes=4, length=self.options.length, padded=False)

    def baselines(self, splits):
        return {"majority": 0.3}
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "outside_plugin.py").write_text(PLUGIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PLUGINS, "")
    for table in (ATTENTION, ARENA_TASKS):
        monkeypatch.setattr(table, "registered", {})
    monkeypatch.delitem(sys.modules, "outside_plugin", raising=False)
    yield tmp_path
    sys.modules.pop("outside_plugin", None)


def longspan_in(folder: Path, *arguments: str, plugins: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, PLUGINS: plugins}
    command = [sys.executable, "-m", "longspan", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def test_a_model_with_a_plugin_is_saved_and_loaded(folder: Path) -> None:
    ATTENTION.adopt("outside_plugin:Neighbour")
    torch.manual_seed(0)
    model = build("decoder", vocabulary=7, width=8, layers=1, heads=2, hidden=8, attention="neighbour").eval()
    model.save(folder / "model")
    ids = torch.tensor([[1, 2, 3]])
    assert json.loads((folder / "model" / "config.json").read_text())["plugins"] == {
        "neighbour": "outside_plugin:Neighbour"
    }
    assert torch.equal(load(folder / "model")(ids), model(ids))

    code = (
        "import torch; from longspan.models import load; print(load('model')(torch.tensor([[1, 2, 3]])).sum().item())"
    )
    trusting = {**os.environ, PLUGINS: "outside_plugin"}
    child = subprocess.run([sys.executable, "-c", code], cwd=folder, env=trusting, capture_output=True, text=True)
    assert float(child.stdout) == pytest.approx(model(ids).sum().item(), abs=1e-5), child.stderr


def test_a_folder_says_which_plugin_it_lacks(folder: Path) -> None:
    """Nothing that lies in the current folder is imported because a file names it."""
    ATTENTION.adopt("outside_plugin:Neighbour")
    build("decoder", vocabulary=7, width=8, layers=1, heads=2, hidden=8, attention="neighbour").save(folder / "model")
    (folder / "outside_plugin.py").write_text("raise SystemExit('imported')")
    found = longspan_in(folder, "show", "model")
    assert found.returncode == 2, found.stderr
    assert (
        "model needs the plugin 'neighbour': outside_plugin:Neighbour is a plugin that is not installed" in found.stderr
    )
    assert "imported" not in found.stderr


def test_layers_by_path(folder: Path) -> None:
    os.environ[PLUGINS] = "outside_plugin"
    layer = longspan.MultiheadAttention(8, 2, attention="outside_plugin:Neighbour", window=3)
    assert layer.mechanism.options.window == 3


def test_an_arena_of_plugins_runs_in_processes(folder: Path) -> None:
    found = longspan_in(
        folder,
        *("arena", "--tasks", "outside_plugin:First", "--models", "dense,outside_plugin:Neighbour", "--seeds", "1"),
        *("--budget", "16s", "--no-speed", "--out", "arena", "--workers", "1"),
    )
    assert found.returncode == 0, found.stdout + found.stderr
    records = [json.loads(line) for line in (folder / "arena" / "results.jsonl").read_text().splitlines()]
    assert {(record["cell"]["task"], record["cell"]["model"], record["state"]) for record in records} == {
        ("first", "dense", "done"),
        ("first", "neighbour", "done"),
    }
    assert (folder / "arena" / "report.html").is_file()


def test_the_plugins_of_an_arena_are_sent_to_a_ray_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sent: dict[str, str] = {}

    class NoRunner:
        def __init__(self, *, environment: dict[str, str], **_: object) -> None:
            sent.update(environment)
            raise InvalidInput("no cluster here")

    monkeypatch.setattr("longspan.arena.runs.ray_cluster.RayRunner", NoRunner)
    names = ("--tasks", "outside_plugin:First", "--models", "outside_plugin:Neighbour")
    assert main(["arena", *names, "--no-speed", "--runner", "ray", "--out", "arena"]) == 2
    assert capsys.readouterr().err == "longspan: no cluster here\n"
    assert sent == {PLUGINS: f"outside_plugin:First={folder},outside_plugin:Neighbour={folder}"}


@pytest.mark.slow
def test_a_worker_of_ray_reads_its_plugins_from_what_it_was_sent(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    from longspan.arena.runs.cell import Cell
    from longspan.arena.runs.ray_cluster import RayRunner
    from longspan.arena.runs.runner import CellFinished

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    monkeypatch.delenv(PLUGINS)  # so that the workers of Ray do not inherit it
    environment = {PLUGINS: f"outside_plugin:First={folder},outside_plugin:Neighbour={folder}"}
    cells = [Cell(task="first", model=model, steps=2) for model in ("dense", "neighbour")]
    events = list(RayRunner(processors=2, environment=environment).run(cells))
    records = [event.record for event in events if isinstance(event, CellFinished)]
    assert [(record.state, record.error) for record in records] == [("done", None)] * 2
    assert {record.cell.model for record in records} == {"dense", "neighbour"}


def test_a_profile_and_an_audit_by_path(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--lengths", "64", "--heads", "2", "--head-dim", "8", "--repeats", "1", "--json"]
    assert main(["profile", "--mechanisms", "outside_plugin:Neighbour", *arguments]) == 0
    assert "neighbour" in capsys.readouterr().out
    assert "neighbour" in arena_models.names()


def test_a_recipe_lists_its_plugins(folder: Path) -> None:
    from longspan.train import recipe

    (folder / "recipe.toml").write_text(
        'plugins = ["outside_plugin:Neighbour"]\n[task]\nname = "language"\nset = "generated"\nlength = 16\nbatch = 4\n'
        '[model]\nname = "decoder"\nwidth = 8\nlayers = 1\nheads = 2\nhidden = 8\nattention = "neighbour"\n'
        "[train]\nsteps = 1\n"
    )
    trainer = recipe.begin(recipe.read(folder / "recipe.toml"), folder / "run", data=None)
    assert any(type(part).__name__ == "Neighbour" for part in trainer.model.modules())
    kept = tomllib.loads((folder / "run" / "config.toml").read_text())
    assert kept["plugins"] == ["outside_plugin:Neighbour"]
    (folder / "bad.toml").write_text('plugins = ["nowhere_at_all"]\n')
    with pytest.raises(InvalidInput, match=r"bad\.toml needs the plugin nowhere_at_all: there is no module"):
        recipe.read(folder / "bad.toml")
