"""The recipe of a student: the teacher's own shape with some options changed, and the teacher beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from longspan import config
from longspan.errors import InvalidOption
from longspan.hub.load_checkpoint import load
from longspan.models.base import Model
from longspan.train.recipe import Recipe

OF_TASK = ("vocabulary", "tasks")  # they follow from the task's data
OF_LABELS = ("task", "labels", "names", "symmetric")  # of a head


def student_table(teacher: Model, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The [model] table of a model like the teacher, with changed options."""
    if teacher.adapter is not None:
        raise InvalidOption(f"the teacher has an adapter ({teacher.adapter.name}); merge it, or give the whole model")
    options = {name: value for name, value in config.plain(teacher.options).items() if name not in OF_TASK}
    heads: Sequence[Mapping[str, Any]] = config.plain(teacher.options).get("tasks") or ()
    head = {name: value for name, value in heads[0].items() if name not in OF_LABELS} if len(heads) == 1 else {}
    known = {name: value for name, value in {**options, **changes}.items() if value is not None}
    shape = {name: value for name, value in head.items() if value is not None}
    return {"name": teacher.name, **known, **({"head": shape} if shape else {})}


def student_recipe(recipe: Recipe, teacher: str, changes: Mapping[str, Any], distill: Mapping[str, Any]) -> Recipe:
    """A recipe whose model is a student of `teacher`: `changes` are options of the model."""
    table = student_table(load(teacher).model, changes)
    return replace(recipe, model=table, extras={**recipe.extras, "distill": {**distill, "teacher": teacher}})


__all__ = ["student_recipe", "student_table"]
