"""Linear layers with lighter weights: 4 or 8 bits with scales, or bfloat16. For inference only.

What is stored is independent of the machine: integers and scales. Where there is a C compiler, a few rows are
multiplied by our own kernel (`nn/packed_product.py`). torch's CPU kernels read a packed form of the weights, made at
the first call. Those for weights alone want bfloat16 inputs: with float32 they fall back to scalar code, tens of times
slower, so inputs are cast around the call. Many rows are faster with a dequantised weight and a plain product.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from longspan.errors import InvalidOption, Unsupported, suggest
from longspan.nn import packed_product
from longspan.precision import bfloat16_runs, has_bfloat16

SCHEMES = ("4", "8", "dynamic8", "bf16")
GROUPS = (32, 64, 128, 256)  # sizes that torch's 4-bit kernel has
ROWS_AT_ONCE = 16  # the 4-bit kernel packs outputs in multiples of this
INPUTS_AT_ONCE = 16  # the 8-bit kernel reads inputs in multiples of this, past the end of other rows
# Up to so many rows the packed product is faster than dequantising first (benchmarks/quantized.py --kernels).
ALL = 2**62
FEW = {"4": 128, "8": 32, "dynamic8": ALL, "bf16": ALL if has_bfloat16() else 4}
FEW_NATIVE = {"4": 32, "8": 32}  # by our own kernel, which has these schemes only


def check_scheme(bits: str, group: int) -> None:
    """Refuses schemes and sizes of groups that do not exist."""
    if bits not in SCHEMES:
        raise InvalidOption(f"bits cannot be {bits!r}: {suggest(bits, SCHEMES)}")
    if group not in GROUPS:
        raise InvalidOption(f"group must be one of {', '.join(map(str, GROUPS))} weights, not {group}")


def unfit(outputs: int, inputs: int, bits: str, group: int) -> str | None:
    """Why a weight of this shape keeps its precision; None if it can be quantised."""
    if bits == "4" and inputs % group:
        return f"{inputs} inputs are not a multiple of the group of {group}"
    if bits == "4" and outputs % ROWS_AT_ONCE:
        return f"{outputs} outputs are not a multiple of {ROWS_AT_ONCE}, as torch's 4-bit kernel needs"
    return None


class QuantizedLinear(nn.Module):
    """x weightᵀ + bias with a weight in one of `SCHEMES`.

    "4": unsigned integers q of 4 bits, two in a byte, value (q - 8) · scale + zero for each group of inputs. "8" and
    "dynamic8": signed integers, value q · scale for each output; "dynamic8" also rounds the inputs at each call, to 7
    bits of the range of their row or, if the layer is `fine`, to 13 bits. "bf16": the weight in bfloat16. Scales and
    zeros of "4" and "8" are bfloat16, as the kernels read them.
    """

    weight: Tensor
    scale: Tensor | None
    zero: Tensor | None
    bias: Tensor | None

    def __init__(self, inputs: int, outputs: int, bits: str, *, group: int = 32, bias: bool = False) -> None:
        super().__init__()
        check_scheme(bits, group)
        reason = unfit(outputs, inputs, bits, group)
        if reason is not None:
            raise InvalidOption(f"this layer cannot be quantised: {reason}")
        self.in_features, self.out_features, self.bits, self.group = inputs, outputs, bits, group
        half, scale, zero = torch.bfloat16, None, None
        if bits == "4":
            weight = torch.zeros(outputs, inputs // 2, dtype=torch.uint8)
            scale, zero = (torch.zeros(outputs, inputs // group, dtype=half) for _ in range(2))
        elif bits == "bf16":
            weight = torch.zeros(outputs, inputs, dtype=half)
        else:
            weight = torch.zeros(outputs, inputs, dtype=torch.int8)
            scale = torch.zeros(outputs, dtype=half if bits == "8" else torch.float32)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale)
        self.register_buffer("zero", zero)
        self.register_buffer("bias", torch.zeros(outputs, dtype=torch.float32) if bias else None)
        self.fine = False
        self._product: Callable[[Tensor], Tensor] | None = None
        self._joined: QuantizedLinear | None = None

    @classmethod
    @torch.no_grad()
    def of(cls, weight: Tensor, bias: Tensor | None, bits: str, *, group: int = 32) -> "QuantizedLinear":
        """The quantised form of a weight (outputs, inputs) and its bias."""
        outputs, inputs = weight.shape
        layer = cls(inputs, outputs, bits, group=group, bias=bias is not None)
        if bias is not None:
            assert layer.bias is not None
            layer.bias.copy_(bias)
        weight = weight.detach().to("cpu", torch.float32)
        if bits == "bf16":
            layer.weight = weight.to(torch.bfloat16)
        elif bits == "4":
            _fill4(layer, weight)
        else:
            assert layer.scale is not None
            largest = weight.abs().amax(1)
            layer.scale.copy_(torch.where(largest > 0, largest / 127, torch.ones_like(largest)))
            layer.weight = _rounded(weight / layer.scale.float()[:, None], -127, 127).to(torch.int8)
        return layer

    def forward(self, x: Tensor) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise Unsupported("quantised weights have no gradient: train the model first and quantise it afterwards")
        flat = x.reshape(-1, self.in_features)
        rows = flat.shape[0]
        native = self.bits in FEW_NATIVE and packed_product.runs()
        many = packed_product.recording() or rows > (FEW_NATIVE if native else FEW)[self.bits]
        if many or not x.is_cpu:  # a graph of torch's operators is for any number of rows
            out = functional.linear(flat, self.dequantised(x.dtype))
        else:
            if self._product is None:
                self._product = self._own() if native else self._pack()
            out = self._product(flat)
        if self.bias is not None:
            out = out + self.bias
        return out.view(*x.shape[:-1], self.out_features).to(x.dtype)

    def dequantised(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The weight as plain numbers (outputs, inputs), computed in float32."""
        if self.bits == "4":
            assert self.scale is not None and self.zero is not None
            numbers = unpack4(self.weight).view(self.out_features, -1, self.group).float()
            numbers = numbers.sub_(8).mul_(self.scale.float()[..., None]).add_(self.zero.float()[..., None])
            return numbers.view(self.out_features, self.in_features).to(dtype)
        if self.bits == "bf16":
            return self.weight.to(dtype)
        assert self.scale is not None
        return self.weight.float().mul_(self.scale.float()[:, None]).to(dtype)

    @property
    def kernel(self) -> str:
        """What computes the product of a few rows."""
        if self.bits in FEW_NATIVE and packed_product.runs():
            return packed_product.NAME
        return KERNELS[self.bits] if _runs(self.bits) else "plain product with the dequantised weight"

    def _own(self) -> Callable[[Tensor], Tensor]:
        """The product of a few rows by our own kernel."""
        assert self.scale is not None
        if self.bits == "8":
            return packed_product.product8(self.weight, self.scale)
        assert self.zero is not None
        return packed_product.product4(self.weight, self.scale, self.zero, self.group)

    def _pack(self) -> Callable[[Tensor], Tensor]:
        """The product of a few rows, by torch's kernel or, if this build has none, with the dequantised weight."""
        if not _runs(self.bits):
            weight = self.dequantised()
            return lambda x: functional.linear(x.float(), weight)
        return _packed(self)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> "QuantizedLinear":
        """Moves the weight to another device; its precision stays."""
        self._product = self._joined = None
        for name, tensor in self._buffers.items():
            if tensor is not None:
                self._buffers[name] = tensor.to(fn(tensor).device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_product": None, "_joined": None}  # packed again after a copy

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._product = self._joined = None
        super()._load_from_state_dict(*args, **kwargs)  # type: ignore[no-untyped-call, unused-ignore]

    def reset(self) -> None:
        """Forgets the packed form, after the weight was changed in place."""
        self._product = self._joined = None

    def extra_repr(self) -> str:
        group = f", group={self.group}" if self.bits == "4" else ""
        return f"{self.in_features}, {self.out_features}, bits={self.bits!r}{group}, bias={self.bias is not None}"


@torch.no_grad()
def join(layers: Sequence[nn.Module]) -> QuantizedLinear | None:
    """One layer for several of one scheme with a common input: their outputs side by side. None if they differ.

    The first layer keeps it, so that it is packed once.
    """
    if any(type(layer) is not QuantizedLinear or layer._forward_hooks or layer._forward_pre_hooks for layer in layers):
        return None
    alike: list[QuantizedLinear] = [layer for layer in layers if isinstance(layer, QuantizedLinear)]
    first = alike[0]
    if first._joined is not None:
        return first._joined
    if len({(layer.bits, layer.group, layer.in_features, layer.bias is None, layer.fine) for layer in alike}) > 1:
        return None
    outputs = sum(layer.out_features for layer in alike)
    with torch.inference_mode(False):
        whole = QuantizedLinear(first.in_features, outputs, first.bits, group=first.group, bias=first.bias is not None)
        whole.fine = first.fine
        for name, tensor in first._buffers.items():
            if tensor is not None:
                whole._buffers[name] = torch.cat([layer._buffers[name] for layer in alike])  # type: ignore[misc]
    object.__setattr__(first, "_joined", whole)  # not a sub-module: its numbers are saved already
    return whole


# 4 bits


def _rounded(x: Tensor, low: int, high: int) -> Tensor:
    return x.round().clamp_(low, high)


def _fill4(layer: QuantizedLinear, weight: Tensor) -> None:
    """Least and largest value of a group become 0 and 15; integers are chosen for the rounded scale and zero."""
    assert layer.scale is not None and layer.zero is not None
    groups = weight.view(len(weight), -1, layer.group)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = (high - low) / 15
    layer.scale.copy_(torch.where(scale > 0, scale, torch.ones_like(scale)))
    layer.zero.copy_(low + 8 * torch.where(scale > 0, scale, torch.zeros_like(scale)))
    numbers = (groups - layer.zero.float()[..., None]) / layer.scale.float()[..., None] + 8
    layer.weight = pack4(_rounded(numbers, 0, 15).to(torch.uint8).view(weight.shape))


def pack4(numbers: Tensor) -> Tensor:
    """Two integers 0..15 in a byte, the first of each pair in its lower half."""
    return numbers[:, 0::2] | numbers[:, 1::2] << 4


def unpack4(packed: Tensor) -> Tensor:
    """The inverse of `pack4`."""
    return torch.stack((packed & 15, packed >> 4), -1).view(len(packed), -1)


# Kernels

KERNELS = {
    "4": "aten::_weight_int4pack_mm_for_cpu",
    "8": "aten::_weight_int8pack_mm",
    "dynamic8": "quantized::linear_dynamic",
    "bf16": "bfloat16 product",
}
_known: dict[str, bool] = {}


def _packed(layer: QuantizedLinear) -> Callable[[Tensor], Tensor]:
    """The product of bfloat16 rows (dynamic8: float32 rows) by torch's kernel."""
    aten, half, group = torch.ops.aten, torch.bfloat16, layer.group
    weight = layer.weight
    if layer.bits == "bf16":
        return lambda x: functional.linear(x.to(half), weight)
    assert layer.scale is not None
    if layer.bits == "4":
        assert layer.zero is not None
        packed = aten._convert_weight_to_int4pack_for_cpu(unpack4(weight).int(), 1)
        scales = torch.stack((layer.scale, layer.zero), -1).transpose(0, 1).contiguous()
        return lambda x: aten._weight_int4pack_mm_for_cpu(x.to(half), packed, group, scales)
    scale = layer.scale
    if layer.bits == "8":
        missing = -layer.in_features % INPUTS_AT_ONCE
        if not missing:
            return lambda x: aten._weight_int8pack_mm(x.to(half), weight, scale)
        weight = functional.pad(weight, (0, missing))
        return lambda x: aten._weight_int8pack_mm(functional.pad(x.to(half), (0, missing)), weight, scale)
    zeros = torch.zeros(layer.out_features, dtype=torch.long)
    with warnings.catch_warnings():  # deprecated in torch 2.13; a build without it takes the plain product
        warnings.simplefilter("ignore", UserWarning)
        tensor = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
        prepacked = torch.ops.quantized.linear_prepack(tensor, None)
    if layer.fine:
        return partial(_fine, prepacked)
    return partial(_coarse, prepacked, layer.dequantised().sum(1))


# Inputs have 7 bits, as without VNNI the kernel's sums of 8-bit products overflow: integers 64 - 63 to 64 + 63.
STEPS, MIDDLE = 63, 64
TINY = 1e-20  # a row of equal numbers has no range


def _coarse(prepacked: Any, sums: Tensor, x: Tensor) -> Tensor:
    """Inputs in 7 bits of the range of their row; `sums` are those of the weights of each output.

    The kernel takes one range for a call, and a row with large numbers would leave the others few steps: rows are
    shifted and scaled to one range before it. A single row needs no help.
    """
    x = x.float()
    if len(x) == 1:
        return cast(Tensor, torch.ops.quantized.linear_dynamic(x, prepacked, True))
    low, high = x.aminmax(dim=-1, keepdim=True)
    step = ((high - low) / (2 * STEPS)).clamp_min_(TINY)
    # A whole number of steps, so that 0 stays 0: most inputs of a feed-forward layer's second product are near it.
    centre = ((low + high) / (2 * step)).round_().mul_(step)
    return torch.addcmul(centre * sums, _by_steps((x - centre) / step, prepacked), step)


def _fine(prepacked: Any, x: Tensor) -> Tensor:
    """Inputs in two parts of 7 bits: each row as whole steps, and below it what they leave, 2 · STEPS times as large.

    The kernel reads the weights once for both; for one row of inputs it takes no longer than for one part.
    """
    x = x.float()
    step = torch.linalg.vector_norm(x, inf, -1, keepdim=True).clamp_min_(TINY).div_(STEPS)
    whole = x / step
    rest = whole.round().sub_(whole).mul_(-2 * STEPS)
    first, second = _by_steps(torch.cat((whole, rest)), prepacked).chunk(2)
    return first.add_(second, alpha=1 / (2 * STEPS)).mul_(step)


def _by_steps(x: Tensor, prepacked: Any) -> Tensor:
    """The product of inputs that are rounded to integers -STEPS to STEPS."""
    product = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    return cast(Tensor, product(x, 1.0, MIDDLE, prepacked))


@torch.no_grad()
def _runs(bits: str) -> bool:
    """Whether this build of torch has the kernel; it is tried once."""
    if bits not in _known:
        try:
            trial = QuantizedLinear.of(torch.eye(32), None, bits)
            survives = bits != "bf16" or bfloat16_runs()
            _known[bits] = survives and bool(_packed(trial)(torch.ones(2, 32)).isfinite().all())
        except (AttributeError, RuntimeError, NotImplementedError):
            _known[bits] = False
    return _known[bits]


__all__ = ["GROUPS", "SCHEMES", "QuantizedLinear", "check_scheme", "join", "pack4", "unfit", "unpack4"]
