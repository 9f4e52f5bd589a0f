"""Reversible residual layers: the memory of one layer, whatever the depth (Gomez et al. 2017; Kitaev et al. 2020).

    y1 = x1 + F(x2)        x2 = y2 - G(y1)
    y2 = x2 + G(y1)        x1 = y1 - F(x2)

Only the last y1 and y2 are kept, plus the random state and the decisions of each layer. The backward pass goes down the
stack, computes each layer's inputs from its outputs, and runs F and G again for their gradients. That second run must
repeat the first:

- it draws the same random numbers, and restores the user's generators afterwards;
- it casts as the first run did under autocast;
- it makes the same integer decisions. Its inputs differ from the first ones by rounding, which is harmless unless an
  argmax or a sort depends on it. A module with such a decision wraps it in `remember`:

      buckets = remember(lambda: self.hash(queries))

  and the second run gets the buckets of the first. Elsewhere `remember` just calls its argument.

The `auxiliary_loss` of a module is also computed twice, and the first has no gradient. So the stack collects all of
them and sets their sum, with its gradient, as its own `auxiliary_loss`.

As with any recomputation, F and G must not count their calls (no batch norm) or change their inputs in place.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import get_device_states, set_device_states

from longspan.derivatives import refuse_second
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.precision import autocast_type
from longspan.recompute import Deciding, deciding, remember

Stream = Float[Tensor, "*shape"]
Context = Sequence[Tensor | None]


class _Call:
    """One call of F or G, with everything besides its inputs that is needed to repeat it."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.parameters = {name: p for name, p in module.named_parameters() if p.requires_grad}
        self.decisions: list[Any] = []

    def first(self, stream: Tensor, context: Context = ()) -> Tensor:
        self.kind = stream.device.type
        kinds = [kind for kind in {"cpu", self.kind} if torch.amp.is_autocast_available(kind)]
        self.casts = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in kinds]
        self.random = torch.get_rng_state()
        self.devices, self.device_random = get_device_states(stream)
        _take_losses(self.module)  # drop those of an earlier pass
        with self._around(self._write):
            output: Tensor = self.module(stream, *context)
        self.losses = _take_losses(self.module)
        return output

    def again(
        self,
        gradient: Tensor,
        loss_gradient: Tensor | None,
        totals: dict[int, Tensor],
        stream: Tensor,
        context: Context = (),
    ) -> tuple[Tensor, Tensor]:
        """The output, and the gradient of the stream from the output and the auxiliary losses.

        The gradients of context and parameters are added to `totals`.
        """
        # Aliases, not the parameters themselves: a hook on a parameter must see its gradient only once.
        parameters = {name: _alias(p) for name, p in self.parameters.items()}
        stream = stream.detach().requires_grad_()
        with torch.random.fork_rng(self.devices, device_type=self.kind), torch.enable_grad():
            torch.set_rng_state(self.random)
            set_device_states(self.devices, self.device_random, device_type=self.kind)
            decisions = iter(self.decisions)
            with self._around(lambda compute: _read(decisions)):
                output = functional_call(self.module, parameters, (stream, *context))

        inputs = {id(tensor): tensor for tensor in context if tensor is not None and tensor.requires_grad}
        inputs |= {id(self.parameters[name]): alias for name, alias in parameters.items()}
        outputs, gradients = [output], [gradient.to(output.dtype)]
        for loss in _take_losses(self.module):
            if loss.requires_grad and loss_gradient is not None:
                outputs.append(loss)
                gradients.append(loss_gradient.to(loss.dtype))
        through, *others = torch.autograd.grad(outputs, [stream, *inputs.values()], gradients, materialize_grads=True)
        for key, new in zip(inputs, others):
            totals[key] = totals[key] + new if key in totals else new
        return output.detach(), through

    @contextmanager
    def _around(self, how: Deciding) -> Iterator[None]:
        token = deciding.set(how)
        try:
            with ExitStack() as casts:
                for kind, dtype, enabled in self.casts:
                    # No cache: older torch would reuse a weight cast here, without gradient, where one is wanted
                    # (pytorch#158232).
                    casts.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
                yield
        finally:
            deciding.reset(token)

    def _write(self, compute: Callable[[], Any]) -> Any:
        self.decisions.append(compute())
        return self.decisions[-1]


def _read(decisions: Iterator[Any]) -> Any:
    for decision in decisions:
        return decision
    raise Unsupported("a module called remember more often in its second run than in its first")


def _take_losses(module: nn.Module) -> list[Tensor]:
    losses = []
    for child in module.modules():
        loss = getattr(child, "auxiliary_loss", None)
        if isinstance(loss, Tensor):
            losses.append(loss)
            child.auxiliary_loss = None  # type: ignore[assignment]
    return losses


def _alias(tensor: Tensor) -> Tensor:
    return tensor.detach().requires_grad_(tensor.requires_grad)


class _Reversible(torch.autograd.Function):
    """The whole stack as one autograd step. Parameters are inputs, so that autograd returns their gradients."""

    @staticmethod
    def forward(ctx: Any, stack: "ReversibleStack", contexts: int, x1: Tensor, x2: Tensor, *others: Any) -> Any:
        context, ctx.parameters = others[:contexts], others[contexts:]
        ctx.calls = [(_Call(f), _Call(g)) for f, g in stack._pairs()]
        for f, g in ctx.calls:
            x1 = x1 + f.first(x2, context)
            x2 = x2 + g.first(x1)
        ctx.save_for_backward(x1, x2, *context)
        # Parameters are not saved this way, so that hooks that offload saved activations leave them alone. torch then
        # does not notice in-place changes, so `backward` checks the versions.
        ctx.versions = [p._version for p in ctx.parameters]
        losses = [loss for pair in ctx.calls for call in pair for loss in call.losses]
        return x1, x2, torch.stack(losses).sum() if losses else None

    @staticmethod
    def backward(ctx: Any, d1: Tensor, d2: Tensor, d_loss: Tensor | None) -> Any:
        refuse_second("a reversible stack, which keeps no activations,", "build the model with reversible=False")
        if ctx.versions != [p._version for p in ctx.parameters]:
            raise InvalidInput(
                "parameters of a reversible stack were changed in place between forward and backward; "
                "call backward before the optimiser's step"
            )
        y1, y2, *saved = ctx.saved_tensors
        context = [None if tensor is None else _alias(tensor) for tensor in saved]
        totals: dict[int, Tensor] = {}
        for f, g in reversed(ctx.calls):
            output, through = g.again(d2, d_loss, totals, y1)
            y2, d1 = y2 - output, d1 + through
            output, through = f.again(d1, d_loss, totals, y2, context)
            y1, d2 = y1 - output, d2 + through
        return None, None, d1, d2, *(totals.get(id(tensor)) for tensor in (*context, *ctx.parameters))


class ReversibleStack(nn.Module):
    """Pairs (F, G) of modules, one after the other, with the activation memory of a single pair.

    `context` are further arguments of every F (a mask, an encoder's states); its float tensors get gradients. Under
    autocast both streams are float32: in half precision the rounding errors of the inversion grow with each layer until
    the gradients are noise.
    """

    def __init__(self, blocks: Iterable[tuple[nn.Module, nn.Module]]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleList(pair) for pair in blocks)
        sizes = [len(pair) for pair in self._pairs()]
        if not sizes or set(sizes) != {2}:
            raise InvalidOption(f"expected at least one pair of modules (F, G), got groups of {sizes}")
        self.auxiliary_loss: Tensor | None = None

    def _pairs(self) -> list[Any]:
        return list(self.blocks)

    def forward(self, x1: Stream, x2: Stream, *context: Tensor | None) -> tuple[Stream, Stream]:
        if x1.shape != x2.shape:
            raise InvalidInput(f"expected two streams of one shape, got {tuple(x1.shape)} and {tuple(x2.shape)}")
        if autocast_type(x1.device) is not None:
            x1, x2 = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in (x1, x2))
        parameters = [p for p in self.parameters() if p.requires_grad]
        trained = any(t is not None and t.requires_grad for t in (x1, x2, *context, *parameters))
        self.auxiliary_loss = None
        if trained and torch.is_grad_enabled() and not torch.compiler.is_compiling():
            inputs = (self, len(context), x1, x2, *context, *parameters)
            x1, x2, self.auxiliary_loss = _Reversible.apply(*inputs)  # type: ignore[no-untyped-call, unused-ignore]
            return x1, x2
        for f, g in self._pairs():
            x1 = x1 + f(x2, *context)
            x2 = x2 + g(x1)
        return x1, x2

    def inverse(self, y1: Stream, y2: Stream, *context: Tensor | None) -> tuple[Stream, Stream]:
        """The inputs of these outputs, up to rounding. Only without dropout, that is in evaluation mode."""
        for f, g in reversed(self._pairs()):
            y2 = y2 - g(y1)
            y1 = y1 - f(y2, *context)
        return y1, y2


__all__ = ["ReversibleStack", "remember"]
