"""Build a case: a mechanism, or one of the two dense baselines, ready to be called."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from longspan.attention import build
from longspan.attention.base import Attention, Shape, readable
from longspan.errors import InvalidOption, Unsupported
from longspan.measure.case import FUSED, NAIVE, Case
from longspan.measure.naive import Naive
from longspan.nn.multihead import MultiHead

GLOBALS = 16  # global tokens, for mechanisms that have them
CHUNK = 4096  # tokens read at a time before decoding


class Subject:
    """A call with its inputs, and the tensors it computes gradients for."""

    def __init__(
        self,
        run: Callable[..., Tensor],
        inputs: tuple[Tensor, ...],
        module: nn.Module | None = None,
        learned: tuple[Tensor, ...] = (),
    ) -> None:
        self.run, self.inputs, self.module, self.learned = run, inputs, module, learned

    def forward(self) -> None:
        """A forward pass in evaluation mode, or in training mode if there is dropout."""
        if self.module is not None:
            self.module.train(any(getattr(module, "dropout", 0.0) for module in self.module.modules()))
        with torch.no_grad():
            self.run(*self.inputs)

    def backward(self) -> None:
        """Forward and backward, with gradients of the inputs and the weights."""
        if self.module is not None:
            self.module.train()
        out = self.run(*self.inputs)
        torch.autograd.backward(out, torch.ones_like(out))
        for leaf in (*self.inputs, *self.learned):
            leaf.grad = None


class Decoding:
    """Decodes one token per call, after a text that was read.

    After `room` tokens it starts again at the end of that text, so that the length stays about the same.
    """

    def __init__(self, mechanism: Attention, past: Mapping[str, Tensor], room: int, key_mask: Tensor | None) -> None:
        self.mechanism, self.room = mechanism.eval(), room
        self.state = mechanism.start(past["q"].shape[0])
        with torch.inference_mode():
            for begin in range(0, past["q"].shape[2], CHUNK):
                seen = None if key_mask is None else key_mask[:, begin : begin + CHUNK]
                self._read(_cut(past, begin, begin + CHUNK), seen)
        self.token, self.read, self.steps = _cut(past, 0, 1), self.state, 0

    @property
    def bytes(self) -> int:
        """Bytes of the decoding state."""
        return self.read.bytes

    def step(self) -> None:
        if self.steps == self.room:
            self.state, self.steps = self.read, 0
        with torch.inference_mode():
            self._read(self.token, None)
        self.steps += 1

    def _read(self, tokens: Mapping[str, Tensor], key_mask: Tensor | None) -> None:
        streams = {name: tensor for name, tensor in tokens.items() if name not in ("q", "k", "v")}
        q, k, v = (tokens[name] for name in ("q", "k", "v"))
        _, self.state = self.mechanism.extend(q, k, v, self.state, key_mask=key_mask, streams=streams)


class Cache:
    """The same for dense attention: keys and values in a preallocated buffer."""

    def __init__(self, attend: Callable[..., Tensor], past: int, k: Tensor, v: Tensor) -> None:
        self.attend, self.past, self.k, self.v, self.end = attend, past, k, v, past

    @property
    def bytes(self) -> int:
        return 2 * self.k[:, :, : self.past].numel() * self.k.element_size()

    def step(self) -> None:
        if self.end == self.k.shape[2]:
            self.end = self.past
        with torch.inference_mode():
            token = self.k[:, :, :1]
            self.k[:, :, self.end] = token[:, :, 0]
            self.v[:, :, self.end] = token[:, :, 0]
            self.end += 1
            self.attend(token, self.k[:, :, : self.end], self.v[:, :, : self.end], self.end)


@dataclass(frozen=True)
class Ready:
    """A case that can be run: the call to time, and the declared exponent of the length."""

    call: Callable[[], object]
    exponent: float
    state: int | None = None  # bytes of the decoding state


def ready(case: Case) -> Ready:
    """Builds a case; raises `Unsupported` if its mechanism cannot run it."""
    if case.kind == "decode":
        return _decoding(case)
    if case.kind not in ("forward", "training"):
        raise InvalidOption(f"a case is of the kind forward, training or decode, not {case.kind!r}")
    built = subject(case)
    exponent = float(built.module.exponent) if isinstance(built.module, Attention) else 2.0
    return Ready(built.forward if case.kind == "forward" else built.backward, exponent)


def subject(case: Case, *, dropout: float = 0.0, layer: bool = False) -> Subject:
    """Builds a forward and backward pass; a `layer` includes projections and their gradients."""
    torch.manual_seed(0)
    keys = case.length if case.keys is None else case.keys
    q = _noise(case, case.length)
    k, v = (_noise(case, keys) for _ in range(2))
    mask = _key_mask(case, keys)
    if case.mechanism == FUSED:
        return Subject(partial(scaled_dot_product_attention, **_fused(case, keys, mask)), (q, k, v))
    mechanism = _mechanism(case, max(case.length, keys), dropout)
    if layer:
        multi_head = MultiHead(case.heads * case.head_dim, mechanism)
        hidden = torch.randn(case.batch, case.length, case.heads * case.head_dim, requires_grad=True)
        return Subject(partial(multi_head, key_mask=mask), (hidden,), multi_head, tuple(multi_head.parameters()))
    streams = _streams(case, mechanism, case.length, keys)
    learned = [tensor for tensor in streams.values() if tensor.requires_grad]
    learned += [weight for weight in mechanism.parameters() if weight.requires_grad]
    inputs = _projected(mechanism, q, k, v)
    return Subject(partial(mechanism, key_mask=mask, streams=streams), inputs, mechanism, tuple(learned))


def _decoding(case: Case) -> Ready:
    if case.keys is not None:
        raise Unsupported("decoding continues its own text: leave out keys, the length of another one")
    torch.manual_seed(0)
    room, mask = 16 + case.length // 8, _key_mask(case, case.length)
    with torch.no_grad():
        q, k, v = (_noise(case, case.length + room).detach() for _ in range(3))
        if case.mechanism in (NAIVE, FUSED):
            cache = Cache(_dense_step(case, mask, room), case.length, k, v)
            return Ready(cache.step, 1.0, cache.bytes)
        mechanism = _mechanism(case, case.length + room, 0.0, causal=True)
        streams = {
            name: tensor.detach() for name, tensor in _streams(case, mechanism, case.length, case.length).items()
        }
        past = dict(zip(("q", "k", "v"), _projected(mechanism, *(tensor[:, :, : case.length] for tensor in (q, k, v)))))
        decoding = Decoding(mechanism, {**past, **streams}, room, mask)
    # Work that grows as n^p over a whole text grows as n^(p-1) for each token of it.
    return Ready(decoding.step, mechanism.exponent - 1, decoding.bytes)


def _dense_step(case: Case, mask: Tensor | None, room: int) -> Callable[..., Tensor]:
    """A function that attends from one query to the first keys of a buffer."""
    seen = None if mask is None else torch.nn.functional.pad(mask, (0, room), value=True)
    naive = Naive(Shape(heads=case.heads, head_dim=case.head_dim)).eval()

    def attend(q: Tensor, k: Tensor, v: Tensor, end: int) -> Tensor:
        keep = None if seen is None else seen[:, :end]
        if case.mechanism == NAIVE:
            out: Tensor = naive(q, k, v, key_mask=keep)
            return out
        return scaled_dot_product_attention(q, k, v, attn_mask=None if keep is None else keep[:, None, None])

    return attend


def _mechanism(case: Case, longest: int, dropout: float, *, causal: bool | None = None) -> Attention:
    causal = case.causal if causal is None else causal
    sizes = {"heads": case.heads, "head_dim": case.head_dim, "max_length": longest}
    if case.mechanism == NAIVE:
        return Naive(Shape(**sizes), causal=causal, dropout=dropout)
    return build(case.mechanism, **sizes, causal=causal, dropout=dropout, **case.options)


def _fused(case: Case, keys: int, mask: Tensor | None) -> dict[str, Any]:
    """Arguments of torch's fused attention; causal with padding needs an explicit n×n mask."""
    if case.causal and keys != case.length:
        raise Unsupported(f"causal attention needs as many queries as keys, not {case.length} and {keys}")
    if mask is None:
        return {"is_causal": case.causal}
    return {"attn_mask": readable(case.length, keys, True, mask, mask.device) if case.causal else mask[:, None, None]}


def _noise(case: Case, length: int) -> Tensor:
    return torch.randn(case.batch, case.heads, length, case.head_dim, requires_grad=True)


def _key_mask(case: Case, keys: int) -> Tensor | None:
    return (torch.arange(keys) < keys * 9 // 10).expand(case.batch, keys) if case.padding else None


def _projected(mechanism: Attention, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v; a mechanism without projections for some of them gets others in their place."""
    if "k" in mechanism.projects:
        return q, k, v
    return (q, q, v) if "q" in mechanism.projects else (v, v, v)


def _streams(case: Case, mechanism: Attention, length: int, keys: int) -> dict[str, Tensor]:
    """The further inputs (streams) of a mechanism, except ids, which are optional."""
    makers: dict[str, Callable[[], Tensor]] = {
        "heads": lambda: _noise(case, length),
        "hidden": lambda: torch.randn(case.batch, length, case.heads * case.head_dim, requires_grad=True),
        "mask": lambda: (torch.arange(keys) % max(1, keys // GLOBALS) == 0).expand(case.batch, keys),
    }
    return {stream.name: makers[stream.kind]() for stream in mechanism.streams if stream.kind != "ids"}


def _cut(sample: Mapping[str, Tensor], begin: int, end: int) -> dict[str, Tensor]:
    """Positions from `begin` up to `end`: the third axis of heads, the second of other tensors."""
    return {
        name: tensor[:, :, begin:end] if tensor.dim() == 4 else tensor[:, begin:end] for name, tensor in sample.items()
    }


__all__ = ["Decoding", "Ready", "Subject", "ready", "subject"]
