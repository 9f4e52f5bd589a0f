"""Quantised linear layers: the stored numbers, torch's kernels against them, and what never reaches a kernel."""

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from longspan.errors import InvalidOption, Unsupported
from longspan.nn import packed_product, quantized
from longspan.nn.quantized import SCHEMES, QuantizedLinear, join, pack4, unpack4

PACKED = ("aten._weight_int4pack_mm_for_cpu", "aten._weight_int8pack_mm")


class Watch(TorchDispatchMode):
    """The dtypes of the inputs of packed kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, torch.dtype]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removesuffix(".default")
        if name in PACKED:
            self.seen.append((name, args[0].dtype))
        return func(*args, **(kwargs or {}))


@pytest.fixture
def torch_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without a C compiler."""
    monkeypatch.setattr(packed_product, "functions", lambda: None)


def weight(outputs: int = 48, inputs: int = 64) -> Tensor:
    return torch.randn(outputs, inputs) * 0.02


def test_a_byte_holds_two_numbers() -> None:
    numbers = torch.randint(0, 16, (3, 8), dtype=torch.uint8)
    packed = pack4(numbers)
    assert packed.shape == (3, 4) and packed[0, 0] == numbers[0, 0] + 16 * numbers[0, 1]
    assert torch.equal(unpack4(packed), numbers)


def test_4_bits_are_the_formula_exactly() -> None:
    layer = QuantizedLinear.of(weight(), None, "4")
    assert layer.scale is not None and layer.zero is not None
    numbers, expected = unpack4(layer.weight), torch.empty(48, 64)
    for column in range(64):
        scale, zero = layer.scale[:, column // 32].float(), layer.zero[:, column // 32].float()
        expected[:, column] = (numbers[:, column].float() - 8) * scale + zero
    assert torch.equal(layer.dequantised(), expected)


@pytest.mark.parametrize("bits", ["8", "dynamic8"])
def test_8_bits_are_the_formula_exactly(bits: str) -> None:
    layer = QuantizedLinear.of(weight(), None, bits)
    assert layer.scale is not None
    assert torch.equal(layer.dequantised(), layer.weight.float() * layer.scale.float()[:, None])


@pytest.mark.parametrize("bits", SCHEMES)
def test_rounding_error_is_at_most_half_a_step(bits: str) -> None:
    source = weight()
    layer = QuantizedLinear.of(source, None, bits)
    error = (layer.dequantised() - source).abs()
    if bits == "bf16":
        assert torch.equal(layer.dequantised(), source.bfloat16().float())
        return
    assert layer.scale is not None
    step = layer.scale.float()
    step = step.repeat_interleave(32, 1) if bits == "4" else step[:, None]
    # The rounded scale may leave the ends of the range up to 15 · 2^-8 steps (8 bits: 127 · 2^-8) outside.
    outside = {"4": 16 * 2**-8, "8": 127 * 2**-8, "dynamic8": 1e-4}[bits]
    assert (error <= step * (0.5 + outside)).all()


@pytest.mark.usefixtures("torch_kernels")
@pytest.mark.parametrize("bits", SCHEMES)
@pytest.mark.parametrize("rows", [1, 5, 200])
def test_product_is_that_of_the_dequantised_weight(bits: str, rows: int) -> None:
    layer, x = QuantizedLinear.of(weight(), torch.randn(48), bits), torch.randn(rows, 64)
    assert layer.bias is not None
    exact = x.double() @ layer.dequantised(torch.float64).T + layer.bias
    bound = (x.abs().double() @ layer.dequantised(torch.float64).T.abs()) * (2**-6 if bits == "dynamic8" else 2**-8)
    out = layer(x)
    assert out.dtype == torch.float32 and out.shape == (rows, 48)
    if bits == "dynamic8":  # inputs in 7 bits: half a step of the range of their row, times the sum of the weights
        half_step = (x.amax(1) - x.amin(1))[:, None] / 126 / 2
        bound = half_step.double() * layer.dequantised(torch.float64).abs().sum(1)[None] * 1.01
    assert ((out - exact).abs() <= bound + 1e-3 * exact.abs().max()).all()


@pytest.mark.usefixtures("torch_kernels")
@pytest.mark.parametrize("bits", ["8", "dynamic8", "bf16"])
@pytest.mark.parametrize("inputs", [8, 40, 50])
def test_any_number_of_inputs(bits: str, inputs: int) -> None:
    """torch's 8-bit kernel reads past the end of rows that are not a multiple of 16: wrong sums, or a crash."""
    layer = QuantizedLinear.of(weight(50, inputs), None, bits)
    x = torch.randn(3, inputs)
    expected = x @ layer.dequantised().T
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=0.02 * float(expected.abs().max()))


@pytest.mark.parametrize("rows", [1, 3])
def test_fine_inputs_have_13_bits(rows: int) -> None:
    layer, x = QuantizedLinear.of(weight(), None, "dynamic8"), torch.randn(rows, 64)
    x[:, 5] *= 40  # leaves the others few steps of 7 bits
    exact = x.double() @ layer.dequantised(torch.float64).T
    error = [float((layer(x) - exact).norm() / exact.norm())]
    layer.fine = True
    layer.reset()
    error.append(float((layer(x) - exact).norm() / exact.norm()))
    assert error[1] < 2e-3 < error[0] < 0.2


def test_a_large_row_costs_the_others_nothing() -> None:
    layer, x = QuantizedLinear.of(weight(), None, "dynamic8"), torch.randn(3, 64)
    alone = layer(x)
    torch.testing.assert_close(layer(torch.cat((x, 1000 * x)))[:3], alone, rtol=0, atol=1e-5)


def test_rows_of_equal_numbers_are_exact() -> None:
    layer = QuantizedLinear.of(weight(), None, "dynamic8")
    x = torch.tensor([0.0, 0.7, -3.0])[:, None].expand(3, 64)
    for fine in (False, True):
        layer.fine = fine
        layer.reset()
        torch.testing.assert_close(layer(x), x @ layer.dequantised().T, rtol=1e-3, atol=1e-5)


def test_any_leading_dimensions() -> None:
    layer, x = QuantizedLinear.of(weight(), None, "4"), torch.randn(2, 3, 64)
    assert torch.equal(layer(x), layer(x.view(6, 64)).view(2, 3, 48))
    assert layer(x[0, 0].double()).dtype == torch.float64


@pytest.mark.usefixtures("torch_kernels")
@pytest.mark.parametrize("bits", ["4", "8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_packed_kernels_never_see_float32(bits: str, dtype: torch.dtype) -> None:
    layer = QuantizedLinear.of(weight(), None, bits)
    with Watch() as watch:
        layer(torch.randn(1, 64, dtype=dtype))
        layer(torch.randn(9, 64, dtype=dtype))
        layer(torch.randn(500, 64, dtype=dtype))  # dequantised: no packed kernel
    assert watch.seen == [(PACKED[bits == "8"], torch.bfloat16)] * 2


@pytest.mark.parametrize("bits", SCHEMES)
def test_without_kernel_the_product_is_plain(bits: str, monkeypatch: pytest.MonkeyPatch, torch_kernels: None) -> None:
    monkeypatch.setitem(quantized._known, bits, False)
    layer, x = QuantizedLinear.of(weight(), None, bits), torch.randn(3, 64)
    assert layer.kernel == "plain product with the dequantised weight"
    torch.testing.assert_close(layer(x), x @ layer.dequantised().T)


@pytest.mark.parametrize("bits", SCHEMES)
def test_joined_layers_are_their_outputs_side_by_side(bits: str) -> None:
    layers = [QuantizedLinear.of(weight(outputs), None, bits) for outputs in (64, 32, 16)]
    x, joined = torch.randn(1, 64), join(layers)
    assert joined is not None and join(layers) is joined
    torch.testing.assert_close(joined(x), torch.cat([layer(x) for layer in layers], -1), rtol=2**-7, atol=1e-3)
    assert torch.equal(joined.dequantised(), torch.cat([layer.dequantised() for layer in layers]))
    assert [name for name, _ in layers[0].named_modules()] == [""]  # the joined form is no sub-module


def test_layers_that_differ_are_not_joined() -> None:
    four, eight = QuantizedLinear.of(weight(), None, "4"), QuantizedLinear.of(weight(), None, "8")
    assert join([four, eight]) is None
    assert join([four, torch.nn.Linear(64, 48)]) is None


def test_casting_a_model_keeps_the_scheme_and_forgets_the_packed_form() -> None:
    layer, x = QuantizedLinear.of(weight(), None, "4"), torch.randn(2, 64)
    before = layer(x)
    layer.double()
    assert layer.scale is not None and layer.scale.dtype == torch.bfloat16 and layer._product is None
    assert torch.equal(layer(x), before) and torch.equal(deepcopy(layer)(x), before)


def test_constant_groups_are_exact() -> None:
    assert torch.equal(
        QuantizedLinear.of(torch.full((16, 32), 0.5), None, "4").dequantised(), torch.full((16, 32), 0.5)
    )
    assert torch.equal(QuantizedLinear.of(torch.zeros(16, 32), None, "8").dequantised(), torch.zeros(16, 32))


def test_errors() -> None:
    with pytest.raises(InvalidOption, match="bits cannot be '5'"):
        QuantizedLinear(32, 16, "5")
    with pytest.raises(InvalidOption, match="group must be one of 32, 64, 128, 256 weights, not 48"):
        QuantizedLinear(48, 16, "4", group=48)
    with pytest.raises(InvalidOption, match="48 inputs are not a multiple of the group of 32"):
        QuantizedLinear.of(weight(16, 48), None, "4")
    with pytest.raises(InvalidOption, match="24 outputs are not a multiple of 16"):
        QuantizedLinear.of(weight(24, 32), None, "4")
    with pytest.raises(Unsupported, match="quantised weights have no gradient"):
        QuantizedLinear.of(weight(), None, "4")(torch.randn(1, 64, requires_grad=True))
