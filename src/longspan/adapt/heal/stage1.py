"""Stage 1, attention transfer: every swapped layer learns the teacher's attention from the teacher's own input.

One forward pass of the teacher gives each layer its queries, keys and values. The layers see nothing of each other,
so that training them together equals training them one by one. Only the parameters of the mechanisms themselves
(feature maps, gates, mixes) are trained: against the teacher's weights (Zhang et al. 2024, Hedgehog, section 4.2), or
its outputs (Zhang et al. 2024, LoLCATs, section 3.2).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.adapt.heal.options import HealOptions
from longspan.adapt.heal.pair import Pair
from longspan.adapt.heal.parts import has_window, window_of, with_window
from longspan.adapt.heal.schedule import draw_width, window_off
from longspan.attention.base import Attention, share_heads
from longspan.errors import Unsupported

TINY = 1e-9  # weights below it count as this much in the logarithm
PAIRS = 2**21  # weights in memory at once: larger tensors are slower, since each is mapped anew


@dataclass
class Heard:
    """What a layer's attention received in the teacher, and what it gave."""

    q: Tensor
    k: Tensor
    v: Tensor
    given: dict[str, Any]
    out: Tensor
    states: Tensor


class Transfer:
    """Stage 1 of a pair; `layers` are those of the pair unless given."""

    name = "1"

    def __init__(self, pair: Pair, options: HealOptions, layers: Sequence[int] | None = None) -> None:
        self.pair, self.options = pair, options
        mixers = pair.mixers(pair.student)
        self.layers = [
            layer
            for layer in (pair.layers if layers is None else layers)
            if any(True for _ in mixers[layer].mechanism.parameters())
        ]
        for layer in self.layers:
            self._check(layer)

    def _check(self, layer: int) -> None:
        ours, theirs = (self.pair.mixers(model)[layer] for model in (self.pair.student, self.pair.teacher))
        if any(stream.kind != "hidden" for stream in ours.mechanism.streams):
            raise Unsupported(
                f"layer {layer}: {ours.mechanism.name} reads projections that the teacher lacks, so it cannot "
                "learn from the teacher's attention; use stage 2 (--stage 2)"
            )
        for name, projection in ours.project.items():
            weight = projection.get_parameter("weight")
            if name not in theirs.project or not torch.equal(weight, theirs.project[name].get_parameter("weight")):
                raise Unsupported(
                    f"layer {layer}: stage 1 starts from the teacher's weights, and the projection {name} differs; "
                    "give the folder as it was swapped, or use stage 2 (--stage 2)"
                )

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is trained, by name."""
        mixers = self.pair.mixers(self.pair.student)
        inside = {id(p) for layer in self.layers for p in mixers[layer].mechanism.parameters()}
        return {name: p for name, p in self.pair.student.named_parameters() if id(p) in inside}

    def groups(self) -> list[dict[str, Any]]:
        """Parameter groups with their highest rates."""
        return [{"params": list(self.parameters().values()), "top": self.options.rate1}]

    def step(self, ids: Tensor, step: int, steps: int) -> float:
        """Adds the gradients of a batch; returns the mean loss of the layers."""
        total = 0.0
        for rows in self._parts(ids):
            heard = self._listen(rows)
            for layer in self.layers:
                mechanism = self.pair.mixers(self.pair.student)[layer].mechanism
                width = None
                if self.options.window_dropout and has_window(mechanism):
                    off = window_off(step, steps)
                    width = draw_width(window_of(mechanism), off, step=step, layer=layer, seed=self.options.seed)
                loss = self.loss(mechanism, layer, heard[layer], width) * (len(rows) / len(ids))
                loss.backward()
                total += float(loss.detach())
        return total / len(self.layers)

    def _parts(self, ids: Tensor) -> tuple[Tensor, ...]:
        """The batch in parts whose weights, (texts, heads, tokens, tokens), are not too many."""
        heads = max(mixer.mechanism.shape.heads for mixer in self.pair.mixers(self.pair.student))
        return torch.split(ids, max(1, PAIRS // (heads * ids.shape[1] ** 2)))

    @torch.no_grad()
    def prepare(self, ids: Tensor) -> None:
        """Gives the keys beyond the window of a hybrid the share that the teacher gives them, on average in each head.

        Untrained features are much alike, so that hundreds of keys beyond the window outweigh it under the common
        normaliser. A head whose share is right loses little and still gets gradients for its features.
        """
        rows = self._parts(ids)[0]
        heard = self._listen(rows)
        for layer in self.layers:
            mechanism: Any = self.pair.mixers(self.pair.student)[layer].mechanism
            if not hasattr(mechanism, "set_far_factor"):
                continue
            theirs, ours = self._weights(mechanism, layer, heard[layer])
            with mechanism.using(parts="window"):
                far = self._weights(mechanism, layer, heard[layer])[1] == 0
            wanted, found = (torch.where(far, weights, 0.0).sum(-1).double() for weights in (theirs, ours))
            odds = found / (1 - found).clamp_min(TINY) / mechanism.far_factor[:, None]
            mechanism.set_far_factor(balance(odds, wanted))

    @torch.no_grad()
    def measure(self, texts: Tensor) -> float:
        """The mean loss of the layers on held-out texts, with their whole windows."""
        total = 0.0
        for row in self._parts(texts):
            heard = self._listen(row)
            for layer in self.layers:
                mechanism = self.pair.mixers(self.pair.student)[layer].mechanism
                total += float(self.loss(mechanism, layer, heard[layer], None)) * len(row)
        return total / len(texts) / len(self.layers)

    def loss(self, mechanism: Attention, layer: int, heard: Heard, width: int | None) -> Tensor:
        """The loss of a layer, with its window narrowed to `width` (0: off) or whole (None)."""
        with with_window(mechanism, width):
            if self.options.loss == "outputs":
                q, k, v, given = self._inputs(mechanism, heard)
                return 1000 * functional.mse_loss(mechanism(q, k, v, **given), heard.out)
            return weights_loss(*self._weights(mechanism, layer, heard))

    def _weights(self, mechanism: Attention, layer: int, heard: Heard) -> tuple[Tensor, Tensor]:
        """The weights of the teacher's attention and of ours."""
        q, k, v, given = self._inputs(mechanism, heard)
        ours = mechanism.oracle(q, k, v, **given)
        teacher = self.pair.mixers(self.pair.teacher)[layer].mechanism
        with torch.no_grad():
            return teacher.oracle(heard.q, heard.k, heard.v, **heard.given), ours

    def _inputs(self, mechanism: Attention, heard: Heard) -> tuple[Tensor, Tensor, Tensor, dict[str, Any]]:
        k, v = heard.k, heard.v
        if not mechanism.supports.grouped:
            k, v = (share_heads(x, mechanism.shape.heads) for x in (k, v))
        return heard.q, k, v, {**heard.given, "streams": {s.name: heard.states for s in mechanism.streams}}

    def finish(self) -> None:
        """Nothing to do: the parameters are the student's own."""

    @torch.no_grad()
    def _listen(self, ids: Tensor) -> dict[int, Heard]:
        heard: dict[int, Heard] = {}
        with self._hooks(heard):
            self.pair.teacher.text_states(ids)  # type: ignore[operator]
        return heard

    @contextmanager
    def _hooks(self, heard: dict[int, Heard]) -> Iterator[None]:
        handles = []
        states: dict[int, Tensor] = {}
        for layer in self.layers:
            mixer = self.pair.mixers(self.pair.teacher)[layer]

            def enter(_: nn.Module, args: tuple[Any, ...], given: dict[str, Any], layer: int = layer) -> None:
                states[layer] = args[0]

            def leave(
                _: nn.Module, args: tuple[Any, ...], given: dict[str, Any], out: Tensor, layer: int = layer
            ) -> None:
                q, k, v = args
                heard[layer] = Heard(q, k, v, given=given, out=out, states=states[layer])

            handles.append(mixer.register_forward_pre_hook(enter, with_kwargs=True))
            handles.append(mixer.mechanism.register_forward_hook(leave, with_kwargs=True))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


def balance(odds: Tensor, wanted: Tensor) -> Tensor:
    """The factor on the `odds` of far keys, for each head, with which their mean share is the mean of `wanted`.

    Both are (texts, heads, rows). The share odds·x/(1 + odds·x) grows with x: bisection of log x.
    """
    low, high = (odds.new_full(odds.shape[1:2], end) for end in (-20.0, 20.0))
    target = wanted.mean((0, 2))
    for _ in range(60):
        middle = (low + high) / 2
        scaled = odds * middle.exp()[:, None]
        more = (scaled / (1 + scaled)).mean((0, 2)) < target
        low, high = torch.where(more, middle, low), torch.where(more, high, middle)
    return ((low + high) / 2).exp()


def weights_loss(theirs: Tensor, ours: Tensor) -> Tensor:
    """The mean over rows of KL(theirs || ours): the cross-entropy less what no student can change, the entropy."""
    own = torch.where(theirs > 0, theirs * theirs.clamp_min(TINY).log(), 0.0)
    return (own - theirs * ours.clamp_min(TINY).log()).sum(-1).mean()


__all__ = ["Heard", "Transfer", "balance", "weights_loss"]
