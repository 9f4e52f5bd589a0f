"""Subjects of an audit behind one small interface: longspan mechanisms, and layers and models of any kind.

A sample is a dictionary of tensors with the batch first. Positions are the third axis of a tensor of four, (batch,
heads, length, width), and the second axis of any other. A mask is boolean (batch, length), True: may be read.
"""

import copy
import dataclasses
import math
from abc import ABC, abstractmethod
from typing import Any, Self

import torch
from torch import Tensor, nn

from longspan import config
from longspan.attention.base import Attention, Shape
from longspan.audit.claims import Claims
from longspan.audit.finding import NotMeasured
from longspan.audit.settings import HEAD_DIM, HEADS, LENGTH, LONG_LENGTH, MAX_LENGTH
from longspan.errors import InvalidOption

Sample = dict[str, Tensor]


def positions(tensor: Tensor) -> int:
    """Which axis of a sample's tensor the positions are."""
    return 2 if tensor.dim() == 4 else 1


def cut(sample: Sample, start: int, stop: int) -> Sample:
    """The positions from `start` up to `stop`."""
    return {name: tensor.narrow(positions(tensor), start, stop - start) for name, tensor in sample.items()}


def append(sample: Sample, more: Sample) -> Sample:
    """The positions of both, one behind the other."""
    return {name: torch.cat([tensor, more[name]], dim=positions(tensor)) for name, tensor in sample.items()}


def take(sample: Sample, rows: list[int]) -> Sample:
    """Some rows of the batch."""
    return {name: tensor[rows] for name, tensor in sample.items()}


class AuditSubject(ABC):
    """One module in one form, ready to be measured. Its module is in evaluation mode."""

    scales: tuple[float, ...] = (0.1, 1.0, 100.0)  # of the noise that the perturbations use
    growth_lengths: tuple[int, ...] = (256, 512, 1024)  # between which the order is measured
    long_length: int | None = None  # of the longer samples, where it takes any
    causal_hint: str = ""  # what to try where it turns out not to be causal

    def __init__(
        self, name: str, module: nn.Module, claims: Claims, *, form: str, length: int, dtype: torch.dtype
    ) -> None:
        self.claims = claims
        self.name, self.form = name, form
        self.module = copy.deepcopy(module).eval()  # the caller's module is not changed
        self.length = length  # of a normal sample
        self.dtype = dtype  # in which it is measured

    def fresh(self) -> Self:
        """A copy to work on, so that a module with memory cannot affect the next check."""
        clone = copy.copy(self)
        clone.module = copy.deepcopy(self.module)
        return clone

    @property
    def lengths(self) -> tuple[int, ...]:
        """The lengths to search for leaks: a leak may begin only beyond a window, a block or a table."""
        return (self.length,) if self.long_length is None else (self.length, self.long_length)

    @property
    def compile_lengths(self) -> tuple[int, ...]:
        """The lengths at which it is compiled, one after another: its own, a prime, and multiples of small blocks."""
        return (self.length, 37, 42, 48)

    @property
    def export_lengths(self) -> tuple[int, ...]:
        """The length at which it is exported, and others at which the program must hold."""
        return (self.length, self.length // 2 + 1, self.length - 1, self.length - 7)

    @property
    def same(self) -> float:
        """The largest difference allowed between runs of the same operations, in units of the output's deviation."""
        return 1e-12 if self.dtype == torch.float64 else 1e-5

    @property
    def near(self) -> float:
        """The same for two ways to compute one thing."""
        return 1e-10 if self.dtype == torch.float64 else 1e-4

    @abstractmethod
    def sample(self, batch: int, length: int, seed: int, dtype: torch.dtype | None = None) -> Sample:
        """Inputs drawn by `seed`."""

    @abstractmethod
    def run(self, sample: Sample, mask: Tensor | None = None) -> Tensor:
        """The output, (batch, length, features)."""

    def replace(self, sample: Sample, where: Tensor, seed: int, scale: float = 1.0) -> Sample:
        """Fresh noise of the size `scale` at the positions `where`, (batch, length); booleans stay as they are."""
        batch, length = where.shape
        noise = self.sample(batch, length, seed)
        replaced = {}
        for name, tensor in sample.items():
            if tensor.dtype == torch.bool:
                replaced[name] = tensor
                continue
            fresh = noise[name] * scale if tensor.is_floating_point() else noise[name]
            positions_mask = (
                where[:, None, :, None]
                if tensor.dim() == 4
                else where.reshape(batch, length, *[1] * (tensor.dim() - 2))
            )
            replaced[name] = torch.where(positions_mask, fresh.to(tensor.dtype), tensor)
        return replaced

    def differentiable(self, sample: Sample, mask: Tensor | None = None) -> tuple[Sample, Tensor]:
        """The inputs as leaves of the graph, with positions as in a sample, and the output."""
        leaves = {
            name: tensor.detach().clone().requires_grad_() if tensor.is_floating_point() else tensor
            for name, tensor in sample.items()
        }
        out = self.run(leaves, mask)
        return {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}, out

    def start(self, batch: int) -> Any:
        """The state before the first position."""
        raise NotMeasured(
            f"{self.name} has no known way to read in chunks: no start() and extend(), no key-value cache"
        )

    def extend(self, sample: Sample, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """The output for the next positions, and the state after them; `state` itself must stay good."""
        raise NotMeasured(
            f"{self.name} has no known way to read in chunks: no start() and extend(), no key-value cache"
        )

    def state_bytes(self, state: Any) -> int:
        """The size of the state in bytes."""
        return 0


class MechanismSubject(AuditSubject):
    """An attention mechanism of longspan: q, k, v and the streams it declares, all of them noise."""

    module: Attention
    several_compiled: bool = True  # whether it is compiled at several lengths, which takes seconds

    def __init__(self, mechanism: Attention, *, form: str | None = None, length: int = LENGTH) -> None:
        shown = form if form is not None else _form(mechanism.causal)
        most = mechanism.shape.max_length or math.inf
        length = int(min(length, most))
        super().__init__(
            mechanism.name, mechanism, Claims.of(mechanism), form=shown, length=length, dtype=torch.float64
        )
        self.module.double()
        long_length = int(min(max(LONG_LENGTH, 2 * _largest_option(mechanism) + 2), most))
        self.long_length = long_length if long_length > length else None

    @classmethod
    def build(cls, mechanism: type[Attention], *, causal: bool, options: dict[str, Any], form: str) -> Self:
        """A mechanism at the small sizes of an audit, in one form."""
        return cls(_make(mechanism, causal, options), form=form)

    @property
    def compile_lengths(self) -> tuple[int, ...]:
        # Not a multiple of a block first: torch must not specialise on one at the second length.
        return (37, self.length, 42, 48) if self.several_compiled else (self.length,)

    @property
    def export_lengths(self) -> tuple[int, ...]:
        return (
            100,
            72,
            131,
            200,
        )  # more than a block of 64: torch makes separate programs for one block and for several

    def rebuilt(self, *, max_length: int | None = None, dropout: float = 0.0, seed: int = 1) -> Self:
        """The same mechanism with new weights, and perhaps a longer table or dropout."""
        old = self.module
        shape = old.shape if max_length is None else dataclasses.replace(old.shape, max_length=max_length)
        torch.manual_seed(seed)
        clone = copy.copy(self)
        clone.module = type(old)(shape, old.options, causal=old.causal, dropout=dropout).to(self.dtype).eval()
        return clone

    def cast(self, dtype: torch.dtype) -> Self:
        """The same weights in another precision."""
        clone = self.fresh()
        clone.module, clone.dtype = clone.module.to(dtype), dtype
        return clone

    def sample(self, batch: int, length: int, seed: int, dtype: torch.dtype | None = None) -> Sample:
        generator = torch.Generator().manual_seed(seed)
        shape = self.module.shape
        # Numbers are drawn in float64 and rounded, so that a seed means the same sample in every precision.

        def noise(*sizes: int) -> Tensor:
            return torch.randn(batch, *sizes, generator=generator, dtype=torch.float64)

        widths = {"q": shape.head_dim, "k": shape.head_dim, "v": shape.value_dim}
        heads = {"q": shape.heads, "k": shape.key_heads, "v": shape.key_heads}
        sample = {name: noise(heads[name], length, width) for name, width in widths.items()}
        if "q" not in self.module.projects:
            sample["q"] = sample["v"]
        if "k" not in self.module.projects:
            sample["k"] = sample["q"]
        for stream in self.module.streams:
            if stream.kind in ("heads", "queries"):
                sample[stream.name] = noise(heads[stream.like], length, widths[stream.like])
            elif stream.kind == "hidden":
                sample[stream.name] = noise(length, shape.heads * shape.head_dim)
            elif stream.kind == "ids":
                sample[stream.name] = torch.zeros(batch, length, dtype=torch.int64)  # all ids equal
            else:
                marks = torch.zeros(batch, length, dtype=torch.bool)
                if (
                    not self.module.causal
                ):  # two marked positions, such as global tokens; not if causal, as everyone reads them
                    marks[:, [0, min(5, length - 1)]] = True
                sample[stream.name] = marks
        precision = dtype or self.dtype
        return {name: tensor.to(precision) if tensor.is_floating_point() else tensor for name, tensor in sample.items()}

    def heads(self, sample: Sample, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """The output as the mechanism gives it, (batch, heads, length, width)."""
        streams = self.streams(sample)
        out: Tensor = self.module(sample["q"], sample["k"], sample["v"], key_mask=mask, bias=bias, streams=streams)
        return out

    def streams(self, sample: Sample) -> dict[str, Tensor] | None:
        return {stream.name: sample[stream.name] for stream in self.module.streams if stream.name in sample} or None

    def run(self, sample: Sample, mask: Tensor | None = None) -> Tensor:
        return self.heads(sample, mask).transpose(1, 2).flatten(2)

    def start(self, batch: int) -> Any:
        return self.module.start(batch, dtype=self.dtype)

    def extend(self, sample: Sample, state: Any, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        out, state = self.module.extend(
            sample["q"], sample["k"], sample["v"], state, key_mask=mask, streams=self.streams(sample)
        )
        return out.transpose(1, 2).flatten(2), state

    def state_bytes(self, state: Any) -> int:
        return int(state.bytes)


def _largest_option(mechanism: Attention) -> int:
    """The largest whole number among the options: no window, block or stride is wider."""
    values = [getattr(mechanism.options, item.name) for item in dataclasses.fields(mechanism.options)]
    flat = [number for value in values for number in (value if isinstance(value, tuple) else (value,))]
    return max((number for number in flat if isinstance(number, int)), default=0)


def _form(causal: bool) -> str:
    return "causal" if causal else "bidirectional"


def _make(mechanism: type[Attention], causal: bool, options: dict[str, Any]) -> Attention:
    torch.manual_seed(0)
    shape = Shape(heads=HEADS, head_dim=HEAD_DIM, max_length=MAX_LENGTH)
    built = mechanism(shape, config.make(mechanism.Options, options, mechanism.name), causal=causal)
    # Weights that are initialised to 0 or 1 would hide mistakes in their products.
    for parameter in built.parameters():
        with torch.no_grad():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return built


def forms(mechanism: type[Attention], option_sets: tuple[dict[str, Any], ...]) -> tuple[MechanismSubject, ...]:
    """A mechanism in every form it supports, with every set of options.

    Compiling at several lengths takes seconds: that is done for the first set, in the causal form if there is one.
    """
    subjects = []
    for options in option_sets:
        text = ", ".join(f"{name}={value}".replace(" ", "") for name, value in options.items())
        text = text if len(option_sets) > 1 else ""
        for causal in (False, True):
            if not (mechanism.supports.causal if causal else mechanism.supports.bidirectional):
                continue
            form = f"{_form(causal)}, {text}" if text else _form(causal)
            try:
                subject = MechanismSubject.build(mechanism, causal=causal, options=options, form=form)
            except InvalidOption:
                if causal or not mechanism.supports.causal:
                    raise
                continue  # options of the causal form, such as the first tokens that a window keeps
            subject.several_compiled = options is option_sets[0] and causal == mechanism.supports.causal
            subjects.append(subject)
    return tuple(subjects)
