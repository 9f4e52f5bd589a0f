"""Every registered mechanism in every form that the audit looks at, with inputs for it."""

from typing import Any

import torch
from torch import Tensor

from longspan.attention import registry
from longspan.attention.base import Attention
from longspan.audit.subjects import MechanismSubject
from longspan.audit.targets import resolve

SUBJECTS = [subject for name in registry.names() for subject in resolve(name) if isinstance(subject, MechanismSubject)]


def identity(subject: MechanismSubject) -> str:
    return f"{subject.name}-{subject.form.replace(', ', '-')}"


class Inputs:
    """Leaves for q, k, v and the streams; a mechanism that shares projections gets one leaf for them."""

    def __init__(self, subject: MechanismSubject, *, length: int, dtype: torch.dtype, batch: int = 2) -> None:
        sample = subject.sample(batch, length, seed=3, dtype=dtype)
        leaves: dict[int, Tensor] = {}

        def leaf(x: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x
            return leaves.setdefault(id(x), x.detach().clone().requires_grad_())

        shared = {"k": "q"} if "k" not in subject.module.projects else {}
        if "q" not in subject.module.projects:
            shared = {"q": "v", "k": "v"}
        self.tensors = {name: leaf(sample[shared.get(name, name)]) for name in sample}
        self.leaves = list(leaves.values())
        self.streams = {name: x for name, x in self.tensors.items() if name not in "qkv"}
        self.mask = torch.ones(batch, length, dtype=torch.bool)
        self.mask[0, length - length // 3 :] = False

    def to(self, device: str) -> "Inputs":
        self.tensors = {name: x.detach().to(device) for name, x in self.tensors.items()}
        self.mask = self.mask.to(device)
        return self

    def heads(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.tensors["q"], self.tensors["k"], self.tensors["v"]

    def run(self, call: Any, *, masked: bool = False, cast: torch.dtype | None = None) -> Tensor:
        """`call` is a mechanism, or its `reference`; `cast` rounds what it reads."""
        given = {name: x.to(cast) if cast and x.is_floating_point() else x for name, x in self.tensors.items()}
        if given["q"] is not given["v"] and self.tensors["q"] is self.tensors["v"]:
            given["q"] = given["v"]
        if self.tensors["k"] is self.tensors["q"]:
            given["k"] = given["q"]
        streams = {name: given[name] for name in self.streams}
        out: Tensor = call(given["q"], given["k"], given["v"], streams=streams, key_mask=self.mask if masked else None)
        return out


def trained(subject: MechanismSubject, dtype: torch.dtype) -> Attention:
    """A copy in evaluation mode whose parameters need gradients."""
    return subject.fresh().module.to(dtype)
