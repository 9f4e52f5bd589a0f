"""Who takes part, with which options, and who may be compared."""

import pytest
import torch

from longspan.arena import settings
from longspan.arena.models import registry as arena_models
from longspan.arena.tasks import registry as arena_tasks
from longspan.attention import registry
from longspan.errors import UnknownName


def test_every_mechanism_takes_part():
    names = arena_models.names()
    assert set(registry.names()) - {"softmax"} | {"dense", "lstm", "gru"} == set(names)
    assert "naive" not in names and "naive" in arena_models.names("speed")
    kinds = {arena_models.find(name).kind for name in names}
    assert kinds == {"dense", "fixed pattern", "memory", "learned pattern", "low rank", "kernel", "recurrent"}


def test_names():
    assert arena_models.find("transformer") is arena_models.find("dense") is arena_models.find("softmax")
    with pytest.raises(UnknownName, match="did you mean 'performer'"):
        arena_models.find("perfomer")


@pytest.mark.parametrize("setting", settings.SETTINGS)
def test_every_model_has_options_for_every_task_of_a_setting(setting: str):
    """Options are checked against the length when they are made; the largest models are not built for it."""
    lengths = {"listops": 2000, "text": 1000, "retrieval": 4000, "image": 1024, "pathfinder": 1024, "pathx": 16384}
    for task, preset in settings.SETTINGS[setting].items():
        assert task in arena_tasks.TASKS
        grid = {"image": (32, 32), "pathfinder": (32, 32), "pathx": (128, 128)}.get(task)
        for name in arena_models.names("speed"):
            made = arena_models.options(
                name, preset.sizes(name), length=lengths.get(task, 128), vocabulary=257, classes=10, grid=grid
            )
            assert made.norm_position == "pre" and made.query_bias is False and made.hidden_dropout == made.dropout


@pytest.mark.parametrize("task", arena_tasks.TASKS)
def test_every_task_has_the_options_that_settings_give_it(task: str):
    for table in settings.SETTINGS.values():
        if task in table:
            arena_tasks.build(task, table[task].task)


def test_images_are_read_as_rows_and_columns():
    sizes = settings.find("released", "image").shell
    for name in ("axial", "image_local"):
        made = arena_models.options(name, sizes, length=1024, vocabulary=256, classes=10, grid=(32, 32))
        assert made.pool == "mean" and made.max_length == 1024
        model = arena_models.build(name, {**sizes, "layers": 2}, length=64, vocabulary=256, classes=10, grid=(8, 8))
        assert model(torch.randint(0, 256, (2, 64))).shape == (2, 10)
    made = arena_models.options("window", sizes, length=1024, vocabulary=256, classes=10, grid=(32, 32))
    assert made.pool == "cls" and made.max_length == 1025


def test_more_than_a_tenth_above_the_base_is_flagged():
    assert arena_models.flag(1.10) is None
    assert "1.24 times" in (arena_models.flag(1.24) or "")
    sizes, needs = settings.find("tiny", "listops").shell, {"length": 41, "vocabulary": 17, "classes": 10}
    base = arena_models.parameters(arena_models.build("dense", sizes, **needs))
    ratios = {
        name: arena_models.parameters(arena_models.build(name, sizes, **needs)) / base for name in arena_models.names()
    }
    assert {name for name, ratio in ratios.items() if arena_models.flag(ratio)} == {"memory_compressed", "inducing"}


def test_settings_are_found_by_name():
    assert settings.find("released", "listops").training.train_options(10, 0).optimizer.beta2 == 0.98
    with pytest.raises(UnknownName, match="did you mean 'tiny'"):
        settings.find("tny", "listops")
    with pytest.raises(UnknownName, match="has no task 'listop'"):
        settings.find("tiny", "listop")
    own = settings.find("released_sizes", "pathfinder")
    assert own.sizes("linformer")["layers"] == 1 and own.sizes("dense")["layers"] == 4
