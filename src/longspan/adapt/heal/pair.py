"""The two models of a healing run: the teacher, and the student whose attention was swapped."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from longspan import config, hub
from longspan.data import Tokenizer
from longspan.errors import InvalidInput, Unsupported
from longspan.hub import Pretrained
from longspan.models.base import CausalModel, Model, TextStates
from longspan.models.folder import unique
from longspan.nn.multihead import MultiHead
from longspan.nn.stack import Stack

# Options that a swap may change; all others must be the teacher's.
FREE = {"attention", "max_length", "rotary_scaling", "rotary_base"}


@dataclass
class Pair:
    """A teacher and its student; `layers` have another attention than the teacher's."""

    teacher: Model
    student: Model
    tokenizer: Tokenizer
    layers: list[int]
    teacher_hash: str
    student_hash: str
    source: Pretrained  # the student as loaded, for the files beside its weights
    dtype: torch.dtype  # of the student's folder

    @property
    def causal(self) -> bool:
        return isinstance(self.student, CausalModel)

    def mixers(self, model: Model) -> list[MultiHead]:
        """The attention of each layer."""
        return [block.mixer for block in _stack(model, "model").layers()]

    def own_parameters(self) -> dict[str, nn.Parameter]:
        """The parameters of the swapped mechanisms themselves: features, gates, mixes."""
        inside = {id(p) for layer in self.layers for p in self.mixers(self.student)[layer].mechanism.parameters()}
        return {name: p for name, p in self.student.named_parameters() if id(p) in inside}


def read_pair(folder: Path | str, teacher: Path | str) -> Pair:
    """Loads both in float32 and checks that one is the other with swapped attention."""
    student = hub.load(folder)
    dtype = student.model.dtype
    original = hub.load(teacher, dtype=torch.float32)
    student.model = student.model.to(torch.float32)
    _check_texts(student.model, folder)
    _check_texts(original.model, teacher)
    _check_options(student.model, folder, original.model, teacher)
    tokenizer = _check_tokenizer(student.tokenizer, folder, original.tokenizer, teacher)
    layers = _swapped(student.model, original.model)
    if not layers:
        raise InvalidInput(
            f"{folder} has the attention of {teacher} in every layer, so there is nothing to heal; "
            "give a folder that `longspan swap` wrote"
        )
    for model in (student.model, original.model):
        model.eval().requires_grad_(False)
    return Pair(
        original.model,
        student.model,
        tokenizer,
        layers,
        weights_hash(original.model),
        weights_hash(student.model),
        student,
        dtype,
    )


def weights_hash(model: nn.Module) -> str:
    """The sha256 of all weights and buffers of a model, with their names."""
    return tensors_hash(unique(model))


def tensors_hash(tensors: Mapping[str, Tensor]) -> str:
    """The sha256 of named tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _stack(model: Model, where: Path | str) -> Stack:
    stack = getattr(model, "stack", None)
    if not isinstance(stack, Stack):
        raise Unsupported(f"{where} is a {model.name}; heal takes models with one stack of layers: decoder, encoder")
    return stack


def _check_texts(model: Model, where: Path | str) -> None:
    _stack(model, where)
    if not isinstance(model, TextStates) or getattr(model, "reads_source", False):
        raise Unsupported(
            f"{where} is a {model.name}, which gives no states of a text; heal takes decoders and encoders"
        )


def _check_options(student: Model, folder: Path | str, teacher: Model, source: Path | str) -> None:
    if type(student) is not type(teacher):
        raise InvalidInput(f"{folder} is a {student.name} and the teacher {source} a {teacher.name}; give its original")
    ours, theirs = config.plain(student.options), config.plain(teacher.options)
    for name in ours:
        if name not in FREE and ours[name] != theirs[name]:
            raise InvalidInput(
                f"{folder} has {name} = {ours[name]} and the teacher {source} {theirs[name]}: "
                "another architecture; give the model that was swapped"
            )


def _check_tokenizer(
    ours: Tokenizer | None, folder: Path | str, theirs: Tokenizer | None, source: Path | str
) -> Tokenizer:
    if ours is None or theirs is None:
        raise InvalidInput(f"{folder if ours is None else source} has no tokenizer, so texts cannot be read")
    if ours.size != theirs.size or any(ours.token(i) != theirs.token(i) for i in range(ours.size)):
        raise InvalidInput(
            f"{folder} and the teacher {source} have different tokenizers; give the model that was swapped"
        )
    return ours


def _swapped(student: Model, teacher: Model) -> list[int]:
    pairs = zip(_stack(student, "student").layers(), _stack(teacher, "teacher").layers())
    return [
        layer
        for layer, (ours, theirs) in enumerate(pairs)
        if ours.mixer.mechanism.name != theirs.mixer.mechanism.name
        or ours.mixer.mechanism.options != theirs.mixer.mechanism.options
    ]


__all__ = ["Pair", "read_pair", "tensors_hash", "weights_hash"]
