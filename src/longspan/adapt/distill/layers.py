"""Which layers of a teacher a student starts from and is compared with, and the copy of their weights."""

from collections.abc import Sequence

import torch
from torch import nn

from longspan.errors import InvalidOption, Unsupported
from longspan.models.base import Model
from longspan.nn.stack import Body, Stack


def body_of(model: nn.Module) -> Body:
    """The stack of layers of a model that has exactly one."""
    bodies = [module for module in model.modules() if isinstance(module, Body)]
    if len(bodies) != 1:
        raise Unsupported(f"layers are compared and copied in models with one stack; this one has {len(bodies)}")
    return bodies[0]


def stack_of(model: nn.Module) -> Stack:
    body = body_of(model)
    if not isinstance(body, Stack):
        raise Unsupported(f"layers are copied between plain stacks of blocks, not from or to a {type(body).__name__}")
    return body


def spread(student: int, teacher: int) -> tuple[int, ...]:
    """Evenly spaced layers of the teacher, first and last included: 0, 2, 4, 7, 9, 11 for 6 of 12 (DistilBERT)."""
    if student > teacher:
        raise InvalidOption(f"the student has {student} layers, more than the teacher's {teacher}; give layers")
    if student == 1:
        return (0,)
    return tuple(round(layer * (teacher - 1) / (student - 1)) for layer in range(student))


def compared(student: int, teacher: int) -> tuple[int, ...]:
    """The number of teacher layers below the states that each student layer's output is compared with."""
    return tuple(max(1, round((layer + 1) * teacher / student)) for layer in range(student))


def check_layers(layers: Sequence[int], student: int, teacher: int) -> None:
    if len(layers) != student:
        raise InvalidOption(f"layers names {len(layers)} layers of the teacher, but the student has {student}")
    for layer in layers:
        if not 0 <= layer < teacher:
            raise InvalidOption(f"layers are numbered 0 to {teacher - 1} in the teacher; there is no layer {layer}")


@torch.no_grad()
def start_from(student: Model, teacher: Model, layers: Sequence[int] | None = None) -> list[str]:
    """Copies the teacher's embeddings, heads and the given layers into the student; the names that were copied.

    A weight is copied if it has the same name and shape in both, so the student may have another mechanism. Where
    several layers of a student share a block, the first one decides.
    """
    mine, theirs = stack_of(student), stack_of(teacher)
    chosen = spread(len(mine.order), len(theirs.order)) if layers is None else tuple(layers)
    check_layers(chosen, len(mine.order), len(theirs.order))
    source, copied = teacher.state_dict(), []
    prefix = next(name for name, module in student.named_modules() if module is mine) + ".blocks."
    other = next(name for name, module in teacher.named_modules() if module is theirs) + ".blocks."
    renamed: dict[int, int] = {}
    for layer, from_layer in zip(mine.order, chosen):
        renamed.setdefault(layer, theirs.order[from_layer])
    for name, tensor in student.state_dict().items():
        known = name
        if name.startswith(prefix):
            number, _, rest = name.removeprefix(prefix).partition(".")
            known = f"{other}{renamed[int(number)]}.{rest}"
        if known in source and source[known].shape == tensor.shape:
            tensor.copy_(source[known])
            copied.append(name)
    if not any(name.startswith(prefix) for name in copied):
        raise Unsupported("no weight of the teacher's layers fits the student; give initialise = false")
    return copied


__all__ = ["body_of", "check_layers", "compared", "spread", "stack_of", "start_from"]
